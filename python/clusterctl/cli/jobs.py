"""``clusterctl jobs``: the jobs that ``clusterctl run --detach`` has started."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from clusterctl.cli import options, output
from clusterctl.cli.output import Format
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.jobs.detached import FoundJob

_LIST = "list"
_MOST_COMMAND = 200  # characters


class JobsGroup(TyperGroup):
    """``jobs INVENTORY`` is ``jobs list INVENTORY``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse with ``list`` where the first word is no other command."""
        if args and args[0] not in self.commands and args[0] not in {"-h", "--help"}:
            args = [_LIST, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=JobsGroup, no_args_is_help=True, help="Detached jobs: list, logs, stop.")
JOB_HELP = "Name a job by its id or the beginning of it."


@app.command(_LIST)
def list_jobs(
    which: options.OneInventoryGroup,
    login: options.LoginGroup,
    form: Annotated[Format, typer.Option("--format", help="Print text, or JSON on stdout.")] = Format.TEXT,
    limit: options.Limit = None,
) -> int:
    """Show the jobs that 'run --detach' has started, the newest first. 'jobs INVENTORY' does the same.

    A node keeps its last 20 jobs that have ended. Ends with 4 where a node did not answer.
    """
    from clusterctl.jobs import detached  # noqa: PLC0415 - see cli.main: --help stays quick

    with detached.gathered(which.sources, login.options(limit)) as found:
        if form is Format.JSON:
            rows = [_data(one, detached.code_of(one.job)) for one in found.jobs]
            output.data(json.dumps({"jobs": rows, "problems": [str(problem) for problem in found.problems]}))
        else:
            _show(found.jobs)
            for problem in found.problems:
                output.tell(str(problem))
        return max((int(problem.exit_code) for problem in found.problems), default=int(ExitCode.OK))


@app.command()
def logs(
    which: options.OneInventoryGroup,
    login: options.LoginGroup,
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help=f"{JOB_HELP} Default: the newest.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends, and end with its code.")
    ] = False,
    tail: Annotated[int | None, typer.Option("--tail", min=0, metavar="N", help="Show only the last N lines.")] = None,
    limit: options.Limit = None,
) -> int:
    """Show the log of a detached job, stdout and stderr in one, on stdout.

    With -f, Ctrl-C ends the showing and not the job. Then 2 is the code of a job that was stopped or lost.
    """
    from clusterctl.jobs import detached  # noqa: PLC0415 - see cli.main: --help stays quick

    inventory, word = which.and_run(job)
    with detached.gathered(inventory, login.options(limit)) as found:
        one = found.find(word)
        if follow:
            return detached.follow(found, one, _take, output.tell, tail)
        return detached.show_log(found, one, _take, output.tell, tail)


@app.command()
def stop(
    which: options.OneInventoryGroup,
    login: options.LoginGroup,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help=JOB_HELP)] = None,
    limit: options.Limit = None,
) -> int:
    """End a detached job on all nodes. A job that has ended stays as it is."""
    from clusterctl.jobs import detached  # noqa: PLC0415 - see cli.main: --help stays quick

    inventory, word = which.and_run(job)
    if not word:
        raise typer.BadParameter("it is missing; 'clusterctl jobs INVENTORY' lists the jobs", param_hint="JOB")
    with detached.gathered(inventory, login.options(limit)) as found:
        return detached.stop(found, found.find(word), output.tell)


def _show(jobs: Sequence[FoundJob]) -> None:
    from rich.table import Table  # noqa: PLC0415 - text output only

    from clusterctl.jobs import detached  # noqa: PLC0415 - see cli.main

    if not jobs:
        output.answer_line("There is no detached job; 'clusterctl run --detach' starts one.")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("JOB", "STATE", "CODE", "SINCE", "FROM", "NODES"):
        table.add_column(column, no_wrap=True, vertical="top")
    table.add_column("COMMAND", overflow="fold", vertical="top")
    for one in jobs:
        code, since = detached.code_of(one.job), datetime.fromtimestamp(one.job.since, timezone.utc).astimezone()
        columns = (one.job.job, one.job.word, "" if code is None else str(code), f"{since:%Y-%m-%d %H:%M}", one.host)
        table.add_row(*columns, output.folded(one.job.nodes), _command(one))
    output.answer().print(table)
    for one in jobs:
        for words in one.job.remains:
            output.answer_line(f"{one.job.job} may still run on {words}")


def _command(one: FoundJob) -> str:
    import shlex  # noqa: PLC0415 - text output only

    text = shlex.join(one.job.command)
    return text if len(text) <= _MOST_COMMAND else f"{text[:_MOST_COMMAND]}…"


def _data(one: FoundJob, code: int | None) -> dict[str, Any]:
    job = one.job

    def time_of(seconds: float) -> str | None:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat() if seconds else None

    return {
        "job": job.job,
        "state": job.word,
        "code": code,
        "since": time_of(job.since),
        "ended": time_of(job.ended_at),
        "launch_node": one.host,
        "nodes": list(job.nodes),
        "command": list(job.command),
        "log": job.folder,
        "log_bytes": job.log_end,
        "problem": job.problem,
        "may_still_run": list(job.remains),
    }


def _take(_stream: str, data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
