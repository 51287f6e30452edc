"""``clusterctl replace``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from clusterctl.cli import change, options
from clusterctl.cli.output import StreamFormat

_HOST_KEY = "The machine's new host key, or its fingerprint SHA256:…; may be repeated."
_CONSOLE = "What the cloud shows of the machine's console, with the host keys that cloud-init wrote there."


def replace(
    words: Annotated[list[str], typer.Argument(metavar="INVENTORY NODE", help="The node that is another machine now.")],
    more: options.Inventories = None,
    host_key: Annotated[list[str] | None, typer.Option("--host-key", metavar="KEY", help=_HOST_KEY)] = None,
    console_output: Annotated[
        Path | None, typer.Option("--console-output", metavar="FILE", help=_CONSOLE, dir_okay=False)
    ] = None,
    extra_vars: options.ExtraVars = None,
    become: change.Become = False,
    ask_become_pass: change.AskBecomePass = False,
    vault_id: change.VaultId = None,
    vault_password_file: options.VaultPasswordFile = None,
    user: options.User = None,
    private_key: options.PrivateKey = None,
    ca_passphrase_file: change.CaPassphraseFile = None,
    ask_ca_passphrase: change.AskCaPassphrase = False,
    adopt: change.Adopt = False,
    take_lock: change.TakeLock = False,
    form: options.StreamForm = StreamFormat.TEXT,
) -> int:
    """Take a machine that was installed anew under the same name into the cluster again.

    Shows the new host key beside the known one and asks, unless --host-key or --console-output tells the right key.
    Then all nodes learn the machine's keys and forget the old ones, and the machine gets the software. Jobs on the
    other nodes go on.
    """
    inventory, nodes = change.inventory_and_words(words, more, "NODE")
    if len(nodes) > 1:
        raise typer.BadParameter("one node at a time is replaced", param_hint="NODE")
    expected = _expected(host_key or [], console_output)
    from clusterctl.provisioning import replace as replacement  # noqa: PLC0415 - see cli.main: --help stays quick

    asked = change.asked(None, extra_vars, vault_id, vault_password_file, user, private_key, become, ask_become_pass)
    request = replacement.ReplaceRequest(
        inventory=inventory,
        node=nodes[0],
        expected=expected,
        options=asked.options,
        become_password=asked.become_password,
        ca_passphrase=change.ca_passphrase(ca_passphrase_file, ask=ask_ca_passphrase, of=(inventory, asked.options)),
        adopt=adopt,
        take_lock=take_lock,
        argv=asked.argv,
    )
    with change.observer_for(form, ask=True) as observer:
        record = replacement.replace(request, observer)
    return change.show(record, form)


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
