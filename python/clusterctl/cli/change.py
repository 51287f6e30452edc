"""What the commands that change hosts have in common: options, passwords, and what shows the run."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from clusterctl.cli import options
from clusterctl.cli.output import StreamFormat, shown_command
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.cli.progress import Quiet
    from clusterctl.model.hosts import InventoryOptions, InventorySources
    from clusterctl.model.run_record import RunRecord

Become: TypeAlias = Annotated[bool, typer.Option("--become", "-b", help="Use sudo on the hosts.")]
Diff: TypeAlias = Annotated[bool, typer.Option("--diff", "-D", help="Show what changes inside files.")]
Forks: TypeAlias = Annotated[int, typer.Option("--forks", "-f", min=1, help="Hosts worked on at the same time.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before hosts are changed.")]
AskBecomePass: TypeAlias = Annotated[
    bool, typer.Option("--ask-become-pass", "-K", help="Ask for sudo's password once.")
]
SkipUnreachable: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--skip-unreachable",
        help="Leave out hosts that cannot be reached; ends with 4.",
        rich_help_panel="Some of the hosts",
    ),
]
_OTHERS = "Other clusters and other runs"
Adopt: TypeAlias = Annotated[
    bool, typer.Option("--adopt", help="Take over nodes that belong to another cluster.", rich_help_panel=_OTHERS)
]
TakeLock: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--take-lock",
        help="Take the lock of another controller's run, which you know to be dead.",
        rich_help_panel=_OTHERS,
    ),
]
VaultId: TypeAlias = Annotated[list[str] | None, typer.Option("--vault-id", help="[LABEL@]FILE or LABEL@prompt.")]

CaPassphraseFile: TypeAlias = Annotated[
    str | None,
    typer.Option("--ca-passphrase-file", metavar="FILE", help="Its first line opens the certificate authority."),
]
AskCaPassphrase: TypeAlias = Annotated[
    bool, typer.Option("--ask-ca-passphrase", help="Ask for the passphrase of the certificate authority.")
]


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the user asked of a run that changes hosts."""

    options: InventoryOptions
    become_password: str | None = dataclasses.field(repr=False)
    argv: tuple[str, ...]  # as it may be shown and kept: no value of an extra variable


def asked(
    limit: str | None,
    extra_vars: list[str] | None,
    vault_id: list[str] | None,
    vault_password_file: list[str] | None,
    user: str | None,
    private_key: str | None,
    become: bool,
    ask_become_pass: bool,
) -> Asked:
    """Return what the options of the command line mean; passwords are asked for here.

    Raises:
        BadParameter: an extra variable is malformed.
        ConfigError: a password is to be typed, and standard input is not a terminal.
    """
    for value in extra_vars or []:
        check_extra_vars(value)
    vault_ids, typed = vault_passwords(vault_id or [])
    of_inventory = options.of_inventory(limit, extra_vars, list(vault_ids), vault_password_file, user, private_key)
    return Asked(
        options=dataclasses.replace(of_inventory, become=become, vault_passwords=typed),
        become_password=ask_for("sudo's password on the hosts", "-K") if ask_become_pass else None,
        argv=shown_command(sys.argv[1:], extra_vars or ()),
    )


def observer_for(form: StreamFormat, *, ask: bool) -> Quiet:
    """Return what shows a run in this form."""
    from clusterctl.cli import output, progress  # noqa: PLC0415 - see cli.main

    if form is not StreamFormat.TEXT:
        return progress.Quiet(stream=form is StreamFormat.JSONL)
    if output.console().is_terminal:
        return progress.Page(ask=ask and output.is_interactive())
    return progress.Lines()


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

    if not output.is_interactive():
        raise ConfigError(f"{option} asks for {what}, and there is no terminal to ask on; keep it in an Ansible vault.")
    return str(typer.prompt(what[:1].upper() + what[1:], hide_input=True, err=True))


def ca_passphrase(
    path: str | None, *, ask: bool, of: tuple[InventorySources, InventoryOptions] | None = None
) -> str | None:
    """Return the passphrase of the certificate authority from a file or from the terminal; None without either.

    Args:
        path: the file.
        ask: whether to ask on the terminal.
        of: the inventory whose authority must exist; a missing one is told before the user types anything.

    Raises:
        BadParameter: both are given.
        ConfigError: the file cannot be used, standard input is not a terminal, or the authority is missing.
    """
    if path is None:
        if ask and of is not None:
            from clusterctl.inventory import ansible_inventory  # noqa: PLC0415 - see cli.main
            from clusterctl.state import certificates  # noqa: PLC0415 - the same

            certificates.Certificates(ansible_inventory.load(*of)).refuse_missing()
        return ask_for("the passphrase of the certificate authority", "--ask-ca-passphrase") if ask else None
    if ask:
        raise typer.BadParameter("give --ca-passphrase-file or --ask-ca-passphrase, not both")
    from clusterctl.state import certificates  # noqa: PLC0415 - see cli.main

    return certificates.passphrase_of(path)


def vault_passwords(given: list[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Ask once for each vault password that is to be typed; Ansible would ask anew in each of its programs."""
    passwords: dict[str, str] = {}
    for value in given:
        label, at, source = value.rpartition("@")
        if source in {"prompt", "prompt_ask_vault_pass"}:
            passwords[label if at else "default"] = ask_for(f"the vault password of {label or 'default'}", "--vault-id")
    return tuple(given), passwords


def inventory_and_words(
    words: Sequence[str], more: Sequence[Path] | None, what: str
) -> tuple[InventorySources, tuple[str, ...]]:
    """Return the inventories and the words behind them; with ``-i``, all words by position are the latter.

    Raises:
        BadParameter: one of the two is missing.
    """
    named, rest = ([], list(words)) if more else ([Path(word) for word in words[:1]], list(words[1:]))
    inventory = options.sources(named, more)
    if not rest:
        raise typer.BadParameter("it is missing; name it behind the inventory", param_hint=what)
    return inventory, tuple(rest)


def show(record: RunRecord, form: StreamFormat, next_step: str = "") -> int:
    """Show how a run ended, and return its exit code; a run that ended well has a next step, as a clause."""
    if form is StreamFormat.TEXT:
        from clusterctl.cli import output, summary  # noqa: PLC0415 - text only

        summary.show(record)
        if next_step and record.exit_code == ExitCode.OK:
            output.console().print(f"Next: {next_step}", markup=False, soft_wrap=output.keeps_lines())
    else:
        data = record.model_dump(mode="json")
        sys.stdout.write(json.dumps(data if form is StreamFormat.JSON else {"event": "Record", **data}) + "\n")
        sys.stdout.flush()
    return int(record.exit_code or 0)
