"""Values of the inventory's Jinja templates, as Ansible works them out, for the variables that clusterctl reads."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.inventory import ansible_call
from clusterctl.model import job_login, nodeset
from clusterctl.model.hosts import InventorySources
from clusterctl.state import files, paths
from clusterctl.support.errors import ConfigError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from clusterctl.model.hosts import AnyInventory, InventoryOptions


# In the order in which Ansible prefers them; it does not know the last one.
SUDO_PASSWORDS = ("ansible_sudo_pass", "ansible_become_pass", "ansible_become_password", "ansible_sudo_password")
_READ = (
    "ansible_host",
    "ansible_ssh_host",
    "ansible_port",
    "ansible_ssh_port",
    "ansible_user",
    "ansible_ssh_user",
    "ansible_connection",
    "ansible_ssh_private_key_file",
    "ansible_private_key_file",
    "ansible_ssh_args",
    "ansible_ssh_common_args",
    "ansible_ssh_executable",
    "ansible_ssh_extra_args",
    "ansible_python_interpreter",
    "ansible_become",
    "ansible_become_exe",
    "ansible_become_flags",
    "ansible_become_method",
    "ansible_become_user",
    "ansible_host_key_checking",
    "ansible_ssh_host_key_checking",
    "ansible_sudo_user",
    "cluster_address",
    "cluster_cache",
    "cluster_cache_signers",
    "cluster_port",
    "cluster_prefix",
    "fabric_cidr",
    "fabric_interfaces",
    "nccl_align",
    "slots",
    job_login.CLUSTER_USER,
    job_login.KEYS,
    job_login.MESH_USER,
)
_PROGRAM = "clusterctl.inventory.template_program"
MARK = "clusterctl-values "  # what the line with the answer begins with
_TEMPLATE = re.compile(r"\{\{|\{%")
# A template with one of these may have another value next time, though the inventory is the same.
_CHANGING = re.compile(r"\b(lookup|query|q|now|random|shuffle|strftime|hash|password_hash)\b")
_MOST_NAMED = 3


def templated(hostvars: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return by host the variables that clusterctl reads and that hold a template."""
    names = (*_READ, *SUDO_PASSWORDS)
    found = {
        host: [name for name in names if _TEMPLATE.search(str(variables.get(name, "")))]
        for host, variables in hostvars.items()
    }
    return {host: wanted for host, wanted in found.items() if wanted}


def resolved(
    sources: InventorySources,
    options: InventoryOptions,
    hostvars: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Return the variables of all hosts with the values of those templates that clusterctl reads.

    Raises:
        ConfigError: a template has no value; the message names the host and the variable.
    """
    wanted = templated(hostvars)
    if not wanted:
        return {host: dict(variables) for host, variables in hostvars.items()}
    command = [sys.executable, "-m", _PROGRAM, *ansible_call.arguments(sources, options)]
    keeps = options.is_plain and not any(map(_CHANGING.search, _templates(hostvars)))
    key = cache_key(sources, command, ansible_call.environment()) if keeps else ""
    answer = recall(key) or _asked(sources, command, options, wanted)
    refused = [one for one in answer["failed"] if one[1] not in SUDO_PASSWORDS]
    if refused:
        raise ConfigError(
            f"In {sources}, {_refused_words(refused)}; define what the template names, or write the value itself."
        )
    keep(key, answer)
    return {
        host: {name: value for name, value in variables.items() if name not in wanted.get(host, ())}
        | answer["values"].get(host, {})
        for host, variables in hostvars.items()
    }


def _refused_words(refused: Iterable[Sequence[str]]) -> str:
    """Return one clause for each variable and cause, with its hosts."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for host, name, why in refused:
        hosts.setdefault((name, why.rstrip(".")), []).append(host)
    words = (f"{name} of {nodeset.folded(its)} has no value: {why}" for (name, why), its in hosts.items())
    return and_more(words, _MOST_NAMED, "; ")


def _asked(
    sources: InventorySources, command: list[str], options: InventoryOptions, wanted: Mapping[str, list[str]]
) -> dict[str, Any]:
    done = ansible_call.call(command, options, json.dumps(wanted))
    line = next((line for line in reversed(done.stdout.splitlines()) if line.startswith(MARK)), "")
    if not line:
        said = " ".join(done.stderr.split())[-400:] or f"the program ended with {done.returncode}"
        raise ConfigError(f"The templates of the inventory {sources} cannot be worked out: {said}.")
    found: dict[str, Any] = json.loads(line.removeprefix(MARK))
    return found


def _templates(value: Any) -> Iterator[str]:
    """Yield all texts with a template, at any depth."""
    if isinstance(value, str):
        if _TEMPLATE.search(value):
            yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _templates(inner)


# --- Cache of ansible-inventory output, valid until any of its inputs changes -----------------------------------------
#
# Asking it takes half a second, as long as looking at every node. It is asked again whenever what it says could depend
# on something that is not looked at here: a script, a folder, a plugin, a vault, a settings file that names any of
# these. What holds something like a password is not kept.

_PLAIN = frozenset({"", ".ini", ".yml", ".yaml"})
_BESIDE = ("group_vars", "host_vars")
_MOST_FILES = 500
_MOST_BYTES = 1 << 20
_MOST_KEPT = 32
_FOREIGN = (b"$ANSIBLE_VAULT", b"!vault", b"plugin:", b"plugin :")
_FOREIGN_SETTINGS = (b"plugin", b"vault", b"[inventory", b"playbook_dir")
_FOREIGN_VARIABLES = ("VAULT", "PLUGIN", "INVENTORY", "PLAYBOOK_DIR")
_SECRET = ("pass", "secret", "token", "credential", "vault")


def cache_key(given: AnyInventory, command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return what changes with anything that ansible-inventory reads, empty where that cannot be told."""
    own = {name: value for name, value in environment.items() if name.startswith("ANSIBLE_") or name == "HOME"}
    asked = [name for name in own if any(word in name for word in _FOREIGN_VARIABLES)]
    if any(name != "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FATAL" for name in asked):
        return ""
    if any("@" in word or word.startswith("--vault") for word in command[1:] if not word.startswith("--inventory=")):
        return ""
    places = InventorySources.of(given).paths
    if any(not path.is_file() or path.suffix not in _PLAIN or os.access(path, os.X_OK) for path in places):
        return ""
    total = hashlib.sha256(json.dumps([list(command), own, str(Path.cwd()), ansible_call.stamp(command[0])]).encode())
    try:
        for place, foreign in (
            *((file, _FOREIGN) for path in places for file in _files(path)),
            *((file, _FOREIGN_SETTINGS) for file in settings_files(environment)),
        ):
            data = place.read_bytes()
            if any(word in data for word in foreign):
                return ""
            total.update(f"{place}\0{len(data)}\0".encode())
            total.update(data)
    except (OSError, ValueError):
        return ""
    return total.hexdigest()


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


def settings_files(environment: Mapping[str, str]) -> Iterator[Path]:
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
