# SPDX-License-Identifier: Apache-2.0
"""Run the probe as a program: read a request, print the record as one line of JSON."""

from __future__ import annotations

import json
import sys

from .login_session import SHOWN_VARIABLES
from .record import collect


def main(arguments: list[str]) -> int:
    """Print the record of this node, and return 0.

    Args:
        arguments: the request as JSON, or else PATH and LD_LIBRARY_PATH of the session that called sudo. Without a
            request among them, the request is on stdin.
    """
    if arguments and arguments[0].startswith("{"):
        request = json.loads(arguments[0])
    else:
        request = json.loads(sys.stdin.buffer.read().decode("utf-8") or "{}")
        if arguments:
            pairs = zip(SHOWN_VARIABLES, arguments)  # noqa: B905 - strict= came with Python 3.10
            request["session"] = {name: value for name, value in pairs if value}
    sys.stdout.write(json.dumps(collect(request), separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
