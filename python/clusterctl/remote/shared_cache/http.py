"""A shared cache on any web server over the folder of a push, to read."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import socket
import ssl
import urllib.error
import urllib.request
import urllib.response
from collections.abc import Iterator
from typing import IO, Any
from urllib.parse import quote, urljoin, urlsplit

from clusterctl.model.shared_cache import (
    INDEX,
    LARGEST_ENVELOPE,
    LARGEST_INDEX,
    EntryName,
    Statement,
    blob_path,
    index_names,
)
from clusterctl.remote.shared_cache.store import SharedStore, not_there, refused_login
from clusterctl.support.errors import ConfigError, UnreachableError

USER, PASSWORD = "CLUSTERCTL_CACHE_USER", "CLUSTERCTL_CACHE_PASSWORD"
_TIMEOUT_S = 30.0  # without a byte
_CHUNK = 1 << 20
_DENIED = frozenset({401, 403, 407})
_NOT_FOUND = frozenset({404, 410})
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to web servers; the body of a redirect may have no end, and is not read."""

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage
    ) -> urllib.response.addinfourl | None:
        fp.close()
        if urlsplit(urljoin(req.full_url, headers.get("Location", headers.get("URI", "")))).scheme not in {
            "http",
            "https",
        }:
            return None
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class Proxies(urllib.request.ProxyHandler):
    """Uses the proxies of the environment, but for this machine: a login may go there in clear text."""

    def proxy_open(self, req: urllib.request.Request, proxy: str, type: str) -> Any:  # noqa: A002 - of the library
        return None if urlsplit(req.full_url).hostname in LOOPBACK else super().proxy_open(req, proxy, type)


class HttpStore(SharedStore):
    """The files of a folder store below an address."""

    def __init__(self, url: str) -> None:
        """Use an address, with http:// or https:// and without a password.

        Raises:
            ConfigError: a password would go out in clear text.
        """
        self.where = url.rstrip("/")
        parts = urlsplit(url)
        user, password = os.environ.get(USER, ""), os.environ.get(PASSWORD, "")
        if (user or password) and parts.scheme != "https" and parts.hostname not in LOOPBACK:
            raise ConfigError(
                f"{USER} and {PASSWORD} would reach {parts.hostname} in clear text; use an address with TLS, or unset"
                " them."
            )
        self._login = base64.b64encode(f"{user}:{password}".encode()).decode() if user or password else ""

    def names(self) -> list[EntryName]:
        """See :class:`SharedStore`."""
        data = self._read(INDEX, LARGEST_INDEX)
        if data is None:
            raise ConfigError(
                f"{self.where} has no {INDEX}, so it is not a shared cache; correct the address, or push to the folder"
                " that this server serves."
            )
        try:
            return index_names(data)
        except ValueError as error:
            raise ConfigError(f"{self.where}/{INDEX} is not an index of a shared cache ({error}).") from None

    def envelope(self, name: EntryName) -> bytes | None:
        """See :class:`SharedStore`."""
        return self._read(name.path, LARGEST_ENVELOPE)

    def content(self, statement: Statement) -> Iterator[bytes]:
        """See :class:`SharedStore`."""
        with self._opened(blob_path(statement.sha256)) as answer:
            if answer is None:
                raise not_there(self.where, statement)
            with contextlib.suppress(OSError, http.client.HTTPException):  # the reader sees what is missing
                while chunk := answer.read(_CHUNK):
                    yield chunk

    def has_content(self, statement: Statement) -> bool:
        """See :class:`SharedStore`."""
        with self._opened(blob_path(statement.sha256), "HEAD") as answer:
            return answer is not None and answer.headers.get("Content-Length") == str(statement.size)

    def _read(self, path: str, most: int) -> bytes | None:
        with self._opened(path) as answer:
            if answer is None:
                return None
            try:
                data: bytes = answer.read(most + 1)
            except (OSError, http.client.HTTPException) as error:
                raise self._silent(error) from None
        if len(data) > most:
            raise UnreachableError(f"{self.where}/{path} has more than {most} bytes; this is not a shared cache.")
        return data

    @contextlib.contextmanager
    def _opened(self, path: str, method: str = "GET") -> Iterator[http.client.HTTPResponse | None]:
        request = urllib.request.Request(f"{self.where}/{quote(path)}", method=method)  # noqa: S310 - http and https alone
        if self._login:
            request.add_unredirected_header("Authorization", f"Basic {self._login}")  # another server does not get it
        try:
            answer = urllib.request.build_opener(_Redirects, Proxies).open(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in _NOT_FOUND:
                yield None
                return
            if error.code in _DENIED:
                cure = f"set {USER} and {PASSWORD} in the environment"
                raise refused_login(self.where, str(error.code), cure) from None
            raise UnreachableError(f"{self.where} answered {error.code} for {path}; look at that server.") from None
        except (OSError, ValueError, http.client.HTTPException) as error:  # a host name may be none
            raise self._silent(error) from None
        with answer:
            yield answer

    def _silent(self, error: BaseException) -> UnreachableError:
        cause = getattr(error, "reason", error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return UnreachableError(
                f"{self.where} cannot be used, because its certificate is not trusted; name the file of its authority"
                " in SSL_CERT_FILE."
            )
        words = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        if isinstance(cause, socket.timeout | TimeoutError):
            words = f"no byte for {_TIMEOUT_S:g} s"
        return UnreachableError(f"{self.where} cannot be reached ({words}); check the address and the network.")
