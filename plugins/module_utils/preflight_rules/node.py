# SPDX-License-Identifier: Apache-2.0
"""Rules about single nodes: facts, clocks, nodes that cannot be looked at, and the variables of roles."""

from __future__ import annotations

import difflib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator  # type: ignore[import-untyped]

from .. import brought, clock_rules, error_meanings

# Problems of the preflight, their table, and the limits that they are measured by.

# --- model -----------------------------------------------------------------------------------------------------------

_CONFIGURATION = frozenset({"prefix", "variable"})

_UNREACHABLE = frozenset({"unreachable", "refused", "unknown_host_key"})


@dataclass(frozen=True)
class Problem:
    """One problem that would hurt the cluster; ``check`` is the short name of the rule."""

    host: str
    check: str
    problem: str
    cure: str
    variable: str = ""  # the variable whose name or value is wrong

    def as_dict(self) -> dict[str, str]:
        """Return the form for a task's result; ``kind`` says where the cure is: host, configuration or unreachable."""
        kind = "host"
        if self.check in _CONFIGURATION:
            kind = "configuration"
        elif self.check in _UNREACHABLE:
            kind = "unreachable"
        return {**asdict(self), "kind": kind}


@dataclass(frozen=True)
class Limits:
    """The limits that nodes are compared with: the role's variables of the same names."""

    supported: Mapping[str, Sequence[str]] = field(default_factory=dict)
    min_python: str = "3.9"
    min_disk_bytes: Mapping[str, int] = field(default_factory=dict)
    min_builder_disk_bytes: Mapping[str, int] = field(default_factory=dict)
    builders: Sequence[str] = ()
    max_clock_skew_s: float = 5.0
    require_unique_host_keys: bool = True


# --- words -----------------------------------------------------------------------------------------------------------

_MAX_SHOWN = 60


def table(problems: Sequence[Problem], hosts: int) -> str:
    """Return all problems as text; equal problems of several hosts share a line.

    Args:
        problems: the problems.
        hosts: the number of hosts that were looked at.
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
    """Return the first names on one line, and the number of the others."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def shown_value(value: object) -> str:
    """Return a value as a message shows it."""
    return cut(repr(value) if isinstance(value, str) else json.dumps(value, default=str), _MAX_SHOWN)


def cut(text: str, most: int) -> str:
    """Return a text, cut after so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


# --- node ------------------------------------------------------------------------------------------------------------

_GIB = 1024**3
_NO_SHELLS = ("nologin", "false")
_FAMILIES = ("Debian", "RedHat", "Suse")  # the recipes know the names of their packages
_VARIABLE = "cluster_prefix"


def look_failure(host: str, text: str) -> Problem:
    """Return the problem behind a failed look at a node.

    Args:
        host: the node.
        text: message, stderr and stdout of the failure.
    """
    found = error_meanings.find("Ansible", text)
    if found is None:
        return Problem(host, "error", f"it could not be looked at: {cut(' '.join(text.split()), 300)}", "see the log")
    # Ansible's own words around those of ssh repeat the sentence.
    line = cut(re.sub(r"^.*(?:reached over ssh|to the host via ssh): *", "", found.line.rstrip(".")), 160)
    row = found.row
    return Problem(host, row.kind, f"{row.cause} ({line})" if line else row.cause, row.cure)


def node_problems(host: str, node: Mapping[str, Any], limits: Limits, *, builder: bool) -> list[Problem]:
    """Return the problems of one node: distribution, Python, root, disk, host keys, ssh.

    Args:
        host: its inventory name.
        node: its facts.
        limits: what to compare with.
        builder: whether the node may compile, which needs more disk.
    """
    found = [
        *_platform(host, node, limits),
        *_root(host, node),
        *_prefix(host, node),
        *_interpreter(host, node),
        *_job_user(host, node),
        *_disk(host, node, limits, builder=builder),
    ]
    if not (node.get("ssh") or {}).get("host_keys"):
        found.append(
            Problem(
                host,
                "host_key",
                "its sshd has no readable host key under /etc/ssh",
                "run 'ssh-keygen -A' on it and restart sshd",
            )
        )
    if (node.get("tools") or {}).get("ssh") is False:
        found.append(
            Problem(
                host,
                "ssh",
                "the client of ssh is not installed, and mpirun starts its daemons on other nodes with it",
                "install openssh-client (Debian, Ubuntu) or openssh-clients (Enterprise Linux, openSUSE) there",
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
    elif distribution.get("family") not in _FAMILIES:
        yield Problem(
            host,
            "distribution",
            f"{name} {release} belongs to no family of distributions whose packages are known",
            f"use a distribution of one of: {', '.join(_FAMILIES)}",
        )
    python = str((node.get("python") or {}).get("version", "0"))
    if _numbers(python) < _numbers(limits.min_python):
        yield Problem(
            host,
            "python",
            f"Python {python} is too old, {limits.min_python} is the oldest that works",
            "install a newer Python of the distribution and set ansible_python_interpreter to it, such as"
            " /usr/bin/python3.11",
        )


def _root(host: str, node: Mapping[str, Any]) -> Iterable[Problem]:
    user = node.get("user") or {}
    if user.get("sudo") is not True:  # true only if the probe itself ran as root
        name = user.get("name") or "the login user"
        cure = f"set ansible_become=true in the inventory or give --become ({name} needs sudo), or log in as root"
        yield Problem(host, "sudo", f"tasks run as {name}, not as root", cure)


def _job_user(host: str, node: Mapping[str, Any]) -> Iterable[Problem]:
    """Refuse an account for jobs that is root's, cannot log in, or has no home that answers."""
    user = node.get("job_user") or {}
    if not user or user["uid"] < 0:  # the role ssh_mesh makes it
        return
    if user["uid"] == 0:
        cure = "set cluster_user to a user without privileges"
        yield Problem(host, "cluster_user", f"user {user['name']} has the uid 0", cure)
    if str(user["shell"]).rpartition("/")[2] in _NO_SHELLS:
        cure = f"set a login shell with 'usermod --shell /bin/bash {user['name']}', or set cluster_user to another name"
        problem = f"user {user['name']} has the shell {user['shell']} and cannot log in"
        yield Problem(host, "cluster_user", problem, cure)
    problem, cure = without_home(user)
    if problem:
        yield Problem(host, "cluster_user", problem, cure)


