"""The controller's own known_hosts: read and replace the keys of one host, in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model import host_keys
from clusterctl.state import files
from clusterctl.support import content
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.model.host_keys import HostKey
    from clusterctl.remote.host_key import KnownPlace


def keys_in(place: KnownPlace) -> tuple[HostKey, ...]:
    """Return the keys that this machine has for the host.

    Raises:
        ConfigError: the file cannot be read.
    """
    return host_keys.known_keys(_text_of(place), place.names)


def keep(place: KnownPlace, keys: Sequence[HostKey]) -> None:
    """Put keys of a host in the place of the known ones; the lines of other hosts stay.

    Raises:
        ConfigError: the file cannot be written, or a name or a key would leave its line.
    """
    rules = content.module_util("config_line")
    words = [
        *((name, "a name") for name in place.names),
        *((word, "a key") for key in keys for word in (key.type, key.blob)),
    ]
    for word, what in words:
        try:
            rules.checked(word, f"{place.path}: {what}", refused=" ,\"'")
        except rules.LineError as error:
            raise ConfigError(f"{error}.") from None
    path = place.path.resolve()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if path.exists() else files.PRIVATE
        text = host_keys.with_keys(_text_of(place), place.names, keys)
        files.write_atomically(path, text, mode=mode, errors="surrogateescape")
    except OSError as error:
        raise ConfigError(f"The host keys in {place.path} cannot be written: {error.strerror}.") from None


def _text_of(place: KnownPlace) -> str:
    try:
        return place.path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(f"The host keys in {place.path} cannot be read: {error.strerror}.") from None
