"""Read any inventory that Ansible accepts into frozen hosts, and refuse invalid host names and users."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.inventory import cache
from clusterctl.model.hosts import Host, Inventory, InventoryOptions
from clusterctl.support import content
from clusterctl.support.errors import ConfigError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterator

# RFC 1123 names and addresses; a zone index or a bracket has no place in an inventory name.
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
_ADDRESS = re.compile(r"[A-Za-z0-9:](?:[A-Za-z0-9.:_%-]{0,252})")
_USER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\$?")
_MAX_PORT = 65535
_MOST_NAMED = 8
_CONNECTION_VARIABLES = (
    "ansible_host",
    "ansible_port",
    "ansible_user",
    "ansible_connection",
    "ansible_ssh_private_key_file",
    "ansible_private_key_file",
    "ansible_ssh_common_args",
    "ansible_ssh_extra_args",
    "ansible_python_interpreter",
    "ansible_become",
    "ansible_become_user",
)
_UNPARSED = "Unable to parse"
_COMPLAINT = re.compile(r"Failed to parse (?:inventory|\S+) with '(?P<plugin>[\w.]+)' plugin: (?P<why>.+)")


def ansible_program(name: str) -> str:
    """Return the ansible program of that name that belongs to the running interpreter, else the one on PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.is_file() else name


def load(path: Path, options: InventoryOptions | None = None, *, remembered: bool = False) -> Inventory:
    """Read an inventory (INI, YAML, directory or dynamic script).

    Args:
        path: the inventory.
        options: what changes its meaning.
        remembered: be content with what ansible-inventory said before, as long as nothing that it read is another.

    Raises:
        ConfigError: it does not exist, is empty, cannot be parsed, names an invalid host, or the limit selects no host.
    """
    options = options or InventoryOptions()
    if not path.exists():
        raise ConfigError(f"The inventory {path} does not exist; 'clusterctl init {path}' writes a commented example.")
    everything = _listing(path, options, limit=None, remembered=remembered)
    hostvars: dict[str, dict[str, Any]] = everything.get("_meta", {}).get("hostvars", {})
    names = _host_names(everything)
    if not names:
        raise ConfigError(
            f"The inventory {path} names no host; add one line per machine under a group such as [nodes]."
        )
    hosts = tuple(_host(path, name, hostvars.get(name, {}), options) for name in names)
    selected = names
    if options.limit is not None:
        selected = _host_names(_listing(path, options, limit=options.limit, remembered=remembered))
        if not selected:
            shown = and_more(names, _MOST_NAMED)
            raise ConfigError(f"The limit '{options.limit}' matches no host of {path}; its hosts are: {shown}.")
    canonical = json.dumps(everything, sort_keys=True, default=str)
    return Inventory(
        path=path.resolve(),
        hosts=hosts,
        selected=tuple(selected),
        digest=hashlib.sha256(canonical.encode()).hexdigest(),
    )


def _listing(path: Path, options: InventoryOptions, limit: str | None, *, remembered: bool) -> dict[str, Any]:
    command = [ansible_program("ansible-inventory"), f"--inventory={path.absolute()}", "--list"]
    command += [f"--extra-vars={value}" for value in options.extra_vars]
    command += [f"--vault-password-file={value}" for value in options.vault_password_files]
    command += [f"--limit={limit}"] if limit is not None else []
    environment = {
        **os.environ,
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FATAL": "true",
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_COLLECTIONS_PATH": str(content.collections_path()),
        "ANSIBLE_NOCOLOR": "true",
        "ANSIBLE_DEPRECATION_WARNINGS": "false",
    }
    key = cache.key(path, command, environment) if remembered and not options.vault_ids else ""
    known = cache.recall(key)
    if known is not None:
        return known
    with _vault_arguments(options) as (arguments, descriptors):
        try:
            done = subprocess.run(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=environment,
                check=False,
                pass_fds=descriptors,
            )
        except FileNotFoundError:
            raise ConfigError("ansible-inventory is not installed; 'pip install clusterctl' brings it.") from None
    if done.returncode != 0 or _UNPARSED in done.stderr:  # unparsed sources are a mere warning to ansible-inventory
        raise ConfigError(_parse_failure(path, limit, done.stderr))
    try:
        listing = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise ConfigError(
            f"ansible-inventory gave no JSON for {path}; run '{shlex.join(command)}' to see why."
        ) from None
    if not isinstance(listing, dict):
        raise ConfigError(f"The inventory {path} is not a mapping of groups.")
    cache.keep(key, listing)
    return listing


