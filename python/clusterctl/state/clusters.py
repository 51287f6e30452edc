"""Which cluster an inventory names: an index of the inventories that were read and of the machines of each cluster.

A cluster keeps its folder of the state when its inventory is moved, renamed or copied. Machines are known by their host
keys in this machine's known_hosts, or by their address and port where no key is known. A new cluster gets a folder that
is named by the path of its inventory. An older release named all folders so, and they stay where they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.model import host_keys
from clusterctl.model.hosts import InventorySources, is_host_list, is_path
from clusterctl.state import files, paths
from clusterctl.support.errors import ConfigError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from clusterctl.model.host_keys import HostKey, KnownHosts
    from clusterctl.model.hosts import AnyInventory, Host

NEW = "new"  # as the name of a past: none of those that are kept
_MOST_NAMED = 4
_MOST_HASHES = 40_000  # a tenth of a second; beyond it, addresses decide
_GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"
_SCHEMA = 1


@dataclass(frozen=True)
class KnownMachine:
    """A machine of a cluster.

    Attributes:
        place: where its sshd listens, and a digest of the way through a bastion.
        keys: digests of its host keys, each behind the type of the key.
    """

    place: str
    keys: tuple[str, ...] = ()


Machines = dict[str, KnownMachine]  # by the name in the inventory


@dataclass(frozen=True)
class _Index:
    """The index: the cluster of each inventory, and the machines of each cluster, as they were last read.

    Inventories are in the order in which they began to name their clusters.
    """

    inventories: dict[str, str] = field(default_factory=dict)
    machines: dict[str, Machines] = field(default_factory=dict)

    def with_cluster(self, inventory: str, cluster: str, machines: Machines) -> _Index:
        """Return the index with an inventory of a cluster; entries that have neither a file nor a folder go."""
        before = {key: name for key, name in self.inventories.items() if key != inventory or name == cluster}
        inventories = {**before, inventory: cluster}
        kept = {
            key: name
            for key, name in inventories.items()
            if key == inventory or paths.cluster_dir(name).is_dir() or (_is_there(key) and not is_host_list(key))
        }
        known = {**self.machines, cluster: machines}
        return _Index(kept, {name: known[name] for name in known if name in kept.values()})


def settle(sources: InventorySources, hosts: Sequence[Host]) -> None:
    """Find the cluster that an inventory names by its machines, and keep that in the index.

    Args:
        sources: the inventory.
        hosts: all of its hosts, also those beyond a limit.

    Raises:
        ConfigError: the machines have more than one past, or a newer clusterctl wrote the index.
    """
    machines, key, index = _machines_of(hosts), paths.inventory_key(sources), _read()
    if index.machines.get(index.inventories.get(key, "")) == machines:
        return
    with contextlib.suppress(OSError), _changing() as index:  # what has to be written says so itself
        _write(index.with_cluster(key, _cluster_of(index, sources, machines), machines))


def left_behind(identity: str) -> list[str]:
    """Return the clusters that their nodes know by an id and whose inventory is gone."""
    from clusterctl.state import snapshots  # noqa: PLC0415 - pydantic; the start of run is quick where the index is right

    index = _read()
    known = (name for name in _folders() if snapshots.read_identity(name) == identity)
    return [name for name in known if not _has_inventory(index, name)]


def choose(sources: InventorySources, hosts: Sequence[Host], past: str) -> str:
    """Let an inventory go on with a past that the user names, and return the name of the cluster.

    A new past gets its id at once: then nobody asks again whose nodes these are.

    Args:
        sources: the inventory.
        hosts: all of its hosts.
        past: the folder name of a cluster, or :data:`NEW`.

    Raises:
        ConfigError: there is no such past, the state folder cannot be written, or a newer clusterctl wrote the index.
    """
    from clusterctl.state import snapshots  # noqa: PLC0415 - pydantic; the start of run is quick where the index is right

    known = _folders()
    if past not in {NEW, *known}:
        raise ConfigError(
            f"There is no past '{past}'; choose '{NEW}' or one of: {and_more(known, _MOST_NAMED) or 'none'}."
        )
    paths.private_folder(paths.state_dir().value)
    try:
        with _changing() as index:
            cluster = _free_name(sources) if past == NEW else past
            if past == NEW:
                snapshots.write_identity(cluster, snapshots.fresh_identity())
            _write(index.with_cluster(paths.inventory_key(sources), cluster, _machines_of(hosts)))
    except OSError as error:
        place = error.filename or paths.inventories_file()
        raise ConfigError(
            f"{place} cannot be read or written ({error.strerror}); repair it and choose again."
        ) from None
    return cluster


def other_pasts(inventory: AnyInventory) -> list[str]:
    """Return the clusters, other than its present one, whose last run had this inventory: its machines were others."""
    shown, present = str(paths.resolved(inventory)), paths.cluster_id(inventory)
    return [name for name in _folders() if name != present and _inventory_of(name) == shown]


def begins_anew(inventory: AnyInventory) -> tuple[str, ...]:
    """Return a sentence where other machines had runs by this path, until a run that changes nodes has ended well."""
    from clusterctl.state import runs  # noqa: PLC0415 - pydantic; the start of run is quick where the index is right

    others = other_pasts(inventory)[-1:]
    if others and any(run.exit_code == 0 and run.verb != "validate" for run in runs.read_runs(inventory)):
        return ()
    shown = InventorySources.of(inventory).shown
    return tuple(
        f"These are other machines than those of earlier runs of {shown}, so history begins anew; where they are the "
        f"same, 'clusterctl history --past {name} {shown}' goes on with those runs."
        for name in others
    )


def new_place(inventory: AnyInventory) -> str:
    """Return the inventory that the cluster of a missing inventory has now, as it can be pasted; '' without one."""
    key, known = paths.inventory_key(inventory), paths.known_inventories()
    others = [other for other, name in known.items() if name == known.get(key) and other != key and _is_there(other)]
    return _sources(others[-1]).shown if others else ""


def forget(known_hosts: str) -> None:
    """Remove all that is kept of the clusters whose machines are all in a known_hosts file: these machines are gone.

    Raises:
        ConfigError: the history cannot be written, or a newer clusterctl wrote the index.
        OSError: a folder cannot be removed, or the index cannot be read or written.
    """
    gone = {_digest(key) for key in host_keys.KnownHosts(known_hosts, 0).keys}
    for name, machines in _read(to_change=True).machines.items():
        if not machines or not all(gone.intersection(machine.keys) for machine in machines.values()):
            continue
        from clusterctl.state import history  # noqa: PLC0415 - SQLite costs the start of every command

        with history.open() as opened:
            opened.forget(name)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(paths.cluster_dir(name))
        with _changing() as index:  # last: a forgetting that was killed is found by the next one
            inventories = {key: its for key, its in index.inventories.items() if its != name}
            _write(_Index(inventories, {its: index.machines[its] for its in index.machines if its != name}))


# --- Which past an inventory goes on with -----------------------------------------------------------------------------


def _cluster_of(index: _Index, sources: InventorySources, machines: Machines) -> str:
    """Return the past of an inventory: the one of its path, unless all machines are others; else that of its machines.

    A past is that of the machines where all of them are the same. Half of them suffice where its inventory is gone.
    Where several inventories name one past, those other than the first need all of its machines.

    Raises:
        ConfigError: there are several.
    """
    own, key = paths.new_cluster_id(sources), paths.inventory_key(sources)
    is_older = own not in index.machines and paths.cluster_dir(own).is_dir()  # an older release made it
    bound = index.inventories.get(key, own if is_older else "")
    before = _past_machines(index, bound) if bound else {}
    if bound and (not before or _shared(machines, before, by_path=True)):
        are_all = _places(machines) == _places(before) or _shared(machines, before) == len(before) == len(machines)
        if are_all or bound.startswith(own) or _first_inventory(index, bound) == key:
            return bound
    whole, half = [], []
    for name in _folders():
        past = _past_machines(index, name)
        shared = _shared(machines, past)
        if shared == len(past) == len(machines):
            whole.append(name)
        elif shared and 2 * shared >= max(len(past), len(machines)) and not _has_inventory(index, name):
            half.append(name)
    in_use = set(index.inventories.values())  # the others were left, or are of an older release
    found = [name for name in whole or half if name in in_use] or whole or half
    if len(found) > 1:
        named = and_more([_named(index, name) for name in found], _MOST_NAMED)
        raise ConfigError(
            f"The machines of {sources} have {len(found)} pasts: {named}; choose one with "
            f"'clusterctl history --past NAME {sources.shown}', or '{NEW}' to begin anew."
        )
    return found[0] if found else _free_name(sources)


def _first_inventory(index: _Index, name: str) -> str:
    """Return the inventory that may change a cluster's machines: the one whose path named it, else the oldest one."""
    last = _inventory_of(name)
    known = {**index.inventories, last: index.inventories.get(last, name)}
    there = [key for key, its in known.items() if its == name and key and _is_there(key)]
    own = (key for key in there if name.startswith(paths.new_cluster_id(_sources(key))))
    return next(iter((*own, *there)), "")


