"""``clusterctl nightly``: a validation every night, and a word to somebody when its verdict changes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterctl.cli import options, output, slurm_options
from clusterctl.cli.output import Format
from clusterctl.model.hosts import is_host_list
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

    from clusterctl.model.hosts import InventoryOptions
    from clusterctl.nightly.records import Job, JobStatus, Night, Scope

app = typer.Typer(
    no_args_is_help=True,
    help="Validate a cluster every night, look for drift, write reports, and tell somebody when the verdict changes.",
)
_SHOWN_NIGHTS = 7
_SHOWN_MISSED = 5


Output = Annotated[Format, typer.Option("--format", help="Print text, or JSON on stdout.")]


@dataclass(frozen=True)
class EnabledJobGroup:
    """Which job is meant."""

    named: Annotated[
        list[Path] | None, typer.Argument(metavar="INVENTORY", help="Name the inventory that was enabled.")
    ] = None
    more: options.More = None
    job: Annotated[
        str | None, typer.Option("--job", metavar="NAME|PATH", help="Name the job as 'nightly status' does.")
    ] = None

    @property
    def path(self) -> Path:
        """The file of the job.

        Raises:
            BadParameter: neither an inventory nor a job is named, or both are.
        """
        from clusterctl.nightly import storage  # noqa: PLC0415 - see cli.main

        if bool(self.named or self.more) == (self.job is not None):
            raise typer.BadParameter("give an inventory, or --job", param_hint="INVENTORY")
        if self.job is None:
            return storage.job_file(storage.job_name(options.sources(self.named, self.more)))
        return Path(self.job) if "/" in self.job else storage.job_file(self.job)


@dataclass(frozen=True)
class NightLoginGroup(options.LoginGroup):
    """How a night's drift check reads the inventory and logs in."""

    extra_vars: Annotated[
        list[str] | None,
        typer.Option("--extra-vars", "-e", metavar="@PATH", help="Set these variables above all others."),
    ] = None
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="Log in as this user.")] = None
    remote_user: Annotated[str | None, typer.Option("--remote-user", hidden=True)] = None
    become: Annotated[bool, typer.Option("--become", "-b", help="Use sudo on the hosts, to look for drift.")] = False

    def options(self, limit: str | None = None) -> InventoryOptions:
        """Return what these options make of an inventory."""
        if self.remote_user is not None:
            output.tell("--remote-user is now --user; the old name goes in the next release.")
        found = dataclasses.replace(super().options(limit), become=self.become)
        return found if self.remote_user is None else dataclasses.replace(found, user=self.remote_user)


class EnableLine(options.PanelCommand):
    """The command line of enable."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take ``--user`` without a name, and ``--system``, for ``--own-timer`` and ``--system-timer``.

        A list of hosts and a path that exists are no name: they are the inventory behind the old flag.
        """
        words = list(args)
        for at, word in enumerate(args):
            if word == "--system":
                output.tell("--system is now --system-timer; the old name goes in the next release.")
                words[at] = "--system-timer"
            following = args[at + 1] if at + 1 < len(args) else "-"
            if word != "--user" or not (
                following.startswith("-") or is_host_list(following) or Path(following).exists()
            ):
                continue
            hint = (
                "" if following.startswith("-") else f" Where '{following}' is a login name, give --user={following}."
            )
            output.tell(f"--user without a name is now --own-timer; the old name goes in the next release.{hint}")
            words[at] = "--own-timer"
        return super().parse_args(ctx, words)


