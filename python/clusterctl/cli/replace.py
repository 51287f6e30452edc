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
    how: change.ChangeGroup,
    ca: change.CaPassphraseGroup,
    more: options.More = None,
    host_key: Annotated[list[str] | None, typer.Option("--host-key", metavar="KEY", help=_HOST_KEY)] = None,
    console_output: Annotated[
        Path | None, typer.Option("--console-output", metavar="FILE", help=_CONSOLE, dir_okay=False)
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
