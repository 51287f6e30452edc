"""``clusterctl hostfile``."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated

import typer

from clusterctl.cli import options, output
from clusterctl.support.errors import ExitCode


class HostfileFormat(str, Enum):
    """For whom; a test holds it equal to ``launch.hostfile_formats.FORMATS``."""

    OPENMPI = "openmpi"
    MPICH = "mpich"
    DEEPSPEED = "deepspeed"
    PDSH = "pdsh"
    TORCHRUN = "torchrun"
    JSON = "json"


def hostfile(
    which: options.InventoriesGroup,
    login: options.LoginGroup,
    form: Annotated[HostfileFormat, typer.Option("--format", help="For whom.")] = HostfileFormat.OPENMPI,
    limit: options.Limit = None,
) -> int:
    """Print the nodes and their slots for another launcher.

    openmpi, mpich and deepspeed: their hostfiles; pdsh: a file for WCOLL; torchrun: each node with its options; json:
    names, addresses and slots. Names are those by which the nodes know each other.
    """
    from clusterctl.jobs import team  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.launch import hostfile_formats  # noqa: PLC0415

    with team.gathered(which.sources, team.TeamOptions(login.options(limit), gate=False), output.tell) as found:
        sys.stdout.write(hostfile_formats.FORMATS[form.value](team.of_hostfile(found)))
    return ExitCode.OK
