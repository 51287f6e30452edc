"""``clusterctl provision``."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import change, options
from clusterctl.cli.output import StreamFormat
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from clusterctl.model.run_record import RunRecord
    from clusterctl.provisioning.partial import Amount
    from clusterctl.provisioning.run import ProvisionRequest
    from clusterctl.provisioning.stopwatch import Stopwatch
    from clusterctl.validation.run import ValidationOptions

_ANSIBLE = "Ansible's own options"
_PARTS = "Some of the hosts"


def provision(
    named: options.Inventory = None,
    more: options.Inventories = None,
    limit: options.Limit = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tags", "-t", help="Only tasks with these tags.", rich_help_panel=_ANSIBLE)
    ] = None,
    skip_tags: Annotated[
        list[str] | None, typer.Option("--skip-tags", help="No task with these tags.", rich_help_panel=_ANSIBLE)
    ] = None,
    check: Annotated[bool, typer.Option("--check", "-C", help="Change nothing, say what would change.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the content of every installed file, and repair what differs.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Play all roles on all hosts, also where nothing differs.")
    ] = False,
    while_busy: Annotated[
        bool, typer.Option("--while-busy", help="Switch to other versions also where jobs run.")
    ] = False,
    diff: change.Diff = False,
    extra_vars: options.ExtraVars = None,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="More in Ansible's log (-vvv).")] = 0,
    forks: change.Forks = 32,
    skip_unreachable: change.SkipUnreachable = False,
    max_fail: Annotated[
        str | None,
        typer.Option(
            "--max-fail",
            metavar="N|P%",
            help="Stop all hosts once more than so many failed or were skipped.",
            rich_help_panel=_PARTS,
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="N|P%",
            help="So many hosts at a time; stop at the first group that fails.",
            rich_help_panel=_PARTS,
        ),
    ] = None,
    workers: Annotated[
        str,
        typer.Option(
            "--workers",
            metavar="WORKERS",
            help="Other controllers that play a part of the hosts: their names, or an inventory of them.",
            rich_help_panel=_PARTS,
        ),
    ] = "",
    become: change.Become = False,
    ask_become_pass: change.AskBecomePass = False,
    vault_id: change.VaultId = None,
    vault_password_file: options.VaultPasswordFile = None,
    user: options.User = None,
    private_key: options.PrivateKey = None,
    ca_passphrase_file: change.CaPassphraseFile = None,
    ask_ca_passphrase: change.AskCaPassphrase = False,
    cache: Annotated[
        str,
        typer.Option(
            "--cache",
            metavar="WHERE",
            help="A shared cache to look into before something is compiled. Default: cluster_cache of the inventory.",
        ),
    ] = "",
    cache_signers: Annotated[
        str,
        typer.Option(
            "--cache-signers",
            metavar="FILE",
            help="Whose packs are taken. Default: cluster_cache_signers, or ~/.config/clusterctl/allowed_signers.",
        ),
    ] = "",
    yes: change.Yes = False,
    no_validate: Annotated[bool, typer.Option("--no-validate", help="Leave out the validation afterwards.")] = False,
    timing: Annotated[
        bool,
        typer.Option(
            "--timing", help="Show where the time went: wall and processor time per stage, and the critical path."
        ),
    ] = False,
    adopt: change.Adopt = False,
    take_lock: change.TakeLock = False,
    form: options.StreamForm = StreamFormat.TEXT,
) -> int:
    """Make one proven cluster of the inventory's hosts.

    Looks at every host first and stops with one table if something stands in the way. What is already as it should be
    is left alone, so the command can be repeated at any time, also after an interruption.
    """
    from clusterctl.provisioning import run as provisioning  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.provisioning.shared_cache import SharedCache  # noqa: PLC0415 - the same

    if cache:  # a password in it must not reach the record
        from clusterctl.remote.shared_cache import place  # noqa: PLC0415 - see cli.main

        place.refuse(cache)
    if full and (tags or skip_tags):
        raise typer.BadParameter("all roles are played, so leave out --tags and --skip-tags", param_hint="--full")
    if workers and (other := _not_with_workers(batch, max_fail, tags, skip_tags, check=check)):
        raise typer.BadParameter(f"the run goes over several controllers, so leave out {other}", param_hint="--workers")
    inventory = options.sources(named, more)
    watch = _stopwatch() if timing else None
    most_failed, batch_size = _amount("--max-fail", max_fail, least=0), _amount("--batch", batch, least=1)
    asked = change.asked(limit, extra_vars, vault_id, vault_password_file, user, private_key, become, ask_become_pass)
    request = provisioning.ProvisionRequest(
        inventory=inventory,
        options=asked.options,
        tags=_split(tags),
        skip_tags=_split(skip_tags),
        check=check,
        verify=verify,
        every_role=full,
        while_busy=while_busy,
        diff=diff,
        verbosity=verbose,
        forks=forks,
        skip_unreachable=skip_unreachable,
        max_fail=most_failed,
        batch=batch_size,
        workers=workers,
        become_password=asked.become_password,
        ca_passphrase=change.ca_passphrase(ca_passphrase_file, ask=ask_ca_passphrase),
        cache=SharedCache(cache, cache_signers),
        stopwatch=watch,
        adopt=adopt,
        take_lock=take_lock,
        argv=asked.argv,
    )
    from clusterctl.cli import validate  # noqa: PLC0415 - see cli.main

    proof = None if no_validate or check or tags or skip_tags else validate.in_short(inventory, request.options)
    with change.observer_for(form, ask=not (yes or check)) as observer:
        record = provisioning.provision(request, observer)
    proof = proof if record.exit_code == ExitCode.OK else None
    if form is StreamFormat.JSON:
        return _answer_in_json(record, request, proof)
    code = change.show(record, form, "" if proof is not None else _next_step(request))
    if proof is not None:
        with _validating(watch):
            code = validate.after_provision(request.inventory, proof, form)
    if watch is not None:
        record = _amended(record, watch)
        if form is StreamFormat.TEXT:
            from clusterctl.cli import timing_table  # noqa: PLC0415 - text only

            timing_table.show(record)
    return code


def _not_with_workers(
    batch: str | None, max_fail: str | None, tags: list[str] | None, skip_tags: list[str] | None, *, check: bool
) -> str:
    """Return the option that a run on several controllers cannot take; '' without one."""
    given = {"--batch": batch, "--max-fail": max_fail, "--tags": tags, "--skip-tags": skip_tags, "--check": check}
    return next((option for option, value in given.items() if value), "")


def _stopwatch() -> Stopwatch:
    from clusterctl.provisioning.stopwatch import Stopwatch  # noqa: PLC0415 - see cli.main

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


def _next_step(request: ProvisionRequest) -> str:
    from clusterctl.model import hosts  # noqa: PLC0415 - see cli.main

    where = hosts.InventorySources.of(request.inventory).shown
    if request.check:
        return f"'clusterctl provision {where}' does it."
    return f"'clusterctl validate {where}' proves that it works."


def _amount(option: str, text: str | None, least: int) -> Amount | None:
    from clusterctl.provisioning import partial  # noqa: PLC0415 - see cli.main

    try:
        return None if text is None else partial.amount(text, least)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _split(values: list[str] | None) -> tuple[str, ...]:
    return tuple(word.strip() for value in values or () for word in value.split(",") if word.strip())
