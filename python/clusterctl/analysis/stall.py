"""Judge two looks at the ranks of a silent job: does it stand still, and which rank or node is the cause?

Nothing is guessed. A cause is named when one kind of evidence sets a minority apart from ranks that wait for it. The
kinds are asked in the order of their strength; all of them silent means "not known".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.analysis.rank_evidence import Place
from clusterctl.model.job_outcome import StallVerdict
from clusterctl.model.nodeset import folded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from clusterctl.analysis.rank_evidence import Behind
    from clusterctl.model.job_outcome import StallCause

IDLE_SHARE = 0.05  # of a core
IDLE_WANTED = 0.25  # of the time: a rank that wakes up now and then waits for a busy core each time
BUSY_SHARE = 0.5
# Of its processor time, a rank that waits for messages over sockets spends a third in calls of the kernel (31 to 40 %
# with Open MPI 5.0), and an endless loop 2 %. The kernel counts in steps of 0.01 s.
POLLS_SHARE, COMPUTES_SHARE, LEAST_CPU_S = 0.18, 0.08, 0.5
LEAST_MOVED = 64 * 1024  # bytes between two looks; what is less may be a sign of life of a library
_MOST_NAMED = 4
_STOPPED = frozenset("Tt")
_INSTALL = "install py-spy, eu-stack or gdb on the nodes"


@dataclass(frozen=True)
class Spent:
    """What a rank took between two looks."""

    moved: int = 0  # bytes that it read or wrote
    cpu_s: float = 0.0  # processor time
    cpu_share: float = 0.0  # of a core
    system_share: float = 0.0  # of its processor time, in calls of the kernel
    # of the time, that its threads ran or waited for a core; None where that is unknown
    wanted_share: float | None = None

    @property
    def rests(self) -> bool:
        """Whether it did nothing."""
        return self.cpu_share < IDLE_SHARE and (self.wanted_share or 0.0) < IDLE_WANTED


@dataclass(frozen=True)
class RankSight:
    """What two looks showed of a rank."""

    rank: int
    host: str
    state: str = "S"  # of the process at the last look, a letter of proc_pid_stat(5)
    cpu_share: float = 0.0  # of a core between the looks
    # of the time between the looks, that it ran or waited for a core; None where that is unknown
    wanted_share: float | None = None
    # shares of its processor time in calls of the kernel, since long before and between the looks; None where that is
    # unknown
    system: tuple[float, float] | None = None
    moved: int = 0  # bytes that it read or wrote between the looks
    now: Place = field(default_factory=Place)  # where it is
    before: Place = field(default_factory=Place)  # where it was
    file: str = ""  # for which it waits
    silent_hosts: tuple[str, ...] = ()  # the nodes that do not acknowledge what it sent, at both looks
    lock: str = ""  # the file for whose lock it waits
    holder: str = ""  # who holds that lock, in words; empty where it is unknown
    holder_rank: int = -1  # the rank that holds it, -1 where that is no rank of the job
    full: tuple[str, ...] = ()  # the full file systems that it uses
    kernel: str = ""  # the function of the kernel in which it sleeps
    # it did nothing, too, between a look long before and the first of the two; None where that is unknown
    was_idle: bool | None = None

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks."""
        return bool(self.now.call) and not (self.now.may_compute and self.cpu_share > IDLE_SHARE)

    @property
    def rests(self) -> bool:
        """Whether it does nothing; one that is ready to run has no core for a while, and computes."""
        if self.wanted_share is None:
            return self.cpu_share < IDLE_SHARE and self.state != "R"
        return self.cpu_share < IDLE_SHARE and self.wanted_share < IDLE_WANTED

    @property
    def name(self) -> str:
        """How a sentence names it."""
        return f"{self.host} rank {self.rank}"


