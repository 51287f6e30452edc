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
BUSY_SHARE = 0.5
LEAST_MOVED = 64 * 1024  # bytes between two looks; what is less may be a sign of life of a library
_MOST_NAMED = 4
_STOPPED = frozenset("Tt")


@dataclass(frozen=True)
class RankSight:
    """What two looks showed of a rank.

    Attributes:
        rank: its number.
        host: its node.
        state: of the process at the last look, a letter of proc_pid_stat(5).
        cpu_share: of a core between the looks.
        moved: bytes that it read or wrote between the looks.
        now: where it is.
        before: where it was.
        file: for which it waits.
        silent_hosts: the nodes that do not acknowledge what it sent.
    """

    rank: int
    host: str
    state: str = "S"
    cpu_share: float = 0.0
    moved: int = 0
    now: Place = field(default_factory=Place)
    before: Place = field(default_factory=Place)
    file: str = ""
    silent_hosts: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks."""
        return bool(self.now.call) and not (self.now.may_compute and self.cpu_share > IDLE_SHARE)

    @property
    def rests(self) -> bool:
        """Whether it does nothing; one that is ready to run has no core for a while, and computes."""
        return self.cpu_share < IDLE_SHARE and self.state != "R"

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
        return _behind(ranks, behind) if lasts else None
    return (
        _halted(ranks)
        or _behind(ranks, behind)
        or _elsewhere(ranks)
        or _network(ranks)
        or _other_call(ranks)
        or _not_known(ranks)
    )


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
    halted = any(one.state in _STOPPED or one.file or one.now.has_ended for one in ranks)
    return bool(waiting) or halted or all(one.rests for one in ranks)


def _halted(ranks: Sequence[RankSight]) -> StallVerdict | None:
    """Name the ranks that are stopped, have ended or wait for a file, if they are no more than half of all."""
    tests: tuple[tuple[StallCause, Callable[[RankSight], bool], Callable[[RankSight], str]], ...] = (
        ("stopped rank", lambda one: one.state in _STOPPED, lambda _one: "is stopped (a signal, such as SIGSTOP)"),
        (
            "ended program",
            lambda one: one.now.has_ended and one.before.has_ended,
            lambda _one: "has ended its program, and its process waits for the other ranks",
        ),
        ("file", lambda one: bool(one.file) and not one.waits, lambda one: f"waits for the file {one.file}"),
    )
    for cause, test, words in tests:
        found = [one for one in ranks if test(one)]
        others = [one for one in ranks if not test(one)]
        if found and len(found) <= len(others):
            return _named(cause, found, others, words)
    return None


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
        return _named("elsewhere", found, others, lambda one: f"is in {one.now.where}")
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
    if len({one.host for one in ranks}) == 2 or len(links) == 1:  # noqa: PLR2004 - the two ends of the one link
        words = f"data between {told} is not acknowledged, {_rest(ranks)}; which end is the cause is not known"
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


def after_probe(verdict: StallVerdict, broken: Sequence[tuple[str, str]]) -> StallVerdict:
    """Return a verdict on the network after nodes have tried to connect to each other.

    Args:
        verdict: the verdict without the trial; it stays where the trial tells no more.
        broken: source and target of the connections that failed.
    """
    links = {frozenset(pair) for pair in broken}
    common: frozenset[str] = frozenset.intersection(*links) if links else frozenset()
    if len(common) != 1:
        return verdict
    (host,) = common
    others = folded(sorted(name for link in links for name in link if name != host))
    words = f"{host} cannot be connected with {others} any more; {verdict.sentence.partition('; which end')[0]}"
    return StallVerdict(cause="network", sentence=words, hosts=(host,))


def _not_known(ranks: Sequence[RankSight]) -> StallVerdict:
    unseen = [one for one in ranks if not one.now.known]
    if len(unseen) == len(ranks):
        why = "no stack could be taken; install py-spy, eu-stack or gdb on the nodes"
    elif unseen:
        have = "1 rank has" if len(unseen) == 1 else f"{len(unseen)} ranks have"
        why = f"{have} no stack, and no other rank differs"
    else:
        why = "no rank differs from the others"
    return StallVerdict(cause="not known", sentence=f"the cause is not known: {_rest(ranks, 'all ')} ({why})")


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


def _plural(words: str) -> str:
    first, _, rest = words.partition(" ")
    return f"{ {'is': 'are', 'has': 'have', 'waits': 'wait', 'computes': 'compute'}.get(first, first) } {rest}".strip()


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
