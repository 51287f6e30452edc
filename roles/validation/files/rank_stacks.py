"""Report where the ranks of a job are now on this node: ``rank_stacks.py JOB`` prints one JSON line in a few seconds.

The kernel's view of a rank comes first (``kernel``). The rank's own Python stack follows, if it is a rank of ours
(``faulthandler``, see ``rank_program.py``). Then comes the stack of ``py-spy``, ``eu-stack`` or ``gdb``, the first of
them that is installed and permitted. No process is ended, and ranks continue.

The functions of a library in a Python program cost a hundred times as much as its Python frames. So they are read where
the Python frames do not name the communication, and first for ranks in different places.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bounded_run
import job_members
from rank_program import STACK_FILE, STACK_SIGNAL

LIMIT_S = 3.0  # for all of a node's ranks together
OWN_WAIT_S = 0.5
MOST_RANKS = 64
MOST_THREADS = 4
MOST_FRAMES = 40
TEXT_LIMIT = 6000
AT_ONCE = 4
# Files of the frames that name a communication, or a wait that is none.
TELLING = re.compile(r"[ (/](?:torch/distributed/distributed_c10d\.py|horovod/|torch/utils/data/dataloader\.py)")
# What py-spy says of a process of Python without an interpreter: the program has ended, and the process has not. A rank
# of MPI is there when it left by an exception: MPI_Finalize waits for the ranks that still communicate.
NO_INTERPRETER = "Failed to find a python interpreter"
ENDED = "the program has ended, and the process has not"
# Beside the programs of PATH: a tool may have come with the cluster's own Python.
FOLDERS = (f"{Path(__file__).absolute().parents[2]}/python_env/bin", str(Path(sys.executable).parent))
STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in an uninterruptible wait",
    "T": "stopped",
    "t": "traced",
    "Z": "dead",
}


def rank_of(pid: int) -> int | None:
    """Return the rank number in a process's environment, None without one."""
    entries = dict(
        entry.split(b"=", 1) for entry in job_members.read_bytes(f"/proc/{pid}/environ").split(b"\0") if b"=" in entry
    )
    names = [b"HOROVOD_RANK", b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK", b"NODE_RANK"]
    names = [b"RANK", *names] if {b"TORCHELASTIC_RUN_ID", b"LOCAL_RANK"} & entries.keys() else names
    return next((int(entries[name]) for name in names if entries.get(name, b"").isdigit()), None)


def parent_of(pid: int) -> int:
    """Return the parent of a process, 0 when it is gone."""
    fields = job_members.read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def working_ranks(job: str) -> dict[int, int]:
    """Return the processes in which the ranks of a job work, and their ranks, without those that only watch."""
    found = {pid: rank for pid in job_members.members(job) if (rank := rank_of(pid)) is not None}
    watchers = {parent_of(pid) for pid in found}
    leaves = sorted((rank, pid) for pid, rank in found.items() if pid not in watchers)
    return {pid: rank for rank, pid in leaves[:MOST_RANKS]}


def state_of(pid: int) -> str:
    """Return the letter of a process's state, empty when it is gone."""
    return "".join(text(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1])


def kernel(pid: int) -> str:
    """Return what the kernel tells of a process and its first threads, each in one line, then their kernel stacks."""
    lines, stacks = [], []
    tasks = sorted(int(path.name) for path in Path(f"/proc/{pid}/task").glob("[0-9]*"))
    for task in tasks[:MOST_THREADS]:
        place = f"/proc/{pid}/task/{task}"
        said = {name: text(f"{place}/{name}").strip() for name in ("comm", "wchan", "syscall", "stack")}
        state = text(f"{place}/stat").rpartition(")")[2].split()[:1]
        words = f"{said['comm']}: {STATES.get(''.join(state), ''.join(state))}"
        words += f", waits in {said['wchan']}" if said["wchan"] not in {"", "0"} else ""
        number = said["syscall"].split(" ")[0]
        lines.append(words + (f", system call {number}" if number.isdigit() else ""))
        stacks += said["stack"].splitlines()[:MOST_FRAMES]
    more = [f"and {len(tasks) - MOST_THREADS} more threads"] if len(tasks) > MOST_THREADS else []
    return "\n".join([*lines, *more, *stacks])


def text(path: str) -> str:
    """Return a file of /proc as text, empty where it may not be read."""
    return job_members.read_bytes(path).decode("utf-8", "replace")


def own_file(pid: int) -> str:
    """Return the path of the file into which a rank of ours writes its stack on request, empty without one."""
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            if str(path.readlink()).startswith(f"/memfd:{STACK_FILE}"):
                return str(path)
    except OSError:
        pass
    return ""


def size_of(path: str) -> int:
    """Return the bytes of a file, 0 when it is gone."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def own(ranks: list[int], job: str) -> dict[int, str]:
    """Ask ranks of ours for their Python stacks, all at once; a stopped one cannot answer."""
    files = {pid: path for pid in ranks if (path := own_file(pid))}
    before = {pid: size_of(path) for pid, path in files.items()}
    for pid in files:
        if job_members.carries(pid, job):
            os.kill(pid, STACK_SIGNAL)
    end, last = time.monotonic() + OWN_WAIT_S, dict(before)
    while time.monotonic() < end:
        time.sleep(0.05)
        now = {pid: size_of(path) for pid, path in files.items()}
        if now == last and all(size > before[pid] for pid, size in now.items()):
            break
        last = now
    return {pid: text(path)[before[pid] :].strip() for pid, path in files.items() if last[pid] > before[pid]}


def tool(name: str) -> str:
    """Return the path of a tool, empty if it is not installed."""
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), *FOLDERS])
    return shutil.which(name, path=places) or ""


def with_tool(name: str, program: str, pid: int, end: float) -> str:
    """Return the stack that a tool takes of a process, empty where it may not, or has no time left."""
    argv = [program, "dump", "--nonblocking", "--pid", str(pid)]
    if name == "py-spy --native":
        argv = [program, "dump", "--native", "--pid", str(pid)]
    elif name == "eu-stack":
        argv = [program, "-n", str(MOST_FRAMES), "-p", str(pid)]
    elif name == "gdb":
        frames = f"thread apply all -ascending backtrace {MOST_FRAMES}"  # the main thread first
        argv = [program, "-nx", "-batch", "-iex", "set debuginfod enabled off", "-p", str(pid), "-ex", frames]
    left = end - time.monotonic()
    if left <= 0:
        return ""
    try:
        done = bounded_run.run(argv, left)
    except (OSError, ValueError):
        return ""
    if name == "py-spy" and NO_INTERPRETER in done.errors:
        return ENDED
    begin = re.search(r"^#0 |^Thread |^TID ", done.output, re.MULTILINE)  # what stands before it is about the tool
    return done.output[begin.start() :].strip() if begin else ""


def main_thread(stack: str) -> str:
    """Return the part of a stack of py-spy that is about the main thread; where no thread has a name, the first."""
    parts = [part for part in re.split(r"^(?=Thread )", stack, flags=re.MULTILINE) if part]
    return next((part for part in parts if '"MainThread"' in part.partition("\n")[0]), parts[0] if parts else "")


def without_library(stacks_of: dict[int, str], able: list[int]) -> list[int]:
    """Return the ranks whose Python frames do not name a communication, one of each place before the others."""
    mains = {pid: main_thread(stacks_of.get(pid, "")).partition("\n")[2] for pid in able}
    unclear = [pid for pid in able if not TELLING.search(mains[pid])]
    first = {mains[pid]: pid for pid in reversed(unclear)}
    return sorted(unclear, key=lambda pid: (first[mains[pid]] != pid, unclear.index(pid)))


def stacks(
    job: str, limit_s: float = LIMIT_S, ranks: dict[int, int] | None = None, *, quick: bool = False
) -> list[dict[str, object]]:
    """Return the stacks of a job's ranks on this node, in the order of the ranks.

    Args:
        job: the job's id.
        limit_s: for all of them together.
        ranks: the rank of each process to look at; by default those that :func:`working_ranks` finds.
        quick: take the Python frames alone of a program in Python.
    """
    end = time.monotonic() + limit_s
    ranks = working_ranks(job) if ranks is None else ranks
    known = {pid: ("kernel", [kernel(pid)]) for pid in ranks}
    for pid, found in own(list(ranks), job).items():
        known[pid] = ("faulthandler", [*known[pid][1], found])
    taken: dict[int, tuple[str, str]] = {}
    for name in ("py-spy", *(() if quick else ("py-spy --native",)), "eu-stack", "gdb"):
        program = tool(name.partition(" ")[0])
        if not program:
            continue
        # A tool that stops the process waits for ever for one that is stopped or in an uninterruptible wait.
        able = [pid for pid in ranks if name == "py-spy" or state_of(pid) not in {"T", "t", "D"}]
        if name == "py-spy --native":
            able = without_library({pid: text_of for pid, (_tool, text_of) in taken.items()}, able)
        else:
            able = [pid for pid in able if pid not in taken]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = {pid: pool.submit(with_tool, name, program, pid, end) for pid in able}
        for pid, answer in answers.items():
            if answer.result():
                taken[pid] = (name.partition(" ")[0], answer.result())
    known.update({pid: (name, [*known[pid][1], found]) for pid, (name, found) in taken.items()})
    told = {pid: (name, "\n\n".join(part for part in parts if part)) for pid, (name, parts) in known.items()}
    return [
        {"pid": pid, "rank": ranks[pid], "tool": name, "text": found[:TEXT_LIMIT]}
        for pid, (name, found) in told.items()
        if found
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Say where the ranks of a job are on this node.")
    parser.add_argument("job", help="the job's id")
    arguments = parser.parse_args()
    if not job_members.JOB_ID.fullmatch(arguments.job):
        parser.error("the job id is malformed")
    signal.alarm(int(LIMIT_S) + 2)
    print(json.dumps({"event": "stacks", "stacks": stacks(arguments.job)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