def judge(
    ranks: Sequence[RankSight],
    *,
    missing: Mapping[int, str] | None = None,
    unseen: Collection[int] = (),
    silent: Sequence[str] = (),
    behind: Behind | None = None,
    lasts: bool = False,
) -> StallVerdict | None:
    """Return who keeps the job from going on; None while nothing shows that it stands still.

    Args:
        ranks: the ranks that were seen twice.
        missing: the node of each rank that should be there and is not, on nodes that answer.
        unseen: those of the missing ranks that no look has ever seen.
        silent: nodes that do not answer.
        behind: the ranks for which others wait by PyTorch's flight recorder or by NCCL's RAS.
        lasts: an earlier look told the same of ``behind``. Then the job stands still, also where its ranks spin.
    """
    ranks = _told_by_line(ranks)
    if silent and len(silent) * 2 <= len({one.host for one in ranks}) + len(silent) and ranks:
        named = tuple(silent)
        words = f"{folded(named)} {'does' if len(named) == 1 else 'do'} not answer, {_rest(ranks)}"
        return StallVerdict(cause="silent node", sentence=words, hosts=named)
    if not ranks:
        return None
    gone = missing or {}
    if gone and len(gone) <= len(ranks):
        hosts = _unique(gone.values())
        told = " and ".join(
            f"{_list([f'{gone[rank]} rank {rank}' for rank in few])} {'has' if len(few) == 1 else 'have'} {how}"
            for how, few in (
                ("ended", sorted(gone.keys() - set(unseen))),
                ("ended or not started", sorted(gone.keys() & set(unseen))),
            )
            if few
        )
        words = f"{told}, {_rest(ranks)}"
        return StallVerdict(cause="dead rank", sentence=words, hosts=hosts, ranks=tuple(sorted(gone)))
    if _exchange(ranks):
        return None
    if not _stands_still(ranks):
        found = _behind(ranks, behind) if lasts else None
        return found or (None if _is_seen(ranks) else _idle(ranks) or _network(ranks) or _computing(ranks))
    return (
        _halted(ranks)
        or _behind(ranks, behind)
        or _elsewhere(ranks)
        or _network(ranks)
        or _other_call(ranks)
        or _not_known(ranks)
    )


def undecided(ranks: Sequence[RankSight]) -> str:
    """Return why :func:`judge` names nothing, a clause; the job may stand still or go on."""
    count = f"{len(ranks)} ranks" if len(ranks) > 1 else "1 rank"
    if not ranks:
        return "no process of the job is seen on its nodes"
    if _exchange(ranks):
        return f"the job goes on: most of its {count} move data"
    alone = [one for one in ranks if one.moved > LEAST_MOVED]
    told = [f"{_list([one.name for one in alone])} {'moves' if len(alone) == 1 else 'move'} data"] if alone else []
    if _is_seen(ranks):
        told.append("ranks compute, or wait at changing places")
        return f"the job seems to go on: {', and '.join(told)}{_full_words(ranks)}"
    busy = sum(not one.rests for one in ranks)
    told.append(f"{busy} of {count} {'takes' if busy == 1 else 'take'} processor time, and no stack could be taken")
    return f"the cause is not known: {', '.join(told)}; {_INSTALL}{_full_words(ranks)}"


def goes_on(words: str) -> bool:
    """Whether the words of :func:`undecided` say that the job goes on."""
    return words.startswith(("the job goes on", "the job seems to go on"))


def _is_seen(ranks: Sequence[RankSight]) -> bool:
    """Whether the stack of a rank that takes processor time told anything; others may then be idle and still go on."""
    return any(one.now.known and not one.rests for one in ranks)


def _full_words(ranks: Sequence[RankSight]) -> str:
    by_host = {one.host: place for one in reversed(ranks) for place in one.full[:1]}
    told = [f"{place} on {host}, which its ranks use, is full" for host, place in sorted(by_host.items())]
    return f"; {_list(told)}" if told else ""


def _told_by_line(ranks: Sequence[RankSight]) -> Sequence[RankSight]:
    """Return the ranks with the call of others at the same line, where a tool could not read the library's frames."""
    calls = {one.now.where: one.now for one in ranks if one.waits and one.now.has_line}

    def told(place: Place) -> Place:
        return place if place.call else calls.get(place.where, place)

    return [replace(one, now=told(one.now), before=told(one.before)) for one in ranks]


def _exchange(ranks: Sequence[RankSight]) -> bool:
    """Whether data goes between most ranks."""
    return sum(one.moved > LEAST_MOVED for one in ranks) * 2 > len(ranks)


def _stands_still(ranks: Sequence[RankSight]) -> bool:
    """Whether ranks wait in one place, or all rest."""
    waiting = [one for one in ranks if one.waits]
    if any((one.now.call, one.now.where) != (one.before.call, one.before.where) for one in waiting):
        return False
    halted = any(one.state in _STOPPED or one.file or one.now.has_ended or _is_locked(one, ranks) for one in ranks)
    return bool(waiting) or halted or all(one.rests for one in ranks)


