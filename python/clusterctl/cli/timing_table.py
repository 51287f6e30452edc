"""The tables of ``--timing``: what each stage took, and the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.cli import output

if TYPE_CHECKING:
    from clusterctl.model.run_record import CriticalPath, PathStep, RunRecord, StageTiming

_COLUMNS = ("STAGE", "WALL", "RUN", "SKIPPED")
_PATH_COLUMNS = ("STEP", "HOST", "WALL", "OTHERS WAITED")
_LEAST_S = 0.05  # a shorter stage without a result is no row


def show(record: RunRecord) -> None:
    """Print where the time of a run went; nothing where it was not measured."""
    if record.timing is None:
        return
    from rich.table import Table  # noqa: PLC0415 - text output only

    table = Table(title="Seconds by stage", title_justify="left", box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, overflow="fold", vertical="top", justify="left" if column == "STAGE" else "right")
    for stage in record.timing.stages:
        if stage.run or stage.wall_s >= _LEAST_S:
            table.add_row(*row(stage))
    table.add_section()
    table.add_row(*row(record.timing.total), style="bold")
    output.console().print(table)
    if record.timing.critical_path is not None:
        _show_path(record.timing.critical_path)


def _show_path(path: CriticalPath) -> None:
    """Print the steps that decided the wall time, in the order of the run."""
    from rich.table import Table  # noqa: PLC0415 - text output only

    table = Table(
        title="Critical path: what decided the wall time, in order", title_justify="left", box=None, pad_edge=False
    )
    for column in _PATH_COLUMNS:
        left = column in {"STEP", "HOST"}
        table.add_column(column, overflow="fold", vertical="top", justify="left" if left else "right")
    for step in path.steps:
        table.add_row(*path_row(step))
    if path.others:
        table.add_row(f"{output.plural(path.others, 'shorter step')} together", "", f"{path.others_s:.1f}", "")
    output.console().print()
    output.console().print(table)


def path_row(step: PathStep) -> tuple[str, ...]:
    """Return the words of a step of the critical path, one for each column."""
    what = f"{step.tasks} short tasks" if step.tasks > 1 else step.task
    words = f"{step.stage}: {what}" if what else step.stage
    return (
        f"{words} ({step.change})" if step.change else words,
        step.host,
        f"{step.wall_s:.1f}",
        f"{step.waited_s:.1f}" if step.waited_s >= _LEAST_S else "",
    )


def row(stage: StageTiming) -> tuple[str, ...]:
    """Return the words of a stage, one for each column."""
    is_task = bool(stage.run or stage.skipped)
    return (
        stage.stage,
        f"{stage.wall_s:.1f}",
        str(stage.run) if is_task else "",
        str(stage.skipped) if is_task else "",
    )
