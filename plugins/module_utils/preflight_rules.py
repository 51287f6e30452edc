"""What preflight looks for, as pure functions: facts and variables in, problems out.

Runs on the controller only. A problem is a sentence that names the culprit, with a cure beside it; neither names the
host, so that equal problems of many hosts fold into one line.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
_MAX_PORT = 65535
_MAX_SLOTS = 65535
_MAX_SHOWN = 60
_GIB = 1024**3
_CONFIGURATION = frozenset({"variable"})
_UNREACHABLE = frozenset({"unreachable", "refused", "unknown_host_key"})
# Facts that preflight itself leaves behind; they share its namespace but are nobody's setting.
_OUTPUTS = frozenset({"preflight_node", "preflight_members"})


@dataclass(frozen=True)
class Problem:
    """One thing that would hurt; ``check`` is the rule's short name."""

    host: str
    check: str
    problem: str
    cure: str
    variable: str = ""  # whose name or value is wrong, where it is one

    def as_dict(self) -> dict[str, str]:
        """Return the form that travels in a task's result; ``kind`` says whose the cure is."""
        kind = "host"
        if self.check in _CONFIGURATION:
            kind = "configuration"
        elif self.check in _UNREACHABLE:
            kind = "unreachable"
        return {**asdict(self), "kind": kind}


@dataclass(frozen=True)
class Clock:
    """Between which bounds a node's clock stands ahead of the controller's, in seconds.

    The node's time was read somewhere between the start and the end of a task, so the truth lies within the bounds;
    a slow node has wide bounds, never a wrong verdict.
    """

    low_s: float
    high_s: float

    @property
    def middle_s(self) -> float:
        """The best single guess."""
        return (self.low_s + self.high_s) / 2


@dataclass(frozen=True)
class Limits:
    """What the rules compare with; the role's variables of the same names."""

    supported: Mapping[str, Sequence[str]] = field(default_factory=dict)
    min_python: str = "3.9"
    min_disk_bytes: Mapping[str, int] = field(default_factory=dict)
    min_builder_disk_bytes: Mapping[str, int] = field(default_factory=dict)
    builders: Sequence[str] = ()
    max_clock_skew_s: float = 5.0
    require_unique_host_keys: bool = True


@dataclass(frozen=True)
class Settings:
    """What the inventory says of one host, as far as its membership depends on it.

    ``resolved`` are the addresses that ``reached_at`` (ansible_host or the name) stands for on the controller.
    """

    name: str
    reached_at: str
    resolved: Sequence[str] = ()
    cluster_address: str | None = None
    cluster_port: int | None = None
    cluster_aliases: Sequence[str] = ()
    slots: int | None = None


# --- why a node could not be looked at -------------------------------------------------------------------------------

_FAILURES: tuple[tuple[str, str, str, str], ...] = (
    (
        r"Host key verification failed|Host key for \S+ has changed",
        "unknown_host_key",
        "its ssh host key is not the one that this machine knows",
        "compare 'ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub' on its console, then put the key into known_hosts",
    ),
    (
        r"Permission denied \(|Too many authentication failures|Invalid/incorrect password",
        "refused",
        "it refuses the login",
        "check ansible_user and ansible_ssh_private_key_file, and that the public key is in the user's authorized_keys",
    ),
    (
        r"Could not resolve hostname",
        "unreachable",
        "its name cannot be resolved on this machine",
        "set ansible_host to its address, or correct the name",
    ),
    (
        r"(?:Missing|Incorrect) \S+ password|password is required|not in the sudoers file|may not run sudo|Sorry, user",
        "sudo",
        "the login user may not become root without a password",
        "allow it passwordless sudo, or give the password with -K",
    ),
    (
        r"sudo: unknown user|sudo: .*no such user",
        "sudo",
        "the user to become does not exist",
        "correct ansible_become_user, or remove it to become root",
    ),
    (
        r"sudo: (?:command )?not found|No such file or directory: b?'?sudo|sudo: No such file",
        "sudo",
        "sudo is not installed",
        "install sudo, or log in as root with ansible_user=root and ansible_become=false",
    ),
    (
        r"python[0-9.]*: (?:command )?not found|python[0-9.]*: No such file|module interpreter .* was not found",
        "python",
        "Python was not found at the interpreter that Ansible uses",
        "install python3, or set ansible_python_interpreter to where it is",
    ),
    (
        r"refused|No route to host|unreachable|timed? ?out|Connection (?:closed|reset)|Failed to connect",
        "unreachable",
        "it does not answer",
        "check that it is up and that ansible_host and ansible_port are right",
    ),
    (
        r"No space left on device",
        "disk",
        "its disk is full",
        "free some space on / and /tmp",
    ),
)