def _halted(ranks: Sequence[RankSight]) -> StallVerdict | None:
    """Name the ranks that are stopped, have ended or wait for a file or lock, if they are no more than half of all."""
    tests: tuple[tuple[StallCause, Callable[[RankSight], bool], Callable[[RankSight], str]], ...] = (
        ("stopped rank", lambda one: one.state in _STOPPED, lambda _one: "is stopped (a signal, such as SIGSTOP)"),
        (
            "ended program",
            lambda one: one.now.has_ended and one.before.has_ended,
            lambda _one: "has ended its program, and its process waits for the other ranks",
        ),
        ("file", lambda one: bool(one.file) and not one.waits, lambda one: f"waits for the file {one.file}"),
        ("lock", lambda one: _is_locked(one, ranks), _lock_words),
    )
    for cause, test, words in tests:
        found = [one for one in ranks if test(one)]
        others = [one for one in ranks if not test(one)]
        if found and len(found) <= len(others):
            return _named(cause, found, others, words)
    return None


def _is_locked(one: RankSight, ranks: Sequence[RankSight]) -> bool:
    """Whether it waits for a lock that no rank holds which may still give it back."""
    holder = next((other for other in ranks if other.rank == one.holder_rank), None)
    return bool(one.lock) and not one.waits and (holder is None or holder.waits)


def _lock_words(one: RankSight) -> str:
    return f"waits for the lock of {one.lock}" + (f", which {one.holder} holds" if one.holder else "")


def _idle(ranks: Sequence[RankSight]) -> StallVerdict | None:
    """Name the ranks that do nothing, at two looks and long before, beside more ranks that take processor time.

    A rank that waits for others in MPI takes a whole core. So where no stack is known, one that sleeps is set apart.
    """
    found = [one for one in ranks if one.rests and one.was_idle and (one.moved <= LEAST_MOVED or one.full)]
    others = [one for one in ranks if one not in found]
    if not found or len(found) >= len(others) or any(one.rests or one.was_idle is not False for one in others):
        return None
    verdict = _named("idle", found, others, _idle_words)
    rest = "1 other takes" if len(others) == 1 else f"{len(others)} others take"
    tool = "" if all(one.now.known or one.full for one in found) else f"; {_INSTALL} to see where"
    told = f"{verdict.sentence.removesuffix(_others(len(others)))}{rest} processor time{_full_words(found)}{tool}"
    return verdict.model_copy(update={"sentence": told})


def _computing(ranks: Sequence[RankSight]) -> StallVerdict | None:
    """Name the ranks that compute, at two looks and long before, beside more ranks that ask the kernel for messages."""
    found = [one for one in ranks if one.system and one.system[0] < COMPUTES_SHARE and one.system[1] < POLLS_SHARE]
    others = [one for one in ranks if one not in found]
    if not found or len(found) >= len(others) or any(one.rests or one.moved > LEAST_MOVED for one in ranks):
        return None
    if any(one.now.known or not one.system or one.system[0] < POLLS_SHARE for one in others):
        return None
    if any(one.system and one.system[1] < COMPUTES_SHARE for one in others):
        return None
    verdict = _named("elsewhere", found, others, lambda _one: "computes")
    told = f"{verdict.sentence}, as their calls of the kernel show{_full_words(found)}; {_INSTALL} to see where"
    return verdict.model_copy(update={"sentence": told})


def _idle_words(one: RankSight) -> str:
    where = one.now.where or (f"{one.kernel} of the kernel" if one.kernel else "")
    return "does nothing" + (f" (it sleeps in {where})" if where else "")


def _behind(ranks: Sequence[RankSight], behind: Behind | None) -> StallVerdict | None:
    """Name the ranks for which others wait by the flight recorder, with the place where each of them is."""
    found = [one for one in ranks if behind is not None and one.rank in behind.ranks]
    others = [one for one in ranks if one not in found]
    if behind is None or len(found) != len(behind.ranks) or not others:
        return None
    return _named("behind", found, others, lambda one: f"{behind.words}{_and_where(one)}", behind.call)


def _and_where(one: RankSight) -> str:
    return f" and is in {one.now.where}" if one.now.where else ""


