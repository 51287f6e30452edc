"""``clusterctl uninstall``."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from clusterctl.cli import change, options
from clusterctl.cli.output import StreamFormat
from clusterctl.support.errors import ConfigError, ExitCode


def uninstall(
    named: options.Inventory = None,
    more: options.Inventories = None,
    limit: options.Limit = None,
    check: Annotated[bool, typer.Option("--check", "-C", help="Change nothing, say what would go.")] = False,
    diff: Annotated[bool, typer.Option("--diff", "-D", help="Show what changes inside files.")] = False,
    remove_user: Annotated[
        bool, typer.Option("--remove-user", help="Also remove the account that cluster_user made, with its home.")
    ] = False,
    extra_vars: options.ExtraVars = None,
    forks: Annotated[int, typer.Option("--forks", "-f", min=1, help="Hosts worked on at the same time.")] = 32,
    skip_unreachable: change.SkipUnreachable = False,
    become: change.Become = False,
    ask_become_pass: change.AskBecomePass = False,
    vault_id: change.VaultId = None,
    vault_password_file: options.VaultPasswordFile = None,
    user: options.User = None,
    private_key: options.PrivateKey = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before hosts are changed.")] = False,
    while_busy: Annotated[bool, typer.Option("--while-busy", help="Go on also where jobs run.")] = False,
    adopt: change.Adopt = False,
    take_lock: change.TakeLock = False,
    form: Annotated[
        StreamFormat, typer.Option("--format", help="json: the record; jsonl: all events, then the record.")
    ] = (StreamFormat.TEXT),
) -> int:
    """Put every node back to what it was before the first provision.

    Files get their first content, mode and owner. Artifacts, keys, settings, packages and logs of clusterctl go. Shows
    what goes and asks first. A package that something else needs, and the account for jobs, stay and are named.
    """
    from clusterctl.provisioning import uninstall as uninstalling  # noqa: PLC0415 - see cli.main: --help stays quick

    inventory = options.sources(named, more)
    if not yes and not check:
        from clusterctl.cli import output  # noqa: PLC0415 - see cli.main

        if form is not StreamFormat.TEXT or not output.is_interactive():
            raise ConfigError("uninstall asks before it changes hosts, and there is no terminal to ask on; give --yes.")
    asked = change.asked(limit, extra_vars, vault_id, vault_password_file, user, private_key, become, ask_become_pass)
    request = uninstalling.UninstallRequest(
        inventory=inventory,
        options=asked.options,
        remove_user=remove_user,
        while_busy=while_busy,
        check=check,
        diff=diff,
        forks=forks,
        skip_unreachable=skip_unreachable,
        become_password=asked.become_password,
        adopt=adopt,
        take_lock=take_lock,
        argv=asked.argv,
    )
    with change.observer_for(form, ask=not (yes or check)) as observer:
        record = uninstalling.uninstall(request, observer)
    if form is not StreamFormat.TEXT:
        data = record.model_dump(mode="json")
        sys.stdout.write(json.dumps({"event": "Record", **data} if form is StreamFormat.JSONL else data) + "\n")
        sys.stdout.flush()
        return int(record.exit_code or 0)
    from clusterctl.cli import output, summary  # noqa: PLC0415 - text only

    summary.show(record)
    if check and record.exit_code == ExitCode.OK and record.outcome == "done":
        words = f"Next: 'clusterctl uninstall {inventory.shown}' does it."
        output.console().print(words, markup=False, soft_wrap=output.keeps_lines())
    return int(record.exit_code or 0)
