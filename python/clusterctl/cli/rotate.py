"""``clusterctl rotate``."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from clusterctl.cli import change, options
from clusterctl.cli.output import StreamFormat


class What(str, Enum):
    """What gets new keys."""

    KEYS = "keys"
    HOST_KEYS = "host-keys"


def rotate(
    what: Annotated[
        What,
        typer.Argument(
            metavar="WHAT", help="keys: those by which jobs log in to other nodes; host-keys: those that sshd shows."
        ),
    ],
    named: options.OneInventory = None,
    more: options.Inventories = None,
    extra_vars: options.ExtraVars = None,
    become: change.Become = False,
    ask_become_pass: change.AskBecomePass = False,
    vault_id: change.VaultId = None,
    vault_password_file: options.VaultPasswordFile = None,
    user: options.User = None,
    private_key: options.PrivateKey = None,
    ca_passphrase_file: change.CaPassphraseFile = None,
    ask_ca_passphrase: change.AskCaPassphrase = False,
    yes: change.Yes = False,
    adopt: change.Adopt = False,
    take_lock: change.TakeLock = False,
    form: options.StreamForm = StreamFormat.TEXT,
) -> int:
    """Give all nodes new keys, without a moment in which a node is shut out.

    All nodes first learn the new keys beside the old ones. Then each node switches, and at last the old keys go. After
    an interruption the same command goes on.
    """
    inventory = options.sources(named, more)
    from clusterctl.provisioning import rotate as rotation  # noqa: PLC0415 - see cli.main: --help stays quick

    asked = change.asked(None, extra_vars, vault_id, vault_password_file, user, private_key, become, ask_become_pass)
    request = rotation.RotateRequest(
        inventory=inventory,
        host_keys=what is What.HOST_KEYS,
        options=asked.options,
        become_password=asked.become_password,
        ca_passphrase=change.ca_passphrase(ca_passphrase_file, ask=ask_ca_passphrase, of=(inventory, asked.options)),
        adopt=adopt,
        take_lock=take_lock,
        argv=asked.argv,
    )
    with change.observer_for(form, ask=not yes) as observer:
        record = rotation.rotate(request, observer)
    return change.show(record, form)