def _elsewhere(ranks: Sequence[RankSight]) -> StallVerdict | None:
    """Name the ranks that do not wait for others; no more than half of all, and others wait."""
    found = [one for one in ranks if one.now.known and not one.waits]
    others = [one for one in ranks if one not in found]
    if found and len(found) <= len(others) and any(one.waits for one in others):
        verdict = _named("elsewhere", found, others, lambda one: f"is in {one.now.where}")
        return verdict.model_copy(update={"sentence": f"{verdict.sentence}{_full_words(found)}"})
    busy = [one for one in ranks if one.cpu_share > BUSY_SHARE and not one.waits]
    idle = [one for one in ranks if one.cpu_share < IDLE_SHARE]
    if busy and len(busy) < len(idle) and len(busy) + len(idle) == len(ranks):
        return _named("elsewhere", busy, idle, lambda _one: "computes")
    return None


def _network(ranks: Sequence[RankSight]) -> StallVerdict | None:
    """Name the node that is at one end of every connection whose data is not acknowledged."""
    links = {frozenset((one.host, peer)) for one in ranks for peer in one.silent_hosts if peer != one.host}
    if not links:
        return None
    common = frozenset.intersection(*links)
    told = "; ".join(sorted("-".join(sorted(link)) for link in links)[:_MOST_NAMED])
    if len(common) == 1 and len(links) > 1:
        (host,) = common
        mine = tuple(sorted(one.rank for one in ranks if one.host == host))
        others = [one for one in ranks if one.host != host]
        words = f"{host} does not get or acknowledge what others send over the network ({told}), {_rest(others)}"
        return StallVerdict(cause="network", sentence=words, hosts=(host,), ranks=mine)
    ways = {(one.host, peer) for one in ranks for peer in one.silent_hosts if peer != one.host}
    if len({one.host for one in ranks}) == 2 or len(links) == 1:  # noqa: PLR2004 - the two ends of the one link
        way = f"from {' to '.join(next(iter(ways)))}" if len(ways) == 1 else f"between {told}"
        words = f"data {way} is not acknowledged, {_rest(ranks)}; which end is the cause is not known"
        return StallVerdict(cause="network", sentence=words)
    words = f"data is not acknowledged between {told}, {_rest(ranks)}; no one node is at all of them"
    return StallVerdict(cause="network", sentence=words)


def _other_call(ranks: Sequence[RankSight]) -> StallVerdict | None:
    """Name the ranks that wait in another call, or at another line, than most."""
    if not all(one.waits for one in ranks):
        return None
    # A library may make one call of the program out of several of its own: mpi4py's allreduce is a reduction by
    # MPI_Recv and an MPI_Bcast. So the line of the program counts, and the library's call only where there is no line.
    lines = all(one.now.has_line for one in ranks)
    keys: tuple[Callable[[RankSight], str], ...] = (
        (lambda one: one.now.where,) if lines else (lambda one: one.now.call, lambda one: one.now.where)
    )
    for key in keys:
        groups = Counter(key(one) for one in ranks)
        if len(groups) == 1:
            continue
        (most, count), *_ = groups.most_common()
        found = [one for one in ranks if key(one) != most]
        if len(groups) == 2 and len(found) < count and len({one.host for one in found}) == 1:  # noqa: PLR2004
            others = [one for one in ranks if key(one) == most]
            return _named("other call", found, others, _where_it_waits, most)
        told = " and ".join(
            f"ranks {_numbers([one for one in ranks if key(one) == name])} in {name}" for name in groups
        )
        words = f"the ranks wait in different calls: {told}; which is the wrong one is not known"
        return StallVerdict(cause="other call", sentence=words)
    return None


def _where_it_waits(one: RankSight) -> str:
    return f"waits in {one.now.call}" + (f" at {one.now.where}" if one.now.has_line else "")


@dataclass(frozen=True)
class FailedWay:
    """A way from one node to another that a trial found broken; ``passes_small``: it loses large packets alone."""

    source: str
    target: str
    passes_small: bool = False