def without_home(user: Mapping[str, Any]) -> tuple[str, str]:
    """Return the problem and the cure of an account whose home is missing or hangs; two times '' where it is there.

    Args:
        user: the account for jobs as a node's facts have it.
    """
    if user["uid"] < 0:
        return "", ""
    name = user["name"]
    if not user.get("home_answers", True):
        cure = "mend its file server, which /proc/mounts names, or mount it anew"
        return f"the home {user['home']} of user {name} is on a file system that does not answer", cure
    if user.get("has_home", True):
        return "", ""
    cure = f"make or mount it; where the first login makes homes (pam_mkhomedir), run 'su - {name} -c true' as root"
    return f"the home {user['home']} of user {name} is missing", cure


def _prefix(host: str, node: Mapping[str, Any]) -> Iterable[Problem]:
    """Judge the folder of the software: root alone may write there, and the node has no software elsewhere."""
    its = node.get("prefix") or {}
    path, others = str(its.get("path", "")), its.get("others") or []
    if its.get("problem"):
        cure = "give it to root with mode 755, or set cluster_prefix to another folder"
        yield Problem(host, "prefix", str(its["problem"]), cure, _VARIABLE)
    if others:
        words = f"its software of clusterctl is in {others[0]}, and cluster_prefix is {path}"
        cure = f"run 'clusterctl uninstall' first, or set cluster_prefix to {others[0]}"
        yield Problem(host, "prefix", words, cure, _VARIABLE)
    elif its.get("read_only") and not node.get("artifacts"):
        cure = "set cluster_prefix to a folder that root can write, such as /opt/cluster"
        yield Problem(host, "prefix", f"{path} is on a read-only file system", cure, _VARIABLE)


def _interpreter(host: str, node: Mapping[str, Any]) -> Iterable[Problem]:
    """Refuse the cluster's own Python for Ansible's modules."""
    path, python = (
        (node.get(section) or {}).get(key) for section, key in (("prefix", "path"), ("python", "executable"))
    )
    if path and python and python.startswith(f"{path}/python_env"):
        words = f"Ansible's modules would run as root in the cluster's own Python ({python})"
        yield Problem(host, "python", words, "set ansible_python_interpreter=/usr/bin/python3 in the inventory")


