"""A shared cache in an OCI registry, through the library oras: one tag for each entry, the layout of ORAS artifacts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from clusterctl.model.shared_cache import LARGEST_ENVELOPE, EntryName, Statement, is_sha256
from clusterctl.remote.shared_cache import registry_door
from clusterctl.remote.shared_cache.http import LOOPBACK, login
from clusterctl.remote.shared_cache.store import (
    CERTIFICATE,
    MOST_NAMES,
    PASSWORD,
    USER,
    not_there,
    refused_login,
    untrusted,
)
from clusterctl.support import held_files
from clusterctl.support.errors import ClusterctlError, ConfigError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

ARTIFACT = "application/vnd.clusterctl.artifact.v1"
ENVELOPE = "application/vnd.clusterctl.statement.v1+json"
CONTENT = "application/vnd.clusterctl.content.v1"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_EMPTY = b"{}"
_MOST_PAGES = 1000
_MOST_REDIRECTS = 10
_CHUNK = 1 << 20
_UPLOAD_CHUNK = 32 << 20  # what is larger goes up in parts, so that it is never whole in memory
_GOOD = frozenset({200, 201, 202})
_NOT_FOUND, _UNSUPPORTED = 404, 405
_DENIED = frozenset({401, 403})
_LIBRARY_ERRORS = (ValueError, LookupError, TypeError, AttributeError, RuntimeError)  # what oras raises
_PLUS = ".plus."  # a tag has no '+'
_CURE = f"set {USER} and {PASSWORD} in the environment, or log in with 'docker login'"


class OciStore:
    """One repository of a registry."""

    def __init__(self, url: str) -> None:
        """Use ``oci://REGISTRY/NAME``, or ``oci+http://`` for a registry without TLS.

        Raises:
            ConfigError: the library is missing, or the address names no repository.
            UnreachableError: the registry does not answer.
        """
        try:
            import oras.auth  # noqa: PLC0415 - an extra
            import oras.logger  # noqa: PLC0415 - the same
            import requests  # noqa: PLC0415 - comes with oras
        except ImportError:
            raise ConfigError("oci:// needs the library oras; install clusterctl[cache].") from None
        self.where = url.rstrip("/")
        oras.logger.setup_logger(quiet=True)  # it would print what the registry says
        self._requests = requests
        self._login_error: type[Exception] = oras.auth.AuthenticationException
        scheme, _, rest = self.where.partition("://")
        self._host, _, self._repository = rest.partition("/")
        if not self._repository:
            raise ConfigError(f"{self.where} names no repository; write {scheme}://REGISTRY/NAME.")
        self._encrypted = scheme == "oci"
        self._registry = self._connected()

    def names(self) -> list[EntryName]:
        """See :class:`SharedStore`."""
        found: list[EntryName] = []
        with self._asked():
            url = f"{self._base}/tags/list"
            seen: set[str] = set()
            while url:
                if url in seen or len(seen) == _MOST_PAGES or len(found) > MOST_NAMES:
                    raise UnreachableError(f"The list of {self.where} has no end; look at the log of that registry.")
                seen.add(url)
                answer = self._registry.do_request(url, "GET", headers=dict(self._registry.headers))
                if answer.status_code == _NOT_FOUND:
                    break
                self._refuse(answer)
                for tag in self._object(answer, "tags"):
                    kind, _, name = str(tag).partition("-")
                    with contextlib.suppress(ValueError):
                        found.append(EntryName.parse(f"{kind}/{name.replace(_PLUS, '+')}"))
                following = answer.links.get("next", {}).get("url", "")
                url = self._own(urljoin(url, following)) if following else ""
        return sorted(found)

    def envelope(self, name: EntryName) -> bytes | None:
        """See :class:`SharedStore`."""
        manifest = self._manifest(name)
        if manifest is None:
            return None
        layer = _layer(manifest, ENVELOPE)
        if layer is None or layer["size"] > LARGEST_ENVELOPE:
            raise UnreachableError(f"{self.where}:{_tag(name)} is not an entry of a shared cache; remove that tag.")
        data = b"".join(self._blob(str(layer["digest"]), int(layer["size"])))
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != layer["digest"]:
            raise UnreachableError(
                f"{self.where} sent {name.name} damaged or in part; run the same command again. If that says the same,"
                " have its site push it again with --replace."
            )
        return data

    def content(self, statement: Statement) -> Iterator[bytes]:
        """See :class:`SharedStore`."""
        digest = f"sha256:{statement.sha256}"
        with self._asked():
            answer = self._registry.get_blob(self._container, digest, head=True)
            if answer.status_code == _NOT_FOUND:
                raise not_there(self.where, statement)
            self._refuse(answer)
        yield from self._blob(digest, statement.size)

    def has_content(self, statement: Statement) -> bool:
        """See :class:`SharedStore`."""
        with self._asked():
            answer = self._registry.get_blob(self._container, f"sha256:{statement.sha256}", head=True)
            if answer.status_code == _NOT_FOUND:
                return False
            self._refuse(answer)
            return str(answer.headers.get("Content-Length")) == str(statement.size)

    def put(self, statement: Statement, content: Path, envelope: bytes, *, replace: bool) -> bool:
        """See :class:`SharedStore`; the manifest, which a registry takes in one step, makes the entry visible."""
        if not replace and self._manifest(statement.entry) is not None:
            return False
        with held_files.folder() as folder:
            layers = [self._upload(content, CONTENT, statement.sha256, statement.size, statement.entry.name)]
            for kind, data in ((ENVELOPE, envelope), (ARTIFACT, _EMPTY)):
                part = folder / hashlib.sha256(data).hexdigest()
                part.write_bytes(data)
                layers.append(self._upload(part, kind, part.name, len(data), "statement.json"))
        config = {**layers.pop(), "annotations": {}}
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "artifactType": ARTIFACT,
            "config": {**config, "mediaType": ARTIFACT},
            "layers": layers,
            "annotations": {"org.opencontainers.image.title": statement.entry.name},
        }
        with self._asked():
            self._refuse(self._registry.upload_manifest(manifest, self._container_of(statement.entry)))
        return True

    def finish(self) -> None:
        """See :class:`SharedStore`; a registry lists its tags by itself."""

    def remove(self, name: EntryName) -> None:
        """See :class:`SharedStore`."""
        with self._asked():
            answer = self._registry.do_request(
                f"{self._base}/manifests/{_tag(name)}", "HEAD", headers={**self._registry.headers, "Accept": _MANIFEST}
            )
            if answer.status_code == _NOT_FOUND:
                return
            self._refuse(answer)
            digest = answer.headers.get("Docker-Content-Digest", "")
            done = self._registry.do_request(
                f"{self._base}/manifests/{digest}", "DELETE", headers=dict(self._registry.headers)
            )
            if done.status_code == _UNSUPPORTED:
                raise ConfigError(
                    f"{self.where} removes nothing, because deleting is switched off in that registry; switch it on"
                    " there, or remove the tags with the registry's own tools."
                )
            self._refuse(done)

    def sweep(self, _wanted: AbstractSet[str], _before: float) -> int:
        """See :class:`SharedStore`; the registry's own garbage collection removes contents."""
        return 0

    def written(self, _name: EntryName) -> float | None:
        """See :class:`SharedStore`; a registry does not tell."""
        return None

    # --- the library --------------------------------------------------------------------------------------------------

    @property
    def _base(self) -> str:
        return f"{self._registry.prefix}://{self._host}/v2/{self._repository}"

    @property
    def _container(self) -> Any:
        return self._registry.get_container(f"{self._host}/{self._repository}:latest")

    def _container_of(self, name: EntryName) -> Any:
        return self._registry.get_container(f"{self._host}/{self._repository}:{_tag(name)}")

    def _connected(self) -> Any:
        """Return the registry, with the way to log in that it asks for."""
        from oras.provider import Registry  # noqa: PLC0415 - an extra

        prefix = "https" if self._encrypted else "http"
        bare = self._host.rpartition(":")[0] or self._host
        found = login(bare, encrypted=self._encrypted)
        requests, trusted = self._requests, _authorities()
        self._door = registry_door.door(requests, f"{prefix}://{self._host}")
        try:
            with requests.Session() as session:
                self._mount(session)
                with session.get(f"{prefix}://{self._host}/v2/", stream=True, verify=trusted) as answer:
                    wants = answer.headers.get("Www-Authenticate", "").lower()
        except (requests.RequestException, ValueError) as error:
            raise self._silent(error) from None
        backend = "basic" if wants.startswith("basic") else "token"
        registry = Registry(self._host, insecure=not self._encrypted, tls_verify=trusted, auth_backend=backend)
        # the library would try five times within two minutes, also where a login is refused
        once = Registry.do_request.__wrapped__.__get__(registry)
        registry.do_request = once if backend == "basic" else _with_tokens(once, registry)
        self._mount(registry.session)
        registry.auth.authenticate_request = self._only_here(registry.auth.authenticate_request)
        if found is not None:
            registry.auth.set_basic_auth(*found)
        elif self._encrypted or bare in LOOPBACK:
            own = os.environ.get("REGISTRY_AUTH_FILE", "")  # of podman
            with self._asked():
                registry.auth.load_configs(registry.get_container(f"{self._host}/x"), [own] if own else None)
        password = getattr(registry.auth, "_basic_auth", None)
        if backend == "basic" and password:
            # the library would first send each part of an upload without it, and a registry then ends the connection
            registry.session.headers["Authorization"] = f"Basic {password}"
        return registry

    def _mount(self, session: Any) -> None:
        session.max_redirects = _MOST_REDIRECTS
        session.headers["Accept-Encoding"] = "identity"
        for scheme in ("http://", "https://"):
            session.mount(scheme, self._door)

    def _only_here(self, log_in: Callable[..., Any]) -> Callable[..., Any]:
        """Log in where the registry itself asks for it; it may name a token server, and nobody else may."""

        def request(original: Any, *arguments: Any, **options: Any) -> Any:
            if not self._door.is_own(original.url):
                raise UnreachableError(
                    f"{self.where} leads to {registry_door.host_of(original.url)}, which answered"
                    f" {original.status_code}; look at the log of that registry."
                )
            self._door.allow_realm(str(original.headers.get("Www-Authenticate", "")))
            return log_in(original, *arguments, **options)

        return request

    def _own(self, url: str) -> str:
        """Return an address of the registry.

        Raises:
            UnreachableError: it is of another server.
        """
        if self._door.is_own(url):
            return url
        raise UnreachableError(
            f"The list of {self.where} goes on at another server ({registry_door.host_of(url)}), which is not asked;"
            " look at the log of that registry."
        )

    def _object(self, answer: Any, key: str) -> list[Any]:
        """Return a list of an answer in JSON; empty where it has none.

        Raises:
            UnreachableError: the answer is something else.
        """
        try:
            found = answer.json()
        except (ValueError, RecursionError):
            found = None
        items = (found.get(key) or []) if isinstance(found, dict) else None
        if not isinstance(items, list):
            raise UnreachableError(f"{self.where} did not answer as a registry does; check the address.")
        return items

    def _manifest(self, name: EntryName) -> dict[str, Any] | None:
        with self._asked():
            answer = self._registry.do_request(
                f"{self._base}/manifests/{_tag(name)}", "GET", headers={**self._registry.headers, "Accept": _MANIFEST}
            )
            if answer.status_code == _NOT_FOUND:
                return None
            self._refuse(answer)
            return {"layers": self._object(answer, "layers")}

    def _blob(self, digest: str, size: int) -> Iterator[bytes]:
        """Return a blob in parts; where the line breaks, the reader sees what is missing."""
        requests, seen = self._requests, 0
        with self._asked():
            answer = self._registry.get_blob(self._container, digest, stream=True)
            self._refuse(answer)
        with contextlib.suppress(requests.RequestException, OSError), answer:
            for chunk in answer.iter_content(_CHUNK):
                yield chunk
                seen += len(chunk)
                if seen > size:
                    return

    def _upload(self, path: Path, media_type: str, sha256: str, size: int, title: str) -> dict[str, Any]:
        layer = {
            "mediaType": media_type,
            "digest": f"sha256:{sha256}",
            "size": size,
            "annotations": {"org.opencontainers.image.title": title},
        }
        with self._asked():
            done = self._registry.upload_blob(
                str(path), self._container, layer, do_chunked=size > _UPLOAD_CHUNK, chunk_size=_UPLOAD_CHUNK
            )
            self._refuse(done)
        return layer

    def _refuse(self, answer: Any) -> None:
        """Raise our error where the registry refused a request."""
        if answer.status_code in _DENIED:
            raise refused_login(self.where, str(answer.status_code), _CURE)
        if answer.status_code not in _GOOD:
            raise UnreachableError(f"{self.where} answered {answer.status_code}; look at the log of that registry.")

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """Turn the library's errors into ours; none of them shows an address with a token."""
        try:
            yield
        except ClusterctlError:
            raise
        except (self._requests.RequestException, OSError) as error:
            raise self._silent(error) from None
        except (*_LIBRARY_ERRORS, self._login_error) as error:
            refused = isinstance(error, self._login_error | AttributeError) or "authentication" in str(error).lower()
            if refused:  # without a password, the library's way to log in lacks an attribute
                raise refused_login(self.where, "401", _CURE) from None
            words = type(error).__name__
            raise UnreachableError(f"{self.where} could not be used ({words}); look at its log.") from None

    def _silent(self, error: BaseException) -> UnreachableError:
        if CERTIFICATE in str(error):
            return untrusted(self.where)
        words = "no answer in time" if isinstance(error, self._requests.Timeout) else type(error).__name__
        return UnreachableError(f"{self.where} cannot be reached ({words}); check the address and the network.")


