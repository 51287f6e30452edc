"""Commands that change hosts (remove, replace, rollback, rotate, uninstall), and what provision shares with them."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeAlias, TypeVar

import typer

from clusterctl.cli import options, output
from clusterctl.cli.options import LoginGroup, ReadingGroup
from clusterctl.cli.output import Format, StreamFormat, shown_command
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from clusterctl.cli.progress import Quiet
    from clusterctl.model.hosts import InventoryOptions, InventorySources
    from clusterctl.model.run_record import RunRecord
    from clusterctl.provisioning.look import HostRequest


Diff: TypeAlias = Annotated[
    bool, typer.Option("--diff", "-D", help="Show what changes inside files.", rich_help_panel=options.OUTPUT)
]
Forks: TypeAlias = Annotated[
    int, typer.Option("--forks", "-f", metavar="N", min=1, help="Work on so many hosts at the same time.")
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before hosts are changed.")]
SkipUnreachable: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--skip-unreachable",
        help="Leave out hosts that cannot be reached, and end with 4.",
        rich_help_panel=options.HOSTS,
    ),
]
_OTHERS = "Other controllers"

RequestT = TypeVar("RequestT", bound="HostRequest")


@dataclass(frozen=True)
class AskingReadingGroup(ReadingGroup):
    """How Ansible reads the inventory; passwords of vaults may be typed."""

    vault_id: Annotated[
        list[str] | None,
        typer.Option(
            "--vault-id",
            metavar="[LABEL@]PATH",
            help="Read a vault's password from this file; LABEL@prompt asks for it.",
        ),
    ] = None

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

    PANEL: ClassVar[str] = options.LOGIN
    ca_passphrase_file: Annotated[
        str | None,
        typer.Option(
            "--ca-passphrase-file",
            metavar="PATH",
            help="Open the certificate authority with the first line of this file.",
        ),
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
        from clusterctl.state import certificate_status  # noqa: PLC0415 - see cli.main

        if self.ca_passphrase_file is not None:
            if self.ask_ca_passphrase:
                raise typer.BadParameter("give --ca-passphrase-file or --ask-ca-passphrase, not both")
            return dataclasses.replace(request, ca_passphrase=certificate_status.passphrase_of(self.ca_passphrase_file))
        if must_exist:
            from clusterctl.inventory import ansible_inventory  # noqa: PLC0415 - see cli.main

            certificate_status.Certificates(ansible_inventory.load(request.inventory)).refuse_missing()
        words = "the passphrase of the certificate authority"
        return dataclasses.replace(request, ca_passphrase=ask_for(words, "--ask-ca-passphrase"))


def observer_for(
    form: StreamFormat, *, ask: bool, inventory: InventorySources | None = None, raw: bool = False
) -> Quiet:
    """Return what shows a run in this form.

    Args:
        form: of the command's answer.
        ask: let the user confirm before anything is changed.
        inventory: of a provision, whose earlier ones say how long it takes.
        raw: show what a build prints.
    """
    from clusterctl.cli import progress  # noqa: PLC0415 - see cli.main

    if form is not StreamFormat.TEXT:
        return progress.Quiet(stream=form is StreamFormat.JSONL)
    look = progress.Showing(raw, inventory)
    if output.console().is_terminal:
        return progress.Page(ask=ask and output.is_interactive(), look=look)
    return progress.Lines(look)


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


# --- ``clusterctl rotate`` --------------------------------------------------------------------------------------------


class What(str, Enum):
    """What gets new keys."""

    KEYS = "keys"
    HOST_KEYS = "host-keys"


def rotate(
    what: Annotated[
        What,
        typer.Argument(
            metavar="WHAT", help="Renew 'keys', by which jobs log in to other nodes, or 'host-keys', which sshd shows."
        ),
    ],
    which: options.OneInventoryGroup,
    how: ChangeGroup,
    ca: CaPassphraseGroup,
    yes: Yes = False,
    form: options.StreamForm = StreamFormat.TEXT,
) -> int:
    """Give all nodes new keys, without a moment in which a node is shut out.

    All nodes first learn the new keys beside the old ones. Then each node switches, and at last the old keys go. After
    an interruption the same command goes on.
    """
    from clusterctl.provisioning import replace as rotation  # noqa: PLC0415 - see cli.main: --help stays quick

    request = rotation.RotateRequest(inventory=which.sources, host_keys=what is What.HOST_KEYS)
    request = ca.into(how.asked(request), must_exist=True)
    with observer_for(form, ask=not yes) as observer:
        record = rotation.rotate(request, observer)
    return show(record, form)


# --- ``clusterctl remove`` --------------------------------------------------------------------------------------------


def remove(
    words: Annotated[
        list[str], typer.Argument(metavar="INVENTORY NODE…", help="Take these nodes out; node[2-3] names two.")
    ],
    how: ChangeGroup,
    more: options.More = None,
    yes: Yes = False,
    while_busy: Annotated[bool, typer.Option("--while-busy", help="Go on also while jobs run on such a node.")] = False,
    launch_node_too: Annotated[
        bool, typer.Option("--launch-node-too", help="Remove the launch node too; the next node takes its place.")
    ] = False,
    clean: Annotated[
        bool, typer.Option("--clean", help="Put these nodes back to what they were, as uninstall does.")
    ] = False,
    remove_user: Annotated[
        bool,
        typer.Option("--remove-user", help="With --clean, remove the account that cluster_user made, and its home."),
    ] = False,
    form: options.StreamForm = StreamFormat.TEXT,
) -> int:
    """Take nodes out of the cluster, also dead ones.

    On every other node, their keys, host keys, names and addresses are deleted. A removed node can then log in to no
    other node. The removed nodes lose the mark of the cluster alone, unless --clean is given. Delete them from the
    inventory afterwards.
    """
    if remove_user and not clean:
        raise typer.BadParameter("it goes with --clean", param_hint="--remove-user")
    inventory, nodes = options.inventory_and_words(words, more, "NODE")
    from clusterctl.provisioning import remove as removal  # noqa: PLC0415 - see cli.main: --help stays quick

    request = removal.RemoveRequest(
        inventory=inventory,
        nodes=nodes,
        launch_node_too=launch_node_too,
        while_busy=while_busy,
        clean=clean,
        remove_user=remove_user,
    )
    with observer_for(form, ask=not yes) as observer:
        record = removal.remove(how.asked(request), observer)
    return show(record, form)


# --- ``clusterctl uninstall`` -----------------------------------------------------------------------------------------


def uninstall(
    which: options.InventoriesGroup,
    how: ChangeGroup,
    limit: options.Limit = None,
    check: Annotated[bool, typer.Option("--check", "-C", help="Change nothing, and say what would go.")] = False,
    diff: Diff = False,
    remove_user: Annotated[
        bool, typer.Option("--remove-user", help="Remove the account that cluster_user made too, with its home.")
    ] = False,
    forks: Forks = 32,
    skip_unreachable: SkipUnreachable = False,
    yes: Yes = False,
    while_busy: Annotated[bool, typer.Option("--while-busy", help="Go on also where jobs run.")] = False,
    form: options.StreamForm = StreamFormat.TEXT,
) -> int:
    """Put every node back to what it was before the first provision.

    Files get their first content, mode and owner. Artifacts, keys, settings, packages and logs of clusterctl go. Shows
    what goes and asks first. A package that something else needs, and the account for jobs, stay and are named.
    """
    from clusterctl.provisioning import remove as uninstalling  # noqa: PLC0415 - see cli.main: --help stays quick

    inventory = which.sources
    if not yes and not check:
        from clusterctl.cli import output  # noqa: PLC0415 - see cli.main

        if form is not StreamFormat.TEXT or not output.is_interactive():
            raise ConfigError("uninstall asks before it changes hosts, and there is no terminal to ask on; give --yes.")
    request = uninstalling.UninstallRequest(
        inventory=inventory,
        remove_user=remove_user,
        while_busy=while_busy,
        check=check,
        diff=diff,
        forks=forks,
        skip_unreachable=skip_unreachable,
    )
    with observer_for(form, ask=not (yes or check)) as observer:
        record = uninstalling.uninstall(how.asked(request, limit), observer)
    again = f"'clusterctl uninstall {inventory.shown}' does it." if check and record.outcome == "done" else ""
    return show(record, form, again)


# --- ``clusterctl rollback`` ------------------------------------------------------------------------------------------

_RUN = f"Go back to this run. {options.A_RUN} Default: the newest with other software."


def rollback(
    which: options.OneInventoryGroup,
    how: ChangeGroup,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help=_RUN)] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before links are switched.")] = False,
    while_busy: Annotated[bool, typer.Option("--while-busy", help="Switch also where jobs run.")] = False,
    release: Annotated[bool, typer.Option("--release", help="End the hold: the next provision goes forward.")] = False,
    form: Annotated[
        Format, typer.Option("--format", help="Print text, or the record as JSON on stdout.")
    ] = Format.TEXT,
) -> int:
    """Go back to the software that an earlier run left, in seconds.

    Switches the links of Open MPI, the cluster's Python, mpi4py, NCCL and Horovod together, on all hosts or on none.
    The folders of that run must still be there. From then on 'provision' leaves the software as it is, until --release.
    """
    inventory, run = which.and_run(run)
    if release:
        if run is not None:
            raise typer.BadParameter("it ends the hold, so it takes no RUN", param_hint="--release")
        return _release(inventory, how.options(), form)
    from clusterctl.provisioning import rollback as going_back  # noqa: PLC0415 - see cli.main: --help stays quick

    request = going_back.RollbackRequest(
        inventory=inventory,
        run=run,
        while_busy=while_busy,
    )
    with observer_for(StreamFormat(form.value), ask=not yes) as observer:
        record = going_back.rollback(how.asked(request), observer)
    if form is Format.JSON:
        output.data(record.model_dump_json())
        return int(record.exit_code or 0)
    return show(record, StreamFormat.TEXT, f"'clusterctl validate {inventory.shown}' proves that it works.")


def _release(inventory: InventorySources, how: InventoryOptions, form: Format) -> int:
    from clusterctl.provisioning import rollback as going_back  # noqa: PLC0415 - see cli.main

    released = going_back.release(inventory, how)
    if form is Format.JSON:
        output.data(json.dumps({"released": released}))
        return ExitCode.OK
    words = (
        f"Released: the next 'clusterctl provision {inventory.shown}' installs what the inventory asks for."
        if released
        else f"Nothing to do: {inventory.shown} is not held."
    )
    output.line(words)
    return ExitCode.OK


# --- ``clusterctl replace`` -------------------------------------------------------------------------------------------

_HOST_KEY = "Trust this new host key, or its fingerprint SHA256:…; repeat it for several."
_CONSOLE = "Read the host keys that cloud-init wrote to the machine's console, as the cloud shows it."


def replace(
    words: Annotated[
        list[str], typer.Argument(metavar="INVENTORY NODE", help="Take in the node that is another machine now.")
    ],
    how: ChangeGroup,
    ca: CaPassphraseGroup,
    more: options.More = None,
    host_key: Annotated[list[str] | None, typer.Option("--host-key", metavar="KEY", help=_HOST_KEY)] = None,
    console_output: Annotated[
        Path | None, typer.Option("--console-output", metavar="PATH", help=_CONSOLE, dir_okay=False)
    ] = None,
    form: options.StreamForm = StreamFormat.TEXT,
) -> int:
    """Take a machine that was installed anew under the same name into the cluster again.

    Shows the new host key beside the known one and asks, unless --host-key or --console-output tells the right key.
    Then all nodes learn the machine's keys and forget the old ones, and the machine gets the software. Jobs on the
    other nodes go on.
    """
    inventory, nodes = options.inventory_and_words(words, more, "NODE")
    if len(nodes) > 1:
        raise typer.BadParameter("one node at a time is replaced", param_hint="NODE")
    expected = _expected(host_key or [], console_output)
    from clusterctl.provisioning import replace as replacement  # noqa: PLC0415 - see cli.main: --help stays quick

    request = replacement.ReplaceRequest(
        inventory=inventory,
        node=nodes[0],
        expected=expected,
    )
    request = ca.into(how.asked(request), must_exist=True)
    with observer_for(form, ask=True) as observer:
        record = replacement.replace(request, observer)
    return show(record, form)


def _expected(given: list[str], console: Path | None) -> frozenset[str]:
    """Return the fingerprints that the user vouches for.

    Raises:
        BadParameter: a word is neither a key nor a fingerprint.
        ConfigError: the console's output cannot be read, or holds no host key.
    """
    from clusterctl.model import host_keys  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.support.errors import ConfigError  # noqa: PLC0415

    found = set()
    for word in given:
        fingerprint = host_keys.fingerprint_of(word)
        if fingerprint is None:
            raise typer.BadParameter(
                f"{word[:60]!r} is neither 'ssh-ed25519 AAAA…' nor 'SHA256:…' with 43 characters",
                param_hint="--host-key",
            )
        found.add(fingerprint)
    if console is None:
        return frozenset(found)
    try:
        text = console.expanduser().read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"--console-output names {console}, which cannot be read: {error.strerror}.") from None
    shown = host_keys.on_console(text)
    if not shown:
        raise ConfigError(
            f"{console} holds no host key between the lines of cloud-init (BEGIN SSH HOST KEY FINGERPRINTS or KEYS); "
            "wait until the machine has started, then fetch its console again."
        )
    return frozenset({*found, *shown})
