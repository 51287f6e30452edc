"""Read any inventory that Ansible accepts into frozen hosts, and refuse invalid host names and users."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.inventory import ansible_call, ansible_settings, templates
from clusterctl.inventory.ansible_call import ansible_program
from clusterctl.model import fabric, job_login, layout, nodeset
from clusterctl.model.hosts import (
    READ_BY_SEVERAL,
    ROLES_OF_VARIABLES,
    Host,
    Inventory,
    InventoryOptions,
    InventorySources,
)
from clusterctl.state import clusters, paths
from clusterctl.support.errors import ConfigError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from clusterctl.inventory.ansible_settings import Settings
    from clusterctl.model.hosts import AnyInventory
    from clusterctl.model.probe import Probe


# RFC 1123 names and addresses; a zone index or a bracket has no place in an inventory name.
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
_ADDRESS = re.compile(r"[A-Za-z0-9:](?:[A-Za-z0-9.:_%-]{0,252})")
_USER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\$?")
_MAX_PORT = 65535
_OF_A_ROLE = re.compile(rf"({'|'.join(ROLES_OF_VARIABLES)})_")
_MOST_NAMED = 8
_LOGIN_PASSWORDS = ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password")
_PASSWORDS = frozenset((*_LOGIN_PASSWORDS, *templates.SUDO_PASSWORDS))
# What Ansible reads besides these (vars of its plugins ssh and sudo); the last that is set wins, and these come last.
_OLDER = {
    "ansible_host": "ansible_ssh_host",
    "ansible_port": "ansible_ssh_port",
    "ansible_user": "ansible_ssh_user",
    "ansible_private_key_file": "ansible_ssh_private_key_file",
    "ansible_become_user": "ansible_sudo_user",
}
_BY_SSH = ("smart", "ssh", "ansible.builtin.ssh")
_UNPARSED = "Unable to parse"
_COMPLAINT = re.compile(r"Failed to parse (?:inventory|\S+) with '(?P<plugin>[\w.]+)' plugin: (?P<why>.+)")


class Cluster:
    """A cluster as one command sees it: its inventory is read once, when it is first needed, and handed down.

    It lives as long as its command, for an inventory may hold secrets.

    Attributes:
        sources: the inventory: INI, YAML, a folder, a dynamic script, a list of hosts, or several of them.
        options: what changes its meaning.
        seen: what the last look at the nodes found, for a validation that follows; None without one.
    """

    def __init__(self, sources: InventorySources, options: InventoryOptions | None = None) -> None:
        """Take the inventory; it is not read yet."""
        self.sources = sources
        self.options = options or InventoryOptions()
        self.seen: Probe | None = None

    @staticmethod
    def of(given: AnyInventory | Cluster, options: InventoryOptions | None = None) -> Cluster:
        """Return the cluster of an inventory; one that is known already keeps its own options."""
        return given if isinstance(given, Cluster) else Cluster(InventorySources.of(given), options)

    @cached_property
    def reading(self) -> ReadInventory:
        """All that ansible-inventory says of the inventory.

        Raises:
            ConfigError: it does not exist, is empty, cannot be parsed, names an invalid host, or a template of it has
                no value, or its machines have more than one past.
        """
        found = read(self.sources, self.options)
        clusters.settle(self.sources, found.hosts)
        return found

    @cached_property
    def inventory(self) -> Inventory:
        """The hosts, and those that the limit selects.

        Raises:
            ConfigError: as for :attr:`reading`, or the limit selects no host.
        """
        return self.reading.inventory() if self.options.limit is None else self.reading.limited(self.options)

    @cached_property
    def id(self) -> str:
        """The name of the cluster in the state folder. Only an inventory without a past of its path is read.

        Raises:
            ConfigError: as for :attr:`reading`.
        """
        if not paths.cluster_dir(paths.cluster_id(self.sources)).is_dir():
            _ = self.reading  # its machines name the cluster
        return paths.cluster_id(self.sources)


def load(given: AnyInventory | Cluster, options: InventoryOptions | None = None) -> Inventory:
    """Return the hosts of an inventory, and those that the limit selects.

    Raises:
        ConfigError: as for :attr:`Cluster.inventory`.
    """
    return Cluster.of(given, options).inventory


def refuse_missing(sources: InventorySources) -> None:
    """Refuse an inventory that is not there.

    Raises:
        ConfigError: it names the file.
    """
    for path in sources.paths:
        if not path.exists():
            if place := clusters.new_place(sources):
                raise ConfigError(f"The inventory {path} does not exist; its cluster has the inventory {place} now.")
            raise ConfigError(
                f"The inventory {path} does not exist; 'clusterctl init {path}' writes a commented example."
            )


def read(sources: InventorySources, options: InventoryOptions) -> ReadInventory:
    """Read an inventory, to be taken with all of its hosts or without some of them.

    Raises:
        ConfigError: as for :attr:`Cluster.reading`.
    """
    refuse_missing(sources)
    everything = _listing(sources, options, limit=None)
    names = _host_names(everything)
    if not names:
        raise ConfigError(
            f"The inventory {sources} names no host; add one line per machine under a group such as [nodes]."
        )
    listed: dict[str, dict[str, Any]] = everything.get("_meta", {}).get("hostvars", {})
    hostvars = templates.resolved(sources, options, {name: listed.get(name, {}) for name in names})
    settings = ansible_settings.effective()
    hosts = tuple(_host(sources, name, hostvars[name], options, settings) for name in names)
    if wrong := layout.prefix_disagreement({host.name: host.layout.prefix for host in hosts}):
        raise ConfigError(f"In {sources}, {wrong}.")
    return ReadInventory(sources, everything, {**listed, **hostvars}, hosts)


class ReadInventory:
    """What ansible-inventory says of an inventory. It holds the values of secrets, so no file keeps it."""

    def __init__(
        self,
        sources: InventorySources,
        listing: dict[str, Any],
        hostvars: dict[str, dict[str, Any]],
        hosts: tuple[Host, ...],
    ) -> None:
        self._sources = sources
        self._listing = listing
        self._hostvars = hostvars
        self.hosts = hosts

    def inventory(self, without: Collection[str] = ()) -> Inventory:
        """Return the inventory; ``without`` are hosts that it is taken not to name."""
        left_out = [host.name for host in self.hosts if host.name in without]
        hosts = tuple(host for host in self.hosts if host.name not in without)
        digest, parts = self._digests(left_out)
        return Inventory(
            sources=paths.resolved(self._sources),
            hosts=hosts,
            selected=tuple(host.name for host in hosts),
            digest=digest,
            limit=",".join(["all", *(f"!{name}" for name in left_out)]) if left_out else None,
            parts=parts,
        )

    def limited(self, options: InventoryOptions) -> Inventory:
        """Return the inventory with the hosts that the limit of these options selects.

        Raises:
            ConfigError: the limit selects no host, or a part of it matches none.
        """
        names, shown = [host.name for host in self.hosts], str(options.limit)
        its_hosts = f"its hosts are: {and_more(names, _MOST_NAMED)}."
        if (part := nodeset.unmatched(shown, names, _group_names(self._listing))) not in {"", shown}:
            raise ConfigError(f"{part!r} of the limit {shown!r} matches no host of {self._sources}; {its_hosts}")
        limit = nodeset.ansible_pattern(str(options.limit), groups=self._listing.keys())
        selected = _host_names(_listing(self._sources, options, limit=limit))
        if not selected:
            raise ConfigError(f"The limit {shown!r} matches no host of {self._sources}; {its_hosts}")
        return dataclasses.replace(self.inventory(), selected=tuple(selected), limit=limit)

    def _digests(self, without: Collection[str]) -> tuple[str, dict[str, str]]:
        """Return the digest that the inventory has once the lines of these hosts are deleted, and those of its parts.

        The parts are those of :class:`clusterctl.model.hosts.Inventory`.
        """
        listing = {name: _group_without(body, without) for name, body in self._listing.items() if name != "_meta"}
        groups = {name: body for name, body in listing.items() if body or not without}
        parts: dict[str, dict[str, dict[str, Any]]] = {part: {} for part in ("", *ROLES_OF_VARIABLES)}
        for name, variables in self._hostvars.items():
            if name not in without:
                parts[""][name] = {}
                for word, value in variables.items():
                    role = None if word in READ_BY_SEVERAL else _OF_A_ROLE.match(word)
                    parts[role[1] if role else ""].setdefault(name, {})[word] = value
        texts = {part: json.dumps(its, sort_keys=True, default=str) for part, its in parts.items()}
        texts[""] += json.dumps(groups, sort_keys=True, default=str)
        whole = _sha256("\n".join(texts.values()))
        return whole, {part: whole if "{{" in text or "{%" in text else _sha256(text) for part, text in texts.items()}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _group_without(body: Any, hosts: Collection[str]) -> Any:
    """Return a group of the listing without these hosts; ansible-inventory writes no empty list."""
    if not hosts or not isinstance(body, dict) or "hosts" not in body:
        return body
    left = [name for name in body["hosts"] if name not in hosts]
    return {**body, "hosts": left} if left else {key: value for key, value in body.items() if key != "hosts"}


def _listing(sources: InventorySources, options: InventoryOptions, limit: str | None) -> dict[str, Any]:
    command = [ansible_program("ansible-inventory"), *ansible_call.arguments(sources, options, limit)]
    key = templates.cache_key(sources, command, ansible_call.environment()) if options.is_plain else ""
    known = templates.recall(key)
    if known is not None:
        return known
    refuse_too_many(sources)
    done = ansible_call.call(command, options)
    if done.returncode != 0 or _UNPARSED in done.stderr:  # unparsed sources are a mere warning to ansible-inventory
        raise ConfigError(_parse_failure(sources, options.limit if limit is not None else None, done.stderr))
    try:
        listing = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise ConfigError(
            f"ansible-inventory gave no JSON for {sources}; run '{shlex.join(command)}' to see why."
        ) from None
    if not isinstance(listing, dict):
        raise ConfigError(f"The inventory {sources} is not a mapping of groups.")
    templates.keep(key, listing)
    return listing


def _parse_failure(sources: InventorySources, limit: str | None, stderr: str) -> str:
    """Make one sentence of ansible-inventory's complaint."""
    lines = [
        re.sub(r"^(\[(ERROR|WARNING)\]:?|ERROR!)\s*", "", line).strip() for line in stderr.splitlines() if line.strip()
    ]
    text = " ".join(lines)
    shown = " ".join(f"-i {shlex.quote(word)}" for word in sources.words)
    if limit is not None and ("does not match any hosts" in text or "hosts and/or --limit" in text):
        return f"The limit '{limit}' matches no host of {sources}; 'ansible-inventory {shown} --graph' shows them."
    if "vault" in text.lower() and (
        "secret" in text.lower() or "decrypt" in text.lower() or "password" in text.lower()
    ):
        return (
            f"{sources} holds or needs vault secrets that cannot be opened ({lines[0][:200]}); "
            "give --vault-password-file or --vault-id."
        )
    for path in sources.paths:
        try:
            empty = path.is_file() and not path.read_bytes().strip()
        except OSError as error:
            return f"The inventory {path} cannot be read: {error.strerror}."
        if empty:
            return f"The inventory {path} is empty; 'clusterctl init --force {path}' writes a commented example."
    found = {match["plugin"].rpartition(".")[2]: match["why"] for line in lines if (match := _COMPLAINT.match(line))}
    by_name = {".yml": "yaml", ".yaml": "yaml", ".json": "yaml", ".ini": "ini"}
    likely = by_name.get(next((path.suffix for path in sources.paths), ""), "ini")
    cause = found.get(likely) or next(iter(found.values()), "") or next((line for line in lines if ":" in line), text)
    cause = re.sub(r"^(YAML parsing failed|Failed to parse inventory):\s*", "", cause).rstrip(".")
    if "values to unpack" in cause:  # how Ansible 2.19 puts a section header without its closing bracket
        cause = "a section header lacks its closing ']'"
    return f"The inventory {sources} cannot be parsed: {cause[:400] or 'ansible-inventory gave no reason'}."


