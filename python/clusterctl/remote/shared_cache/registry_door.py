"""The one door between the library oras and the network: who gets a login, and how much of an answer is read."""

from __future__ import annotations

import re
from typing import Any, Protocol
from urllib.parse import urlsplit

from clusterctl.model.shared_cache import LARGEST_INDEX
from clusterctl.remote.shared_cache.http import LOOPBACK
from clusterctl.support.errors import ConfigError, UnreachableError

TIMEOUT_S = 30.0  # without a byte
_PORTS = {"http": 80, "https": 443}
_BLOCK = 1 << 16
_REALM = re.compile(r'\brealm="([^"]+)"', re.IGNORECASE)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

_Origin = tuple[str, str, int]


class Door(Protocol):
    """An adapter of the library requests, for every scheme and server."""

    def is_own(self, url: str) -> bool:
        """Whether an address is of the registry: the same scheme, host and port."""

    def allow_realm(self, header: str) -> None:
        """Let the password go to the token server that the registry names in ``Www-Authenticate``."""


def door(requests: Any, registry: str) -> Door:
    """Return the door of a registry.

    A login goes to the registry alone; the password also to the token server that it names, as its protocol wants, and
    never with less encryption than the registry has. Other servers, to which it may lead, get no login.

    Args:
        requests: the library.
        registry: the registry's scheme, host and port.
    """
    own = _origin(registry)

    class RegistryDoor(requests.adapters.HTTPAdapter):  # type: ignore[misc] # known at run time alone
        def __init__(self) -> None:
            self._realms: set[_Origin | None] = set()
            super().__init__()

        def is_own(self, url: str) -> bool:
            return _origin(url) == own

        def allow_realm(self, header: str) -> None:
            for realm in _REALM.findall(header):
                # the library reads a realm without a scheme so
                self._realms.add(_origin(realm if realm.startswith("http") else f"{(own or ('https',))[0]}://{realm}"))

        def send(
            self,
            request: Any,
            stream: bool = False,
            timeout: Any = None,
            **options: Any,
        ) -> Any:
            self._guard(request)
            answer = super().send(request, stream=True, timeout=timeout or TIMEOUT_S, **_direct(request.url, options))
            answer.raw.headers.pop("Content-Encoding", None)  # nothing is unpacked: the hash is of what was sent
            if answer.status_code in _REDIRECTS:
                _end(answer, b"")
            elif not stream:
                _end(answer, _bounded(answer))
            return answer

        def _guard(self, request: Any) -> None:
            """Take the login out of a request that it does not belong to."""
            there = _origin(request.url)
            sent = str(request.headers.get("Authorization", ""))
            if not sent or there == own or (there in self._realms and sent.startswith("Basic ")):
                _refuse_clear_text(sent, request.url, registry)
            else:
                del request.headers["Authorization"]

    return RegistryDoor()


def _direct(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a request without a proxy for this machine: a login may go there in clear text."""
    return {**options, "proxies": {}} if urlsplit(url).hostname in LOOPBACK else options


def host_of(url: str) -> str:
    """Return host and port of an address, without what may be a password; a sentence may show it."""
    return urlsplit(url).netloc.rpartition("@")[2][:100]


def _origin(url: str) -> _Origin | None:
    """Return scheme, host and port; None where the address has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None


def _refuse_clear_text(sent: str, url: str, registry: str) -> None:
    parts = urlsplit(url)
    if not sent.startswith("Basic ") or parts.scheme == "https":
        return
    if parts.hostname not in LOOPBACK or registry.startswith("https://"):
        raise ConfigError(
            f"The registry sends the login to {parts.hostname} in clear text; use one whose login has TLS."
        )


def _bounded(answer: Any) -> bytes:
    """Return the body of an answer.

    Raises:
        UnreachableError: it is longer than any that is read whole.
    """
    data = bytearray()
    while len(data) <= LARGEST_INDEX:
        block = answer.raw.read(_BLOCK, decode_content=False)
        if not block:
            return bytes(data)
        data += block
    _end(answer, b"")
    raise UnreachableError(f"{host_of(answer.url)} answers with more than {LARGEST_INDEX} bytes; look at that server.")


def _end(answer: Any, body: bytes) -> None:
    """Give an answer its body, so that the library reads no more of it."""
    answer._content, answer._content_consumed = body, True  # noqa: SLF001 - as the library does it
    answer.raw.close()
