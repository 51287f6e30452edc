"""Push, pull, list, verify and clean a shared cache; each entry is taken or written whole, or not at all."""

from __future__ import annotations

import fnmatch
import hashlib
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.model.shared_cache import EntryName, Envelope, Kind, Statement
from clusterctl.remote.shared_cache import place, signing
from clusterctl.state import cache_entries, paths, snapshots
from clusterctl.support.errors import ClusterctlError, ConfigError, RefusedContentError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from clusterctl.model.hosts import Host
    from clusterctl.model.run_record import RunObserver
    from clusterctl.remote.shared_cache.signing import SignatureVerifier, Signer
    from clusterctl.remote.shared_cache.store import SharedStore
    from clusterctl.state.cache_entries import LocalEntry


GRACE_S = 86400.0  # a content that no entry names may belong to a push that goes on now


@dataclass(frozen=True)
class EntryOptions:
    """Which entries are meant: all, or those of some names and platforms."""

    names: tuple[str, ...] = ()  # names of software, of folders, or patterns of them
    platforms: tuple[str, ...] = ()  # of packs
    kinds: tuple[Kind, ...] = ("pack", "lock")

    def takes(self, name: EntryName) -> bool:
        """Whether the name is meant."""
        return name.kind in self.kinds and (not self.names or self._names(name))

    def _names(self, name: EntryName) -> bool:
        return any(
            fnmatch.fnmatchcase(name.name, word) or fnmatch.fnmatchcase(name.name, f"{word}-*") for word in self.names
        )

    def takes_platform(self, statement: Statement) -> bool:
        """Whether the platform is meant; locks are small and go to all."""
        return statement.entry.kind == "lock" or not self.platforms or statement.platform in self.platforms


@dataclass(frozen=True)
class Listed:
    """An entry of a shared cache, as its verified statement says."""

    statement: Statement
    signer: str
    written: float | None = None  # seconds since 1970


@dataclass
class Exchanged:
    """What happened to the entries; ``problems`` are those of single entries, after which the others go on."""

    done: list[Statement] = field(default_factory=list)
    there: list[Statement] = field(default_factory=list)
    problems: list[ClusterctlError] = field(default_factory=list)


def statement_at(
    store: SharedStore, name: EntryName, verifier: SignatureVerifier
) -> tuple[Statement, Envelope, str] | None:
    """Return the verified statement of an entry with its envelope and signer; None where there is no such entry.

    Raises:
        RefusedContentError: it is unsigned, changed, of a stranger, or about something else.
    """
    data = store.envelope(name)
    if data is None:
        return None
    what = f"{name.name} of {store.where}"
    try:
        envelope = Envelope.parse(data)
    except ValueError as error:
        raise RefusedContentError(f"{what} is not readable ({error}), so it is not taken; push it again.") from None
    signer = verifier.check(envelope, what)
    try:
        statement = Statement.parse(envelope.statement)
    except ValueError as error:
        raise RefusedContentError(f"The statement of {what} is wrong ({error}), so it is not taken.") from None
    if statement.entry != name:
        raise RefusedContentError(f"{what} is the signed statement of {statement.entry}, so it is not taken.")
    return statement, envelope, signer


def push(
    store: SharedStore,
    entries: Sequence[LocalEntry],
    signer: Signer,
    verifier: SignatureVerifier,
    tell: Callable[[str, Statement], None],
    *,
    replace: bool = False,
) -> Exchanged:
    """Sign entries of this controller's cache and write them into a shared cache.

    ``verifier`` checks what is there already. ``tell`` hears of each entry before its content goes out. With
    ``replace``, what is there already is written as well.
    """
    outcome = Exchanged()
    going: list[LocalEntry] = []
    for entry in entries:
        if problem := entry.problem():
            words = f"{entry.name.name} is not pushed: {problem}; run 'clusterctl provision', which makes it anew."
            outcome.problems.append(RefusedContentError(words))
            continue
        try:
            known = None if replace else statement_at(store, entry.name, verifier)
        except RefusedContentError as error:
            words = f"{str(error).rstrip('.')}; give --replace to sign it anew."
            outcome.problems.append(RefusedContentError(words))
            continue
        if known is not None and store.has_content(known[0]):
            outcome.there.append(known[0])
        else:
            going.append(entry)
    for entry, envelope in zip(going, _signed(going, signer), strict=True):
        tell("pushing", entry.statement)
        known_now = store.put(entry.statement, entry.path, envelope.to_bytes(), replace=replace or _lacks(store, entry))
        (outcome.done if known_now else outcome.there).append(entry.statement)
        entry.keep(envelope)
    if outcome.done:
        store.finish()
    return outcome