def _group_names(listing: dict[str, Any]) -> set[str]:
    """Return the groups; one without a host or a variable stands only among the children of another."""
    bodies = [body for body in listing.values() if isinstance(body, dict)]
    return {*listing, "ungrouped", *(str(child) for body in bodies for child in body.get("children", ()))}


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


def _host(
    sources: InventorySources, name: str, variables: dict[str, Any], options: InventoryOptions, settings: Settings
) -> Host:
    if name.count(":") > 1 and _ADDRESS.fullmatch(name):
        port = f" ansible_port={variables['ansible_port']}" if "ansible_port" in variables else ""
        raise ConfigError(
            f"The inventory {sources} has the IPv6 address {name} where a host's name stands; give the host a name, as "
            f"in 'node1 ansible_host={name}{port}'."
        )
    if not _HOST_NAME.fullmatch(name):
        raise ConfigError(
            f"The inventory {sources} has a host named {name!r}, which is not a valid host name; use letters, digits, "
            "'.', '-' and '_' only, beginning with a letter or digit.",
        )
    field, address = _last(variables, "ansible_host", name)
    if not _ADDRESS.fullmatch(str(address)):
        raise ConfigError(
            f"In {sources}, {field} of {name} is {str(address)!r}, which is neither a name nor an address."
        )
    if fabric.is_ipv6_of_link(address) and "%" not in str(address):
        raise ConfigError(
            f"In {sources}, {field} of {name} is {address}, a link-local address without its interface. Write "
            f"{address}%eth0, with the name of the interface of this machine that leads there."
        )
    field, user = _last(variables, "ansible_user", None)
    user = options.user or user or settings.get("remote_user") or None
    if user is not None and not _USER_NAME.fullmatch(str(user)):
        raise ConfigError(f"In {sources}, {field} of {name} is {str(user)!r}, which is not a valid user name.")
    if wrong := job_login.problem(variables) or layout.prefix_problem(variables):
        raise ConfigError(f"In {sources}, {name}: {wrong}.")
    key = _last(variables, "ansible_private_key_file", None)[1] or settings.get("private_key_file")
    key = options.private_key or key or None
    become = options.become or _truth(variables.get("ansible_become", settings.get("become") or False))
    return Host(
        name=name,
        address=str(address),
        port=_port(sources, name, variables, settings),
        gives_port=_last(variables, "ansible_port", settings.get("port"))[1] is not None,
        user=None if user is None else str(user),
        connection=_connection(variables, settings),
        private_key=None if key is None else str(Path(str(key)).expanduser()),
        ssh_args=_ssh_args(sources, name, variables, settings),
        unheeded=tuple(_unheeded(name, variables, settings, become=become)),
        python=_python(variables, settings),
        become=become,
        become_user=str(_last(variables, "ansible_become_user", settings.get("become_user") or "root")[1]),
        login_password=next((word for word in _LOGIN_PASSWORDS if variables.get(word)), ""),
        sudo_password=_sudo_password(variables),
        slots=_slots(sources, name, variables),
        variables={key: value for key, value in variables.items() if key not in _PASSWORDS},
    )


