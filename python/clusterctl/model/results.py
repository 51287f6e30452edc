"""What a validation run found: frozen records with a schema version, from which every report is made."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import AwareDatetime, Field, ValidationError, model_validator

from clusterctl.model import nodeset, units
from clusterctl.model.base import Record
from clusterctl.model.job_outcome import Stack
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from typing_extensions import Self


Bytes = Annotated[int, Field(ge=0, lt=1 << 63)]
_DEVICE = re.compile(r"GPU [0-9]{1,3}")


# --- Types of blame: the nodes and links that stand out, how finely a check judged, and the search for a bad node -----


class Culprit(Record):
    """Who stands out, by how much, and what shows it.

    Attributes:
        kind: ``node``, ``pair`` (of nodes), ``one_way`` (a pair in one direction only), ``together`` (only when all
            take part at once), or ``boundary`` (what lies between groups of nodes; no node is to blame).
        nodes: one name for a node, two for a pair, sender and receiver for one way, the smallest set that shows it
            otherwise.
        groups: the groups of nodes on the sides of a boundary, empty otherwise.
        quantity: what was measured, empty where a job hung or crashed.
        ratio: measured over expected (0.1: a tenth of its neighbours), None where nothing was measured.
        score: robust modified z-score, None where there is none.
        tested: how many nodes or pairs were compared to find it, None where none were.
        words: one sentence that names it, with the figures.
        cure: what to do where the cause is known, empty where it is not.
        since: the first of the consecutive runs that named it, None where this is the first.
    """

    kind: Literal["node", "pair", "one_way", "together", "boundary"]
    nodes: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...] = ()
    quantity: str = ""
    size_bytes: Bytes | None = None
    ratio: float | None = None
    score: float | None = None
    tested: int | None = None
    words: str
    cure: str = ""
    since: AwareDatetime | None = None

    @property
    def blamed(self) -> tuple[str, ...]:
        """The nodes that are at fault; none where it is what lies between groups of them."""
        return () if self.kind == "boundary" else self.nodes

    @property
    def sides(self) -> str:
        """The groups on the sides of a boundary, ``node[1-4] | node[5-8]``; empty for the other kinds."""
        return " | ".join(map(nodeset.folded, self.groups))


class Fineness(Record):
    """The smallest fault that a check could have seen in this run.

    Attributes:
        kind: what was judged: ``node``, ``link``, or ``job`` (all nodes together, by references or the history).
        quantity: what was measured, as in :class:`Figure`.
        fraction: the smallest change that would have been named (0.4: a link 40 % slower than its neighbours).
        why: why it is coarser than usual, empty where it is not.
    """

    kind: Literal["node", "link", "job"]
    quantity: str
    fraction: float
    why: str = ""


class Launch(Record):
    """One launch of a search: who took part, and what came of it; ``launch_node`` may not be one of ``nodes``."""

    nodes: tuple[str, ...]
    ok: bool
    seconds: float
    words: str = ""
    launch_node: str = ""


class Search(Record):
    """The search for the nodes that make a job hang or crash."""

    check: str
    bound: int  # launches it may take for one bad node
    launches: tuple[Launch, ...]
    culprits: tuple[Culprit, ...] = ()
    words: str


Unit: TypeAlias = units.Unit
Better: TypeAlias = Literal["higher", "lower", "none"]


class Verdict(str, Enum):
    """Four different words: no result at all is an ERROR, never a PASS."""

    PASS = "PASS"  # noqa: S105 - a verdict, no password
    FAIL = "FAIL"
    SKIP = "SKIP"
    ERROR = "ERROR"


class WrongAnswer(Record):
    """One answer that was not the known one."""

    what: str
    expected: str
    got: str


class _Plentiful(Record):
    """A record that a run has a hundred thousand of; it does not keep which fields were given."""

    def model_post_init(self, _context: object, /) -> None:
        """Let all share one set; a copy of a record copies the set with it."""
        object.__setattr__(self, "__pydantic_fields_set__", _NOT_KEPT)


_NOT_KEPT: set[str] = set()


class RankReport(_Plentiful):
    """What one rank said of itself; ``host`` is the inventory's name of its node.

    ``state`` is the last sign of life: ``absent`` (not even started), ``started`` (nothing since), ``waiting`` (alive,
    busy with ``step``) or ``answered``. It came ``seen_s`` seconds after the start of the job. ``libraries`` are mapped
    files beside MPI's, and ``facts`` what those libraries report. ``figures`` are what was measured; each name ends in
    its unit.
    """

    rank: int
    host: str
    state: Literal["absent", "started", "waiting", "answered"] = "answered"
    ok: bool = True
    library_version: str = ""
    library_path: str = ""
    seconds: float = 0.0
    compared: int = 0
    wrong: int = 0
    problems: tuple[WrongAnswer, ...] = ()
    libraries: dict[str, str] = Field(default_factory=dict)
    facts: dict[str, str] = Field(default_factory=dict)
    figures: dict[str, float] = Field(default_factory=dict)
    step: str = ""
    seen_s: float = 0.0


class Measurement(Record):
    """A plain figure with its unit, reported beside the verdict and never judged."""

    name: str
    value: float
    unit: Unit


class Figure(_Plentiful):
    """Something that was measured again and again, and that can be compared: with references, nodes and other nights.

    Attributes:
        quantity: what was measured: ``latency``, ``bandwidth``, ``time``, ``algorithm_bandwidth``, ``bus_bandwidth``,
            ``memory_bandwidth``, ``compute``, ``gpu_clock``, ``gpu_compute``, ``copy_bandwidth``, ``efficiency``,
            ``sent_again`` (the part of a link's TCP segments, sender first), or a user's own word.
        operation: ``allreduce``, ``broadcast``, ... for a collective; empty elsewhere.
        backend: what carried it: ``mpi``, ``nccl``, ``horovod``, ``gloo``; empty where that means nothing.
        algorithm: the library's algorithm where it is known or was forced; for GPUs, which one or which way.
        size_bytes: bytes of the message, as nccl-tests counts them.
        nodes: the nodes it is about, by inventory name: one node, the two ends of a link, or an empty tuple for all
            together.
        value: the median of the samples, in ``unit``.
        low: lower end of the median's confidence interval.
        high: its upper end.
        confidence: probability that this interval was to have; 0 where there is no interval.
        samples: every sample, in the order in which they were taken.
        better: which way is good; ``none`` is reported and never judged.
    """

    quantity: str
    operation: str = ""
    backend: str = ""
    algorithm: str = ""
    size_bytes: Bytes | None = None
    nodes: tuple[str, ...] = ()
    value: float
    unit: Unit
    low: float | None = None
    high: float | None = None
    confidence: float = 0.0
    samples: tuple[float, ...] = ()
    better: Better = "none"

    @property
    def device(self) -> str:
        """``GPU 3`` where it is about one GPU of its node, whose peers are all GPUs of its model; empty elsewhere."""
        return self.algorithm if _DEVICE.fullmatch(self.algorithm) else ""

    @property
    def identity(self) -> tuple[str | int | tuple[str, ...] | None, ...]:
        """What the figure measures and of which nodes: equal for the same figure of two runs."""
        return (self.quantity, self.operation, self.backend, self.algorithm, self.size_bytes, self.nodes)


class FigureKey(Record):
    """What has to be the same for two figures to be compared; a new version of the software begins a new key.

    ``subject`` is the figure's nodes joined by a space; ``versions`` are sorted by name.
    """

    check: str
    quantity: str
    operation: str
    backend: str
    algorithm: str
    size_bytes: int | None
    subject: str
    unit: Unit
    nodes: int
    ranks: int
    versions: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The key as one line of JSON, for a database's column."""
        return json.dumps(self.model_dump(mode="json"), separators=(",", ":"), sort_keys=True)


class PairMatrix(Record):
    """One quantity between pairs of nodes, a link an entry; the samples of each stand in the check's raw log.

    ``first``, ``second``, ``value`` and ``spread`` are of equal length. ``first`` and ``second`` are indices into
    ``nodes``, with first < second. ``value`` holds medians and ``spread`` the median absolute deviation of a link's
    samples, both in ``unit``. ``forward`` (from first to second) and ``backward`` hold the medians of each direction;
    they are empty where the directions were not measured apart. ``complete`` says whether all pairs were measured, or
    a sample of the tournament's rounds. ``switches`` are those that each node's links for jobs hang on; a node of which
    none is known is left out.
    """

    quantity: str
    size_bytes: Bytes
    unit: Unit
    better: Better
    nodes: tuple[str, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]
    value: tuple[float, ...]
    spread: tuple[float, ...] = ()
    forward: tuple[float, ...] = ()
    backward: tuple[float, ...] = ()
    complete: bool = True
    switches: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        count = len(self.value)
        ways = (len(self.forward), len(self.backward))
        ends = (*self.first, *self.second)
        if (
            {len(self.first), len(self.second)} != {count}
            or ways not in {(0, 0), (count, count)}
            or (ends and not 0 <= min(ends) <= max(ends) < len(self.nodes))
        ):
            raise ValueError("its links are not whole")
        return self

    @property
    def links(self) -> tuple[tuple[str, str], ...]:
        """The names of both ends of each."""
        names = self.nodes
        return tuple((names[first], names[second]) for first, second in zip(self.first, self.second, strict=True))


class Reference(Record):
    """What a figure is to be: ``value`` in ``unit``; it may miss it by the fractions ``lower`` and ``upper``.

    ``lower`` is at most 0 and ``upper`` at least 0 (-0.1 is ten per cent below ``value``); None is no limit on that
    side. ``source`` says who spoke: the user's file, a published figure (``citation`` says where) or this cluster's own
    history (``citation`` says which runs).
    """

    value: float
    lower: float | None = None
    upper: float | None = None
    unit: Unit
    source: Literal["file", "published", "history"]
    citation: str = ""


class Comparison(Record):
    """A figure beside its reference."""

    figure: Figure  # without its samples
    reference: Reference
    verdict: Verdict
    words: str  # "allreduce of 64 MiB: 1.1 GB/s, 12 % below 1.25 GB/s (median of the last 9 good runs)"


class TrendPoint(Record):
    """A figure of an earlier run."""

    run_id: str
    at: AwareDatetime
    value: float
    verdict: Verdict


class Trend(Record):
    """A figure over the runs, oldest first, this run last; ``changed_at`` is the run from which on it is another."""

    check: str
    figure: Figure  # of this run, without its samples
    points: tuple[TrendPoint, ...]
    changed_at: str = ""


class CheckResult(Record):
    """One check's verdict with the evidence beside it."""

    check: str
    verdict: Verdict
    reason: str
    hosts: tuple[str, ...] = ()  # the hosts that the reason names; empty when it is about all
    seconds: float = 0.0
    deadline_s: float = 0.0
    command: tuple[str, ...] = ()  # argv on the launch node
    repeat: str = ""  # what to paste on the controller to see it again
    left_out: dict[str, str] = Field(default_factory=dict)  # nodes that could not take part, each with the reason
    ranks: tuple[RankReport, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    figures: tuple[Figure, ...] = ()
    matrices: tuple[PairMatrix, ...] = ()
    comparisons: tuple[Comparison, ...] = ()  # of figures that had a reference
    culprits: tuple[Culprit, ...] = ()  # worst first
    fineness: tuple[Fineness, ...] = ()  # how finely it could judge; empty where nothing was compared
    next_step: str = ""  # what to do next where the culprit of a FAIL is not known
    search: Search | None = None  # for the nodes that made it hang or crash
    stacks: tuple[Stack, ...] = ()  # of ranks that were stuck at the deadline
    log: str = ""  # path of the raw output, relative to the run's folder
    evidence: tuple[str, ...] = ()  # the lines that show it; empty on PASS
    left_behind: tuple[str, ...] = ()  # "host: process" that could not be ended, or "host: why it was not searched"

    @property
    def is_bad(self) -> bool:
        """Whether somebody has to look at it."""
        return self.verdict in {Verdict.FAIL, Verdict.ERROR}

    @property
    def has_run(self) -> bool:
        """Whether anything was launched; where not, there is no culprit, and the reason says why."""
        return self.verdict in {Verdict.PASS, Verdict.FAIL} or bool(self.log or self.ranks or self.seconds)

    @property
    def named(self) -> tuple[str, ...]:
        """The nodes that a bad check blames: those of its culprits and failed figures, else those of its reason.

        It is empty where the check is not bad, or gives a next step instead of a culprit.
        """
        if not self.is_bad:
            return ()
        culprits = (*self.culprits, *(self.search.culprits if self.search else ()))
        found = [node for one in culprits for node in one.blamed]
        found += [node for one in self.comparisons if one.verdict is Verdict.FAIL for node in one.figure.nodes]
        if not found and not culprits and not self.next_step:
            found = list(self.hosts)
        return tuple(dict.fromkeys(found))

    @property
    def named_words(self) -> str:
        """The named nodes, or groups of nodes, or "not known" with the next step; empty where the check is not bad.

        Of a check that did not run, it is the reason with the next step.
        """
        if not self.is_bad:
            return ""
        between = [f"between {one.sides}" for one in self.culprits if one.sides]
        if between:
            return " ".join((*self.named, *between))
        step = f", next step: {self.next_step}" if self.next_step else ""
        return " ".join(self.named) or f"{'not known' if self.has_run else f'none, {self.reason}'}{step}"


@dataclass(frozen=True)
class CheckStarted:
    """A check began; its result comes within the deadline."""

    check: str
    number: int
    total: int
    deadline_s: float


@dataclass(frozen=True)
class CheckProgress:
    """A sign of life within a check."""

    check: str
    text: str


@dataclass(frozen=True)
class CheckFinished:
    """A check has its verdict."""

    result: CheckResult


ValidationEvent: TypeAlias = CheckStarted | CheckProgress | CheckFinished


class ValidationRecord(Record):
    """A whole validation run; :func:`load` reads it back, also where an older clusterctl wrote it."""

    schema_version: Literal[2] = 2
    clusterctl_version: str
    run_id: str
    inventory: str
    started: AwareDatetime
    finished: AwareDatetime
    launch_node: str
    hosts: tuple[str, ...]
    slots: dict[str, int]
    openmpi_version: str = ""
    suite: str = "smoke"
    versions: dict[str, str] = Field(default_factory=dict)  # of the software that figures depend on: openmpi, nccl, ...
    fabric: dict[str, str] = Field(default_factory=dict)  # by node, the interface and network that carry jobs
    trends: tuple[Trend, ...] = ()
    notes: tuple[str, ...] = ()  # further notes for the reader: the history was set aside, a check was repeated
    folder: str = ""  # where the record and the logs lie
    via: Literal["ssh", "slurm", "mpijob", "pytorchjob", "runai"] = "ssh"  # how the nodes were reached
    slurm_job: int | None = None  # the allocation that the checks ran in
    pods_job: str = ""  # the job of Kubernetes that the checks ran in: its kind, name and namespace
    pods: dict[str, str] = Field(default_factory=dict)  # by host, which is a pod then, the node that it ran on
    launcher: Literal["mpirun", "srun"] = "mpirun"  # what started the ranks
    pmix: str = ""  # the PMIx that Open MPI was built with: internal, or prefix and release of the site's
    left_out: dict[str, str] = Field(default_factory=dict)  # nodes that took no part, as jobs ran there; the reasons
    verdict: Verdict
    checks: tuple[CheckResult, ...]


def worst(checks: Iterable[CheckResult]) -> Verdict:
    """Return the verdict of a whole: FAIL over ERROR over PASS; SKIP only where everything was skipped.

    No result at all is an ERROR.
    """
    found = {check.verdict for check in checks}
    for verdict in (Verdict.FAIL, Verdict.ERROR, Verdict.PASS, Verdict.SKIP):
        if verdict in found:
            return verdict
    return Verdict.ERROR


def load(text: str | bytes, place: str) -> ValidationRecord:
    """Read a record that was written as JSON, of this or an earlier schema.

    Raises:
        ConfigError: it is not a record, is damaged, or a newer clusterctl wrote it.
    """
    try:
        data = json.loads(text)
        del text  # tens of megabytes of a large cluster, in the moment that needs most
        if not isinstance(data, dict) or "schema_version" not in data:
            raise ConfigError(f"{place} is not a record of a validation: it has no schema_version.")
        version = data["schema_version"]
        if version == 1:  # what came with 2 has defaults that say "not measured"
            data["schema_version"] = 2
        elif version != 2:  # noqa: PLR2004 - the schema of this module
            raise ConfigError(
                f"{place} has schema {version}, which this clusterctl does not know; read it with a newer one."
            )
        return ValidationRecord.model_validate(data)
    except ValueError as error:
        problem = error.errors()[0] if isinstance(error, ValidationError) else None
        where = ".".join(str(part) for part in problem["loc"]) if problem else ""
        words = f"{where}: {problem['msg']}" if problem else f"it is no JSON ({error})"
        raise ConfigError(f"{place} is damaged: {words}; take another run's record.") from None
    except RecursionError:
        raise ConfigError(f"{place} is not a record of a validation: it is nested too deeply.") from None


# --- Keys of figures: what must be the same for two figures to be compared across runs --------------------------------


def keys(record: ValidationRecord, check: CheckResult) -> dict[FigureKey, Figure]:
    """Return the figures of a check of this record, each under the key that its history has."""
    key = key_maker(check, len(record.hosts), record.versions)
    return {key(figure): figure for figure in check.figures}


def key_maker(check: CheckResult, hosts: int, versions: Mapping[str, str]) -> Callable[[Figure], FigureKey]:
    """Return what gives figures of a check the key that they have in the history.

    ``hosts`` says how many nodes were asked; they count where the check has no ranks of its own.
    """
    nodes = len({report.host for report in check.ranks if report.state == "answered"}) or hosts
    sorted_versions = tuple(sorted(versions.items()))

    def key(figure: Figure) -> FigureKey:
        return FigureKey(
            check=check.check,
            quantity=figure.quantity,
            operation=figure.operation,
            backend=figure.backend,
            algorithm=figure.algorithm,
            size_bytes=figure.size_bytes,
            subject=" ".join(figure.nodes),
            unit=figure.unit,
            nodes=nodes,
            ranks=len(check.ranks),
            versions=sorted_versions,
        )

    return key
