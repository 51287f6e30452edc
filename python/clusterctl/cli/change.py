"""What the commands that change hosts have in common: options, passwords, and what shows the run."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from clusterctl.cli import output
from clusterctl.cli.options import LoginGroup, ReadingGroup
from clusterctl.cli.output import StreamFormat, shown_command
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from clusterctl.cli.progress import Quiet
    from clusterctl.model.hosts import InventoryOptions
    from clusterctl.model.run_record import RunRecord
    from clusterctl.provisioning.look import HostRequest

Diff: TypeAlias = Annotated[bool, typer.Option("--diff", "-D", help="Show what changes inside files.")]
Forks: TypeAlias = Annotated[int, typer.Option("--forks", "-f", min=1, help="Hosts worked on at the same time.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before hosts are changed.")]
SkipUnreachable: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--skip-unreachable",
        help="Leave out hosts that cannot be reached; ends with 4.",
        rich_help_panel="Some of the hosts",
    ),
]
_OTHERS = "Other clusters and other runs"

RequestT = TypeVar("RequestT", bound="HostRequest")


@dataclass(frozen=True)
class AskingReadingGroup(ReadingGroup):
    """How Ansible reads the inventory; passwords of vaults may be typed."""

    vault_id: Annotated[list[str] | None, typer.Option("--vault-id", help="[LABEL@]FILE or LABEL@prompt.")] = None

    def options(self, limit: str | None = None) -> InventoryOptions:
        """Return what these options make of an inventory; passwords of vaults are asked for here.

        Raises:
            BadParameter: an extra variable is malformed.
            ConfigError: a password is to be typed, and standard input is not a terminal.
        """
        for value in self.extra_vars or []:
            check_extra_vars(value)
        return dataclasses.replace(super().options(limit), vault_passwords=vault_passwords(self.vault_id or []))


@dataclass(frozen=True)
class SudoGroup(AskingReadingGroup, LoginGroup):
    """How a command logs in to the hosts and becomes root there; passwords may be typed."""

    become: Annotated[bool, typer.Option("--become", "-b", help="Use sudo on the hosts.")] = False
    ask_become_pass: Annotated[bool, typer.Option("--ask-become-pass", "-K", help="Ask for sudo's password once.")] = (
        False
    )

    def options(self, limit: str | None = None) -> InventoryOptions:
        """As for :class:`AskingReadingGroup`."""
        return dataclasses.replace(super().options(limit), become=self.become)

    def password(self) -> str | None:
        """Return sudo's password, which is asked for here; None without ``-K``.

        Raises:
            ConfigError: standard input is not a terminal.
        """
        return ask_for("sudo's password on the hosts", "-K") if self.ask_become_pass else None


@dataclass(frozen=True)
class ChangeGroup(SudoGroup):
    """What every command has in common that changes hosts."""

    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over nodes that belong to another cluster.", rich_help_panel=_OTHERS)
    ] = False
    take_lock: Annotated[
        bool,
        typer.Option(
            "--take-lock",
            help="Take the lock of another controller's run, which you know to be dead.",
            rich_help_panel=_OTHERS,
        ),
    ] = False

    def asked(self, request: RequestT, limit: str | None = None) -> RequestT:
        """Return a request with what these options say; passwords are asked for here.

        Raises:
            BadParameter: an extra variable is malformed.
            ConfigError: a password is to be typed, and standard input is not a terminal.
        """
        options = self.options(limit)
        from clusterctl.inventory.ansible_inventory import Cluster  # noqa: PLC0415 - see cli.main

        return dataclasses.replace(
            request,
            inventory=Cluster.of(request.inventory, options),
            options=options,
            become_password=self.password(),
            adopt=self.adopt,
            take_lock=self.take_lock,
            argv=shown_command(sys.argv[1:], self.extra_vars or ()),
        )


@dataclass(frozen=True)
class CaPassphraseGroup:
    """How the passphrase of the certificate authority is given."""

    ca_passphrase_file: Annotated[
        str | None,
        typer.Option("--ca-passphrase-file", metavar="FILE", help="Its first line opens the certificate authority."),
    ] = None
    ask_ca_passphrase: Annotated[
        bool, typer.Option("--ask-ca-passphrase", help="Ask for the passphrase of the certificate authority.")
    ] = False

    def into(self, request: RequestT, *, must_exist: bool = False) -> RequestT:
        """Return a request with the passphrase, which comes from a file or from the terminal.

        Args:
            request: the request.
            must_exist: whether a missing authority is refused before the user types anything.

        Raises:
            BadParameter: both are given.
            ConfigError: the file cannot be used, standard input is not a terminal, or the authority is missing.
        """
        if self.ca_passphrase_file is None and not self.ask_ca_passphrase:
            return request
        from clusterctl.state import certificates  # noqa: PLC0415 - see cli.main

        if self.ca_passphrase_file is not None:
            if self.ask_ca_passphrase:
                raise typer.BadParameter("give --ca-passphrase-file or --ask-ca-passphrase, not both")
            return dataclasses.replace(request, ca_passphrase=certificates.passphrase_of(self.ca_passphrase_file))
        if must_exist:
            from clusterctl.inventory import ansible_inventory  # noqa: PLC0415 - see cli.main

            certificates.Certificates(ansible_inventory.load(request.inventory)).refuse_missing()
        words = "the passphrase of the certificate authority"
        return dataclasses.replace(request, ca_passphrase=ask_for(words, "--ask-ca-passphrase"))


def observer_for(form: StreamFormat, *, ask: bool) -> Quiet:
    """Return what shows a run in this form."""
    from clusterctl.cli import progress  # noqa: PLC0415 - see cli.main

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
    if not output.is_interactive():
        raise ConfigError(f"{option} asks for {what}, and there is no terminal to ask on; keep it in an Ansible vault.")
    return str(typer.prompt(what[:1].upper() + what[1:], hide_input=True, err=True))


def vault_passwords(given: list[str]) -> dict[str, str]:
    """Ask once for each vault password that is to be typed; Ansible would ask anew in each of its programs."""
    passwords: dict[str, str] = {}
    for value in given:
        label, at, source = value.rpartition("@")
        if source in {"prompt", "prompt_ask_vault_pass"}:
            passwords[label if at else "default"] = ask_for(f"the vault password of {label or 'default'}", "--vault-id")
    return passwords


def show(record: RunRecord, form: StreamFormat, next_step: str = "") -> int:
    """Show how a run ended, and return its exit code; a run that ended well has a next step, as a clause."""
    if form is StreamFormat.TEXT:
        from clusterctl.cli import summary  # noqa: PLC0415 - text only

        summary.show(record)
        if next_step and record.exit_code == ExitCode.OK:
            output.line(f"Next: {next_step}")
    else:
        data = record.model_dump(mode="json")
        output.data(json.dumps(data if form is StreamFormat.JSON else {"event": "Record", **data}))
    return int(record.exit_code or 0)
