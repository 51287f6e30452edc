"""Keys of figures: what must be the same for two figures to be compared across runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model.results import FigureKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterctl.model.results import CheckResult, Figure, ValidationRecord


def keys(record: ValidationRecord, check: CheckResult) -> dict[FigureKey, Figure]:
    """Return the figures of a check of this record, each under the key that its history has."""
    key = key_maker(check, len(record.hosts), record.versions)
    return {key(figure): figure for figure in check.figures}


def key_maker(check: CheckResult, hosts: int, versions: Mapping[str, str]) -> Callable[[Figure], FigureKey]:
    """Return what gives figures of a check the key that they have in the history.

    Args:
        check: the check that measured them.
        hosts: how many nodes were asked; they count where the check has no ranks of its own.
        versions: of the run's software.
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
