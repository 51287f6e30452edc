"""Hold what a check measured against the user's references, the cluster's own history and published figures."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.analysis import references, speed_verdict
from clusterctl.analysis.references import MachineType
from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.model import results, units
from clusterctl.state import history as store
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.facts import NodeFacts
    from clusterctl.model.results import CheckResult, FigureKey
    from clusterctl.suite import ReferenceEntry, Suite

_MOST_NAMED = 3


@dataclass(frozen=True)
class MeasuredRun:
    """What figures depend on apart from the check: the cluster's id in the history, its hosts and its software."""

    cluster: str
    hosts: int
    versions: Mapping[str, str]


class Expectations:
    """What the figures of one run are held against; :attr:`notes` holds references without a figure and errors."""

    def __init__(
        self, suite: Suite, run: MeasuredRun, nodes: Mapping[str, NodeFacts], *, remembered: bool = True
    ) -> None:
        """Prepare without reading the history.

        Without ``remembered``, figures are not held against the history.
        """
        self._suite, self._run, self._nodes = suite, run, nodes
        self._remembered = remembered
        self.notes: list[str] = []

    def assess(self, found: CheckResult) -> CheckResult:
        """Return the result with comparisons and culprits; a FAIL here is a suspicion (see :meth:`confirmed`)."""
        sources = self._sources(found)
        if found.verdict is results.Verdict.PASS:
            self._note_silent(found, sources)
        return speed_verdict.assess(found, self.policy, sources)

    def confirmed(self, first: CheckResult, second: CheckResult) -> CheckResult:
        """Return the second run of a check; it is blamed only for what the first run shows as well."""
        return speed_verdict.confirmed(first, second, self.policy, self._sources(second))

    def _note_silent(self, found: CheckResult, sources: references.Sources) -> None:
        """Note the user's references that match no figure, since their author relies on them.

        References for another number of nodes or ranks do not count; a file may serve several clusters.
        """
        silent = [
            _about(entry)
            for entry in sources.entries
            if entry.check == found.check
            and not any(
                references.find(
                    [entry], found.check, figure, entry.nodes or sources.nodes, entry.ranks or sources.ranks
                )
                for figure in found.figures
            )
        ]
        if silent:
            told = and_more(silent, _MOST_NAMED)
            words = (
                f"{sources.file}: '{found.check}' measured no figure for the reference of {told}; correct or remove it."
            )
            self.notes += [] if words in self.notes else [words]  # a check may be assessed more than once

    @property
    def policy(self) -> OutlierPolicy:
        """When a node or a link stands out."""
        wanted = self._suite.outliers
        return OutlierPolicy(wanted.floor, wanted.false_alarms_per_run, hardware=self._hardware)

    def _hardware(self, figure: results.Figure) -> tuple[str, ...]:
        """Return the architecture of a figure's one node, and for a figure of a GPU the models there."""
        node = self._nodes.get(figure.nodes[0])
        if node is None:
            return ()
        return (node.machine, *(sorted({gpu.name for gpu in node.gpus}) if figure.device else ()))

    def _sources(self, found: CheckResult) -> references.Sources:
        taking_part = {report.host for report in found.ranks if report.state == "answered"}
        past = functools.cache(lambda: self._past(found))  # read only for a check that passed
        suite = self._suite
        return references.Sources(
            check=found.check,
            nodes=len(taking_part) or self._run.hosts,
            ranks=len(found.ranks),
            entries=suite.every_reference,
            file=suite.path or "validation.yml",
            history=lambda figure: past().get(id(figure), ()),
            options=suite.history,
            figures=len(found.figures),
            machine=self._machine(taking_part or set(self._nodes)),
        )

    def _past(self, found: CheckResult) -> dict[int, Sequence[float]]:
        """Return the values of the last good runs by the identity of each figure in this result."""
        if not (self._remembered and found.figures):
            return {}
        try:
            with store.open() as history:
                key = results.key_maker(found, self._run.hosts, self._run.versions)
                past = {id(figure): self._values(history, key(figure)) for figure in found.figures}
                self.notes += [words for words in history.warnings if words not in self.notes]
        except store.StoreError as error:
            self.notes += [str(error)] if str(error) not in self.notes else []
            return {}
        return past

    def _values(self, history: store.Store, key: FigureKey) -> Sequence[float]:
        return history.reference_values(self._run.cluster, key, self._suite.history.runs)

    def _machine(self, names: set[str]) -> MachineType | None:
        """Return the GPUs of the nodes that took part, None unless all are whole and of one model."""
        gpus = [gpu for name in names if name in self._nodes for gpu in self._nodes[name].gpus]
        if any(gpu.instances for gpu in gpus):
            return None
        models = Counter(gpu.name for gpu in gpus if gpu.usable)
        if len(models) != 1:
            return None
        ((model, count),) = models.items()
        return MachineType(model, len(names), count)


def _about(entry: ReferenceEntry) -> str:
    """Return the figure of a reference in words."""
    size = "" if entry.size is None else f"of {units.size_words(entry.size)}"
    given = (entry.backend, entry.operation, entry.quantity.replace("_", " "), entry.algorithm, size)
    return " ".join(word for word in given if word)
