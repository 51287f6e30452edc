"""``clusterctl ca``: the certificates of a cluster with ``ssh_mesh_trust: ca``."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import change, options, output
from clusterctl.cli.output import Format, StreamFormat
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from clusterctl.provisioning.run import ProvisionRequest

app = typer.Typer(
    no_args_is_help=True, help="Show, renew and revoke the certificates of a cluster's nodes (ssh_mesh_trust: ca)."
)

Output = Annotated[Format, typer.Option("--format", help="json: on stdout.")]
Nodes = Annotated[list[str] | None, typer.Argument(metavar="INVENTORY [NODE]...", help="With -i, all words are nodes.")]
SomeNodes = Annotated[
    list[str] | None, typer.Argument(metavar="INVENTORY NODE...", help="With -i, all words are nodes.")
]


@app.command()
def show(
    which: options.InventoriesGroup,
    reading: change.AskingReadingGroup,
    form: Output = Format.TEXT,
) -> None:
    """Show each node's certificates: serial numbers, expiry and state."""
    from clusterctl.inventory import ansible_inventory  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.state import certificate_status  # noqa: PLC0415 - the same

    cluster = ansible_inventory.load(which.sources, reading.options())
    authority = certificate_status.authority_of(cluster)
    found = certificate_status.entries(authority, datetime.now(timezone.utc))
    if form is Format.JSON:
        answer = {"folder": str(authority.folder), "nodes": [dataclasses.asdict(entry) for entry in found]}
        output.data(json.dumps(answer))
        return
    rows = [("NODE", "STATE", "EXPIRES (UTC)", "SERIALS")]
    for entry in found:
        when = "-" if entry.expires is None else f"{datetime.fromtimestamp(entry.expires, timezone.utc):%Y-%m-%d %H:%M}"
        rows.append((entry.node, entry.state, when, ", ".join(map(str, entry.serials))))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        output.answer_line("  ".join([*(word.ljust(width) for word, width in zip(row, widths, strict=False)), row[3]]))
    output.answer_line(f"Authority: {authority.folder}")


@app.command()
def renew(
    how: change.ChangeGroup,
    ca: change.CaPassphraseGroup,
    words: Nodes = None,
    more: options.More = None,
    form: Output = Format.TEXT,
) -> int:
    """Sign the certificates of these nodes anew, or of all nodes, and lay them out.

    Ends the revocation of a node that was installed again with new keys; its old keys stay revoked.
    """
    from clusterctl.inventory import ansible_inventory  # noqa: PLC0415 - see cli.main
    from clusterctl.provisioning import run as provisioning  # noqa: PLC0415 - the same
    from clusterctl.state import certificate_status  # noqa: PLC0415 - the same

    given = list(words or ())
    sources = options.sources(Path(given.pop(0)) if given and not more else None, more)
    request = how.asked(provisioning.ProvisionRequest(inventory=sources))
    cluster = ansible_inventory.load(request.inventory)
    authority = certificate_status.authority_of(cluster)
    request = ca.into(request)
    names = given or [host.name for host in cluster.hosts]
    certificate_status.Certificates(cluster, request.ca_passphrase).refuse_unready(names, anew=True, barred=True)
    certificate_status.mark_for_renewal(authority, given)
    return _provision(request, form)


@app.command()
def revoke(
    how: change.ChangeGroup,
    words: SomeNodes = None,
    more: options.More = None,
    form: Output = Format.TEXT,
) -> int:
    """Shut nodes out: every other node refuses their keys and their host keys from now on.

    Needs no passphrase, and no answer of the revoked nodes. A node that is out of reach learns of it in the next
    'clusterctl provision'.
    """
    from clusterctl.inventory import ansible_inventory  # noqa: PLC0415 - see cli.main
    from clusterctl.provisioning import run as provisioning  # noqa: PLC0415 - the same
    from clusterctl.state import certificate_status  # noqa: PLC0415 - the same

    sources, nodes = options.inventory_and_words(words or (), more, "NODE")
    request = how.asked(provisioning.ProvisionRequest(inventory=sources, skip_unreachable=True))
    cluster = ansible_inventory.load(request.inventory)
    authority = certificate_status.authority_of(cluster)
    if sharing := certificate_status.revoke(authority, nodes, datetime.now(timezone.utc)):
        output.tell(
            f"{output.folded(sharing)} had a key of {output.folded(nodes)}, which is revoked with it. Without a common"
            " home, a revoked node only claimed that key; then remove the key file on the others and provision again."
        )
    others = [host.name for host in cluster.hosts if host.name not in nodes]
    if not others:
        return ExitCode.OK
    limit = None if len(others) == len(cluster.hosts) else ",".join(others)
    narrowed = dataclasses.replace(request.options, limit=limit)
    request = dataclasses.replace(request, inventory=sources, options=narrowed)
    return _provision(request, form)


def _provision(request: ProvisionRequest, form: Format) -> int:
    """Lay the certificates out by a provision."""
    from clusterctl.provisioning import run as provisioning  # noqa: PLC0415 - see cli.main

    with change.observer_for(StreamFormat(form.value), ask=False) as observer:
        record = provisioning.provision(request, observer)
    return change.show(record, StreamFormat(form.value))