@app.command(cls=EnableLine, short_help="Validate this inventory every night.")
def enable(
    at: Annotated[
        str, typer.Option("--at", metavar="HH:MM", help="Start at this time, by the local clock of this machine.")
    ],
    which: options.InventoriesGroup,
    login: NightLoginGroup,
    slurm: slurm_options.SlurmGroup,
    suite: Annotated[
        str | None,
        typer.Option(
            "--suite",
            metavar="NAME",
            help="Run smoke, nightly, full, or a suite of your own. Default: your file's, else nightly.",
        ),
    ] = None,
    suite_file: Annotated[
        Path | None,
        typer.Option(
            "--suite-file",
            metavar="PATH",
            help="Read your own suite and references here. Default: validation.yml beside the inventory.",
        ),
    ] = None,
    on_fail: Annotated[
        str | None,
        typer.Option(
            "--on-fail",
            metavar="COMMAND|URL",
            help="Start this command, or POST to this address, when the verdict or who is named changes.",
        ),
    ] = None,
    own: Annotated[
        bool, typer.Option("--own-timer", help="Write a timer of your own (the default, except for root).")
    ] = False,
    system: Annotated[
        bool, typer.Option("--system-timer", help="Write a timer of root (the default for root).")
    ] = False,
    keep: Annotated[
        int, typer.Option("--keep", metavar="DAYS", min=1, help="Keep nights and reports for so many days.")
    ] = 30,
    wait: Annotated[
        int,
        typer.Option("--wait", metavar="MINUTES", min=0, help="Wait so long for another run to let go of a host."),
    ] = 60,
    reports: Annotated[
        Path | None, typer.Option("--reports", metavar="PATH", help="Put the reports there, a folder for each night.")
    ] = None,
    prometheus: Annotated[
        Path | None,
        typer.Option("--prometheus", metavar="PATH", help="Keep the newest metrics here too, for node_exporter."),
    ] = None,
    limit: options.Limit = None,
    via: slurm_options.Via = None,
    form: Output = Format.TEXT,
) -> int:
    """Validate this inventory every night, in place of what was enabled for it before.

    Writes a timer of systemd, which catches up on what it missed while the machine was off; where systemd is not
    running, a line in the crontab. The command or address of --on-fail hears of a change of the verdict, not of every
    bad night; it gets the night's record as JSON.
    """
    from clusterctl.nightly import install, notify  # noqa: PLC0415 - see cli.main: --help stays quick

    if own and system:
        raise typer.BadParameter("give one of --own-timer and --system-timer", param_hint="--system-timer")
    scope: Scope | None = "system" if system else "user" if own else None
    done = install.enable(
        install.EnableRequest(
            inventory=which.sources,
            at=at,
            suite=suite,
            suite_file=suite_file,
            options=login.options(limit),
            on_fail=on_fail,
            scope=scope,
            keep_days=keep,
            wait_s=60.0 * wait,
            reports=reports,
            prometheus=prometheus,
            via=slurm.wish(via),
            skip_busy=slurm.skip_busy,
            drains=slurm.drains(via),
        )
    )
    job = done.job
    if form is Format.JSON:
        data = {"job": _public(job), "next": done.next.isoformat(), "notes": done.notes}
        typer.echo(json.dumps(data))
        return ExitCode.OK
    tells = f", telling {notify.shown(job.hook)} when it changes" if job.hook else ""
    output.line(f"Enabled: suite '{job.suite}' every night at {job.at}{tells}.")
    output.line(f"  job   {job.job}, kept in {job.place.name}")
    output.line(f"  next  {_local(done.next)}")
    for note in done.notes:
        output.line(f"Note: {note}")
    return ExitCode.OK


@app.command()
def run(which: EnabledJobGroup, form: Output = Format.TEXT) -> int:
    """Carry out a night now, as the timer does.

    Ends with 0 when all is right, and 11 when the checks could not run. 10 means that something is wrong or has
    drifted, or that a host is missing.
    """
    from clusterctl.nightly import run as night  # noqa: PLC0415 - see cli.main
    from clusterctl.nightly import storage  # noqa: PLC0415 - see cli.main

    found = storage.read_job(which.path)
    _take_environment(found)
    came = night.run(found, output.line if form is Format.TEXT else _silent)
    if form is Format.JSON:
        typer.echo(came.model_dump_json())
    else:
        _close(came)
    return int(night.exit_code(came))


@app.command(short_help="Show what comes next and what the last nights found.")
def status(which: EnabledJobGroup, form: Output = Format.TEXT) -> int:
    """Show what comes next, what the last nights found, and which nights never came.

    Without an inventory, all jobs. Ends with 0 when all is well, and 10 when the last verdict is bad, the last night
    was missed, or the schedule is gone.
    """
    from clusterctl.nightly import install as job_status  # noqa: PLC0415 - see cli.main
    from clusterctl.nightly import storage  # noqa: PLC0415 - see cli.main

    jobs = [storage.read_job(which.path)] if options.given(which) else storage.jobs()
    found = [job_status.status(each) for each in jobs]
    if form is Format.JSON:
        typer.echo(json.dumps([each.model_dump(mode="json") for each in found]))
    elif not found:
        output.answer_line("Nothing is enabled; 'clusterctl nightly enable INVENTORY --at 02:00' does it.")
    else:
        for number, each in enumerate(found):
            if number:
                output.answer_line("")
            _show(each)
    return 10 if any(each.bad for each in found) else 0