def look_failure(host: str, text: str) -> Problem:
    """Name why a node could not be looked at, from what ssh, sudo or the shell said.

    Args:
        host: the node.
        text: all that is known of the failure (message, stderr, stdout of the failed start).
    """
    for pattern, check, problem, cure in _FAILURES:
        found = re.search(pattern, text, re.IGNORECASE)
        if found:
            return Problem(host, check, f"{problem} ({_telling_line(text, found.start())})", cure)
    return Problem(host, "error", f"it could not be looked at: {_short(' '.join(text.split()), 300)}", "see the log")


def _telling_line(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : len(text) if end < 0 else end].strip().rstrip(".")
    # Ansible's own words around ssh's say nothing that the sentence does not say already.
    return _short(re.sub(r"^.*(?:reached over ssh|to the host via ssh): ", "", line), 160)


# --- one node --------------------------------------------------------------------------------------------------------


def node_problems(host: str, node: Mapping[str, Any], limits: Limits, *, builder: bool) -> list[Problem]:
    """Return what is wrong with a node by itself: distribution, Python, root, disk, host keys.

    Args:
        host: its inventory name.
        node: what node_facts says of it.
        limits: what to compare with.
        builder: whether it may be the one that compiles, which takes more disk.
    """
    found = [*_platform(host, node, limits), *_root(host, node), *_disk(host, node, limits, builder=builder)]
    if not (node.get("ssh") or {}).get("host_keys"):
        found.append(
            Problem(
                host,
                "host_key",
                "its sshd has no readable host key under /etc/ssh",
                "run 'ssh-keygen -A' on it and restart sshd",
            )
        )
    return found


def _platform(host: str, node: Mapping[str, Any], limits: Limits) -> Iterable[Problem]:
    distribution = node.get("distribution") or {}
    name, release = str(distribution.get("id", "")), str(distribution.get("version_id", ""))
    releases = [str(one) for one in limits.supported.get(name, ())]
    if not any(release == one or release.startswith(f"{one}.") for one in releases):
        known = "; ".join(f"{one} {', '.join(map(str, its))}" for one, its in limits.supported.items())
        yield Problem(
            host,
            "distribution",
            f"{name or 'an unnamed distribution'} {release} is not supported",
            f"use one of: {known}; or add it to preflight_supported at your own risk",
        )
    python = str((node.get("python") or {}).get("version", "0"))
    if _numbers(python) < _numbers(limits.min_python):
        yield Problem(
            host,
            "python",
            f"Python {python} is too old, {limits.min_python} is the oldest that works",
            "install a newer Python and set ansible_python_interpreter to it",
        )


def _root(host: str, node: Mapping[str, Any]) -> Iterable[Problem]:
    user = node.get("user") or {}
    if user.get("sudo") is not True:  # true only where the probe itself ran as root
        name = user.get("name") or "the login user"
        cure = f"set ansible_become=true in the inventory or give --become ({name} needs sudo), or log in as root"
        yield Problem(host, "sudo", f"tasks run as {name}, not as root", cure)