def _last(variables: Mapping[str, Any], name: str, default: object) -> tuple[str, Any]:
    """Return the form of a variable that Ansible's connection takes, and its value: of several, the older one wins."""
    given = (form for form in (_OLDER[name], name) if variables.get(form) is not None)
    form = next(given, "")
    return (form, variables[form]) if form else (name, default)


def _sudo_password(variables: Mapping[str, Any]) -> str | None:
    """Return the password of the inventory, else that of Ansible's environment variables."""
    given = (str(variables[word]) for word in templates.SUDO_PASSWORDS if variables.get(word))
    return next(given, None) or os.environ.get("ANSIBLE_SUDO_PASS") or os.environ.get("ANSIBLE_BECOME_PASS") or None


def _connection(variables: Mapping[str, Any], settings: Settings) -> str:
    """Return the connection that Ansible takes, with the place of a setting that has another than ssh."""
    given = variables.get("ansible_connection")
    if given or "connection" not in settings.given:
        return str(given or "ssh")
    transport = settings.given["connection"]
    return (
        str(transport.value) if transport.value in _BY_SSH else f"{transport.value}, by transport in {transport.place}"
    )


def _python(variables: Mapping[str, Any], settings: Settings) -> str:
    given = str(variables.get("ansible_python_interpreter") or "")
    return (
        (ansible_settings.interpreter(given) if given else settings.interpreter).removeprefix("/usr/bin/env ").strip()
    )


