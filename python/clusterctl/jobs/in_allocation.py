"""The verb ``launch``: look at this very machine, decide, and become torchrun.

A pod or a job step has neither an inventory nor another machine to ask: the scheduler's variables say which node this
is, and the node's own program, started here instead of over ssh, says what its network is like. The distribution
``clusterctl-launch`` carries this module and all that it imports, so it needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from clusterctl.launch import allocation_line, nccl_options, scheduler_env
from clusterctl.launch.local_facts import LocalFacts
from clusterctl.model import fabric
from clusterctl.model.layout import DEFAULT_LAYOUT
from clusterctl.remote import python as remote_python
from clusterctl.support.errors import ConfigError, HostFailedError

_PROBE_S = 30.0
_RETRY_S = 1.0
_DEVICES = Path("/dev")
_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")
_PYTHON_WORDS = frozenset({"python", "python3"})
_HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


@dataclass(frozen=True)
class LaunchOptions:
    """What the user asks for; None and '' mean that it is found out.

    ``wait_s`` is how long the master's name may take to appear in the name service: a scheduler starts the pods of a
    job in any order, and a name is there only when its pod is.
    """

    nproc_per_node: int | None = None
    master_addr: str = ""
    master_port: int = 0
    python: str = ""
    wait_s: float = 60.0
    nccl: nccl_options.NcclOptions = nccl_options.NO_OPTIONS


def prepare(
    program: Sequence[str],
    options: LaunchOptions,
    tell: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    before: Callable[[Sequence[str], str], Sequence[str]] | None = None,
) -> allocation_line.AllocationPlan:
    """Decide what this process becomes, and change nothing.

    ``before`` returns what each worker starts in place of the program, which it gets with the chosen Python.

    Raises:
        ConfigError: the variables, an option or the program are wrong, the master's name means nothing here, or there
            is no Python with PyTorch.
        HostFailedError: this machine could not be looked at.
    """
    known = os.environ if environment is None else environment
    if program or before is None:
        _refuse_program(program)
    nccl_options.refuse(options.nccl)
    where = scheduler_env.place(
        known,
        scheduler_env.unfolded(scheduler_env.nodelist(known)),
        master_addr=options.master_addr,
        master_port=options.master_port,
    )
    python = options.python or _python()
    machine = _look(where, options.wait_s, tell)
    return allocation_line.plan(
        where,
        machine,
        known,
        program if before is None else before(program, python),
        python=python,
        nproc_per_node=options.nproc_per_node,
        nccl=options.nccl,
    )


def become(plan: allocation_line.AllocationPlan) -> NoReturn:
    """Replace this process by what was decided, which keeps its number, its signals and its place among the others.

    Raises:
        ConfigError: it cannot be started.
    """
    job = {name: value for name, value in os.environ.items() if name not in plan.dropped}
    job |= {setting.name: setting.value for setting in plan.settings}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(plan.argv[0], list(plan.argv), job)  # noqa: S606 - an argv list, and no shell
    except OSError as error:
        raise ConfigError(f"{plan.argv[0]} cannot be started: {error.strerror}; name another with --python.") from None


def _refuse_program(program: Sequence[str]) -> None:
    """Raise where there is nothing to start; torchrun would say it in forty lines, once for each process."""
    if not program or not program[0]:
        raise ConfigError("There is no program to start; name it behind '--', as in 'clusterctl launch -- train.py'.")
    words = program[1:] if len(program) > 1 and program[0] in _PYTHON_WORDS else program
    if words[0].endswith(".py") and not Path(words[0]).is_file():
        raise ConfigError(f"The script {words[0]} is not there (looked from {Path.cwd()}); give its path in this pod.")
    if not words[0].startswith("-") and not words[0].endswith(".py") and shutil.which(words[0]) is None:
        raise ConfigError(f"The program {words[0]} is not there; give its path in this pod, or put it on PATH.")


def _look(where: scheduler_env.RankPlace, wait_s: float, tell: Callable[[str], None]) -> allocation_line.LocalMachine:
    """Ask this machine for its facts, until the master's name means something."""
    end = time.monotonic() + wait_s
    told = False
    while True:
        node = _facts((where.master_addr,) if where.master_addr else ())
        meaning = next((name for name in node.names if name.name == where.master_addr), None)
        if not where.master_addr or (meaning is not None and meaning.addresses):
            break
        problem = meaning.problem if meaning is not None else "no answer"
        if time.monotonic() + _RETRY_S > end:
            raise ConfigError(
                f"{where.master_said_by} is {where.master_addr}, which does not resolve here ({problem}); see that "
                "node 0 is running and that its name is right."
            )
        if not told:
            tell(f"waiting up to {wait_s:g} s for {where.master_addr} to resolve ({problem})")
            told = True
        time.sleep(_RETRY_S)
    return allocation_line.LocalMachine(
        node=node,
        master_addresses=meaning.addresses if meaning is not None else (),
        rdma=fabric.rdma_of({"rdma": node.rdma}),
        gpu_devices=_gpu_devices(),
        cpu_quota=_cpu_quota(),
    )


def _facts(resolve: Sequence[str]) -> LocalFacts:
    request = json.dumps({"resolve": list(resolve), "artifacts": []}).encode()
    program = remote_python.program(remote_python.NODE_PROBE)
    reply = remote_python.ask(program.argv(sys.executable), program.data + request, _PROBE_S, {"schema_version"})
    problem = reply.problem
    if reply.answer is not None:
        try:
            return LocalFacts.of(reply.answer)
        except ValueError as error:
            problem = f"its record is not valid, {error}"
    cure = "; check for a file system that hangs" if reply.timed_out else ""
    raise HostFailedError(f"The probe of this machine failed: {problem}{cure}.")


def _gpu_devices() -> int:
    """Count the GPUs whose device files are here; the bus shows a pod all of the host's."""
    return sum(
        1
        for path in _DEVICES.glob("nvidia[0-9]*")
        if path.name.removeprefix("nvidia").isdigit() and stat.S_ISCHR(path.stat().st_mode)
    )


def _cpu_quota() -> float | None:
    """Return the number of CPUs that the container may use; None without a limit."""
    with suppress(OSError, ValueError):
        quota, period = _CGROUP_V2.read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        amount = int((_CGROUP_V1 / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        return None if amount < 0 else amount / int((_CGROUP_V1 / "cpu.cfs_period_us").read_text(encoding="ascii"))
    return None


def _python() -> str:
    """Return the first Python that has PyTorch: the cluster's, the one that is running, or the one on PATH."""
    found = (DEFAULT_LAYOUT.python, sys.executable, shutil.which("python3"), shutil.which("python"))
    candidates = [path for path in dict.fromkeys(found) if path and os.access(path, os.X_OK)]
    for path in candidates:
        done = subprocess.run(
            [path, "-c", _HAS_TORCH], stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S, check=False
        )
        if done.returncode == 0:
            return path
    raise ConfigError(
        f"No Python here has PyTorch (looked at {', '.join(candidates) or 'PATH'}); install torch, or name the Python "
        "that has it with --python."
    )
