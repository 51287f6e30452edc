"""Sets of links: what a run left, what a rollback goes back to, what stands in its way, and the hold."""

from __future__ import annotations

import dataclasses
import posixpath
from typing import TYPE_CHECKING, Any

from clusterctl.model.nodeset import folded
from clusterctl.model.run_record import Problem
from clusterctl.model.snapshot import HostSoftware, SoftwareSet
from clusterctl.support.errors import ConfigError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence
    from datetime import datetime

    from clusterctl.model.facts import BusyProcess, NodeFacts
    from clusterctl.model.hosts import InventorySources
    from clusterctl.model.snapshot import Hold, Links, Snapshot
    from clusterctl.provisioning.preview import Preview


TAG = "software"  # of the roles that install artifacts, and of their checks of variables
ROLE_TAGS = ("ucx", "openmpi", "python_env", "mpi4py", "nccl", "horovod", TAG)
_MOST_PROCESSES_NAMED = 3
_LONGEST_COMMAND = 60


def present(facts: Mapping[str, NodeFacts]) -> dict[str, HostSoftware]:
    """Return the links that lead to an artifact on each host now."""
    return {
        name: HostSoftware(
            platform=node.platform, links={found.link: found.target for found in node.artifacts if found.link}
        )
        for name, node in facts.items()
    }


def left_by(
    run_id: str,
    verb: str,
    left: datetime,
    facts: Mapping[str, NodeFacts],
    watch: Mapping[str, Iterable[Mapping[str, Any]]],
) -> SoftwareSet:
    """Return the set of links that a run left.

    ``facts`` are of the hosts before the run. ``watch`` has by host what its tasks said should hold from now on.
    """
    hosts = present(facts)
    for name, entries in watch.items():
        known = hosts.get(name) or HostSoftware(platform="", links={})
        hosts[name] = HostSoftware(platform=known.platform, links={**known.links, **links_in(entries)})
    return SoftwareSet(run_id=run_id, verb=verb, left=left, hosts=hosts)


def links_in(entries: Iterable[Mapping[str, Any]]) -> Links:
    """Return the links among watch entries that lead to an artifact among them."""
    given = list(entries)
    trees = {str(entry["path"]) for entry in given if entry.get("kind") == "artifact"}
    links = {
        str(entry["path"]): posixpath.join(posixpath.dirname(str(entry["path"])), str(entry.get("target")))
        for entry in given
        if entry.get("kind") == "link"
    }
    return {link: tree for link, tree in links.items() if tree in trees}