def after_probe(verdict: StallVerdict, broken: Sequence[FailedWay]) -> StallVerdict:
    """Return a verdict on the network after nodes have tried to connect to each other.

    The verdict stays where the trial tells no more.
    """
    links = {frozenset((way.source, way.target)) for way in broken}
    sentence = verdict.sentence
    if not links:
        may_be = f"{sentence}; new connections come up, so large packets may be lost: compare the MTU on the way"
        return verdict.model_copy(update={"sentence": may_be}) if verdict.cause == "network" else verdict
    common = frozenset.intersection(*links)
    are_large = all(way.passes_small for way in broken)
    if len(common) == 1:
        (host,) = common
        others = folded(sorted(name for link in links for name in link if name != host))
        how = f"{host} cannot be connected with {others} any more"
        if are_large:
            how = f"between {host} and {others} small packets pass and large ones are lost: compare the MTU on the way"
        words = f"{how}; {sentence.partition('; which end')[0]}"
        return StallVerdict(cause="network", sentence=words, hosts=(host,))
    ways = sorted({(way.source, way.target) for way in broken})
    told = _list([f"from {source} to {target}" for source, target in ways])
    how = f"nodes cannot connect {told} any more"
    if are_large:
        how = f"{told} small packets pass and large ones are lost: compare the MTU on the way"
    return StallVerdict(cause="network", sentence=f"{how}; {sentence}")


def with_logins(words: str, halted: Sequence[str]) -> str:
    """Return words about silent nodes with how new logins ended; ``halted`` are those where keys were not exchanged."""
    if not halted:
        return words
    return (
        f"{words}; a new login to {folded(halted)} stops at the exchange of keys: small packets pass, and large ones "
        "may be lost (compare the MTU on the way), or the node lacks memory or time"
    )


def _not_known(ranks: Sequence[RankSight]) -> StallVerdict:
    unseen = [one for one in ranks if not one.now.known]
    if len(unseen) == len(ranks):
        why = f"no stack could be taken; {_INSTALL}"
    elif unseen:
        have = "1 rank has" if len(unseen) == 1 else f"{len(unseen)} ranks have"
        why = f"{have} no stack, and no other rank differs"
    else:
        why = "no rank differs from the others"
    words = f"the cause is not known: {_rest(ranks, 'all ')} ({why}){_full_words(ranks)}"
    return StallVerdict(cause="not known", sentence=words)


def _named(
    cause: StallCause,
    found: Sequence[RankSight],
    others: Sequence[RankSight],
    words: Callable[[RankSight], str],
    call: str = "",
) -> StallVerdict:
    by_words: dict[str, list[RankSight]] = {}
    for one in found:
        by_words.setdefault(words(one), []).append(one)
    told = " and ".join(
        f"{_list([one.name for one in group])} {_plural(text) if len(group) > 1 else text}"
        for text, group in list(by_words.items())[:_MOST_NAMED]
    )
    rest = f"{_others(len(others))} in {call}" if call else _rest(others)
    return StallVerdict(
        cause=cause,
        sentence=f"{told}, {rest}",
        hosts=_unique(one.host for one in found),
        ranks=tuple(sorted(one.rank for one in found)),
    )


_PLURALS = {"is": "are", "has": "have", "waits": "wait", "computes": "compute", "does": "do"}


def _plural(words: str) -> str:
    first, _, rest = words.partition(" ")
    return f"{_PLURALS.get(first, first)} {rest}".strip()


def _rest(others: Sequence[RankSight], article: str = "") -> str:
    """Return what the ranks that are no cause do, as the end of a sentence."""
    calls = Counter(one.now.call for one in others if one.waits)
    count = len(others)
    who = f"all {count} ranks wait" if article else _others(count)
    if calls:
        name, most = calls.most_common(1)[0]
        return f"{who} in {name}" if most == count else f"{who}, {most} of them in {name}"
    places = Counter(one.now.where for one in others if one.now.where)
    if len(places) == 1 and sum(places.values()) == count:
        return f"{who} in {next(iter(places))}"
    return who


def _others(count: int) -> str:
    return "1 other waits" if count == 1 else f"{count} others wait"


def _list(names: Sequence[str]) -> str:
    shown = list(names[:_MOST_NAMED])
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    *first, last = [*shown, *more]
    return f"{', '.join(first)} and {last}" if first else last


def _numbers(ranks: Sequence[RankSight]) -> str:
    return _list([str(one.rank) for one in sorted(ranks, key=lambda one: one.rank)])


def _unique(hosts: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(hosts))  # type: ignore[call-overload]
