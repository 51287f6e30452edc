# SPDX-License-Identifier: GPL-3.0-or-later
"""What recipes take and return: hosts with settings, artifacts, refusals."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.clusterctl.hpc.plugins.module_utils import builder_turns
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import artifact_key, tree_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.source import Fetched
    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import Built, LockedEnvironment

ROLES = Path(__file__).resolve().parents[3] / "roles"
SHARED = "preflight"  # the role whose folders of builds hold for all
SYSTEM_PYTHON = "/usr/bin/python3"
APT = {"update_cache": True, "cache_valid_time": 86400, "install_recommends": False}  # options of a package manager


class Settings:
    """The variables of the roles as one host has them. Values from -e are text, also for variables of another type."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Keep the values; each variable of a role has one, its default at least."""
        self._values = values

    def of(self, *roles: str) -> dict[str, Any]:
        """Return the variables of roles, and those that all roles share."""
        begins = tuple(f"{role}_" for role in (*roles, SHARED))
        return {name: value for name, value in self._values.items() if name.startswith(begins)}

    def get(self, name: str) -> Any:
        """Return the value as it is.

        Raises:
            KeyError: no role has this variable.
        """
        return self._values[name]

    def text(self, name: str) -> str:
        """Return a text; '' for null."""
        value = self._values[name]
        return "" if value is None else str(value)

    def flag(self, name: str) -> bool:
        """Return a truth value."""
        return bool(boolean(self._values[name], strict=False))

    def number(self, name: str) -> int:
        """Return a whole number."""
        return int(self._values[name])

    def texts(self, name: str) -> list[str]:
        """Return a list of texts; one text may stand without a list, and null is an empty list."""
        value = self._values[name]
        if value is None or value == "":
            return []
        return [str(one) for one in (value if isinstance(value, (list, tuple)) else [value])]


@dataclass(frozen=True)
class Host:
    """A host that takes part in the run.

    Attributes:
        name: its name in the inventory.
        member: what preflight says of it: platform, provides, cuda, gpus, pmix, trees, builds.
        node: its facts, as ``node_facts`` returns them.
        settings: its variables of the roles.
        interpreter: the Python that Ansible's modules use there, as the inventory names it; '' if it names none.
    """

    name: str
    member: Mapping[str, Any]
    node: Mapping[str, Any]
    settings: Settings
    interpreter: str = ""

    @property
    def platform(self) -> str:
        """The id of its platform."""
        return str(self.member["platform"])

    @property
    def families(self) -> list[str]:
        """Names for its distribution, the widest first: Debian, Debian_12, Ubuntu_24."""
        of = self.node["distribution"]
        major = of["major"]
        names = [str(of["family"]), f"{of['family']}_{major}", f"{str(of['id']).capitalize()}_{major}"]
        return list(dict.fromkeys(names))

    def linked(self, link: str) -> Mapping[str, Any]:
        """Return the artifact that a link of the host leads to now; empty without one."""
        return next((one for one in self.node.get("artifacts") or () if one.get("link") == link), {})


@dataclass(frozen=True)
class WheelWish:
    """Wheels that a recipe needs to know.

    Attributes:
        name: what they are for; part of the name of their lock.
        target: the id of the platform that they must fit.
        requirements: what they must satisfy, as pip writes it.
        variable: the user's variable that names them, for messages.
        cache_dir: the controller's cache.
        wheel_dir: a folder that replaces the index; '' for the index.
        first_of: further requirements, of which the first list that the index has is taken.
        choice_variable: the user's variable that names those.
    """

    name: str
    target: str
    requirements: Sequence[str]
    variable: str
    cache_dir: str
    wheel_dir: str = ""
    first_of: Sequence[Sequence[str]] = ()
    choice_variable: str = ""


@dataclass(frozen=True)
class Pinned:
    """Pinned wheels.

    Attributes:
        wheels: name, version, filename and sha256 of each.
        taken: the place in ``first_of`` of the list that was taken.
        notes: warnings for the user.
        built: packages of a user's lock that are built from their source archives.
        left_out: packages of a user's lock that come from elsewhere.
    """

    wheels: Sequence[Mapping[str, str]]
    taken: int = 0
    notes: Sequence[str] = ()
    built: Sequence[Built] = ()
    left_out: Sequence[str] = ()