def trees_of(entries: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the artifacts' folders among watch entries."""
    return frozenset(posixpath.basename(str(entry["path"])) for entry in entries if entry.get("kind") == "artifact")


def is_in_force(software: SoftwareSet, hosts: Mapping[str, HostSoftware]) -> bool:
    """Whether the links of all these hosts are those of a set."""
    return all(software.links_for(name, host.platform) == host.links for name, host in hosts.items())


def earlier(sets: Sequence[SoftwareSet], hosts: Mapping[str, HostSoftware], hold: Hold | None) -> SoftwareSet | None:
    """Return the set to which a rollback goes back where the user names none.

    That is the set of an unfinished rollback. Without one it is the newest other set, of the runs before the run whose
    set is in force. ``sets`` are the newest first, and ``hosts`` has the links now.
    """
    if hold is not None and not (hold.finished and is_in_force(hold.software, hosts)):
        return hold.software
    provisions = [found for found in sets if found.verb == "provision"]
    now = next((place for place, found in enumerate(provisions) if is_in_force(found, hosts)), -1)
    return next((found for found in provisions[now + 1 :] if not is_in_force(found, hosts)), None)


def wanted_links(
    software: SoftwareSet, names: Iterable[str], hosts: Mapping[str, HostSoftware]
) -> dict[str, Links | None]:
    """Return by host the folder of each link, '' for a link that goes; None where the set tells nothing of a host."""
    found: dict[str, Links | None] = {}
    for name in names:
        now = hosts.get(name) or HostSoftware(platform="", links={})
        links = software.links_for(name, now.platform)
        found[name] = None if links is None else {**dict.fromkeys(now.links, ""), **links}
    return found


def differing(wanted: Mapping[str, Links], hosts: Mapping[str, HostSoftware]) -> dict[str, tuple[str, ...]]:
    """Return by host the links to switch; a host that could not be looked at has all of its links."""
    found: dict[str, tuple[str, ...]] = {}
    for name, links in wanted.items():
        now = hosts[name].links if name in hosts else {}
        changed = tuple(link for link, tree in links.items() if now.get(link, "") != tree)
        if changed:
            found[name] = changed
    return found


def variables(links: Mapping[str, Mapping[str, str]], seen: Container[str]) -> dict[str, Any]:
    """Return the variables of the playbook that switches links; ``seen`` are the hosts whose folders are known."""
    return {"software_links": links, "software_unseen": any(name not in seen for name in links)}


def missing(
    software: SoftwareSet,
    wanted: Mapping[str, Links | None],
    facts: Mapping[str, NodeFacts],
    cure: str,
    collected: Mapping[str, datetime] | None = None,
) -> list[Problem]:
    """Return the hosts that cannot have a set, each with the folder that is gone or damaged.

    ``wanted`` is that of :func:`wanted_links`. In ``cure``, ``{tree}`` stands for the version of the first folder.
    ``collected`` has the folders that ``gc`` removed, each with the time.
    """
    problems = []
    for name, links in wanted.items():
        node = facts.get(name)
        if links is None:
            words = f"{software.run_id} left no links for this node, nor for another node of its platform"
            problems.append(_problem(name, words, cure.format(tree="its own software")))
            continue
        states = {found.target: found for found in node.artifacts} if node else {}
        for link, tree in links.items():
            if not tree or node is None:
                continue
            state = states.get(tree)
            if state is None:
                when = (collected or {}).get(tree)
                fate = f"was collected by 'clusterctl gc' on {when.astimezone():%Y-%m-%d}" if when else "is gone"
                words = f"{tree} {fate}, and {software.run_id} left {link} leading there"
                problems.append(_problem(name, words, cure.format(tree=version_of(link, tree))))
            elif not state.ok:
                words = f"{tree} is damaged: {state.problem}"
                problems.append(_problem(name, words, cure.format(tree=version_of(link, tree))))
    return problems


def bare(names: Iterable[str], facts: Mapping[str, NodeFacts]) -> list[str]:
    """Return the hosts that could be looked at and have no artifact at all: new machines."""
    return [name for name in names if name in facts and not facts[name].artifacts]


def mixed(software: SoftwareSet) -> tuple[str, ...]:
    """Return what to do where nodes of one platform use different builds of the same software, a sentence for each."""
    users: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, host in software.hosts.items():
        for link, tree in host.links.items():
            users.setdefault((link, host.platform), {}).setdefault(posixpath.basename(tree), []).append(name)
    return tuple(
        f"{' and '.join(f'{folded(names)} with {tree}' for tree, names in trees.items())}: jobs across them may fail. "
        "Run 'clusterctl provision' without --limit to bring all nodes to one version."
        for trees in users.values()
        if len(trees) > 1
    )


def version_of(link: str, tree: str) -> str:
    """Return the name and version in the name of a folder: ``openmpi 5.0.7``."""
    name, folder = posixpath.basename(link), posixpath.basename(tree)
    return f"{name} {folder.removeprefix(f'{name}-').rpartition('-')[0] or folder}"


def _problem(host: str, words: str, cure: str) -> Problem:
    return Problem(host=host, subject="software", problem=words, cure=cure)


def at_work(switched: Mapping[str, Iterable[str]], facts: Mapping[str, NodeFacts]) -> list[Problem]:
    """Return the hosts with ranks, or with processes that use a folder which a link is about to leave."""
    problems = []
    for name, node in facts.items():
        links = set(switched.get(name, ()))
        leaving = {found.target for found in node.artifacts if found.link in links}
        busy = [process for process in node.busy if links and (process.rank or leaving & set(process.trees))]
        if busy:
            shown = and_more([_shown(process) for process in busy], _MOST_PROCESSES_NAMED, "; ")
            words = f"jobs run here: {shown}"
            problems.append(
                Problem(host=name, subject="jobs", problem=words, cure="wait for their end, or give --while-busy")
            )
    return problems


def _shown(process: BusyProcess) -> str:
    what = "rank" if process.rank else "process"
    return f"{what} {process.pid} of {process.user}: {process.command[:_LONGEST_COMMAND]}"


def watch_after(
    before: Iterable[Mapping[str, Any]], said: Iterable[Mapping[str, Any]], hosts_links: Iterable[str]
) -> tuple[dict[str, Any], ...]:
    """Return what holds after the links of a host were switched and the roles of its software were left out.

    What the tasks of this run ``said`` counts more than what the snapshot watched. ``hosts_links`` has every link of an
    artifact, before and after.
    """
    links = set(hosts_links)
    kept = {
        str(entry["path"]): dict(entry)
        for entry in before
        if entry.get("kind") != "artifact" and str(entry["path"]) not in links
    }
    kept.update({str(entry["path"]): dict(entry) for entry in said})
    return tuple(kept.values())


# --- The hold of a cluster during a provision: which software stays, and which hosts cannot have it -------------------


class SoftwareHold:
    """What a hold means for a provision; without a hold (``hold`` is None) it changes nothing."""

    def __init__(self, hold: Hold | None, inventory: InventorySources) -> None:
        """Take the hold of the inventory's cluster."""
        self._hold = hold
        self._release = f"'clusterctl rollback --release {inventory.shown}'"

    def __bool__(self) -> bool:
        return self._hold is not None

    @property
    def run_id(self) -> str:
        """The run whose software is held; '' without a hold."""
        return self._hold.software.run_id if self._hold else ""

    @property
    def messages(self) -> tuple[str, ...]:
        """The sentence about the hold, for the record."""
        if self._hold is None:
            return ()
        since = f"{self._hold.since.astimezone():%Y-%m-%d %H:%M}"
        return (f"Held at {self.run_id} by a rollback of {since}: software stays as it is; {self._release} ends it.",)

    @property
    def skip_tags(self) -> tuple[str, ...]:
        """The tags of the roles that are left out."""
        return (TAG,) if self._hold else ()

    def refuse(self, tags: Iterable[str]) -> None:
        asked = [tag for tag in tags if tag in ROLE_TAGS]
        if self._hold and asked:
            raise ConfigError(
                f"--tags {','.join(asked)} asks for software that is held at {self.run_id}; "
                f"{self._release} ends the hold."
            )

    def problems(self, selected: Sequence[str], facts: Mapping[str, NodeFacts], before: Snapshot) -> list[Problem]:
        """Return the hosts that cannot have the held software; ``before`` knows of damaged contents."""
        if self._hold is None:
            return []
        new = bare(selected, facts)
        without = [self._bare(name) for name in new]
        selected = [name for name in selected if name not in new]
        wanted = wanted_links(self._hold.software, selected, present(facts))
        cure = f"end the hold with {self._release}, then provision; {{tree}} is installed if the inventory asks for it"
        known = {name: host.damaged for name, host in before.hosts.items() if name in selected}
        damaged = [
            Problem(
                host=name,
                subject="software",
                problem=str(each),
                cure=f"end the hold with {self._release}, then provision",
            )
            for name, found in known.items()
            for each in found
        ]
        return without + missing(self._hold.software, wanted, facts, cure) + damaged

    def _bare(self, name: str) -> Problem:
        problem = f"a new machine has none of the software that is held at {self.run_id}, and a hold installs none"
        cure = (
            f"end the hold with {self._release}, repeat this command, then provision: all nodes get the versions that "
            "the inventory asks for"
        )
        return Problem(host=name, subject="software", problem=problem, cure=cure)

    def jobs(self, selected: Sequence[str], facts: Mapping[str, NodeFacts]) -> list[Problem]:
        """Return the jobs in the way of hosts whose links do not lead where they are held."""
        return at_work(differing(self.links(selected, facts), present(facts)), facts)

    def links(self, selected: Sequence[str], facts: Mapping[str, NodeFacts]) -> dict[str, Links]:
        """Return by host the folder of each link; {} without a hold."""
        if self._hold is None:
            return {}
        wanted = wanted_links(self._hold.software, selected, present(facts))
        return {name: links for name, links in wanted.items() if links is not None}

    def preview(self, ahead: Preview) -> Preview:
        """Return a preview in which no software is built or installed."""
        return dataclasses.replace(ahead, builds={}, installs={}) if self._hold else ahead

    def watch(
        self, said: Mapping[str, tuple[dict[str, Any], ...]], before: Snapshot, links: Mapping[str, Mapping[str, str]]
    ) -> Mapping[str, tuple[dict[str, Any], ...]]:
        """Return what holds on each host after the run; of the roles that were left out, what held before it."""
        if self._hold is None:
            return said
        return {
            name: watch_after(before.hosts[name].watch if name in before.hosts else (), entries, links[name])
            for name, entries in said.items()
            if name in links
        }
