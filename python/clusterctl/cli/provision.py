"""``clusterctl provision``."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.output import StreamFormat, shown_command
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from clusterctl.cli.progress import Quiet
    from clusterctl.model.run_record import RunRecord
    from clusterctl.provisioning.run import ProvisionRequest
    from clusterctl.validation.run import ValidationOptions

_ANSIBLE = "Ansible's own options"


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
    diff: Annotated[bool, typer.Option("--diff", "-D", help="Show what changes inside files.")] = False,
    extra_vars: Annotated[
        list[str] | None,
        typer.Option("--extra-vars", "-e", metavar="KEY=VALUE|JSON|@FILE", help="Variables above all others."),
    ] = None,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="More in Ansible's log (-vvv).")] = 0,
    forks: Annotated[int, typer.Option("--forks", "-f", min=1, help="Hosts worked on at the same time.")] = 32,
    become: Annotated[bool, typer.Option("--become", "-b", help="Use sudo on the hosts.")] = False,
    ask_become_pass: Annotated[
        bool, typer.Option("--ask-become-pass", "-K", help="Ask for sudo's password once.")
    ] = False,
    vault_id: Annotated[list[str] | None, typer.Option("--vault-id", help="[LABEL@]FILE or LABEL@prompt.")] = None,
    vault_password_file: Annotated[
        list[str] | None, typer.Option("--vault-password-file", metavar="FILE", help="File with the vault's password.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Log in as this user.")] = None,
    private_key: Annotated[
        str | None, typer.Option("--private-key", metavar="FILE", help="Log in with this key.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before hosts are changed.")] = False,
    no_validate: Annotated[bool, typer.Option("--no-validate", help="Leave out the validation afterwards.")] = False,
    form: Annotated[
        StreamFormat, typer.Option("--format", help="json: the record; jsonl: all events, then the record.")
    ] = (StreamFormat.TEXT),
) -> int:
    """Make one proven cluster of the inventory's hosts.

    Looks at every host first and stops with one table if something stands in the way. What is already as it should be
    is left alone, so the command can be repeated at any time, also after an interruption.
    """
    from clusterctl.model import hosts  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.provisioning import run as provisioning  # noqa: PLC0415

    for value in extra_vars or []:
        check_extra_vars(value)
    inventory = options.sources(named, more)
    vault_ids, typed = vault_passwords(vault_id or [])
    request = provisioning.ProvisionRequest(
        inventory=inventory,
        options=hosts.InventoryOptions(
            limit=limit,
            extra_vars=tuple(extra_vars or ()),
            vault_ids=vault_ids,
            vault_password_files=tuple(vault_password_file or ()),
            user=user,
            private_key=private_key,
            become=become,
            vault_passwords=typed,
        ),
        tags=_split(tags),
        skip_tags=_split(skip_tags),
        check=check,
        verify=verify,
        diff=diff,
        verbosity=verbose,
        forks=forks,
        become_password=ask_for("sudo's password on the hosts", "-K") if ask_become_pass else None,
        argv=shown_command(sys.argv[1:], extra_vars or ()),
    )
    from clusterctl.cli import validate  # noqa: PLC0415 - see cli.main

    proof = None if no_validate or check or tags or skip_tags else validate.in_short(inventory, request.options)
    with observer_for(form, ask=not (yes or check)) as observer:
        record = provisioning.provision(request, observer)
    proof = proof if record.exit_code == ExitCode.OK else None
    if form is StreamFormat.JSON:
        return _answer_in_json(record, request, proof)
    _report(record, form, request, more=proof is not None)
    if proof is not None:
        return validate.after_provision(request.inventory, proof, form)
    return int(record.exit_code or 0)


def observer_for(form: StreamFormat, *, ask: bool) -> Quiet:
    """Return what shows a run in this form."""
    from clusterctl.cli import output, progress  # noqa: PLC0415 - see cli.main

    if form is not StreamFormat.TEXT:
        return progress.Quiet(stream=form is StreamFormat.JSONL)
    if output.console().is_terminal:
        return progress.Page(ask=ask and output.is_interactive())
    return progress.Lines()


def _report(record: RunRecord, form: StreamFormat, request: ProvisionRequest, *, more: bool) -> None:
    """Show the record; ``more`` says that the validation follows."""
    if form is StreamFormat.JSONL:
        sys.stdout.write(json.dumps({"event": "Record", **record.model_dump(mode="json")}) + "\n")
        sys.stdout.flush()
        return
    from clusterctl.cli import output, summary  # noqa: PLC0415 - text only

    summary.show(record)
    if record.exit_code == ExitCode.OK and not more:
        output.console().print(f"Next: {_next_step(request)}", markup=False, soft_wrap=output.keeps_lines())


def _answer_in_json(record: RunRecord, request: ProvisionRequest, asked: ValidationOptions | None) -> int:
    """Write one object: the run's record, with the validation's under ``validation``."""
    code, proof = int(record.exit_code or 0), None
    if asked is not None:
        from clusterctl.validation import run as validation  # noqa: PLC0415 - see cli.main

        proof = validation.validate(request.inventory, asked)
        code = int(validation.exit_code(proof))
    answer = {**record.model_dump(mode="json"), "validation": proof.model_dump(mode="json") if proof else None}
    sys.stdout.write(json.dumps(answer) + "\n")
    return code


def _next_step(request: ProvisionRequest) -> str:
    from clusterctl.model import hosts  # noqa: PLC0415 - see cli.main

    where = hosts.InventorySources.of(request.inventory).shown
    if request.check:
        return f"'clusterctl provision {where}' does it."
    return f"'clusterctl validate {where}' proves that it works."


def _split(values: list[str] | None) -> tuple[str, ...]:
    return tuple(word.strip() for value in values or () for word in value.split(",") if word.strip())


def check_extra_vars(value: str) -> None:
    """Refuse what Ansible would take for nothing or complain about at length."""
    text = value.strip()
    if text.startswith("@"):
        if not Path(text[1:]).expanduser().is_file():
            raise typer.BadParameter(f"the file {text[1:]} does not exist", param_hint="--extra-vars")
        return
    if text.startswith(("{", "[")):
        import yaml  # noqa: PLC0415 - only here

        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError:
            found = None
        if not isinstance(found, dict):
            raise typer.BadParameter(
                "a value that begins with '{' must be a JSON or YAML mapping", param_hint="--extra-vars"
            )
        return
    try:
        words = shlex.split(text)
    except ValueError:
        raise typer.BadParameter(f"unbalanced quotes in {value!r}", param_hint="--extra-vars") from None
    if not words or any("=" not in word or not word.partition("=")[0].isidentifier() for word in words):
        raise typer.BadParameter(f"{value!r} is not key=value, a JSON mapping or @file", param_hint="--extra-vars")


def ask_for(what: str, option: str) -> str:
    """Ask for a password once.

    Raises:
        ConfigError: standard input is not a terminal.
    """
    from clusterctl.cli import output  # noqa: PLC0415 - see cli.main
    from clusterctl.support.errors import ConfigError  # noqa: PLC0415

    if not output.is_interactive():
        raise ConfigError(f"{option} asks for {what}, and there is no terminal to ask on; keep it in an Ansible vault.")
    return str(typer.prompt(what[:1].upper() + what[1:], hide_input=True, err=True))


def vault_passwords(given: list[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Ask once for each vault password that is to be typed; Ansible would ask anew in each of its programs."""
    passwords: dict[str, str] = {}
    for value in given:
        label, at, source = value.rpartition("@")
        if source in {"prompt", "prompt_ask_vault_pass"}:
            passwords[label if at else "default"] = ask_for(f"the vault password of {label or 'default'}", "--vault-id")
    return tuple(given), passwords
