"""The table of ``--timing``: wall time, the controller's processors and the nodes' processors of each stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.cli import output

if TYPE_CHECKING:
    from clusterctl.model.run_record import RunRecord, StageTiming

_COLUMNS = ("STAGE", "WALL", "CONTROLLER CPU", "NODE CPU", "LARGEST NODE", "RUN", "SKIPPED")
_UNKNOWN = "not measured"
_LEAST_S = 0.05  # a shorter stage without a result is no row


def show(record: RunRecord) -> None:
    """Print where the time of a run went; nothing where it was not measured."""
    if record.timing is None:
        return
    from rich.table import Table  # noqa: PLC0415 - text output only

    table = Table(title="Seconds by stage", title_justify="left", box=None, pad_edge=False)
    for column in _COLUMNS:
        left = column in {"STAGE", "LARGEST NODE"}
        table.add_column(column, overflow="fold", vertical="top", justify="left" if left else "right")
    for stage in record.timing.stages:
        if stage.run or stage.wall_s >= _LEAST_S:
            table.add_row(*row(stage))
    table.add_section()
    table.add_row(*row(record.timing.total), style="bold")
    output.console().print(table)


def row(stage: StageTiming) -> tuple[str, ...]:
    """Return the words of a stage, one for each column."""
    largest = "" if stage.largest_node_cpu_s is None else f"{stage.largest_node} {stage.largest_node_cpu_s:.2f}"
    is_task = bool(stage.run or stage.skipped)
    return (
        stage.stage,
        f"{stage.wall_s:.1f}",
        _UNKNOWN if stage.controller_cpu_s is None else f"{stage.controller_cpu_s:.2f}",
        _UNKNOWN if stage.node_cpu_s is None else f"{stage.node_cpu_s:.2f}",
        largest,
        str(stage.run) if is_task else "",
        str(stage.skipped) if is_task else "",
    )