def _named(index: _Index, name: str) -> str:
    of = [key for key, its in index.inventories.items() if its == name] or [_inventory_of(name)]
    return f"{name} (of {_sources(of[-1])})" if of[-1] else name


def _sources(key: str) -> InventorySources:
    return InventorySources(tuple(key.split("\n")))


def _free_name(sources: InventorySources) -> str:
    own, taken = paths.new_cluster_id(sources), set(_folders())
    return next(name for name in (own, *(f"{own}-{n}" for n in range(2, len(taken) + 3))) if name not in taken)


def _shared(now: Machines, then: Machines, *, by_path: bool = False) -> int:
    """Return how many machines are among those of the past.

    A machine is the same where it has the same host key, and another one where a key of the same type differs. Else its
    address decides, unless the past knows its key and this machine has none. With ``by_path``, the inventory has the
    path of the past, and the name or the address suffices. A key that several machines have comes from one image, and
    says nothing.
    """
    keys, past_keys = _own_keys(now), _own_keys(then)
    holders = {key for its in past_keys.values() for key in its}
    places = {machine.place: name for name, machine in then.items()}
    count = 0
    for name, machine in now.items():
        likely = {places.get(machine.place, ""), name if by_path else ""} & set(then)
        undecided = (past_keys[other] for other in likely if not _types(keys[name]) & _types(past_keys[other]))
        alike = any(by_path or keys[name] or not known for known in undecided)
        count += alike or bool(keys[name] & holders)
    return count


