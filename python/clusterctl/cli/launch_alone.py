"""The command line of the distribution ``clusterctl-launch``: ``clusterctl launch`` and nothing else.

A test holds its options equal to those of the whole clusterctl.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from clusterctl import __version__
from clusterctl.launch.nccl_options import OPTIONS, NcclOptions
from clusterctl.support.errors import ClusterctlError, ExitCode
from clusterctl.support.words import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.jobs.in_allocation import LaunchOptions
    from clusterctl.launch.allocation_line import AllocationPlan


_LAST_PORT = 65535
_ALONE = "This is clusterctl-launch, for pods and job steps. 'pip install clusterctl' brings the other commands."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if argv[:1] == ["--version"]:
        sys.stdout.write(f"clusterctl-launch {__version__}\n")
        return ExitCode.OK
    if not argv or argv[0] in {"-h", "--help"}:
        text = f"Usage: clusterctl launch [OPTIONS] {PROGRAM}\n\n{_ALONE}\n'clusterctl launch --help' explains it.\n"
        (sys.stdout if argv else sys.stderr).write(text)
        return ExitCode.OK if argv else ExitCode.USAGE
    if argv[0] != "launch":
        sys.stderr.write(f"clusterctl: {escaped(argv[0])} is not here. {_ALONE}\n")
        return ExitCode.USAGE
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        return _launch(argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return ExitCode.INTERRUPTED
    except ClusterctlError as error:
        sys.stderr.write(f"clusterctl: {escaped(str(error))}\n")
        return int(error.exit_code)


def parser() -> argparse.ArgumentParser:
    """Return the reader of the options of ``clusterctl launch``."""
    made = argparse.ArgumentParser(
        "clusterctl launch",
        usage=f"clusterctl launch [OPTIONS] {PROGRAM}",
        description=SUMMARY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--nproc-per-node", metavar="N", type=_number(1), help=HELP["--nproc-per-node"])
    made.add_argument("--master-addr", metavar="HOST", default="", help=HELP["--master-addr"])
    made.add_argument(
        "--master-port", metavar="PORT", type=_number(0, _LAST_PORT), default=0, help=HELP["--master-port"]
    )
    made.add_argument("--python", metavar="PATH", default="", help=HELP["--python"])
    made.add_argument("--wait", metavar="SECONDS", type=_seconds, default=WAIT_S, help=HELP["--wait"])
    made.add_argument("--gid-index", metavar="N|auto", default="", help=HELP["--gid-index"])
    made.add_argument("--socket-threads", metavar="N", type=_number(0, 16), default=0, help=HELP["--socket-threads"])
    made.add_argument(
        "--sockets-per-thread", metavar="N", type=_number(0, 64), default=0, help=HELP["--sockets-per-thread"]
    )
    made.add_argument("--print", dest="show", action="store_true", help=HELP["--print"])
    made.add_argument("program", nargs=argparse.REMAINDER, metavar=PROGRAM, help=HELP[PROGRAM])
    return made


def _launch(argv: Sequence[str]) -> int:
    from clusterctl.jobs import in_allocation  # noqa: PLC0415 - --help stays quick

    given = parser().parse_args(argv)
    program = given.program[1:] if given.program[:1] == ["--"] else given.program
    nccl = NcclOptions(given.gid_index, given.socket_threads, given.sockets_per_thread)
    options = in_allocation.LaunchOptions(
        given.nproc_per_node, given.master_addr, given.master_port, given.python, given.wait, nccl
    )
    return start(program, options, show=given.show)


def _number(least: int, most: int | None = None) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(
                f"{text} is not a number from {least}{'' if most is None else f' to {most}'}"
            )
        return value

    return number


def _seconds(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


# --- ``clusterctl launch`` behind its command line: the options' words, and what is printed ---------------------------
#
# Two command lines stand on it: that of clusterctl, by typer, and that of the distribution ``clusterctl-launch``,
# which has the standard library alone.

PROGRAM = "-- PROGRAM [ARGUMENT…]"
# The help of each option, by its name on the command line.
HELP = {
    PROGRAM: "Start a script, -m MODULE or any command.",
    "--nproc-per-node": "Start so many processes on this node. Default: its GPUs, else its cores.",
    "--master-addr": "Find node 0 at this address, instead of the one in the variables.",
    "--master-port": "Find node 0 at this port, instead of the one in the variables.",
    "--python": "Use this Python, which has PyTorch. Default: /usr/local/python_env's, this one, or PATH's.",
    "--wait": "Wait so long until node 0's name resolves.",
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
    sys.stderr.write(f"clusterctl: {escaped(line)}\n")
    sys.stderr.flush()