def _disk(host: str, node: Mapping[str, Any], limits: Limits, *, builder: bool) -> Iterable[Problem]:
    wanted = dict(limits.min_disk_bytes)
    if builder:
        for path, size in limits.min_builder_disk_bytes.items():
            wanted[path] = max(size, wanted.get(path, 0))
    free = {entry["path"]: entry["free_bytes"] for entry in node.get("disk") or []}
    for path, size in wanted.items():
        if path in free and free[path] < size:
            purpose = " to build on it" if builder and path in limits.min_builder_disk_bytes else ""
            yield Problem(
                host,
                "disk",
                f"{path} has {_size(free[path])} free, {_size(size)} are needed{purpose}",
                f"free some space there or grow the file system under {path}",
            )


def builders(platforms: Mapping[str, str], chosen: Sequence[str]) -> set[str]:
    """Return who may have to compile: the chosen ones, or the first host of each platform.

    Args:
        platforms: host name to platform id, in the inventory's order.
        chosen: names given by the user.
    """
    if chosen:
        return set(chosen)
    first: dict[str, str] = {}
    for host, platform in platforms.items():
        first.setdefault(platform, host)
    return set(first.values())


# --- membership ------------------------------------------------------------------------------------------------------


def settings(host: str, its: Mapping[str, Any], resolved: Sequence[str]) -> tuple[Settings, list[Problem]]:
    """Read from a host's variables what its membership depends on.

    Args:
        host: its inventory name.
        its: its variables.
        resolved: the addresses that ansible_host (or the name) stands for on the controller.

    Returns:
        The settings, and a problem for each that makes no sense.
    """
    found: list[Problem] = []

    def number(name: str, most: int) -> int | None:
        given = its.get(name)
        if given is None:
            return None
        try:
            value = int(given)
        except (TypeError, ValueError):
            value = 0
        if 0 < value <= most:
            return value
        cure = f"correct {name} of this host in the inventory"
        found.append(
            Problem(host, "variable", f"{name} is {_shown(given)}, which is no number from 1 to {most}", cure, name)
        )
        return None

    address = its.get("cluster_address")
    aliases = its.get("cluster_aliases") or []
    made = Settings(
        name=host,
        reached_at=str(its.get("ansible_host") or host),
        resolved=resolved,
        cluster_address=None if address is None else str(address),
        cluster_port=number("cluster_port", _MAX_PORT),
        cluster_aliases=[str(one) for one in ([aliases] if isinstance(aliases, str) else aliases)],
        slots=number("slots", _MAX_SLOTS),
    )
    return made, found


def member(settings: Settings, node: Mapping[str, Any], *, alone: bool = False) -> tuple[dict[str, Any], list[Problem]]:
    """Describe a node as the others see it.

    Args:
        settings: what the inventory says of it.
        node: what node_facts says of it.
        alone: it is the only member, so that a loopback address does no harm.

    Returns:
        The member (see the role's README) and what stands against it.
    """
    own = node_addresses(node)
    address, problems = _address(settings, own, _default_address(node), alone=alone)
    # The port on which the node itself answered; behind a port forward the controller's is not the others'.
    port = settings.cluster_port or int((node.get("ssh") or {}).get("port") or 22)
    names = [*settings.cluster_aliases, node.get("hostname", ""), node.get("fqdn", "")]
    if not _is_address(settings.reached_at):
        names.append(settings.reached_at)
    aliases = [
        name
        for name in dict.fromkeys(map(str, names))
        if name != settings.name
        and _NAME.fullmatch(name)
        and not name.startswith("localhost")
        and not _is_address(name)
    ]
    entry = {
        "name": settings.name,
        "address": address,
        "port": port,
        "host_keys": sorted((node.get("ssh") or {}).get("host_keys") or []),
        "aliases": aliases,
        "platform": str(node.get("platform", "")),
        "slots": settings.slots or len(node.get("gpus") or []) or int(node.get("cores") or 1),
        "provides": provides(node),
        "gpus": len([gpu for gpu in node.get("gpus") or [] if gpu.get("driver") == "nvidia"]),
        "cuda": cuda_of(node),
    }
    return entry, problems


