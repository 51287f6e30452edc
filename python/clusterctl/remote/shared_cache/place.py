"""The place of a shared cache: a path, http(s)://, s3:// or oci://, and the store behind it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from clusterctl.remote.shared_cache.store import SharedStore

_SCHEMES = "a folder, http://…, https://…, s3://BUCKET/PREFIX, oci://REGISTRY/NAME or oci+http://REGISTRY/NAME"


def opened(where: str, within_s: float | None = None) -> SharedStore:
    """Return the store at a place; nothing is asked over the network yet, except how a registry wants a login.

    Args:
        where: the place.
        within_s: the time for all its answers together but contents, in seconds; None sets none.

    Raises:
        ConfigError: the place is not one, or a library for it is missing.
        UnreachableError: a registry does not answer.
    """
    from clusterctl.remote.shared_cache.patience import PatientStore  # noqa: PLC0415 - one kind is used

    return PatientStore(where, lambda: _store(where), within_s)


def _store(where: str) -> SharedStore:
    if "://" not in where:
        from clusterctl.remote.shared_cache.folder import FolderStore  # noqa: PLC0415 - one kind is used

        return FolderStore(Path(where).expanduser())
    refuse(where)
    scheme, _, rest = where.partition("://")
    if scheme == "file":
        from clusterctl.remote.shared_cache.folder import FolderStore  # noqa: PLC0415 - the same

        return FolderStore(Path(rest))
    if scheme in {"http", "https"}:
        from clusterctl.remote.shared_cache.http import HttpStore  # noqa: PLC0415 - the same

        return HttpStore(where)
    if scheme == "s3":
        from clusterctl.remote.shared_cache.s3 import S3Store  # noqa: PLC0415 - the same

        return S3Store(where)
    from clusterctl.remote.shared_cache.oci import OciStore  # noqa: PLC0415 - the same

    return OciStore(where)


def refuse(where: str) -> None:
    """Refuse what is not the place of a shared cache.

    Raises:
        ConfigError: the scheme is unknown, or the address carries a password.
    """
    if "://" not in where:
        return
    scheme, _, rest = where.partition("://")
    if scheme not in {"file", "http", "https", "s3", "oci", "oci+http"} or not rest.strip("/"):
        raise ConfigError(f"'{scheme}://' is not the beginning of a shared cache's address; give {_SCHEMES}.")
    try:
        parts = urlsplit(where)
        has_login = parts.username is not None or bool(parts.query)
    except ValueError:
        raise ConfigError(f"'{scheme}://…' is not a readable address; give {_SCHEMES}.") from None
    if has_login:
        raise ConfigError(
            "The address of the shared cache carries a user, a password or a query, and records would show it; set"
            " CLUSTERCTL_CACHE_USER and CLUSTERCTL_CACHE_PASSWORD in the environment instead."
        )