def _signed(entries: Sequence[LocalEntry], signer: Signer) -> list[Envelope]:
    return signer.sign([entry.statement.to_bytes() for entry in entries])


def _lacks(store: SharedStore, entry: LocalEntry) -> bool:
    """Whether an envelope is there without its content, so that it must be replaced."""
    data = store.envelope(entry.name)
    if data is None:
        return False
    try:
        return not store.has_content(Statement.parse(Envelope.parse(data).statement))
    except ValueError:
        return True


def pull(
    store: SharedStore,
    wish: EntryOptions,
    verifier: SignatureVerifier,
    cache: Path,
    tell: Callable[[str, Statement], None],
) -> Exchanged:
    """Bring entries of a shared cache into a cache folder.

    Raises:
        ConfigError: the shared cache has none of the wished names.
    """
    outcome = Exchanged()
    names = [name for name in store.names() if wish.takes(name)]
    if not names and wish.names:
        raise missing(store, " or ".join(wish.names))
    for name in names:
        try:
            found = statement_at(store, name, verifier)
            if found is None or not wish.takes_platform(found[0]):
                continue
            _take(store, found[0], found[1], cache, tell, outcome)
        except (RefusedContentError, UnreachableError) as error:
            outcome.problems.append(error)
    return outcome


def pull_one(
    store: SharedStore,
    name: EntryName,
    verifier: SignatureVerifier,
    cache: Path,
    tell: Callable[[str, Statement], None],
) -> Exchanged | None:
    """Bring one entry into a cache folder; None where the shared cache does not have it. No list is asked for."""
    found = statement_at(store, name, verifier)
    if found is None:
        return None
    outcome = Exchanged()
    _take(store, found[0], found[1], cache, tell, outcome)
    return outcome


def missing(store: SharedStore, names: str) -> ConfigError:
    """Return the error for a name that a shared cache does not have."""
    return ConfigError(
        f"{store.where} has no entry {names}; 'clusterctl cache list {store.where}' shows what it has, and"
        " 'clusterctl cache push' adds to it."
    )


def _take(
    store: SharedStore,
    statement: Statement,
    envelope: Envelope,
    cache: Path,
    tell: Callable[[str, Statement], None],
    outcome: Exchanged,
) -> None:
    what = f"{statement.entry.name} of {store.where}"

    def content() -> Iterator[bytes]:
        tell("pulling", statement)
        yield from store.content(statement)

    taken = cache_entries.take(cache, statement, envelope, content(), what)
    (outcome.done if taken else outcome.there).append(statement)


def listed(
    store: SharedStore, verifier: SignatureVerifier, wish: EntryOptions | None = None
) -> tuple[list[Listed], list[ClusterctlError]]:
    """Return the verified entries of a shared cache, and why others are refused."""
    entries, problems = [], list[ClusterctlError]()
    for name in store.names():
        if wish is not None and not wish.takes(name):
            continue
        try:
            found = statement_at(store, name, verifier)
        except RefusedContentError as error:
            problems.append(error)
            continue
        if found is not None:
            entries.append(Listed(found[0], found[2], store.written(name)))
    return entries, problems


def verify(store: SharedStore, verifier: SignatureVerifier, tell: Callable[[str, Statement], None]) -> Exchanged:
    """Read every content of a shared cache and compare its hash with the signed one."""
    entries, problems = listed(store, verifier)
    outcome = Exchanged(problems=problems)
    for entry in entries:
        statement = entry.statement
        tell("reading", statement)
        total, size = hashlib.sha256(), 0
        try:
            for chunk in store.content(statement):
                total.update(chunk)
                size += len(chunk)
                if size > statement.size:
                    break
        except UnreachableError as error:
            outcome.problems.append(error)
            continue
        if size == statement.size and total.hexdigest() == statement.sha256:
            outcome.done.append(statement)
            continue
        how = f"has {size} of {statement.size} bytes" if size < statement.size else "is not the signed content"
        outcome.problems.append(
            RefusedContentError(f"{statement.entry.name} of {store.where} {how}; push it again with --replace.")
        )
    return outcome


@dataclass(frozen=True)
class Old:
    """What leaves a shared cache."""

    entries: tuple[Statement, ...]
    kept: frozenset[str]  # the sha256 of each content that stays


