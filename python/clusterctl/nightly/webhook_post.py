"""Program that POSTs the record on standard input to the webhook, and prints the outcome as one line of JSON.

It imports the standard library alone. It runs in its own process, which the caller ends at the deadline: a name server,
or a peer that sends a byte a minute, outlasts every timeout of a socket. The address comes in the environment, where
other users cannot see it, and the outcome leaves it out.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

ADDRESS = "CLUSTERCTL_HOOK_URL"
TIMEOUT = "CLUSTERCTL_HOOK_TIMEOUT_S"
_CLIENT_ERRORS = range(300, 500)
_LATER = (408, 425, 429)  # timeout, too early, too many: worth another try


class _Nowhere(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: urllib would make a GET of the POST, and carry the address's secrets elsewhere."""

    def redirect_request(self, *_arguments: Any, **_named: Any) -> None:
        """Refuse."""


def main() -> None:
    """Send the standard input."""
    ok, final, words = _send(os.environ[ADDRESS], sys.stdin.buffer.read(), float(os.environ[TIMEOUT]))
    sys.stdout.write(json.dumps({"ok": ok, "final": final, "words": words}) + "\n")


def _send(address: str, body: bytes, timeout_s: float) -> tuple[bool, bool, str]:
    """Return whether it was accepted, whether another try is useless, and the outcome in words."""
    parts = urllib.parse.urlsplit(address)
    headers = {"Content-Type": "application/json", "User-Agent": "clusterctl"}
    if parts.username is not None:
        login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
    try:
        request = urllib.request.Request(plain, data=body, headers=headers, method="POST")  # noqa: S310 - http or https
        with urllib.request.build_opener(_Nowhere).open(request, timeout=timeout_s) as answer:
            return True, True, f"answered {answer.status}"
    except urllib.error.HTTPError as error:
        moved = ", a redirect, which is not followed; give the final address" if error.code in range(300, 400) else ""
        return False, error.code in _CLIENT_ERRORS and error.code not in _LATER, f"answered {error.code}{moved}"
    except urllib.error.URLError as error:
        return False, False, _reason(error.reason)
    except (OSError, http.client.HTTPException) as error:
        return False, isinstance(error, http.client.InvalidURL), _reason(error)


def _reason(error: object) -> str:
    """Return the reason without the address, which the texts of some exceptions hold."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it did not answer in time" if isinstance(error, TimeoutError) else type(error).__name__


if __name__ == "__main__":
    main()
