"""The host key of a host: which key its sshd shows now, and in which file this machine's ssh keeps it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.model import host_keys
from clusterctl.remote import python, reach, ssh_failure
from clusterctl.state import files
from clusterctl.support import content, held_files
from clusterctl.support.errors import ConfigError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from clusterctl.model.host_keys import HostKey
    from clusterctl.model.hosts import Host


_TIMEOUT_S = 30.0
_SSH_FAILED = 255
_NOWHERE = ("none", "/dev/null")
_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521", "rsa-sha2-512,rsa-sha2-256")


@dataclass(frozen=True)
class KnownPlace:
    """Where ssh keeps the key of a host: the user's file, and the names of the host in it, the looked-up name first."""

    path: Path
    names: tuple[str, ...]


def known_place(host: Host) -> KnownPlace | None:
    """Ask ssh itself where it keeps the key of a host, with the inventory's arguments and the user's configuration.

    Returns:
        The place, None where ssh keeps no keys.

    Raises:
        ConfigError: ssh refuses its configuration.
    """
    done = _run(["ssh", "-G", *reach.arguments(host)[1:]])
    if done.returncode != 0:
        raise ConfigError(f"ssh refuses its settings for {host.name}: {ssh_failure.shortened(_text(done.errors))}.")
    pairs = (line.partition(" ") for line in _text(done.output).split("\n"))
    settings = {name: value for name, _, value in pairs}
    paths = [word for word in settings.get("userknownhostsfile", "").split() if word not in _NOWHERE]
    if not paths:
        return None
    port = int(settings.get("port", host.port))
    name = settings.get("hostname", host.address)
    alias = settings.get("hostkeyalias", "")
    found = [host_keys.place(word, port) for word in (name, host.address, host.name)]
    return KnownPlace(Path(paths[0]).expanduser(), tuple(dict.fromkeys([alias, *found] if alias else found)))


def shown_key(host: Host, wanted: Collection[str] = ()) -> HostKey:
    """Return the key that the host's sshd shows now, over the way that ssh takes; nothing trusts it yet.

    ``wanted`` are fingerprints of which one is expected. A key of another type is asked for where the first is none.

    Raises:
        UnreachableError: the host does not answer.
    """
    first = _shown(host, "")
    if not wanted or first.fingerprint in wanted:
        return first
    for types in _TYPES:
        try:
            key = _shown(host, types)
        except UnreachableError:
            continue  # it has no key of this type
        if key.fingerprint in wanted:
            return key
    return first


def _shown(host: Host, types: str) -> HostKey:
    with held_files.folder() as folder:
        place = folder / "known_hosts"
        options = {
            "StrictHostKeyChecking": "no",  # into this file alone; the login itself is never tried
            "UserKnownHostsFile": str(place),
            "GlobalKnownHostsFile": "/dev/null",
            "HashKnownHosts": "no",
            "CheckHostIP": "no",
            "UpdateHostKeys": "no",
            "ControlPath": "none",
            "PreferredAuthentications": "none",
            **({"HostKeyAlgorithms": types} if types else {}),
        }
        given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        done = _run(["ssh", *given, *reach.arguments(host)[1:], "true"])
        key = host_keys.found_in(place.read_text(encoding="utf-8")) if place.is_file() else None
    if key is None:
        raise UnreachableError(ssh_failure.classify(host, _SSH_FAILED, _text(done.errors)).message)
    return key


def _run(argv: list[str]) -> python.Done:
    """Run ssh; a server that lets everybody in could print without end."""
    try:
        return python.run(argv, b"", _TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return python.Done(_SSH_FAILED, b"", f"Connection timed out after {_TIMEOUT_S:.0f} s".encode())
    except python.TooMuchOutputError as error:
        return python.Done(_SSH_FAILED, b"", str(error).encode())


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# --- The controller's own known_hosts: read and replace the keys of one host, in one step -----------------------------


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