def for_builds(host: str, node: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return what decides which node builds: whether it has the room (builds), and the names of its artifacts (trees).

    Args:
        host: its inventory name.
        node: its facts.
        limits: what to compare with. Where the user chose builders, other nodes do not build.
    """
    trees = sorted({str(its.get("name")) for its in node.get("artifacts") or [] if its.get("ok")})
    if limits.builders:
        return {"builds": host in limits.builders, "trees": trees}
    return {"builds": not any(_disk(host, node, limits, builder=True)), "trees": trees}


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
    """Return the hosts that may have to compile: the chosen ones, or the first host of each platform.

    Args:
        platforms: host name to platform id, in the inventory's order.
        chosen: names that the user gives.
    """
    if chosen:
        return set(chosen)
    first: dict[str, str] = {}
    for host, platform in platforms.items():
        first.setdefault(platform, host)
    return set(first.values())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _size(count: float) -> str:
    return f"{count / _GIB:.1f} GiB"


# --- clocks ----------------------------------------------------------------------------------------------------------


Clock = clock_rules.Bounds


def clock(before_s: float, node_s: float, after_s: float) -> Clock:
    """Return the bounds from the controller's times before and after the look at the node.

    The node's time was read between the start and the end of a task, so the truth lies within the bounds. A slow node
    has wide bounds, but never a wrong result.
    """
    return Clock(low_s=node_s - after_s, high_s=node_s - before_s)


def clock_problems(clocks: Mapping[str, Clock], limit_s: float) -> list[Problem]:
    """Return the clocks that are certainly further from the others than the limit, as ``clock_rules`` judges them.

    Args:
        clocks: bounds per host.
        limit_s: how far apart two nodes may be.
    """
    if len(clocks) < 2:  # noqa: PLR2004 - one clock has nothing to differ from
        return []
    told = clock_rules.judge(clocks, limit_s)
    first, last = clock_rules.furthest(clocks)
    if told.wrong and not told.together:
        return [_skewed(host, ahead, "most of the cluster") for host, ahead in told.wrong.items()]
    if told.wrong:
        found = []
        for host, its in clocks.items():
            far = max(first, last, key=lambda end: abs(its.middle_s - clocks[end].middle_s))
            found.append(_skewed(host, its.middle_s - clocks[far].middle_s, far))
        return found
    # Every clock is near the middle, but two may be far from each other. One that is near the middle is right.
    if clocks[first].beyond(clocks[last]) > limit_s:
        apart_s = clocks[first].middle_s - clocks[last].middle_s
        ends = ((first, apart_s, last), (last, -apart_s, first))
        middle_s = told.reference.middle_s
        return [_skewed(*end) for end in ends if abs(clocks[end[0]].middle_s - middle_s) * 2 > limit_s]
    return []


def _skewed(host: str, seconds: float, whom: str) -> Problem:
    direction = "ahead of" if seconds > 0 else "behind"
    return Problem(
        host,
        "clock",
        f"its clock is {_duration(abs(seconds))} {direction} that of {whom}",
        "set it right and keep it so with a time service (chrony or systemd-timesyncd)",
    )


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


# --- variables -------------------------------------------------------------------------------------------------------

# Facts that the roles themselves set: they have a role's prefix, but they are not variables of the user. A playbook
# that applies a role, and preflight after it, has them.
_OUTPUTS = frozenset({"preflight_node", "preflight_members"})

# Roles whose names are words of everyday use: roles of others have variables with these prefixes as well, some of them
# one letter away from ours. A near miss of such a name is a warning. Names such as openmpi_ belong to clusterctl.
_GENERIC_ROLES = frozenset({"environment", "fabric", "hosts", "preflight", "validation"})

# Folders for which each role of the software had a variable, such as openmpi_cache_dir. Preflight has them now.
_FOLDERS = frozenset({"cache_dir", "work_dir", "log_dir", "controller_log_dir"})

# How alike two names are, without the role's, when one is taken for a typing error of the other (difflib's ratio).
_TYPING_ERROR = 0.75


class VariableRules:
    """Checks variables against the argument specs of all roles; each distinct value is checked once."""

    def __init__(self, specs: Mapping[str, Mapping[str, Any]], ignored: Iterable[str] = ()) -> None:
        """Take the argument specs of the roles, and the variables to skip.

        Args:
            specs: role name to its options (variable name to its spec).
            ignored: variables that are not checked.
        """
        self._specs = specs
        self._ignored = frozenset(ignored) | _OUTPUTS
        # The longest role name wins: python_env_x belongs to python_env, even beside a role 'python'.
        self._roles = sorted(specs, key=len, reverse=True)
        self._known: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self._strangers: set[str] = set()
        self._near_misses: dict[str, str] = {}

    def warnings(self) -> list[str]:
        """Return sentences about the variables so far that begin like a role's name and are unknown to it."""
        listed = "list a variable of other software in preflight_ignored_variables."
        found = [
            f"{name} is not a variable of role {self.role_of(name)}, and stays unused there; did you mean {near}? "
            f"Correct the name, or {listed}"
            for name, near in sorted(self._near_misses.items())
        ]
        if self._strangers:
            what = "is a variable" if len(self._strangers) == 1 else "are variables"
            names = shortened(sorted(self._strangers))
            unused = f"{names} {what} that the roles of clusterctl do not have, and stay unused there."
            found.append(f"{unused} Correct the name, or {listed}")
        return found

    @property
    def judged(self) -> int:
        """The number of distinct values that were checked."""
        return len(self._known)

    def role_of(self, name: str) -> str | None:
        """Return the role that a variable belongs to by its prefix, None for any other variable."""
        if name in self._ignored:
            return None
        return next((role for role in self._roles if name.startswith(f"{role}_")), None)

    def problems(self, host: str, name: str, value: object) -> list[Problem]:
        """Return the problems of one variable of one host."""
        role = self.role_of(name)
        if role is None:
            return []
        key = (name, json.dumps(value, sort_keys=True, default=str))
        if key not in self._known:
            self._known[key] = list(self._judge(role, name, value))
        return [Problem(host, "variable", problem, cure, name) for problem, cure in self._known[key]]

    def _judge(self, role: str, name: str, value: object) -> Iterable[tuple[str, str]]:
        spec = self._specs[role].get(name)
        if spec is None:
            return self._judge_unknown(role, name)
        fix = f"correct {name} where it is set (inventory, group_vars, host_vars or -e)"
        if role in _GENERIC_ROLES:
            fix += "; if it belongs to other software, give clusterctl its own value with -e, which wins"
        return _judge_value(spec, name, value, fix)

    def _judge_unknown(self, role: str, name: str) -> list[tuple[str, str]]:
        folder = name.removeprefix(f"{role}_")
        if role in brought.NAMES and folder in _FOLDERS:
            cure = f"set preflight_{folder}, which all roles of the software share, and remove {name}"
            return [(f"{name} is no longer a variable of role {role}", cure)]
        near = _nearest(name, role, self._specs[role])
        if not near:
            self._strangers.add(name)
        elif role in _GENERIC_ROLES:
            self._near_misses[name] = near
        else:
            cure = f"did you mean {near}? (list a variable of your own in preflight_ignored_variables)"
            return [(f"{name} is not a variable of role {role}", cure)]
        return []


def _judge_value(spec: Mapping[str, Any], name: str, value: object, fix: str) -> Iterable[tuple[str, str]]:
    if value is None:
        if spec.get("default") is not None:
            yield f"{name} is set but has no value", "give it a value, or remove it to get the default"
        return
    shown = "a secret value" if spec.get("no_log") else shown_value(value)
    wanted = str(spec.get("type", "str"))
    if wanted == "str" and isinstance(value, float):
        yield f"{name} is the number {shown}, and a number loses its last zeros", f'write "{name}" in quotes'
        return
    alone = {key: one for key, one in spec.items() if key not in {"required", "default"}}
    result = ArgumentSpecValidator({name: alone}).validate({name: value})
    for error in result.errors.errors:
        kind = type(error).__name__
        if kind == "ArgumentTypeError":
            yield f"{name} is {shown}, which is not of type {wanted}", fix
        elif kind == "ArgumentValueError":
            yield f"{name} is {shown}; it may be {', '.join(map(str, spec.get('choices', [])))}", fix
        else:
            yield f"{name}: " + ("its value is not valid" if spec.get("no_log") else cut(error.msg, 300)), fix


def _nearest(name: str, role: str, options: Iterable[str]) -> str:
    """Return the variable of a role that a name is probably a typing error of; '' for a variable of other software."""
    bare = {option.removeprefix(f"{role}_"): option for option in options}
    near = difflib.get_close_matches(name.removeprefix(f"{role}_"), list(bare), n=1, cutoff=_TYPING_ERROR)
    return bare[near[0]] if near else ""