def old(
    store: SharedStore, verifier: SignatureVerifier, keep: int, before: float | None
) -> tuple[Old, list[ClusterctlError]]:
    """Return what goes: more than the newest of each software and platform, or what is older than a time.

    An entry that is refused stays, because its content is unknown. ``keep`` of each software and platform stay. What
    was pushed later than ``before`` stays; None sets no age.
    """
    entries, problems = listed(store, verifier)
    newest: dict[tuple[str, str], int] = {}
    going = []
    for entry in sorted(entries, key=lambda each: (-(each.written or _built(each)), each.statement.entry)):
        statement = entry.statement
        group = (f"{statement.entry.kind}:{_software(statement)}", statement.platform)
        newest[group] = newest.get(group, 0) + 1
        young = before is not None and (entry.written or _built(entry)) >= before
        if newest[group] > keep and not young:
            going.append(statement)
    gone = {statement.entry for statement in going}
    kept = frozenset(entry.statement.sha256 for entry in entries if entry.statement.entry not in gone)
    return Old(tuple(sorted(going, key=lambda each: each.entry)), kept), problems


def _built(entry: Listed) -> float:
    """Return when a pack was built, for a store that does not tell when it was written."""
    built = entry.statement.record.get("built")
    started = built.get("started") if isinstance(built, dict) else None
    return float(started) if isinstance(started, int | float) else 0.0


def _software(statement: Statement) -> str:
    return str(statement.record.get("name") or statement.entry.name.rpartition("-")[0])


def remove(store: SharedStore, going: Old) -> int:
    """Remove entries, then the contents that no entry names and no push is about to name; returns freed bytes."""
    for statement in going.entries:
        store.remove(statement.entry)
    if going.entries:
        store.finish()
    return store.sweep(going.kept, time.time() - GRACE_S)


# --- A shared cache for a provisioning run: its locks come first, and what it has is not counted as a build -----------

_LOOK_S = 300.0  # for all that a run asks of the shared cache before it begins
WHERE, SIGNERS = "cluster_cache", "cluster_cache_signers"  # variables of the inventory


@dataclass(frozen=True)
class SharedCache:
    """Where a run may look before something is compiled; ``where`` is empty without a shared cache."""

    where: str = ""
    signers: str = ""

    def of(self, hosts: Sequence[Host]) -> SharedCache:
        """Return this shared cache, with what the options leave open from the inventory.

        Raises:
            ConfigError: hosts name different ones, or what was named cannot be used.
        """
        found = SharedCache(self.where or _only(hosts, WHERE), self.signers or _only(hosts, SIGNERS))
        if found.where:
            place.refuse(found.where)
            signing.program()
            signing.signers_file(found.signers)
        return found

    @property
    def variables(self) -> dict[str, Any]:
        """The variables by which the collection finds the shared cache."""
        if not self.where:
            return {}
        program = [sys.executable, "-m", "clusterctl"]
        return {WHERE: self.where, SIGNERS: self.signers, "cluster_cache_program": program}

    def at_hand(self, observer: RunObserver) -> frozenset[tuple[str, str]]:
        """Return name and platform of what need not be built: this controller's cache has it, or the shared one.

        The locks of wheels come into this controller's cache. A shared cache that does not answer, or answers something
        else, is left out.

        Raises:
            ConfigError: a library for the place is missing, or a password would go out in clear text.
        """
        if not self.where:
            return snapshots.cached()
        observer.phase(f"looking into the shared cache {self.where}")
        verifier = signing.SignatureVerifier(signing.signers_file(self.signers), within_s=_LOOK_S)
        try:
            store = place.opened(self.where, _LOOK_S)
        except UnreachableError as error:
            return _left_out(error, observer)
        try:
            found = pull(store, EntryOptions(kinds=("lock",)), verifier, paths.cache_dir().value, _silent)
            entries, problems = listed(store, verifier, EntryOptions(kinds=("pack",)))
        except ClusterctlError as error:
            return _left_out(error, observer)
        for problem in (*found.problems, *problems):
            observer.phase(str(problem))
        shared = (entry.statement for entry in entries)
        return snapshots.cached() | {(str(pack.record["name"]), pack.platform) for pack in shared}


NO_SHARED_CACHE = SharedCache()


def _left_out(error: ClusterctlError, observer: RunObserver) -> frozenset[tuple[str, str]]:
    observer.phase(f"the shared cache is left out: {error}")
    return snapshots.cached()


def _only(hosts: Sequence[Host], variable: str) -> str:
    values: dict[str, str] = {}
    for host in hosts:
        values.setdefault(str(host.variables.get(variable) or ""), host.name)
    if len(values) > 1:
        (one, first), (other, second) = list(values.items())[:2]
        raise ConfigError(
            f"{variable} is '{one}' on {first} and '{other}' on {second}; set it once, for all hosts of the inventory."
        )
    return next(iter(values), "")


def _silent(_what: str, _statement: object) -> None:
    """Tell nothing: locks are a few hundred bytes each."""
