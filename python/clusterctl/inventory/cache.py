"""Cache of ansible-inventory output, valid until any of its inputs changes.

Asking it takes half a second, as long as looking at every node. It is asked again whenever what it says could depend
on something that is not looked at here: a script, a folder, a plugin, a vault, a settings file that names any of these.
What holds something like a password is not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.model.hosts import InventorySources
from clusterctl.state import files, paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clusterctl.model.hosts import AnyInventory

_PLAIN = frozenset({"", ".ini", ".yml", ".yaml"})
_BESIDE = ("group_vars", "host_vars")
_MOST_FILES = 500
_MOST_BYTES = 1 << 20
_MOST_KEPT = 32
_FOREIGN = (b"$ANSIBLE_VAULT", b"!vault", b"plugin:", b"plugin :")
_FOREIGN_SETTINGS = (b"plugin", b"vault", b"[inventory", b"playbook_dir")
_FOREIGN_VARIABLES = ("VAULT", "PLUGIN", "INVENTORY", "PLAYBOOK_DIR")
_SECRET = ("pass", "secret", "token", "credential", "vault")


def key(given: AnyInventory, command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return what changes with anything that ansible-inventory reads, empty where that cannot be told.

    Args:
        given: the inventory.
        command: the whole argv.
        environment: in which it would be run.
    """
    own = {name: value for name, value in environment.items() if name.startswith("ANSIBLE_") or name == "HOME"}
    asked = [name for name in own if any(word in name for word in _FOREIGN_VARIABLES)]
    if any(name != "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FATAL" for name in asked):
        return ""
    if any("@" in word or word.startswith("--vault") for word in command[1:] if not word.startswith("--inventory=")):
        return ""
    places = InventorySources.of(given).paths
    if any(not path.is_file() or path.suffix not in _PLAIN or os.access(path, os.X_OK) for path in places):
        return ""
    total = hashlib.sha256(json.dumps([list(command), own, str(Path.cwd()), _program(command[0])]).encode())
    try:
        for place, foreign in (
            *((file, _FOREIGN) for path in places for file in _files(path)),
            *((file, _FOREIGN_SETTINGS) for file in _settings(environment)),
        ):
            data = place.read_bytes()
            if any(word in data for word in foreign):
                return ""
            total.update(f"{place}\0{len(data)}\0".encode())
            total.update(data)
    except (OSError, ValueError):
        return ""
    return total.hexdigest()


def _program(program: str) -> list[int]:
    found = Path(program)
    return [found.stat().st_mtime_ns, found.stat().st_size] if found.is_file() else []


def _files(path: Path) -> Iterator[Path]:
    """Yield the inventory and the files of variables beside it.

    Raises:
        ValueError: there are too many.
    """
    yield path
    count = size = 0
    for folder in _BESIDE:
        for file in sorted((path.absolute().parent / folder).rglob("*")):
            if not file.is_file():
                continue
            count, size = count + 1, size + file.stat().st_size
            if count > _MOST_FILES or size > _MOST_BYTES:
                raise ValueError(folder)
            yield file


def _settings(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield every settings file that Ansible might take, whichever it does."""
    given = environment.get("ANSIBLE_CONFIG")
    places = [*([Path(given), Path(given) / "ansible.cfg"] if given else []), Path.cwd() / "ansible.cfg"]
    for place in (*places, Path.home() / ".ansible.cfg", Path("/etc/ansible/ansible.cfg")):
        if place.is_file():
            yield place


def recall(known: str) -> dict[str, Any] | None:
    """Return what is kept under a key."""
    if not known:
        return None
    with contextlib.suppress(OSError, ValueError):
        listing = json.loads((paths.listings_dir() / f"{known}.json").read_bytes())
        return listing if isinstance(listing, dict) else None
    return None


def keep(known: str, listing: Mapping[str, Any]) -> None:
    """Keep a listing, readable by this user alone; the oldest go."""
    if not known or _has_secrets(listing):
        return
    with contextlib.suppress(OSError):  # it is only faster with it
        folder = paths.ensure_private(paths.listings_dir())
        files.write_atomically(folder / f"{known}.json", json.dumps(listing))
        kept = sorted(folder.iterdir(), key=lambda one: one.stat().st_mtime_ns, reverse=True)
        for old in kept[_MOST_KEPT:]:
            old.unlink()


def _has_secrets(value: Any) -> bool:
    if isinstance(value, dict):
        return any(
            any(word in str(name).lower() for word in _SECRET) or _has_secrets(inner) for name, inner in value.items()
        )
    return isinstance(value, list) and any(_has_secrets(inner) for inner in value)