def _port(sources: InventorySources, name: str, variables: dict[str, Any], settings: Settings) -> int:
    field, given = _last(variables, "ansible_port", settings.get("port") or 22)
    try:
        port = int(given)
    except (TypeError, ValueError, OverflowError):  # .inf
        port = 0
    if not 0 < port <= _MAX_PORT:
        raise ConfigError(f"In {sources}, {field} of {name} is {given!r}; a port is a number from 1 to {_MAX_PORT}.")
    return port


def _slots(sources: InventorySources, name: str, variables: dict[str, Any]) -> int | None:
    if "slots" not in variables:
        return None
    given = variables["slots"]
    try:
        slots = int(given)
    except (TypeError, ValueError, OverflowError):  # .inf
        slots = 0
    if slots < 1:
        raise ConfigError(
            f"In {sources}, slots of {name} is {given!r}; it is the number of ranks the node takes, 1 or more."
        )
    return slots


def _ssh_args(sources: InventorySources, name: str, variables: dict[str, Any], settings: Settings) -> tuple[str, ...]:
    """Return the arguments that Ansible gives ssh, in its order, without those that only share connections."""
    tokens: list[str] = []
    for key in ("ssh_args", "ssh_common_args", "ssh_extra_args"):
        given = variables.get(f"ansible_{key}")
        try:
            tokens += shlex.split(str((settings.get(key) if given is None else given) or ""))
        except ValueError:
            where = (
                f"ansible_{key} of {name} in {sources}"
                if given is not None
                else f"{key} in {settings.given[key].place}"
            )
            raise ConfigError(f"{where} has an unbalanced quote.") from None
    return tuple(without_sharing(tokens))


