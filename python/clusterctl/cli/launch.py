"""``clusterctl launch``."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterctl.cli.launch_alone import HELP, PROGRAM, SUMMARY, WAIT_S, start
from clusterctl.launch.nccl_options import NcclOptions


def launch(
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar=PROGRAM, help=HELP[PROGRAM]),
    ] = None,
    nproc_per_node: Annotated[
        int | None, typer.Option("--nproc-per-node", metavar="N", min=1, help=HELP["--nproc-per-node"])
    ] = None,
    master_addr: Annotated[str, typer.Option("--master-addr", metavar="HOST", help=HELP["--master-addr"])] = "",
    master_port: Annotated[
        int, typer.Option("--master-port", metavar="PORT", min=0, max=65535, help=HELP["--master-port"])
    ] = 0,
    python: Annotated[str, typer.Option("--python", metavar="PATH", help=HELP["--python"])] = "",
    wait: Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0, help=HELP["--wait"])] = WAIT_S,
    gid_index: Annotated[str, typer.Option("--gid-index", metavar="N|auto", help=HELP["--gid-index"])] = "",
    socket_threads: Annotated[
        int, typer.Option("--socket-threads", metavar="N", min=0, max=16, help=HELP["--socket-threads"])
    ] = 0,
    sockets_per_thread: Annotated[
        int, typer.Option("--sockets-per-thread", metavar="N", min=0, max=64, help=HELP["--sockets-per-thread"])
    ] = 0,
    show: Annotated[bool, typer.Option("--print", help=HELP["--print"])] = False,
) -> int:
    """See ``SUMMARY``."""
    from clusterctl.jobs import in_allocation  # noqa: PLC0415 - see cli.main: --help stays quick

    nccl = NcclOptions(gid_index, socket_threads, sockets_per_thread)
    options = in_allocation.LaunchOptions(nproc_per_node, master_addr, master_port, python, wait, nccl)
    return start(program or (), options, show=show)


launch.__doc__ = SUMMARY