def _places(machines: Machines) -> set[str]:
    return {machine.place for machine in machines.values()}


def _own_keys(machines: Machines) -> dict[str, set[str]]:
    counts = Counter(key for machine in machines.values() for key in set(machine.keys))
    return {name: {key for key in machine.keys if counts[key] == 1} for name, machine in machines.items()}


def _types(keys: Iterable[str]) -> set[str]:
    return {key.partition(" ")[0] for key in keys}


# --- The machines of an inventory, and those of a past ----------------------------------------------------------------


def _machines_of(hosts: Sequence[Host]) -> Machines:
    """Return the machines of hosts with the keys by which this machine knows them."""
    read: dict[str, KnownHosts] = {}
    most_hashed = _MOST_HASHES // max(1, len(hosts))
    found = {}
    for host in hosts:
        given = dict(_settings(host.ssh_args))
        ways = [given[name] for name in ("proxyjump", "proxycommand") if given.get(name, "none") != "none"]
        by = hashlib.sha256(" ".join(ways).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        keys = tuple(sorted(_keys_of(host, given, read, most_hashed)))
        found[host.name] = KnownMachine(f"{host.place} by {by}" if ways else host.place, keys)
    return found


def _keys_of(host: Host, given: Mapping[str, str], read: dict[str, KnownHosts], most_hashed: int) -> set[str]:
    places = [*given.get("userknownhostsfile", "~/.ssh/known_hosts").split(), _GLOBAL_KNOWN_HOSTS]
    name = host_keys.place(given.get("hostkeyalias", host.address), host.port if "hostkeyalias" not in given else 22)
    found: set[str] = set()
    for place in places:
        if place not in read:
            read[place] = host_keys.KnownHosts(_text_of(place), most_hashed)
        found.update(_digest(key) for key in read[place].of(name))
    return found


def _settings(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the settings that ``-o`` and ``-J`` of ssh give, the last one first: for ssh, the first one counts."""
    for before, word in reversed([*zip(("", *words), words, strict=False)]):
        jump = word if before == "-J" else word.removeprefix("-J") if word.startswith("-J") else ""
        setting = f"ProxyJump={jump}" if jump else word.removeprefix("-o")
        name, mark, value = setting.strip().replace(" ", "=", 1).partition("=")
        if mark:
            yield name.lower(), value.strip(" \"'")


def _text_of(place: str) -> str:
    try:
        path = Path(place).expanduser()
        return path.read_text(encoding="utf-8", errors="surrogateescape") if path.is_file() else ""
    except (OSError, RuntimeError, ValueError):  # no home, or a name that no file has
        return ""


def _digest(key: HostKey) -> str:
    return f"{key.type} {hashlib.sha256(key.blob.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"


def _past_machines(index: _Index, name: str) -> Machines:
    """Return the machines of a cluster; those of the snapshot whose keys are known where an older release left it."""
    if name in index.machines:
        return index.machines[name]
    from clusterctl.state import snapshots  # noqa: PLC0415 - pydantic; the start of run is quick where the index is right

    snapshot = snapshots.read(name)
    addresses = {str(member.get("name")): member.get("address") for member in snapshot.members}
    keys = {
        host: [_digest(key) for line in its.host_keys if (key := host_keys.found_in(line))]
        for host, its in snapshot.hosts.items()
    }
    return {host: KnownMachine(f"{addresses.get(host)}:22", tuple(sorted(its))) for host, its in keys.items() if its}


def _folders() -> list[str]:
    try:
        return sorted(path.name for path in paths.clusters_dir().iterdir() if path.is_dir())
    except OSError:
        return []


def _has_inventory(index: _Index, name: str) -> bool:
    known = [key for key, its in index.inventories.items() if its == name]
    recorded = _inventory_of(name) or "/"
    return any(map(_is_there, known)) if known else " and " in recorded or _is_there(recorded)  # of several sources


def _is_there(key: str) -> bool:
    return all(not is_path(word) or Path(word).exists() for word in key.split("\n"))


def _inventory_of(name: str) -> str:
    """Return the inventory of a cluster's last run, as its record names it; '' where it is unknown."""
    try:
        text = paths.run_record(paths.runs_dir(name) / "latest").read_bytes()
        return str(json.loads(text)["inventory"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


# --- The file of the index --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _changing() -> Iterator[_Index]:
    """Let one process at a time change the index."""
    from clusterctl.state import locks  # noqa: PLC0415 - pydantic; the start of run is quick where the index is right

    paths.ensure_private(paths.state_dir().value)
    with locks.held(paths.inventories_lock(), patience_s=math.inf):
        yield _read(to_change=True)


def _read(*, to_change: bool = False) -> _Index:
    """Return the index; a damaged one counts as empty.

    Raises:
        ConfigError: it is to be changed, and a newer clusterctl wrote it.
        OSError: it is to be changed, and is there but cannot be read.
    """
    path = paths.inventories_file()
    try:
        found = json.loads(path.read_bytes())
        machines = {
            cluster: {name: _machine(data) for name, data in its.items()}
            for cluster, its in found["machines"].items()
            if paths.is_folder_name(cluster)
        }
        if to_change and found["schema_version"] > _SCHEMA:
            raise ConfigError(f"The index {path} was written by a newer clusterctl; use that one, or a newer one.")
        return _Index(paths.clusters_named_in(found), machines)
    except OSError as error:
        if to_change and not isinstance(error, FileNotFoundError):
            raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return _Index()


def _machine(data: object) -> KnownMachine:
    if not isinstance(data, dict):
        raise TypeError
    return KnownMachine(str(data["place"]), tuple(map(str, data["keys"])))


def _write(index: _Index) -> None:
    text = json.dumps({"schema_version": _SCHEMA, **asdict(index)}, indent=1)
    files.write_atomically(paths.inventories_file(), text + "\n")