def cuda_of(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the CUDA major that the node's driver can run (0 without one), the driver's version and the toolkit's."""
    cuda = node.get("cuda") or {}
    driver = str(cuda.get("driver_version") or "")
    return {
        "driver_major": int(cuda.get("major") or 0) if driver else 0,
        "driver_version": driver,
        "toolkit_version": str(cuda.get("toolkit_version") or ""),
    }


def provides(node: Mapping[str, Any]) -> list[str]:
    """Return which libraries a build for this node's platform could rely on here."""
    cuda, tools = node.get("cuda") or {}, node.get("tools") or {}
    found = {"cuda_toolkit": cuda.get("toolkit_version"), "libcuda": cuda.get("libcuda"), "ucx": tools.get("ucx")}
    return [name for name, there in found.items() if there]


def node_addresses(node: Mapping[str, Any]) -> dict[str, str]:
    """Return the addresses of a node's interfaces, each with its interface's name."""
    found: dict[str, str] = {}
    for interface in node.get("interfaces") or []:
        for entry in interface.get("addresses") or []:
            found[str(entry.get("address", ""))] = str(interface.get("name", ""))
    return found


def _default_address(node: Mapping[str, Any]) -> str:
    """Return the address of the interface that the default route leaves by; '' where it is not known."""
    for route in node.get("routes") or []:
        if route.get("destination") == "0.0.0.0/0":
            for address, interface in node_addresses(node).items():
                if interface == route.get("interface") and "." in address:
                    return address
    return ""


def _address(settings: Settings, own: Mapping[str, str], suggestion: str, *, alone: bool) -> tuple[str, list[Problem]]:
    """Choose the address by which the others reach a node; '' and a problem where there is none.

    ``own`` is empty where the node could not tell its addresses; then the inventory is believed.
    """
    reached_at, given = settings.reached_at, settings.cluster_address
    address, problem = "", ""
    if given is not None:
        if not _is_address(given):
            problem = f"cluster_address is {given!r}, which is no address"
        elif own and given not in own:
            problem = f"none of its interfaces has its cluster_address {given}"
        else:
            address = given
    else:
        mine = [one for one in settings.resolved if not own or one in own]
        outside = [one for one in mine if alone or not ipaddress.ip_address(one).is_loopback]
        if not settings.resolved:
            problem = f"{reached_at} stands for no address on this machine"
        elif not mine:
            problem = f"it is reached at {reached_at}, an address that none of its interfaces has"
        elif not outside:
            problem = f"it is reached at {reached_at}, which is every node's own"
        else:
            address = outside[0]
    if not problem:
        return address, []
    cure = f"set cluster_address={suggestion or 'ADDRESS'} for it, the address by which the other nodes reach it"
    return "", [Problem(settings.name, "address", problem, cure)]


def merge_members(
    fresh: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]], inventory: Sequence[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Join what this run saw with what an earlier one knew.

    Args:
        fresh: members of this run; they win.
        known: members of an earlier run; they fill in hosts of the inventory that this run does not visit.
        inventory: names of all hosts of the inventory, in its order; nobody else stays a member.

    Returns:
        The members in the inventory's order, and the names of hosts of which nothing is known.
    """
    now = {entry["name"]: dict(entry) for entry in fresh}
    before = {entry["name"]: dict(entry) for entry in known}
    merged: list[dict[str, Any]] = []
    missing: list[str] = []
    for name in inventory:
        if name in now:
            merged.append(now[name])
        elif name in before:
            merged.append(before[name])
        else:
            missing.append(name)
    return merged, missing


def membership_problems(
    members: Sequence[Mapping[str, Any]],
    hostnames: Mapping[str, str],
    visited: Iterable[str],
    *,
    require_unique_host_keys: bool = True,
) -> list[Problem]:
    """Return what is wrong among the members: equal names, addresses or host keys (cloned machines).

    Args:
        members: all of them, those of an earlier run included.
        hostnames: what the visited nodes call themselves.
        visited: names of this run's hosts; only they get a line of their own.
        require_unique_host_keys: whether equal host keys are a problem.
    """
    seen = set(visited)
    found: list[Problem] = []
    names = {str(entry["name"]) for entry in members}
    for hostname, hosts in _shared({host: [name] for host, name in hostnames.items()}).items():
        found += [
            Problem(host, "hostname", f"its host name {hostname} is also that of {_others(hosts, host)}", _RENAME)
            for host in hosts
        ]
    for host, hostname in hostnames.items():
        if hostname in names and hostname != host:
            text = f"it calls itself {hostname}, which is the inventory's name of another node"
            found.append(Problem(host, "hostname", text, _RENAME))
    for address, hosts in _shared({m["name"]: [m["address"]] for m in members if m["address"]}).items():
        found += [
            Problem(
                host,
                "address",
                f"its address {address} is also that of {_others(hosts, host)}",
                "correct ansible_host or set cluster_address; one machine is listed once",
            )
            for host in hosts
            if host in seen
        ]
    if require_unique_host_keys:
        clones: dict[str, set[str]] = defaultdict(set)
        for hosts in _shared({m["name"]: m["host_keys"] for m in members}).values():
            for host in hosts:
                clones[host] |= set(hosts)
        found += [
            Problem(
                host,
                "host_key",
                f"its ssh host key is also that of {_others(sorted(hosts), host)}: cloned, or listed twice",
                "on the clones remove /etc/ssh/ssh_host_*, run 'ssh-keygen -A' and restart sshd",
            )
            for host, hosts in clones.items()
            if host in seen
        ]
    return found


_RENAME = "give it a name of its own with 'hostnamectl set-hostname NAME'"


def _shared(values: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return each value that more than one host has, with those hosts."""
    owners: dict[str, list[str]] = defaultdict(list)
    for host, its in values.items():
        for value in its:
            owners[value].append(host)
    return {value: hosts for value, hosts in owners.items() if len(hosts) > 1}


def _others(hosts: Sequence[str], host: str) -> str:
    return shortened([one for one in hosts if one != host])


# --- clocks ----------------------------------------------------------------------------------------------------------


def clock(before_s: float, node_s: float, after_s: float) -> Clock:
    """Return how far a node's clock is ahead of the controller's, from the controller's times around the look."""
    return Clock(low_s=node_s - after_s, high_s=node_s - before_s)


def clock_problems(clocks: Mapping[str, Clock], limit_s: float) -> list[Problem]:
    """Return whose clock is provably further from the others' than the limit.

    The reference is the median of all clocks, the controller's included, so that of two nodes the one that agrees
    with the controller is not blamed, and a controller that is itself wrong blames nobody.

    Args:
        clocks: bounds per host.
        limit_s: how far apart two nodes may be.
    """
    if len(clocks) < 2:  # noqa: PLR2004 - a clock alone agrees with itself
        return []
    votes = sorted([*clocks.values(), Clock(0.0, 0.0)], key=lambda one: one.middle_s)
    reference = votes[(len(votes) - 1) // 2]
    found: list[Problem] = []
    for host, its in clocks.items():
        ahead = its.low_s - reference.high_s
        behind = reference.low_s - its.high_s
        if max(ahead, behind) > limit_s:
            found.append(_skewed(host, its.middle_s - reference.middle_s, "most of the cluster"))
    if found:
        return found
    # Nobody is far from the middle, yet two may be far from each other.
    first = max(clocks, key=lambda host: clocks[host].low_s)
    last = min(clocks, key=lambda host: clocks[host].high_s)
    if clocks[first].low_s - clocks[last].high_s > limit_s:
        apart = clocks[first].middle_s - clocks[last].middle_s
        return [_skewed(first, apart, last), _skewed(last, -apart, first)]
    return []


def _skewed(host: str, seconds: float, whom: str) -> Problem:
    direction = "ahead of" if seconds > 0 else "behind"
    return Problem(
        host,
        "clock",
        f"its clock is {_duration(abs(seconds))} {direction} that of {whom}",
        "set it right and keep it so with a time service (chrony or systemd-timesyncd)",
    )


# --- variables -------------------------------------------------------------------------------------------------------


class VariableRules:
    """Judges variables by the argument specs of all roles; each distinct value is judged once."""

    def __init__(self, specs: Mapping[str, Mapping[str, Any]], ignored: Iterable[str] = ()) -> None:
        """Take the options of each role's argument specs, and the names that the user wants left alone.

        Args:
            specs: role name to its options (variable name to its spec).
            ignored: variables that are not judged.
        """
        self._specs = specs
        self._ignored = frozenset(ignored) | _OUTPUTS
        # The longest role name wins: python_env_x is python_env's even if a role 'python' came to be.
        self._roles = sorted(specs, key=len, reverse=True)
        self._known: dict[tuple[str, str], list[tuple[str, str]]] = {}

    @property
    def judged(self) -> int:
        """How many distinct values have been judged."""
        return len(self._known)

    def role_of(self, name: str) -> str | None:
        """Return the role in whose namespace a variable stands; None for everybody else's variables."""
        if name in self._ignored:
            return None
        return next((role for role in self._roles if name.startswith(f"{role}_")), None)

    def problems(self, host: str, name: str, value: object) -> list[Problem]:
        """Return what is wrong with one variable of one host."""
        role = self.role_of(name)
        if role is None:
            return []
        key = (name, json.dumps(value, sort_keys=True, default=str))
        if key not in self._known:
            self._known[key] = list(self._judge(role, name, value))
        return [Problem(host, "variable", problem, cure, name) for problem, cure in self._known[key]]

    def _judge(self, role: str, name: str, value: object) -> Iterable[tuple[str, str]]:
        options = self._specs[role]
        spec = options.get(name)
        if spec is None:
            near = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else f"roles/{role}/README.md lists the variables"
            yield (
                f"{name} is no variable of role {role}",
                f"{hint} (a variable of your own: preflight_ignored_variables)",
            )
            return
        fix = f"correct {name} where it is set (inventory, group_vars, host_vars or -e)"
        if value is None:
            if spec.get("default") is not None:
                yield f"{name} is set but has no value", "give it a value, or remove it to have the default"
            return
        shown = "a secret value" if spec.get("no_log") else _shown(value)
        wanted = str(spec.get("type", "str"))
        if wanted == "str" and isinstance(value, float):
            yield f"{name} is the number {shown}, and a number loses its last zeros", f'write "{name}" in quotes'
            return
        alone = {key: one for key, one in spec.items() if key not in {"required", "default"}}
        result = ArgumentSpecValidator({name: alone}).validate({name: value})
        for error in result.errors.errors:
            kind = type(error).__name__
            if kind == "ArgumentTypeError":
                yield f"{name} is {shown}, which is no {wanted}", fix
            elif kind == "ArgumentValueError":
                yield f"{name} is {shown}; it may be {', '.join(map(str, spec.get('choices', [])))}", fix
            else:
                yield f"{name}: " + ("its value is not valid" if spec.get("no_log") else _short(error.msg, 300)), fix


# --- words -----------------------------------------------------------------------------------------------------------


def table(problems: Sequence[Problem], hosts: int) -> str:
    """Return all problems as text, equal ones of several hosts on one line.

    Args:
        problems: what was found.
        hosts: how many hosts were looked at.
    """
    folded: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in problems:
        folded[one.problem, one.cure].append(one.host)
    hurt = len({one.host for one in problems})
    head = (
        f"{len(folded)} problem{'s' if len(folded) > 1 else ''} on {hurt} of {hosts} host{'s' if hosts > 1 else ''}; "
        "nothing has been changed."
    )
    lines = [f"{shortened(whom)}: {problem}; {cure}." for (problem, cure), whom in folded.items()]
    return "\n".join([head, *lines])


def shortened(names: Sequence[str], most: int = 8) -> str:
    """Return names in one line, the rest counted."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _size(count: float) -> str:
    return f"{count / _GIB:.1f} GiB"


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _shown(value: object) -> str:
    return _short(repr(value) if isinstance(value, str) else json.dumps(value, default=str), _MAX_SHOWN)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