def without_sharing(words: Sequence[str]) -> list[str]:
    """Return arguments of ssh without ControlMaster and ControlPersist: clusterctl shares connections its own way."""
    left: list[str] = []
    for word in words:
        if _SHARING.fullmatch(word) and left[-1:] == ["-o"]:
            left.pop()
        elif not _SHARING.fullmatch(word.removeprefix("-o")):
            left.append(word)
    return left


def _unheeded(name: str, variables: Mapping[str, Any], settings: Settings, *, become: bool) -> Iterator[str]:
    """Yield clauses about what Ansible is told of the login and clusterctl's own ssh does not do, with its place."""
    for key, forms, honoured, why in _UNHEEDED:
        if key.startswith("become") and not become:
            continue
        form = next((form for form in forms if variables.get(form) is not None), "")
        value = variables[form] if form else settings.get(key)
        if value is None or honoured(value):
            continue
        place = f"the variable {form} of {name}" if form else settings.given[key].place
        yield f"{key} = {value} in {place} does not count here: {why}"


def _truth(value: object) -> bool:
    return str(value).strip().lower() in {"1", "true", "yes", "on", "y", "t"}


_SHARING = re.compile(r"\s*Control(?:Master|Persist)\s*[=\s]\s*[\w-]+", re.IGNORECASE)
_UNHEEDED: tuple[tuple[str, tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (
        "host_key_checking",
        ("ansible_host_key_checking", "ansible_ssh_host_key_checking"),
        _truth,
        "clusterctl always checks host keys",
    ),
    (
        "ssh_executable",
        ("ansible_ssh_executable",),
        lambda value: str(value) in {"ssh", shutil.which("ssh")},
        "clusterctl takes the ssh on PATH",
    ),
    (
        "become_method",
        ("ansible_become_method",),
        lambda value: str(value) in {"sudo", "ansible.builtin.sudo"},
        "clusterctl itself takes sudo",
    ),
    (
        "become_exe",
        ("ansible_become_exe", "ansible_sudo_exe"),
        lambda value: str(value) in {"", "sudo", "/usr/bin/sudo"},
        "clusterctl itself takes sudo",
    ),
)


# --- Refuse a range of hosts such as node[1:999999999] in an inventory before Ansible expands it in memory ------------

_MOST_BYTES = 64 << 20  # of one file; a larger one is left to Ansible
_VARIABLES = frozenset({"group_vars", "host_vars"})
# Where Ansible takes a range: the first word of a line, as in INI and YAML, and a key of a YAML mapping in one line.
_RANGE = re.compile(
    r"""(?:^|[{,])[ \t]*["']?(?P<pattern>[\w.-]+(?:\[[\w:]*:[\w:]*\][\w.-]*)+)(?=["'\s:=}]|$)""", re.MULTILINE
)


def refuse_too_many(sources: InventorySources) -> None:
    """Refuse files whose ranges name too many hosts.

    Raises:
        ConfigError: with the pattern, the file and the limit.
    """
    for path in sources.paths:
        for place in _files(path):
            counts = {pattern: nodeset.count(pattern) for pattern in patterns(_text(place))}
            if sum(counts.values()) > nodeset.MOST_HOSTS:
                largest = max(counts, key=lambda pattern: counts[pattern])
                raise ConfigError(
                    f"The inventory {place} names too many hosts by '{largest}'; one inventory has at most "
                    f"{nodeset.MOST_HOSTS:,} hosts, so correct the range."
                )


def patterns(text: str) -> list[str]:
    """Return the ranges of hosts in the text of an inventory."""
    return [match["pattern"] for match in _RANGE.finditer(text)]


def _files(path: Path) -> Iterator[Path]:
    """Yield the files that Ansible reads hosts from; the output of a script holds no range."""
    if not path.is_dir():
        yield path
        return
    for place in sorted(path.iterdir()):
        if place.name not in _VARIABLES:
            yield from _files(place)


def _text(place: Path) -> str:
    try:
        if not place.is_file() or place.stat().st_size > _MOST_BYTES:
            return ""
        return place.read_text(encoding="utf-8", errors="replace")
    except OSError:  # Ansible says why
        return ""
