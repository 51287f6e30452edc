"""The checks that need a GPU, on whatever GPU machine this is started on, as a cluster of one node.

Started by ``make test-gpu``. Takes what the machine has: a Python with a CUDA build of PyTorch, the NCCL of the
cluster, of that PyTorch or of the system, and mpirun where that Python's mpi4py goes with it; torchrun starts the ranks
otherwise.
Needs no network, installs nothing, takes less than ten minutes, or four with one GPU, and keeps what it found as
``docs/measured/gpu-<date>-<gpu>.json`` and ``.md``. What the machine tells of itself goes into a folder beside them
(``gpu_capture.py``), without serial numbers, for tests/data.

Exit codes: 0 everything that could run passed; 1 something failed; 3 no GPU here, or nothing to use it with.

Environment: TEST_GPU_PYTHON the interpreter; TEST_GPU_NCCL the libnccl.so.2; TEST_GPU_OUT the folder of the report.
Variables of NCCL (NCCL_DEBUG, NCCL_P2P_DISABLE, ...) reach the ranks.

Python 3.9 and its standard library suffice for this file; the checks are the programs of the role ``validation``.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "roles/validation/files"
OWN_HOST = "tests/gpu/own_host.py"
LATE_RANK = "tests/gpu/late_rank.py"
sys.path.insert(0, str(ROOT / PROGRAMS))

import dcgm_checks  # noqa: E402 - it lies in the folder above, as those below
import nccl_library  # noqa: E402
import nccl_sweep  # noqa: E402
from rank_program import CheckError  # noqa: E402

for place in ("plugins/module_utils", "python", "tests/gpu"):
    sys.path.insert(0, str(ROOT / place))

import gpu_capture  # noqa: E402 - it lies in a folder above, as those below
import gpu_watch  # noqa: E402
from clusterctl.analysis import nccl_diagnostics, nccl_path  # noqa: E402 - they need the standard library alone
from node_look import gpu as gpu_facts  # noqa: E402
from node_look import machine as numa_nodes  # noqa: E402
from node_look import network as rdma_facts  # noqa: E402

NOTHING_TO_RUN = 3
TOTAL_S = 520.0  # ten minutes, and room to write the report and to capture the machine
ONE_GPU_S = 215.0  # four minutes, the same
END_S = 10.0  # from a polite end to a kill
LEAST_S = 20.0  # a part with less time left is not begun
MOST_LINES = 60
SHARING_SINCE = (2, 30, 3)
RAS_SINCE = (2, 24)
JOB = f"test-gpu-{os.getpid()}"
HIDDEN = ("derived", "files")  # not in the record
LOGGED = "nccl-log"
RECORD = "record.json"
RAS_PORT = 28128
RAS_LATE_PORT = 28129
LEAST_RANKS = 3  # so that most ranks wait for one
SHARED_S = 60.0  # the deadline of a part whose ranks share the only GPU
PATHS = ("nccl", "nccl-shared", "nccl-nic", "torchrun", "torchrun-shared", "horovod")  # parts whose way is judged
LOOK_S = 60.0  # for RAS; NCCL answers after five seconds where a process is silent
SHORT_SWEEP = ("--sizes", "4096,1048576,16777216", "--budget", "0.2")  # ranks that share a GPU take turns
SWEEP = ("--sizes", "8,4096,1048576,67108864,1073741824", "--budget", "0.5")
PYTHONS = ("python3", str(ROOT / ".venv" / "bin" / "python"), "/usr/local/python_env/bin/python")
CLUSTER_NCCL = "/usr/local/nccl/lib/libnccl.so.2"

# What an interpreter has; started with it, so it keeps to the old and stable calls.
PROBE = """
import importlib.util, json, os, platform, sys
found = {"executable": sys.executable, "python": platform.python_version()}
for name in ("numpy", "mpi4py", "horovod"):
    found[name] = importlib.util.find_spec(name) is not None
