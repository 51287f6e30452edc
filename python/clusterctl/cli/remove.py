"""``clusterctl remove``."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterctl.cli import change, options
from clusterctl.cli.output import StreamFormat


def remove(
    words: Annotated[
        list[str], typer.Argument(metavar="INVENTORY NODE…", help="The nodes that leave: names, or node[2-3].")
    ],
    how: change.ChangeGroup,
    more: options.More = None,
    yes: change.Yes = False,
    while_busy: Annotated[bool, typer.Option("--while-busy", help="Also while jobs run on such a node.")] = False,
    launch_node_too: Annotated[
        bool, typer.Option("--launch-node-too", help="Also the launch node; the next node takes its place.")
    ] = False,
    clean: Annotated[
        bool, typer.Option("--clean", help="Also put these nodes back to what they were, as uninstall does.")
    ] = False,
    remove_user: Annotated[
        bool, typer.Option("--remove-user", help="With --clean: also the account that cluster_user made, and its home.")
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
    with change.observer_for(form, ask=not yes) as observer:
        record = removal.remove(how.asked(request), observer)
    return change.show(record, form)
