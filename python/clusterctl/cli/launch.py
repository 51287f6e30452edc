"""``clusterctl launch``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clusterctl.support.errors import ExitCode
from clusterctl.support.words import visible


def launch(
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- PROGRAM [ARGUMENT…]", help="A script, -m MODULE or any command."),
    ] = None,
    nproc_per_node: Annotated[
        int | None,
        typer.Option(
            "--nproc-per-node", metavar="N", min=1, help="Processes on this node; default: its GPUs, else its cores."
        ),
    ] = None,
    master_addr: Annotated[
        str, typer.Option("--master-addr", metavar="HOST", help="Where node 0 is, instead of what the variables say.")
    ] = "",
    master_port: Annotated[
        int, typer.Option("--master-port", metavar="PORT", min=0, max=65535, help="Where node 0 listens, likewise.")
    ] = 0,
    python: Annotated[
        str,
        typer.Option(
            "--python",
            metavar="PATH",
            help="The Python that has PyTorch; default: /usr/local/python_env's, this one, or PATH's.",
        ),
    ] = "",
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long node 0's name may take to resolve.")
    ] = 60.0,
    show: Annotated[
        bool, typer.Option("--print", help="Print the command with its variables, to be pasted, and do not run it.")
    ] = False,
) -> int:
    """Become torchrun inside a pod or a job step of an existing scheduler.

    Reads which node this is from the variables that the scheduler has set: WORLD_SIZE, RANK, MASTER_ADDR and
    MASTER_PORT (Run:AI, Kubeflow's PyTorchJob; there they count pods) or PET_*, SLURM_*, or OMPI_COMM_WORLD_*. Sets
    NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME for the interface that leads to node 0, and NCCL_IB_HCA where NCCL would
    take a port that does not serve; what is set already is kept. Says on stderr what it found.
    """
    from clusterctl.jobs import in_allocation  # noqa: PLC0415 - see cli.main: --help stays quick

    options = in_allocation.LaunchOptions(nproc_per_node, master_addr, master_port, python, wait)
    plan = in_allocation.prepare(program or (), options, _tell)
    for note in plan.notes:
        _tell(note)
    for setting in plan.settings:
        _tell(f"{setting.name}={setting.value}: {setting.reason}")
    if not show:
        in_allocation.become(plan)
    import shlex  # noqa: PLC0415 - only here

    words = ["env", *(f"--unset={name}" for name in plan.dropped), *(f"{it.name}={it.value}" for it in plan.settings)]
    sys.stdout.write(shlex.join([*(words if len(words) > 1 else []), *plan.argv]) + "\n")
    return ExitCode.OK


def _tell(line: str) -> None:
    sys.stderr.write(f"clusterctl: {visible(line)}\n")
    sys.stderr.flush()