@dataclass(frozen=True)
class LockWish:
    """The environment of a user's lock, which a recipe needs to know.

    Attributes:
        path: the lock on the controller.
        target: the id of the platform that it must fit.
        python: version of the nodes' Python, with all its numbers.
        cache_dir: the controller's cache.
        wheel_dir: a folder that replaces the index; '' for the index.
        extras: names of the lock's extras.
        groups: names of the lock's groups, beside its default groups.
        left_out: names of packages that come from elsewhere.
    """

    path: str
    target: str
    python: str
    cache_dir: str
    wheel_dir: str = ""
    extras: Sequence[str] = ()
    groups: Sequence[str] = ()
    left_out: Sequence[str] = ()


class Controller:
    """What recipes have the controller look up; this one refuses, for recipes that ask nothing."""

    def pin(self, wish: WheelWish) -> Pinned:
        """Return the wheels that fit, the same ones each time.

        Raises:
            ArtifactError: there are none; the message is one sentence with the cure.
        """
        raise NotImplementedError(wish)

    def pin_lock(self, wish: LockWish) -> LockedEnvironment:
        """Return what a user's lock brings, the same files each time.

        Raises:
            ArtifactError: the lock cannot be used; the message is one sentence with the cure.
        """
        raise NotImplementedError(wish)

    def fetch(self, name: str, version: str, sources: Sequence[Mapping[str, Any]], cache_dir: str) -> Fetched:
        """Return a verified file in the cache, from the first of its sources that has it.

        Raises:
            ArtifactError: none has it.
        """
        raise NotImplementedError(name, version, sources, cache_dir)


@dataclass(frozen=True)
class Cluster:
    """All that recipes decide on.

    Attributes:
        hosts: those of the run, in the order of the inventory.
        members: what preflight says of all hosts of the cluster, also of those that the run leaves out.
        prefix: the folder of the software.
        roles: the software roles that this run installs; others may be decided as well.
        controller: pins wheels and fetches archives.
    """

    hosts: Sequence[Host]
    members: Sequence[Mapping[str, Any]]
    prefix: str
    roles: frozenset[str]
    controller: Controller = field(default_factory=Controller)

    def comes(self, plans: Mapping[str, Plan], role: str, host: Host, name: str) -> Mapping[str, Any]:
        """Return ``key`` and ``version`` of an artifact that a host has once this run ends; empty if it has none.

        Args:
            plans: what was decided so far, by role.
            role: the role that brings it. Where this run does not install it, the host keeps what it has.
            host: the host.
            name: the artifact's name.
        """
        if role not in self.roles:
            return host.linked(f"{self.prefix}/{name}")
        found = plans[role].of(host.name, name)
        return {"key": found.key, "version": found.version} if found else {}

    def alike(self, *roles: str, also: Callable[[Host], Any] = lambda _host: None) -> list[list[Host]]:
        """Return the hosts of the run in groups of one platform and equal settings, in the order of the inventory.

        Args:
            roles: whose settings count.
            also: what must be equal as well, such as the keys of what a build stands on.
        """
        found: list[tuple[Any, list[Host]]] = []
        for host in self.hosts:
            own = (host.platform, host.settings.of(*roles), also(host))
            for same, its in found:
                if same == own:
                    its.append(host)
                    break
            else:
                found.append((own, [host]))
        return [its for _same, its in found]


def builders(hosts: Sequence[Host], wanted: str = "", turn: str = "") -> list[Host]:
    """Return the hosts that can build, the preferred one first.

    Args:
        hosts: of one platform, in the order of the inventory.
        wanted: the host that the user names; any other name counts as none.
        turn: name of the artifact, where another host than the first may build it beside others. Where a host has the
            artifact installed, the first one packs it or builds it.
    """
    named = [one for one in hosts if one.name == wanted]
    if any(turn in one.member.get("trees", ()) for one in hosts):
        turn = ""
    roomy = [*hosts[:1], *(one for one in hosts[1:] if one.member.get("builds", True))]
    first = builder_turns.turn(turn, len(roomy)) if roomy else 0
    return [*named, *(one for one in roomy[first:] + roomy[:first] if one not in named)]


@dataclass(frozen=True)
class Refusal:
    """Why a run does not begin; ``host`` is '' where the reason is about no single host."""

    host: str
    problem: str