def _authorities() -> str | bool:
    """Return the certificates that this machine trusts, as other programs use them; the library has its own list."""
    if not os.environ.get("SSL_CERT_FILE") and (
        os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    ):
        return True  # the library reads these
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return paths.cafile
    return paths.capath if paths.capath and any(Path(paths.capath).iterdir()) else True


def _with_tokens(once: Callable[..., Any], registry: Any) -> Callable[..., Any]:
    """Ask for a new token where a registry refuses the one at hand: it may be for reading alone, or too old."""

    def request(*arguments: Any, **options: Any) -> Any:
        answer = once(*arguments, **options)
        if answer.status_code not in _DENIED:
            return answer
        registry.auth.token = None
        if options.get("headers"):
            options["headers"] = {k: v for k, v in options["headers"].items() if k != "Authorization"}
        return once(*arguments, **options)

    return request


def _tag(name: EntryName) -> str:
    return f"{name.kind}-{name.name.replace('+', _PLUS)}"


def _layer(manifest: dict[str, Any], media_type: str) -> dict[str, Any] | None:
    """Return a layer of a manifest, None where it has none that is well-formed."""
    for layer in manifest.get("layers") or []:
        if isinstance(layer, dict) and layer.get("mediaType") == media_type:
            digest, size = str(layer.get("digest", "")), layer.get("size")
            if is_sha256(digest.removeprefix("sha256:")) and type(size) is int:
                return layer
    return None
