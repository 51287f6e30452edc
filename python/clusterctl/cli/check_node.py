"""``clusterctl check-node``."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from clusterctl.cli import options

_PROGRAM = "check_node.py"


def check_node(
    quick: Annotated[
        bool, typer.Option("--quick", help="The looks that take less than a second; there are no others yet.")
    ] = False,
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="NAME", help="Its name in the line. Default: Slurm's."),
    ] = None,
    user: Annotated[
        int | None,
        typer.Option("--user", metavar="UID", min=0, help="Who must be able to write temporary files; for root alone."),
    ] = None,
    deadline: Annotated[
        float | None, typer.Option("--deadline", metavar="SECONDS", min=0.1, help="Of all looks. Default: 10.")
    ] = None,
    prefix: options.ClusterPrefix = "",
) -> int:
    """Say in one line whether the node on which this runs is fit for a job.

    Starts the program that provision left on the node. It needs no controller, no inventory and no clusterctl: a
    scheduler's prolog starts it by itself ('clusterctl render slurm-prolog'). Ends with 0 when the node is fit, 10
    when it is not, and 11 when somebody killed the look.
    """
    from clusterctl.support.errors import ConfigError  # noqa: PLC0415 - see cli.main: --help stays quick

    path = options.layout_of(prefix).program(_PROGRAM)
    if not os.access(path, os.R_OK):
        raise ConfigError(
            f"{path} is missing, so this machine is not a node that this release provisioned; run 'clusterctl "
            "provision' for it, and run the command there."
        )
    given = {"--node": node, "--user": user, "--deadline": deadline}
    words = ["--quick"] if quick else []
    words += [word for option, value in given.items() if value is not None for word in (option, str(value))]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-I", path, *words])  # noqa: S606 - a program of ours