try:
    import torch
    found["torch"], found["torch_cuda"] = torch.__version__, torch.version.cuda or ""
    found["torch_gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found["torch_gpus"] and torch.distributed.is_nccl_available():
        found["torch_nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version()[:3])
except Exception as problem:
    found["torch_problem"] = f"{type(problem).__name__}: {problem}"
try:
    import nvidia.nccl
    found["bundled_nccl"] = os.path.join(list(nvidia.nccl.__path__)[0], "lib", "libnccl.so.2")
except Exception:
    pass
print("PROBE" + json.dumps(found))
"""
LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
import nccl_library
nccl = nccl_library.Nccl(sys.argv[2])
print(nccl.version, nccl.path)
"""
MEET = "from mpi4py import MPI; print('size', MPI.COMM_WORLD.Get_size())"


class Refusal(Exception):  # noqa: N818 - nothing went wrong
    """There is nothing to run here; the sentence says why."""


@dataclass(frozen=True)
class Interpreter:
    """A Python and what it has; versions are empty where there is none."""

    executable: str
    python: str = ""
    torch: str = ""
    torch_cuda: str = ""
    torch_gpus: int = 0
    torch_nccl: str = ""
    torch_problem: str = ""
    bundled_nccl: str = ""
    numpy: bool = False
    mpi4py: bool = False
    horovod: bool = False

    @property
    def lack(self) -> str:
        """Why it cannot do the work, empty when it can."""
        if not self.torch:
            return f"has no PyTorch ({self.torch_problem or 'it did not answer'})"
        if not self.torch_cuda:
            return f"has PyTorch {self.torch}, which is no CUDA build"
        if not self.torch_gpus:
            return f"has PyTorch {self.torch} for CUDA {self.torch_cuda}, which sees no GPU"
        return "" if self.numpy else "has no numpy"


@dataclass(frozen=True)
class Machine:
    """What the parts run on; ``mpirun`` is empty where there is none that goes with the interpreter's mpi4py."""

    gpus: tuple[str, ...]
    cuda_driver: str
    interpreter: Interpreter
    nccl: str = ""
    nccl_path: str = ""
    mpirun: str = ""

    @property
    def launcher(self) -> str:
        """What starts the ranks of the nccl check."""
        return "mpirun" if self.mpirun else "torchrun"


@dataclass(frozen=True)
class Part:
    """One thing to run: ``argv`` runs in the repository's root; ``skip`` says why it is not run."""

    name: str
    title: str
    ranks: int = 0
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    deadline_s: float = 0.0
    handover: tuple[str, ...] = ()  # the options of torch_checks, which its workers get from their node's process
    skip: str = ""
    ways: tuple[str, ...] = ()  # how NCCL's log may begin the way of a connection
    reads: str = ""  # "dcgm": the output is that of dcgmi
    watch: str = ""  # "ras", "flight" or "late": what looks at the job while it runs, and gives the verdict


@dataclass(frozen=True)
class Done:
    """What came of a part: the results and the measurements that ranks printed, and the lines that no rank did."""

    name: str
    title: str
    verdict: str
    reason: str
    seconds: float = 0.0
    command: str = ""
    ranks: tuple[dict[str, Any], ...] = ()
    lines: tuple[str, ...] = ()
    measured: tuple[dict[str, Any], ...] = ()
    took: tuple[str, ...] = ()  # the ways that NCCL's connections took, by its own log
    derived: tuple[Done, ...] = ()  # other parts that the same output answers
    files: tuple[tuple[str, str | bytes], ...] = ()  # what is captured of it, by name


# --- what is here -----------------------------------------------------------------------------------------------------


def gpus_here() -> tuple[tuple[str, ...], str]:
    """Return the names of this machine's GPUs and the CUDA version of its driver.

    Raises:
        Refusal: there is none.
    """
    try:
        cuda = nccl_library.Cuda()
    except CheckError as problem:
        raise Refusal(f"This machine has no GPU that can be used: {problem}.") from problem
    return tuple(cuda.describe(number)[0] for number in range(cuda.count)), cuda.version


def asked(python: str) -> Interpreter:
    """Ask an interpreter what it has."""
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return Interpreter(python, torch_problem=f"{type(problem).__name__}: {problem}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("PROBE")]
    if not lines:
        return Interpreter(python, torch_problem=(done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1])
    return Interpreter(**json.loads(lines[-1].removeprefix("PROBE")))


def chosen(candidates: list[Interpreter]) -> Interpreter:
    """Return the first interpreter that can do the work.

    Raises:
        Refusal: none can; the sentence has each with what it lacks.
    """
    for interpreter in candidates:
        if not interpreter.lack:
            return interpreter
    words = "; ".join(f"{interpreter.executable} {interpreter.lack}" for interpreter in candidates)
    raise Refusal(f"There is a GPU, but no Python to use it: {words}. Name another one in TEST_GPU_PYTHON.")


def nccl_of(interpreter: Interpreter) -> tuple[str, str]:
    """Return version and path of the NCCL to check: the one that was named, the cluster's, PyTorch's, the system's.

    Raises:
        Refusal: the one that was named does not load.
    """
    named = os.environ.get("TEST_GPU_NCCL", "")
    for library in [named] if named else [CLUSTER_NCCL, interpreter.bundled_nccl, nccl_library.LIBRARY]:
        command = [interpreter.executable, "-c", LOAD, str(ROOT / PROGRAMS), library]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False) if library else None
        if done is not None and done.returncode == 0:
            version, _, path = done.stdout.strip().partition(" ")
            return version, path
        if named and done is not None:
            raise Refusal(f"TEST_GPU_NCCL={named}: {(done.stderr.strip().splitlines() or ['no answer'])[-1]}")
    return "", ""


def mpirun_of(interpreter: Interpreter) -> str:
    """Return the mpirun whose ranks find each other through the interpreter's mpi4py, which may be of another MPI."""
    for path in ("/usr/local/openmpi/bin/mpirun", "mpirun"):
        found = shutil.which(path)
        if not found or not interpreter.mpi4py:
            continue
        command = [found, "-np", "2", "--oversubscribe", interpreter.executable, "-c", MEET]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            surroundings = {**os.environ, **root_may()}
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=60, check=False, env=surroundings, cwd=ROOT
            )
            if done.stdout.split() == ["size", "2"] * 2:
                return found
    return ""


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


# --- what is run ------------------------------------------------------------------------------------------------------


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def torchrun(machine: Machine, ranks: int, program: str) -> tuple[str, ...]:
    """Return the argv of torchrun; all of it stays on the loopback device."""
    options = ("--nnodes=1", "--node_rank=0", f"--nproc_per_node={ranks}", "--max_restarts=0")
    rendezvous = ("--master_addr=127.0.0.1", f"--master_port={free_port()}")
    return (machine.interpreter.executable, "-m", "torch.distributed.run", *options, *rendezvous, program)


def mpirun(machine: Machine, ranks: int, program: str) -> tuple[str, ...]:
    """Return the argv of mpirun."""
    return (machine.mpirun, "-np", str(ranks), "--oversubscribe", machine.interpreter.executable, program)


def is_apart(machine: Machine, nccl: str) -> bool:
    """Whether ranks on the only GPU must be hosts of their own, since their NCCL lets no host's ranks share it."""
    return len(machine.gpus) == 1 and numbers(nccl) < SHARING_SINCE


def sharing(machine: Machine) -> tuple[str, ...]:
    """Return the options of nccl_checks with which several ranks use the only GPU."""
    return ("--pretend-hosts",) if is_apart(machine, machine.nccl) else ()


def why_apart(machine: Machine, nccl: str) -> str:
    """Return what a title says of ranks that are hosts of their own."""
    told = f", each as a host of its own, over the network, for NCCL {nccl} is older than 2.30.3"
    return told if is_apart(machine, nccl) else ""


def torch_ranks(machine: Machine, ranks: int, program: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return argv and variables of torchrun for ranks that may have to share the only GPU."""
    if ranks <= len(machine.gpus):
        return torchrun(machine, ranks, program), {}
    if is_apart(machine, machine.interpreter.torch_nccl):
        return torchrun(machine, ranks, OWN_HOST), {"TEST_GPU_PROGRAM": program}
    return torchrun(machine, ranks, program), {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def root_may() -> dict[str, str]:
    """Return what mpirun wants to hear before root may start it."""
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT")
    return {f"{name}{suffix}": "1" for name in names for suffix in ("", "_CONFIRM")} if os.geteuid() == 0 else {}


def nccl_part(machine: Machine, name: str, title: str, ranks: int, *more: str, check: str = "nccl") -> Part:
    """Return one of NCCL's checks with so many ranks."""
    if not machine.nccl:
        return Part(name, title, skip="no libnccl.so.2 was found; name one in TEST_GPU_NCCL")
    deadline = 150.0 if ranks <= len(machine.gpus) else SHARED_S
    options = ("--check", check, "--deadline", f"{deadline:g}", "--library", machine.nccl_path, *more)
    program = f"{PROGRAMS}/nccl_checks.py"
    if machine.launcher == "mpirun":
        return Part(name, title, ranks, (*mpirun(machine, ranks, program), *options), root_may(), deadline)
    argv = (*torchrun(machine, ranks, program), *options, "--launcher", "torchrun")
    return Part(name, title, ranks, argv, {}, deadline)


def way_parts(machine: Machine, ranks: int) -> list[Part]:
    """Return the same sweep over one way at a time, which tells the slow one; NCCL's log proves that it took it."""
    parts = []
    for name, (title, settings, begins) in nccl_sweep.WAYS.items():
        if name == "pairs":
            continue  # it needs two nodes; within one, nccl-sweep leaves the way to NCCL
        words, count, more = f"NCCL over {title} alone", ranks, SWEEP
        if ranks == 1 and name == "nic":  # hosts of their own meet in the network alone
            words, count, more = f"{words}, two ranks on the one GPU", 2, (*SHORT_SWEEP, "--pretend-hosts")
        part = nccl_part(machine, f"nccl-{name}", words, count, *more, check="nccl_sweep")
        if count == 1:
            part = Part(part.name, part.title, skip="it needs two GPUs")
        parts.append(part if part.skip else replace(part, environment={**part.environment, **settings}, ways=begins))
    return parts


def dcgm_part() -> Part:
    """Return the quick level of NVIDIA's own diagnostics, where DCGM is installed."""
    title = "NVIDIA's own diagnostics (dcgmi diag), level 1"
    found = shutil.which("dcgmi")
    if not found:
        return Part("dcgm-diag", title, skip="DCGM is not installed")
    return Part("dcgm-diag", title, argv=dcgm_checks.command(found, 1), deadline_s=120.0, reads="dcgm")


def log_part(machine: Machine, ranks: int) -> Part:
    """Return a job whose whole log of NCCL is kept."""
    part = nccl_part(
        machine, LOGGED, "a job with all of NCCL's log, which is captured", max(ranks, 2), *sharing(machine)
    )
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,GRAPH"}
    return part if part.skip else replace(part, environment={**part.environment, **log})


def ras_part(machine: Machine, ranks: int) -> Part:
    """Return a job in which one rank is stopped, while NCCL's RAS is asked who is silent."""
    title = "NCCL's RAS names a rank that was stopped"
    sweep = ("--sizes", "67108864", "--budget", "50", "--precision", "0.000001")
    ranks = ranks if ranks > 1 else LEAST_RANKS
    part = nccl_part(machine, "nccl-ras", title, ranks, *sweep, *sharing(machine), check="nccl_sweep")
    if part.skip:
        return part
    if numbers(machine.nccl) < RAS_SINCE:
        return Part(part.name, title, skip=f"NCCL {machine.nccl} is older than 2.24")
    environment = {**part.environment, "NCCL_RAS_ADDR": f"localhost:{RAS_PORT}"}
    return replace(part, environment=environment, watch="ras")


def recorder(machine: Machine) -> dict[str, str]:
    """Return the variables of PyTorch's flight recorder."""
    return gpu_watch.flight_environment(JOB, machine.interpreter.torch)


def flight_part(machine: Machine, ranks: int) -> Part:
    """Return a training whose ranks are asked for the records of PyTorch's flight recorder."""
    part = torch_part(machine, "flight-recorder", "the records of PyTorch's flight recorder are read", ranks)
    if part.skip:
        return part
    return replace(part, environment={**part.environment, **recorder(machine)}, watch="flight")


def late_part(machine: Machine, ranks: int) -> Part:
    """Return a job whose last rank stays away from a collective, which the flight records must show."""
    name, title = "watch-names", "the rank that has not called a collective is named by PyTorch's flight records"
    if not machine.interpreter.torch_nccl:
        return Part(name, title, skip="this PyTorch has no NCCL")
    if ranks == 1:
        ranks, title = LEAST_RANKS, f"{title}; three ranks on the one GPU"
    if ranks < LEAST_RANKS:
        return Part(name, title, skip="it needs three GPUs or one, since of two ranks none is named")
    argv, environment = torch_ranks(machine, ranks, LATE_RANK)
    environment.update(recorder(machine))
    if numbers(machine.interpreter.torch_nccl) >= RAS_SINCE:
        environment["NCCL_RAS_ADDR"] = f"localhost:{RAS_LATE_PORT}"
    return Part(name, title, ranks, argv, environment, 90.0, watch="late")


def torch_part(machine: Machine, name: str, title: str, ranks: int) -> Part:
    """Return the torchrun check over nccl with so many ranks."""
    if not machine.interpreter.torch_nccl:
        return Part(name, title, skip="this PyTorch has no NCCL")
    deadline = 120.0 if ranks <= len(machine.gpus) else SHARED_S
    options = ("--check", "torchrun", "--deadline", f"{deadline:g}", "--slots", str(ranks))
    handover = (*options, "--first-node", "127.0.0.1", "--backend", "nccl")
    return Part(name, title, ranks, *torch_ranks(machine, ranks, f"{PROGRAMS}/torch_checks.py"), deadline, handover)


def horovod_part(machine: Machine, check: str, title: str, ranks: int, *more: str) -> Part:
    """Return one of Horovod's checks with so many ranks."""
    interpreter = machine.interpreter
    if not interpreter.horovod or not machine.mpirun:
        missing = [name for name, there in (("Horovod", interpreter.horovod), ("mpirun", machine.mpirun)) if not there]
        return Part(check, title, skip=f"no {' and no '.join(missing)} here")
    deadline = 120.0
    argv = mpirun(machine, ranks, f"{PROGRAMS}/horovod_checks.py")
    options = ("--check", check, "--deadline", f"{deadline:g}", "--devices", "cpu,cuda", *more)
    return Part(check, title, ranks, (*argv, *options), root_may(), deadline)


def gpu_parts(machine: Machine, gpus: int) -> list[Part]:
    """Return the checks of the GPUs themselves: products, copies, and buffers of GPUs in MPI."""
    program = f"{PROGRAMS}/gpu_checks.py"
    parts = []
    for check, title, budget in (
        ("gpu_compute", "matrix products: known results, and the same bits each time", "2"),
        ("gpu_copies", "copies from and to the host, within a GPU and between GPUs", "0.5"),
    ):
        options = ("--check", check, "--deadline", f"{SHARED_S:g}", "--budget", budget)
        parts.append(Part(check, title, 1, (machine.interpreter.executable, program, *options), {}, SHARED_S))
    title = "MPI sends and reduces buffers in GPUs' memory"
    if not machine.mpirun:
        return [*parts, Part("gpu_mpi", title, skip="no mpirun that goes with this Python's mpi4py")]
    argv = mpirun(machine, max(gpus, 2), f"{PROGRAMS}/gpu_mpi_checks.py")
    options = ("--check", "gpu_mpi", "--deadline", f"{SHARED_S:g}")
    return [*parts, Part("gpu_mpi", title, max(gpus, 2), (*argv, *options), root_may(), SHARED_S)]


def planned(machine: Machine) -> list[Part]:
    """Return all parts in their order; one GPU is shared by two ranks where that is the only way to have two."""
    gpus = len(machine.gpus)
    shared = 2 if gpus == 1 and numbers(machine.nccl) >= SHARING_SINCE else gpus
    parts = [nccl_part(machine, "nccl", "NCCL, one rank a GPU", gpus), log_part(machine, gpus)]
    if gpus == 1:
        title = f"NCCL, two ranks on the one GPU{why_apart(machine, machine.nccl)}"
        parts.append(nccl_part(machine, "nccl-shared", title, 2, *sharing(machine)))
    parts += gpu_parts(machine, gpus)
    title = "NCCL's collectives over message sizes, one rank a GPU"
    parts.append(nccl_part(machine, "nccl-sweep", title, gpus, *SWEEP, check="nccl_sweep"))
    parts.append(torch_part(machine, "torchrun", "DistributedDataParallel over NCCL, one rank a GPU", gpus))
    if gpus == 1:
        why = why_apart(machine, machine.interpreter.torch_nccl)
        title = f"DistributedDataParallel over NCCL, two ranks on the one GPU{why}"
        parts.append(torch_part(machine, "torchrun-shared", title, 2))
    parts.append(horovod_part(machine, "horovod", "Horovod's collectives", shared))
    parts.append(horovod_part(machine, "horovod_sweep", "Horovod's collectives over message sizes", shared, *SWEEP))
    parts.append(horovod_part(machine, "training", "a language model under Horovod, 1 process against all", shared))
    parts += way_parts(machine, gpus)
    parts += [ras_part(machine, gpus), flight_part(machine, gpus), late_part(machine, gpus)]
    parts.append(dcgm_part())
    return parts


def run(part: Part, left_s: float) -> Done:
    """Run a part and judge it: every rank has to say that all its answers were right."""
    if part.skip:
        return Done(part.name, part.title, "SKIP", part.skip)
    limit = min(part.deadline_s, left_s)
    if limit < LEAST_S:
        return Done(part.name, part.title, "SKIP", "no time was left")
    began = time.monotonic()
    with listener(part) as handover:
        process = subprocess.Popen(
            part.argv,
            cwd=ROOT,
            env={**os.environ, **part.environment, **handover},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        if part.watch:
            return watched(part, process, began + limit)
        try:
            output, in_time = process.communicate(timeout=limit)[0], True
        except subprocess.TimeoutExpired:
            output, in_time = ended(process), False
    return judged(part, output, process.returncode, time.monotonic() - began, in_time=in_time)


def watched(part: Part, process: subprocess.Popen[str], until: float) -> Done:
    """Look at a job while it runs, end it, and return the verdict of the look; what it printed stands below it."""
    began = time.monotonic()
    printed: list[str] = []
    surroundings = {**os.environ, **part.environment}
    reader = threading.Thread(target=lambda: printed.extend(process.stdout or ()), daemon=True)
    reader.start()
    derived: tuple[Done, ...] = ()
    if part.watch == "ras":
        until = min(until, began + LOOK_S)
        seen = gpu_watch.ras(process.pid, "nccl_checks.py", part.ranks, surroundings, until)
    else:
        problem = gpu_watch.flight_record.make(JOB)
        try:
            look = gpu_watch.late if part.watch == "late" else gpu_watch.flights
            seen = gpu_watch.Seen("ERROR", problem) if problem else look(JOB, part.ranks, until)
            if part.watch == "late" and "NCCL_RAS_ADDR" in part.environment:
                told = gpu_watch.ras_late(process.pid, Path(LATE_RANK).name, part.ranks, surroundings)
                title = "the same rank is named by NCCL's RAS"
                derived = (Done("watch-ras", title, told.verdict, told.reason, lines=told.lines, files=told.files),)
        finally:
            gpu_watch.flight_record.remove(JOB)
    stop(process)
    reader.join(END_S)
    lines = [*seen.lines, *(read("".join(printed))[1][-MOST_LINES:] if seen.verdict != "PASS" else ())]
    seconds = round(time.monotonic() - began, 1)
    return Done(
        part.name,
        part.title,
        seen.verdict,
        seen.reason,
        seconds,
        shown(part),
        lines=tuple(lines),
        derived=derived,
        files=seen.files,
    )


def stop(process: subprocess.Popen[str]) -> None:
    """End a process and what it has started; somebody else reads what they print."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
            return


def shown(part: Part) -> str:
    """Return the command of a part without folders of this machine."""
    return " ".join(str(Path(token).name) if token.startswith("/") else token for token in part.argv)


def ended(process: subprocess.Popen[str]) -> str:
    """End a process and what it has started, and return what they printed."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)  # the group that it leads, and nobody else
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=END_S)[0]
    return ""


@contextlib.contextmanager
def listener(part: Part) -> Any:
    """Be what torch_checks calls the node's own process: its workers say there that they are up."""
    if not part.handover:
        yield {}
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ears:
        ears.bind(f"\0clusterctl-test-gpu-{os.getpid()}-{time.monotonic_ns()}")
        threading.Thread(target=drain, args=(ears,), daemon=True).start()
        name = ears.getsockname().decode()
        yield {"CLUSTERCTL_TORCH_WORKER": json.dumps({"socket": name, "options": list(part.handover)})}


def drain(ears: socket.socket) -> None:
    """Read whatever comes until the socket is closed."""
    with contextlib.suppress(OSError):
        while True:
            ears.recv(64)


def judged(part: Part, output: str, code: int | None, seconds: float, *, in_time: bool = True) -> Done:
    """Return the verdict over what a part printed."""
    if part.reads == "dcgm":
        return diagnosed(part, output, code, seconds, in_time=in_time)
    events, lines = read(output)
    last = {event["rank"]: event for event in events}
    results = {event["rank"]: event for event in events if event.get("event") == "result"}
    wrong = [event for event in results.values() if not event["ok"]]
    silent = [rank for rank in range(part.ranks) if rank not in results]
    if wrong:
        first = wrong[0]
        problem = (first["problems"] or [{"what": "nothing", "expected": "answers", "got": "none"}])[0]
        verdict = "FAIL"
        reason = f"rank {first['rank']}: {problem['what']}: expected {problem['expected']}, got {problem['got']}"
    elif silent:
        verdict = "FAIL" if events else "ERROR"
        step = last.get(silent[0], {}).get("step") or "its start"
        how = f"ended with code {code}" if in_time else f"did not end within {seconds:.0f} s"
        reason = f"it {how} without a result of rank {silent[0]}, last heard of in {step}"
        reason += f": {lines[-1]}" if lines and not events else ""
    elif code != 0 or not in_time:
        verdict = "FAIL"
        reason = f"every answer was right, but it {'ended with code ' + str(code) if in_time else 'did not end'}"
    else:
        verdict, reason = "PASS", praise(list(results.values()))
    if verdict == "PASS" and any(result["facts"].get("mpi_cuda") == "no" for result in results.values()):
        verdict, reason = "SKIP", "this Open MPI says that it was built without CUDA"
    took = tuple(dict.fromkeys(way for event in events for way in event.get("ways", ())))
    other = [way for way in took if not way.startswith(part.ways)]
    if verdict == "PASS" and part.ways and (other or not took):
        how = f"its connections took {', '.join(other[:4])}" if other else "NCCL's log names no way"
        verdict, reason = "SKIP", f"{how}, so this way was not measured alone"
    kept = tuple(
        {name: value for name, value in results[rank].items() if name not in DROPPED} for rank in sorted(results)
    )
    seen = tuple(
        {name: value for name, value in event.items() if name not in DROPPED}
        for event in events
        if event.get("event") == "measured"
    )
    derived: tuple[Done, ...] = (path_taken(part, events),) if part.name in PATHS else ()
    derived += (self_diagnosed(list(results.values()), lines),) if part.name == "nccl" else ()
    return Done(
        part.name,
        part.title,
        verdict,
        reason,
        round(seconds, 1),
        shown(part),
        kept,
        tuple(lines[-MOST_LINES:]),
        seen,
        took,
        derived,
        ((f"{LOGGED}.log", output),) if part.name == LOGGED else (),
    )


@dataclass(frozen=True)
class Here:
    """This machine as the judge of NCCL's ways wants it; its settings and its fabric are not known here."""

    slots: dict[str, int]
    rdma: dict[str, tuple[str, ...]]
    gpus: dict[str, str]
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    fabric: dict[str, Any] = field(default_factory=dict)


def path_taken(part: Part, events: list[dict[str, Any]]) -> Done:
    """Return the verdict over the way that a part's traffic took, as validation judges it."""
    name, title = f"path-{part.name}", f"the way that NCCL took in {part.name}"
    told = [event for event in events if event.get("event") == "nccl_path"]
    if not any(event.get("ways") for event in told):
        return Done(name, title, "SKIP", "NCCL's log tells no connection")
    host = str(told[0].get("host", "here"))
    gpu = next((event["facts"]["gpu"] for event in events if "gpu" in event.get("facts", {})), "")
    one = nccl_path.joined(told)
    found = nccl_path.nccl_faults(Here({host: part.ranks}, {host: active_ports()}, {host: gpu}), {host: one})
    # Settings that leave the network alone are of part.environment, and no fault of the machine.
    faults = [fault for fault in found if not any(f"{setting}=" in fault.words for setting in part.environment)]
    ways = ", ".join(f"{way} ({count})" for way, count in sorted(one.ways.items())[:8])
    if faults:
        return Done(name, title, "FAIL", "; ".join(f"{fault.words}; {fault.cure}" for fault in faults), took=(ways,))
    return Done(name, title, "PASS", "; ".join(word for word in (nccl_path.praise({host: one}), ways) if word))


def active_ports() -> tuple[str, ...]:
    """Return the RDMA ports that are up."""
    found = rdma_facts.rdma()["rdma"]
    return tuple(
        f"{one['name']}:{port['number']}" for one in found for port in one["ports"] if port["state"] == "ACTIVE"
    )


def self_diagnosed(results: list[dict[str, Any]], lines: list[str]) -> Done:
    """Return the verdict over the report of NCCL's own diagnostics, which the check asks for from 2.31 on."""
    name, title = "nccl-diagnostics", "NCCL's own diagnostics (2.31 and later)"
    found = nccl_diagnostics.read(lines)
    told = tuple(line for line in lines if nccl_diagnostics.MARK in line)
    if not any("nccl_diagnostics" in result.get("facts", {}) for result in results):
        return Done(name, title, "SKIP", "this NCCL has none, or ranks share a GPU")
    if found.faults:
        words = "; ".join(f"{fault.words} (ranks {fault.ranks or fault.host})" for fault in found.faults)
        return Done(name, title, "FAIL", words, lines=told)
    if not found.told:
        return Done(name, title, "ERROR", "it was asked for and printed nothing", lines=tuple(lines[-MOST_LINES:]))
    return Done(name, title, "PASS", "; ".join([found.praise or "it proved nothing", *found.notes]), lines=told)


def placed() -> Done:
    """Return the verdict over the places that '--affinity auto' reads, held against those of the driver."""
    seen = gpu_watch.affinity(gpu_capture.asked(gpu_capture.TOOLS["topo-m.txt"]), topology())
    title = "cores and network cards near each GPU, by /sys and by the driver"
    return Done("affinity", title, seen.verdict, seen.reason, lines=seen.lines)


def diagnosed(part: Part, output: str, code: int | None, seconds: float, *, in_time: bool) -> Done:
    """Return the verdict over what dcgmi printed, as the check ``dcgm`` reads it."""
    lines = tuple(output.splitlines()[-MOST_LINES:])
    try:
        report = dcgm_checks.read(output) if in_time else None
    except ValueError:
        report = None
    if report is None:
        verdict = "ERROR"
        reason = f"it gave no readable answer ({f'code {code}' if in_time else f'not within {seconds:.0f} s'})"
        reason += f": {lines[-1]}" if lines else ""
    elif report.failed:
        told = dict.fromkeys(f"{one.test} on {one.place or 'the node'} ({one.told})" for one in report.failed)
        verdict, reason = "FAIL", f"these tests failed: {', '.join(told)}"
    else:
        verdict, reason = "PASS", report.counts
    return Done(part.name, part.title, verdict, reason, round(seconds, 1), " ".join(part.argv), (), lines)


DROPPED = ("clusterctl", "event", "check", "host")


def praise(results: list[dict[str, Any]]) -> str:
    """Return what a PASS proves."""
    compared = sum(result["compared"] for result in results)
    ranks = f"{len(results)} rank{'s' if len(results) > 1 else ''}"
    words = [f"{ranks}, {compared:,} values right"]
    shared = next((result["facts"]["shared"] for result in results if "shared" in result["facts"]), "")
    if shared:
        words.append(f"{shared}: bus bandwidth is not meaningful and left out")
    aside = [str(result["rank"]) for result in results if "aside" in result["facts"]]
    if aside:
        words.append(f"rank {', '.join(aside)} stood aside")
    blind = [result["facts"]["no_gpu"] for result in results if "no_gpu" in result["facts"]]
    if blind:
        words.append(f"without a GPU ({blind[0]})")
    return "; ".join(words)


def read(output: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the ranks' own lines as events, and the other lines."""
    events, lines = [], []
    for line in output.splitlines():
        begin = line.find('{"clusterctl"')
        try:
            events.append(json.loads(line[begin:]) if begin >= 0 else None)
        except json.JSONDecodeError:
            events.append(None)
        if events[-1] is None:
            events.pop()
            lines.append(line)
    return events, [line for line in lines if line.strip()]


# --- what is kept -----------------------------------------------------------------------------------------------------


def record(machine: Machine, parts: list[Done], when: datetime) -> dict[str, Any]:
    """Return all of it as what JSON can carry."""
    return {
        "schema_version": 1,
        "date": when.isoformat(timespec="seconds"),
        "verdict": verdict(parts),
        "machine": {
            "gpus": list(machine.gpus),
            "gpu_details": details(),
            "topology": topology(),
            "cuda_driver": machine.cuda_driver,
            "system": system(),
            "processors": os.cpu_count(),
        },
        "versions": {
            "python": machine.interpreter.python,
            "torch": machine.interpreter.torch,
            "torch_cuda": machine.interpreter.torch_cuda,
            "torch_nccl": machine.interpreter.torch_nccl,
            "nccl": machine.nccl,
            "nccl_path": machine.nccl_path,
            "launcher": machine.launcher,
        },
        "parts": [{name: one for name, one in asdict(part).items() if name not in HIDDEN} for part in parts],
    }


def system() -> str:
    """Return kernel, architecture and C library; a kernel of the site's own has the site's name behind its numbers."""
    kernel = ".".join(str(part) for part in numbers(platform.release()))
    return "-".join((platform.system(), kernel, platform.machine(), "with", "".join(platform.libc_ver())))


def details() -> list[str]:
    """Return what nvidia-smi says of the GPUs, where there is one."""
    query = "--query-gpu=name,driver_version,memory.total,compute_mode,mig.mode.current"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = ["nvidia-smi", query, "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout.strip().splitlines() if done.returncode == 0 else []
    return []


def topology() -> dict[str, Any]:
    """Return where cores, GPUs and RDMA ports lie, as the probe of ``clusterctl`` reads it; without serial numbers."""
    found: dict[str, Any] = {"numa": numa_nodes.numa()["numa"]}
    kept = ("bus", "name", "numa", "pci_path")
    found["gpus"] = [{name: one[name] for name in kept} for one in gpu_facts.gpus("")["gpus"]]
    found["rdma"] = [{name: one[name] for name in kept[1:]} for one in rdma_facts.rdma()["rdma"]]
    return found


def verdict(parts: list[Done]) -> str:
    """Return the worst verdict; SKIP only where everything was skipped."""
    return next((word for word in ("FAIL", "ERROR", "PASS") if word in {part.verdict for part in parts}), "SKIP")


def by_way(found: dict[str, Any]) -> list[str]:
    """Return the largest allreduce over each way, which tells the slow one; nothing where one way was measured."""
    rows = []
    for part in found["parts"]:
        ranks = len([rank for rank in part["ranks"] if "aside" not in rank["facts"]])
        sized = [one for one in part["measured"] if one.get("operation") == "allreduce" and "bytes" in one]
        alone = not any("shared" in rank["facts"] for rank in part["ranks"])
        if part["verdict"] == "PASS" and sized and ranks > 1 and alone:
            most = max(sized, key=lambda one: int(one["bytes"]))
            bus = most["bytes"] / statistics.median(most["samples"]) * nccl_sweep.bus_factor("allreduce", ranks)
            took = ", ".join(part["took"][:4]) or "not told"
            rows.append(f"| {part['name']} | {took} | {most['bytes']} | {bus / 1e9:.4g} |")
    head = ["", "## Ways", "", "| part | way of NCCL | bytes | bus bandwidth of allreduce, GB/s |", "|---|---|---|---|"]
    return [*head, *rows] if len(rows) > 1 else []


def page(found: dict[str, Any]) -> str:
    """Return the record as a page to read."""
    machine, versions = found["machine"], found["versions"]
    gpus = ", ".join(f"{machine['gpus'].count(name)} x {name}" for name in dict.fromkeys(machine["gpus"]))
    torch = f"PyTorch {versions['torch']} (CUDA {versions['torch_cuda']}, NCCL {versions['torch_nccl'] or 'none'})"
    lines = [
        f"# {gpus}, {found['date'][:10]}: {found['verdict']}",
        "",
        "Written by `make test-gpu`; not edited. The JSON beside it has every rank's report.",
        "",
        f"- {machine['system']}, {machine['processors']} processors, driver for CUDA {machine['cuda_driver']}",
        *(f"- {detail}" for detail in machine["gpu_details"]),
        f"- Python {versions['python']}, {torch}",
        f"- NCCL that is checked: {versions['nccl'] or 'none'} (`{versions['nccl_path']}`)",
        f"- its ranks are started by {versions['launcher']}",
        "",
        "| part | verdict | seconds | reason |",
        "|---|---|---|---|",
    ]
    for part in found["parts"]:
        reason = part["reason"].replace("|", "\\|")
        lines.append(f"| {part['name']}: {part['title']} | {part['verdict']} | {part['seconds']:g} | {reason} |")
    lines += by_way(found)
    for part in found["parts"]:
        more = swept(part)
        lines += figures(part) or (["", f"## {part['name']}"] if more else [])
        lines += more
    return "\n".join(lines) + "\n"


def figures(part: dict[str, Any]) -> list[str]:
    """Return a part's figures: a table of collectives and sizes, and the rest by name."""
    found = {name: value for rank in part["ranks"] for name, value in rank["figures"].items()}
    sized = re.compile(r"(?P<operation>\w+?)_(?P<size>\d+[KMG]?i?B)_(?P<what>us|bus_bytes_per_s)")
    cells = {match.groups(): value for name, value in found.items() if (match := sized.fullmatch(name))}
    if not found:
        return []
    lines = ["", f"## {part['name']}", ""]
    if cells:
        lines += ["| collective | bytes | time, us | bus bandwidth, GB/s |", "|---|---|---|---|"]
    for (operation, size, what), value in cells.items():
        if what == "us":
            bus = cells.get((operation, size, "bus_bytes_per_s"))
            lines.append(f"| {operation} | {size} | {value:g} | {f'{bus / 1e9:.4g}' if bus else 'not meaningful'} |")
    lines += [f"- {name}: {value:g}" for name, value in found.items() if not sized.fullmatch(name)]
    return lines


def swept(part: dict[str, Any]) -> list[str]:
    """Return what was measured with every sample: a table of collectives and sizes, and the rest by name."""
    ranks = len([rank for rank in part["ranks"] if "aside" not in rank["facts"]])
    rows, rest = [], []
    for one in part["measured"]:
        middle, samples = statistics.median(one["samples"]), len(one["samples"])
        what = " ".join(one[name] for name in ("operation", "algorithm") if one.get(name))
        if "bytes" in one and one["quantity"] == "time":
            bus = one["bytes"] / middle * nccl_sweep.bus_factor(what, ranks)
            told = (
                f"{bus / 1e9:.4g}"
                if ranks > 1 and not any("shared" in rank["facts"] for rank in part["ranks"])
                else "-"
            )
            rows.append(f"| {what} | {one['bytes']} | {middle * 1e6:.4g} | {told} | {samples} |")
        else:
            rest.append(f"- {one['quantity']} {what}: {middle:.4g} {one['unit']} ({samples} samples)")
    head = ["", "| collective | bytes | time, us | bus bandwidth, GB/s | samples |", "|---|---|---|---|---|"]
    return [*(head if rows else []), *rows, *([""] if rest else []), *rest]


def keep(found: dict[str, Any], folder: Path) -> Path:
    """Write both files and return the page's path."""
    gpu = re.sub(r"[^a-z0-9]+", "-", found["machine"]["gpus"][0].lower()).strip("-")
    place = folder / f"gpu-{found['date'][:10]}-{gpu}"
    folder.mkdir(parents=True, exist_ok=True)
    place.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    place.with_suffix(".md").write_text(page(found), encoding="utf-8")
    return place.with_suffix(".md")


def tell(done: Done) -> None:
    """Print a verdict, and the lines of a part that did not pass."""
    sys.stdout.write(f"{done.verdict:5} {done.name}  {done.reason}\n")
    if done.verdict in {"FAIL", "ERROR"}:
        sys.stdout.write("".join(f"      {line}\n" for line in done.lines))


def main() -> int:
    """Look, run, report."""
    began = time.monotonic()
    try:
        gpus, cuda_driver = gpus_here()
        named = os.environ.get("TEST_GPU_PYTHON", "")
        pythons = [named] if named else [found for name in PYTHONS if (found := shutil.which(name))]
        interpreter = chosen([asked(python) for python in pythons])
        nccl, nccl_path = nccl_of(interpreter)
    except Refusal as refusal:
        sys.stderr.write(f"{refusal}\n")
        return NOTHING_TO_RUN
    machine = Machine(gpus, cuda_driver, interpreter, nccl, nccl_path, mpirun_of(interpreter))
    parts = [placed()]
    tell(parts[0])
    logs: dict[str, str | bytes] = {}
    total = TOTAL_S if len(gpus) > 1 else ONE_GPU_S
    for part in planned(machine):
        sys.stdout.write(f"{part.name}: {part.title} ...\n")
        sys.stdout.flush()
        done = run(part, total - (time.monotonic() - began))
        for one in (done, *done.derived):
            logs.update(one.files)
            parts.append(one)
            tell(one)
    files = gpu_capture.captured({**logs, RECORD: json.dumps(record(machine, parts, datetime.now(timezone.utc)))})
    found = json.loads(files.pop(RECORD))  # without secrets, as all that is kept
    kept = keep(found, Path(os.environ.get("TEST_GPU_OUT") or ROOT / "docs" / "measured"))
    captured = gpu_capture.keep(files, kept.with_suffix(""), found["date"][:10])
    sys.stdout.write(f"\n{page(found)}\nKept as {kept} and {kept.with_suffix('.json').name}; captured in {captured}\n")
    return {"PASS": 0, "SKIP": NOTHING_TO_RUN}.get(found["verdict"], 1)


if __name__ == "__main__":
    sys.exit(main())
