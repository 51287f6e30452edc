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
    which: options.OneInventoryGroup,
    how: change.ChangeGroup,
    ca: change.CaPassphraseGroup,
    yes: change.Yes = False,
    form: options.StreamForm = StreamFormat.TEXT,
) -> int:
    """Give all nodes new keys, without a moment in which a node is shut out.

    All nodes first learn the new keys beside the old ones. Then each node switches, and at last the old keys go. After
    an interruption the same command goes on.
    """
    from clusterctl.provisioning import replace as rotation  # noqa: PLC0415 - see cli.main: --help stays quick

    request = rotation.RotateRequest(inventory=which.sources, host_keys=what is What.HOST_KEYS)
    request = ca.into(how.asked(request), must_exist=True)
    with change.observer_for(form, ask=not yes) as observer:
        record = rotation.rotate(request, observer)
    return change.show(record, form)