@app.command(short_help="Remove the timer or cron line of an inventory.")
def disable(which: EnabledJobGroup) -> int:
    """Remove the timer or cron line of an inventory; the records of its nights stay."""
    from clusterctl.nightly import install, storage  # noqa: PLC0415 - see cli.main

    path = which.path
    gone = install.disable(path.parent.name)
    output.line(
        f"Disabled: {gone.inventory} is no longer validated at night; its nights stay in {storage.folder_of(gone.job)}."
    )
    return ExitCode.OK


def _take_environment(job: Job) -> None:
    """Make this process what it was when the job was enabled, as far as the job says."""
    os.environ.update(job.environment)
    with contextlib.suppress(OSError):
        os.chdir(job.folder)


def _public(job: Job) -> dict[str, object]:
    """Return a job as it may be shown: the hook without its secrets."""
    from clusterctl.nightly import notify  # noqa: PLC0415 - see cli.main

    data = job.model_dump(mode="json", exclude={"hook", "environment"})
    return {**data, "hook": notify.shown(job.hook) if job.hook else ""}


def _close(night: Night) -> None:
    from clusterctl.nightly import policy  # noqa: PLC0415 - see cli.main

    if night.drift is not None:
        output.line(f"Drift: {policy.words_of(night.drift)}.")
    for one in night.slower:
        output.line(f"Slower: {one.words}")
    for words in night.problems:
        output.line(f"Note: {words}")
    if night.outcome == "missed":
        output.line(f"MISSED: {night.message}")
    else:
        said = night.verdict.value if night.verdict else night.outcome
        output.line(f"{said}{': ' + night.message if night.message else ''} ({night.change or 'as before'}).")
    if night.hook is not None:
        output.line(
            f"Hook: {'told' if night.hook.ok else 'FAILED'} after {_tries(night.hook.attempts)}, {night.hook.words}."
        )
    output.line(f"The night's record: {night.folder}/night.json")


def _show(found: JobStatus) -> None:
    from clusterctl.nightly import scheduler  # noqa: PLC0415 - see cli.main

    zone = scheduler.zone()
    output.answer_line(f"{found.inventory}: suite '{found.suite}' every night at {found.at} ({found.place.name})")
    output.answer_line(f"  job    {found.job}")
    output.answer_line(
        f"  next   {_local(found.next, zone) if found.next and found.scheduled else 'never: ' + found.problem}"
    )
    if found.running:
        output.answer_line("  now    a night is running")
    if found.hook:
        result = found.hook_result
        last = (
            f"{'told' if result.ok else 'FAILED'} {_local(result.at, zone)}, {result.words}"
            if result
            else "never called"
        )
        output.answer_line(f"  hook   {found.hook}: {last}")
    for slot in found.missed[:_SHOWN_MISSED]:
        output.answer_line(f"  missed {_local(slot, zone)}: nothing ran")
    if len(found.missed) > _SHOWN_MISSED:
        output.answer_line(f"  missed {len(found.missed) - _SHOWN_MISSED} more")
    for night in found.nights[:_SHOWN_NIGHTS]:
        word = night.verdict.value if night.verdict and night.outcome == "done" else night.outcome.upper()
        output.answer_line(f"  {word:6} {_local(night.started, zone)} {_reason(night)}".rstrip())


def _reason(night: Night) -> str:
    from clusterctl.nightly import policy  # noqa: PLC0415 - see cli.main

    words = [night.message] if night.message else []
    if night.proof is not None:
        words += [culprit.words for culprit in night.proof.culprits[:2]] or [
            f"{bad.check}: {bad.reason}" for bad in night.proof.bad[:2]
        ]
    if night.proof is not None and (part := policy.part_of(night.proof)):
        words.append(part)
    if night.drift is not None and (night.drift.hosts or night.drift.problem):
        words.append(f"drift: {policy.words_of(night.drift)}")
    words += [one.words.removesuffix(".") for one in night.slower[:2]]
    return "; ".join(words)


def _local(moment: datetime, zone: tzinfo | None = None) -> str:
    from clusterctl.nightly import scheduler  # noqa: PLC0415 - see cli.main

    return f"{moment.astimezone(zone or scheduler.zone()):%a %Y-%m-%d %H:%M %Z}"


def _tries(count: int) -> str:
    return f"{count} try" if count == 1 else f"{count} tries"


def _silent(_text: str) -> None:
    """Say nothing: the record says it."""
