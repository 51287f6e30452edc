"""``clusterctl provision``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from clusterctl.cli import change, options
from clusterctl.cli.output import StreamFormat
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from clusterctl.model.hosts import InventorySources
    from clusterctl.model.run_record import RunRecord
    from clusterctl.provisioning.batches_and_losses import Amount
    from clusterctl.provisioning.run import ProvisionRequest
    from clusterctl.provisioning.task_results import Stopwatch
    from clusterctl.validation.run import ValidationOptions

_WORK = "What is done"
_NOT_WITH_WORKERS = frozenset({"--batch", "--max-fail", "--tags", "--skip-tags", "--check"})


@dataclass(frozen=True)
class PlayGroup:
    """How Ansible plays the roles."""

    PANEL: ClassVar[str] = _WORK
    tags: Annotated[
        list[str] | None, typer.Option("--tags", "-t", metavar="TAG[,TAG…]", help="Play only tasks with these tags.")
    ] = None
    skip_tags: Annotated[
        list[str] | None, typer.Option("--skip-tags", metavar="TAG[,TAG…]", help="Play no task with these tags.")
    ] = None
    check: Annotated[bool, typer.Option("--check", "-C", help="Change nothing, and say what would change.")] = False
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the content of every installed file, and repair what differs.")
    ] = False
    full: Annotated[bool, typer.Option("--full", help="Play all roles on all hosts, also where nothing differs.")] = (
        False
    )
    while_busy: Annotated[bool, typer.Option("--while-busy", help="Switch to other versions also where jobs run.")] = (
        False
    )
    diff: change.Diff = False
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            metavar="",
            count=True,
            show_default=False,
            help="Show what a build prints; -vv and -vvv put more into Ansible's log.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = 0
    forks: change.Forks = 32


@dataclass(frozen=True)
class PartsGroup:
    """Which hosts a run works on, how many at a time, and how many may be lost."""

    limit: options.Limit = None
    skip_unreachable: change.SkipUnreachable = False
    max_fail: Annotated[
        str | None,
        typer.Option(
            "--max-fail",
            metavar="N|P%",
            help="Stop all hosts once more than so many failed or were skipped.",
            rich_help_panel=options.HOSTS,
        ),
    ] = None
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="N|P%",
            help="Work on so many hosts at a time, and stop at the first group that fails.",
            rich_help_panel=options.HOSTS,
        ),
    ] = None
    workers: Annotated[
        str,
        typer.Option(
            "--workers",
            metavar="WORKERS",
            help="Let these other controllers play a part of the hosts: their names, or an inventory of them.",
            rich_help_panel=options.HOSTS,
        ),
    ] = ""


@dataclass(frozen=True)
class CacheGroup:
    """Where a run looks before something is compiled."""

    PANEL: ClassVar[str] = "Shared cache"
    cache: Annotated[
        str,
        typer.Option(
            "--cache",
            metavar="WHERE",
            help="Look into this shared cache before something is compiled. Default: cluster_cache of the inventory.",
        ),
    ] = ""
    cache_signers: Annotated[
        str,
        typer.Option(
            "--cache-signers",
            metavar="PATH",
            help="Take packs of these signers alone. Default: cluster_cache_signers, or"
            " ~/.config/clusterctl/allowed_signers.",
        ),
    ] = ""


def provision(
    which: options.InventoriesGroup,
    how: change.ChangeGroup,
    ca: change.CaPassphraseGroup,
    play: PlayGroup,
    parts: PartsGroup,
    shared: CacheGroup,
    yes: change.Yes = False,
    no_validate: Annotated[
        bool, typer.Option("--no-validate", help="Leave out the validation afterwards.", rich_help_panel=_WORK)
    ] = False,
    timing: Annotated[
        bool,
        typer.Option(
            "--timing",
            help="Show where the time went: wall time per stage, and the critical path.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    form: options.StreamForm = StreamFormat.TEXT,
) -> int:
    """Make one proven cluster of the inventory's hosts.

    Looks at every host first and stops with one table if something stands in the way. What is already as it should be
    is left alone, so the command can be repeated at any time, also after an interruption.
    """
    from clusterctl.provisioning import run as provisioning  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.remote.shared_cache.exchange import SharedCache  # noqa: PLC0415 - the same

    if shared.cache:  # a password in it must not reach the record
        from clusterctl.remote.shared_cache import place  # noqa: PLC0415 - see cli.main

        place.refuse(shared.cache)
    if play.full and (play.tags or play.skip_tags):
        raise typer.BadParameter("all roles are played, so leave out --tags and --skip-tags", param_hint="--full")
    other = next((name for name in options.given(parts, play) if name in _NOT_WITH_WORKERS), "")
    if parts.workers and other:
        raise typer.BadParameter(f"the run goes over several controllers, so leave out {other}", param_hint="--workers")
    watch = _stopwatch() if timing else None
    request = provisioning.ProvisionRequest(
        inventory=which.sources,
        tags=_split(play.tags),
        skip_tags=_split(play.skip_tags),
        check=play.check,
        verify=play.verify,
        every_role=play.full,
        while_busy=play.while_busy,
        diff=play.diff,
        verbosity=play.verbose,
        forks=play.forks,
        skip_unreachable=parts.skip_unreachable,
        max_fail=_amount("--max-fail", parts.max_fail, least=0),
        batch=_amount("--batch", parts.batch, least=1),
        workers=parts.workers,
        cache=SharedCache(shared.cache, shared.cache_signers),
        stopwatch=watch,
    )
    request = ca.into(how.asked(request, parts.limit))
    proof = None
    if not (no_validate or play.check or play.tags or play.skip_tags):
        from clusterctl.cli import validate  # noqa: PLC0415 - see cli.main
        from clusterctl.validation import gate  # noqa: PLC0415 - the same

        proof = validate.in_short(which.sources, request.options)
        request = dataclasses.replace(request, asked_after=gate.asked_ahead)
    asks = not (yes or play.check)
    with change.observer_for(form, ask=asks, inventory=which.sources, raw=play.verbose > 0) as observer:
        record = provisioning.provision(request, observer)
    proof = proof if record.exit_code == ExitCode.OK else None
    if form is StreamFormat.JSON:
        return _answer_in_json(record, request, proof)
    code = change.show(record, form, "" if proof is not None else _next_step(which.sources, check=play.check))
    if proof is not None:
        from clusterctl.cli import validate  # noqa: PLC0415 - see cli.main

        with _validating(watch):
            code = validate.after_provision(request.inventory, proof, form)
    if watch is not None:
        record = _amended(record, watch)
        if form is StreamFormat.TEXT:
            from clusterctl.cli import summary  # noqa: PLC0415 - text only

            summary.show_timing(record)
    return code


def _stopwatch() -> Stopwatch:
    from clusterctl.provisioning.task_results import Stopwatch  # noqa: PLC0415 - see cli.main

    return Stopwatch()


def _validating(watch: Stopwatch | None) -> AbstractContextManager[None]:
    """Measure the validation at the end as a stage."""
    return contextlib.nullcontext() if watch is None else watch.stage("validation of the cluster")


def _amended(record: RunRecord, watch: Stopwatch) -> RunRecord:
    """Return and keep the record with what the validation took."""
    from clusterctl.state import runs  # noqa: PLC0415 - see cli.main

    return runs.amend(record, timing=watch.timing())


def _answer_in_json(record: RunRecord, request: ProvisionRequest, asked: ValidationOptions | None) -> int:
    """Write one object: the run's record, with the validation's under ``validation``."""
    code, proof = int(record.exit_code or 0), None
    if asked is not None:
        from clusterctl.validation import run as validation  # noqa: PLC0415 - see cli.main

        with _validating(request.stopwatch):
            proof = validation.validate(request.inventory, asked)
        code = int(validation.exit_code(proof))
    record = record if request.stopwatch is None else _amended(record, request.stopwatch)
    answer = {**record.model_dump(mode="json"), "validation": proof.model_dump(mode="json") if proof else None}
    sys.stdout.write(json.dumps(answer) + "\n")
    return code


def _next_step(inventory: InventorySources, *, check: bool) -> str:
    if check:
        return f"'clusterctl provision {inventory.shown}' does it."
    return f"'clusterctl validate {inventory.shown}' proves that it works."


def _amount(option: str, text: str | None, least: int) -> Amount | None:
    from clusterctl.provisioning import batches_and_losses  # noqa: PLC0415 - see cli.main

    try:
        return None if text is None else batches_and_losses.amount(text, least)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _split(values: list[str] | None) -> tuple[str, ...]:
    return tuple(word.strip() for value in values or () for word in value.split(",") if word.strip())