@contextlib.contextmanager
def _vault_arguments(options: InventoryOptions) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the vault ids, each password that the user typed behind a pipe: it is on no disk and in no argument."""
    arguments: list[str] = []
    descriptors: list[int] = []
    try:
        for value in options.vault_ids:
            label = value.rpartition("@")[0] or "default"
            if value.rpartition("@")[2].startswith("prompt") and label in options.vault_passwords:
                reading, writing = os.pipe()
                descriptors.append(reading)
                os.write(writing, options.vault_passwords[label].encode())
                os.close(writing)
                arguments.append(f"--vault-id={label}@/dev/fd/{reading}")
            else:
                arguments.append(f"--vault-id={value}")
        yield arguments, descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _parse_failure(path: Path, limit: str | None, stderr: str) -> str:
    """Make one sentence of ansible-inventory's complaint."""
    lines = [
        re.sub(r"^(\[(ERROR|WARNING)\]:?|ERROR!)\s*", "", line).strip() for line in stderr.splitlines() if line.strip()
    ]
    text = " ".join(lines)
    if limit is not None and ("does not match any hosts" in text or "hosts and/or --limit" in text):
        return f"The limit '{limit}' matches no host of {path}; 'ansible-inventory -i {path} --graph' shows them."
    if "vault" in text.lower() and (
        "secret" in text.lower() or "decrypt" in text.lower() or "password" in text.lower()
    ):
        return (
            f"{path} holds or needs vault secrets that cannot be opened ({lines[0][:200]}); "
            "give --vault-password-file or --vault-id."
        )
    if path.is_file() and not path.read_bytes().strip():
        return f"The inventory {path} is empty; 'clusterctl init --force {path}' writes a commented example."
    found = {match["plugin"].rpartition(".")[2]: match["why"] for line in lines if (match := _COMPLAINT.match(line))}
    by_name = {".yml": "yaml", ".yaml": "yaml", ".json": "yaml", ".ini": "ini"}
    likely = by_name.get(path.suffix, "ini")
    cause = found.get(likely) or next(iter(found.values()), "") or next((line for line in lines if ":" in line), text)
    cause = re.sub(r"^(YAML parsing failed|Failed to parse inventory):\s*", "", cause).rstrip(".")
    if "values to unpack" in cause:  # how Ansible 2.19 puts a section header without its closing bracket
        cause = "a section header lacks its closing ']'"
    return f"The inventory {path} cannot be parsed: {cause[:400] or 'ansible-inventory gave no reason'}."


def _host_names(listing: dict[str, Any]) -> list[str]:
    """Return every host once, in the order in which the groups name them, without an implicit localhost."""
    seen: dict[str, None] = {}

    def walk(group: str, guard: frozenset[str]) -> None:
        if group in guard:
            return
        body = listing.get(group, {})
        if not isinstance(body, dict):
            return
        for child in body.get("children", []):
            walk(child, guard | {group})
        for name in body.get("hosts", []):
            seen.setdefault(str(name))

    walk("all", frozenset())
    for name in listing.get("_meta", {}).get("hostvars", {}):
        seen.setdefault(str(name))
    return list(seen)


def _host(path: Path, name: str, variables: dict[str, Any], options: InventoryOptions) -> Host:
    if not _HOST_NAME.fullmatch(name):
        raise ConfigError(
            f"The inventory {path} has a host named {name!r}, which is not a valid host name; use letters, digits, "
            "'.', '-' and '_' only, beginning with a letter or digit.",
        )
    address = str(variables.get("ansible_host", name))
    templated = any("{{" in str(variables.get(key, "")) for key in _CONNECTION_VARIABLES)
    given = variables
    if templated:  # only Ansible can work these out; what is left is enough to name the host
        variables = {key: value for key, value in given.items() if "{{" not in str(value)}
        address = str(variables.get("ansible_host", name))
    if not _ADDRESS.fullmatch(address):
        raise ConfigError(f"In {path}, ansible_host of {name} is {address!r}, which is neither a name nor an address.")
    user = options.user or variables.get("ansible_user") or variables.get("ansible_ssh_user")
    if user is not None and not _USER_NAME.fullmatch(str(user)):
        raise ConfigError(f"In {path}, ansible_user of {name} is {str(user)!r}, which is not a valid user name.")
    key = (
        options.private_key
        or variables.get("ansible_ssh_private_key_file")
        or variables.get("ansible_private_key_file")
    )
    passwords = (
        "ansible_password",
        "ansible_ssh_pass",
        "ansible_ssh_password",
        "ansible_become_password",
        "ansible_become_pass",
    )
    return Host(
        name=name,
        address=address,
        port=_port(path, name, variables),
        user=None if user is None else str(user),
        connection=str(variables.get("ansible_connection", "ssh")),
        private_key=None if key is None else str(Path(str(key)).expanduser()),
        ssh_args=_ssh_args(path, name, variables),
        python=str(variables.get("ansible_python_interpreter", "/usr/bin/python3")),
        become=options.become or _truth(variables.get("ansible_become", False)),
        become_user=str(variables.get("ansible_become_user", "root")),
        has_secret_login=any(word in variables for word in passwords),
        is_templated=templated,
        slots=_slots(path, name, variables),
        variables=given,
    )


def _port(path: Path, name: str, variables: dict[str, Any]) -> int:
    given = variables.get("ansible_port", variables.get("ansible_ssh_port", 22))
    try:
        port = int(given)
    except (TypeError, ValueError):
        port = 0
    if not 0 < port <= _MAX_PORT:
        raise ConfigError(f"In {path}, ansible_port of {name} is {given!r}; a port is a number from 1 to {_MAX_PORT}.")
    return port


def _slots(path: Path, name: str, variables: dict[str, Any]) -> int | None:
    if "slots" not in variables:
        return None
    given = variables["slots"]
    try:
        slots = int(given)
    except (TypeError, ValueError):
        slots = 0
    if slots < 1:
        raise ConfigError(
            f"In {path}, slots of {name} is {given!r}; it is the number of ranks the node takes, 1 or more."
        )
    return slots


def _ssh_args(path: Path, name: str, variables: dict[str, Any]) -> tuple[str, ...]:
    tokens: list[str] = []
    for key in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
        try:
            tokens += shlex.split(str(variables.get(key, "")))
        except ValueError:
            raise ConfigError(f"In {path}, {key} of {name} has an unbalanced quote.") from None
    return tuple(tokens)


def _truth(value: object) -> bool:
    return str(value).strip().lower() in {"1", "true", "yes", "on", "y", "t"}
