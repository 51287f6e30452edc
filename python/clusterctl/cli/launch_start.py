"""``clusterctl launch`` behind its command line: the options' words, and what is printed.

Two command lines stand on it: that of clusterctl, by typer, and that of the distribution ``clusterctl-launch``, which
has the standard library alone.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from clusterctl.launch.nccl_options import OPTIONS
from clusterctl.support.errors import ExitCode
from clusterctl.support.words import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.jobs.in_allocation import LaunchOptions
    from clusterctl.launch.allocation_line import AllocationPlan

PROGRAM = "-- PROGRAM [ARGUMENT…]"
# The help of each option, by its name on the command line.
HELP = {
    PROGRAM: "A script, -m MODULE or any command.",
    "--nproc-per-node": "Processes on this node; default: its GPUs, else its cores.",
    "--master-addr": "Where node 0 is, instead of what the variables say.",
    "--master-port": "Where node 0 listens, likewise.",
    "--python": "The Python that has PyTorch; default: /usr/local/python_env's, this one, or PATH's.",
    "--wait": "How long node 0's name may take to resolve.",
    **OPTIONS,
    "--print": "Print the command with its variables, to be pasted, and do not run it.",
}
WAIT_S = 60.0
SUMMARY = """\
Become torchrun inside a pod or a job step of an existing scheduler.

Reads which node this is from the variables that the scheduler has set: WORLD_SIZE, RANK, MASTER_ADDR and
MASTER_PORT (Run:AI, Kubeflow's PyTorchJob; there they count pods) or PET_*, SLURM_*, or OMPI_COMM_WORLD_*. Sets
NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME for the interface that leads to node 0, and NCCL_IB_HCA where NCCL would
take a port that does not serve; what is set already is kept. Says on stderr what it found.
"""


def start(program: Sequence[str], options: LaunchOptions, *, show: bool) -> int:
    """Become torchrun; with ``show`` print the line instead. Return the exit code.

    Raises:
        ConfigError: As :func:`clusterctl.jobs.in_allocation.prepare`.
    """
    from clusterctl.jobs import in_allocation  # noqa: PLC0415 - see cli.main: --help stays quick

    plan = in_allocation.prepare(program, options, _tell)
    _found(plan)
    if not show:
        in_allocation.become(plan)
    words = ["env", *(f"--unset={name}" for name in plan.dropped), *(f"{it.name}={it.value}" for it in plan.settings)]
    sys.stdout.write(shlex.join([*(words if len(words) > 1 else []), *plan.argv]) + "\n")
    return ExitCode.OK


def _found(plan: AllocationPlan) -> None:
    for note in plan.notes:
        _tell(note)
    for setting in plan.settings:
        _tell(f"{setting.name}={setting.value}: {setting.reason}")


def _tell(line: str) -> None:
    sys.stderr.write(f"clusterctl: {one_line(line)}\n")
    sys.stderr.flush()