@dataclass(frozen=True)
class Artifact:
    """A tree of files that hosts of one platform get.

    Attributes:
        role: the role that brings it.
        name: of the artifact and of its link.
        version: of the software.
        inputs: everything that shapes its bytes; the key is made of it.
        prefix: the folder below which it is installed.
        hosts: names of the hosts that get it.
        builders: names of the hosts that can build it, the preferred one first.
        round: 1 for what needs no other artifact, or only those that the same host builds before it; 2 for the rest.
        uses: names of artifacts whose folders its build and the loader see, also before their links are switched.
        build: further options of the build.
        install: further options of the installation.
        proof: options of the proof; empty where another artifact's proof covers it.
        before: by module its options, run on each host before packages of ``build`` or ``install`` come.
        after: by module its options, run on each host once the link leads to the artifact.
        reports: by module its options, run with the proof.
    """

    role: str
    name: str
    version: str
    inputs: Mapping[str, Any]
    prefix: str
    hosts: Sequence[str]
    builders: Sequence[str]
    round: int
    build: Mapping[str, Any]
    install: Mapping[str, Any] = field(default_factory=dict)
    proof: Mapping[str, Any] = field(default_factory=dict)
    uses: Sequence[str] = ()
    before: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    after: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The artifact's key."""
        return artifact_key(self.inputs)

    @property
    def link(self) -> str:
        """The link that a switch leads to its folder."""
        return f"{self.prefix}/{self.name}"

    @property
    def tree(self) -> str:
        """Its folder."""
        return f"{self.prefix}/{tree_name(self.name, self.version, self.key)}"

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {**asdict(self), "key": self.key, "link": self.link, "tree": self.tree}


@dataclass(frozen=True)
class Plan:
    """What a recipe decides.

    Attributes:
        artifacts: in the order in which they are built.
        refusals: why the run does not begin.
        warnings: sentences for the user.
        told: what later recipes and steps need to know of it, by name.
    """

    artifacts: Sequence[Artifact] = ()
    refusals: Sequence[Refusal] = ()
    warnings: Sequence[str] = ()
    told: Mapping[str, Any] = field(default_factory=dict)

    def of(self, host: str, name: str) -> Artifact | None:
        """Return the artifact of this name that a host gets; None if it gets none."""
        return next((one for one in self.artifacts if one.name == name and host in one.hosts), None)


class Recipe(Protocol):
    """What some hosts get of a role, alike on all of them."""

    def refusals(self) -> Iterable[Refusal]:
        """Return why they cannot have it."""

    def artifact(self) -> Artifact:
        """Return the artifact, where there are no refusals."""


def plan_of(recipes: Iterable[Recipe]) -> Plan:
    """Return a plan of all recipes of a role. What two of them say of no single host is said once."""
    artifacts: list[Artifact] = []
    refusals: list[Refusal] = []
    for recipe in recipes:
        problems = list(recipe.refusals())
        refusals += [one for one in problems if one not in refusals]
        artifacts += [] if problems else [recipe.artifact()]
    return Plan(artifacts, refusals)


def words(text: str) -> list[str]:
    """Return the words of a text: long lists of short names are read best in lines."""
    return text.split()


def role_file(role: str, name: str) -> str:
    """Return a text file of a role."""
    return (ROLES / role / "files" / name).read_text(encoding="utf-8")


def digest(*texts: str) -> str:
    """Return the sha256 of texts in hex digits, each without white space at its end."""
    return hashlib.sha256("".join(text.rstrip() for text in texts).encode()).hexdigest()


def of_family(table: Mapping[str, Mapping[str, Any]], host: Host) -> dict[str, Any]:
    """Return the names of packages for a host's distribution; a narrower entry replaces values of a wider one."""
    found: dict[str, Any] = {}
    for name in host.families:
        found |= table.get(name, {})
    return found


def places(settings: Settings) -> dict[str, str]:
    """Return the folders on the controller and on a builder, as options of a build."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    cache = settings.text("preflight_cache_dir") or f"{home}/clusterctl"
    return {
        "cache_dir": cache,
        "work_dir": settings.text("preflight_work_dir"),
        "log_dir": settings.text("preflight_log_dir"),
        "controller_log_dir": settings.text("preflight_controller_log_dir") or f"{cache}/logs",
    }
