"""A job with one planted cause on real nodes, what ``clusterctl run`` says of it, and after how many seconds."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import planting
from validated import CLUSTERCTL, Cluster

PROGRAM = Path(__file__).parent / "programs" / "stalling.py"
PYSPY = "/usr/local/bin/py-spy"
STALL_AFTER_S = 10
FAULTS = ("endless loop", "dead file", "out of memory", "SIGSTOP", "another collective", "firewall", "slow loader")
HEALTHY = ("computes in silence", "exchanges in silence")
WORDS = re.compile(
    r"clusterctl: (?:No output for \d+ s: (?P<stall>.*)"
    r"|(?P<died>\S+ (?:rank \d+ was ended by|lost \d+ process(?:es)?|rank \d+ left without MPI_Finalize)[ ,].*))"
)
PACED = re.compile(r"clusterctl: Pace: (?P<words>.*rank \d+ on (?P<host>[^\s,.;:]+)[^\n]*)")
NAMED = re.compile(r"--exclude (?P<host>[^\s.]+)")


@dataclass
class Told:
    """What a run said of a planted cause, and how long after the stall was noticed, in seconds."""

    stack: str
    fault: str
    sentence: str
    seconds: float
    culprit: str = "node3"
    output: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        found = NAMED.search(self.sentence)
        return found["host"] if found else ""

    @property
    def verdict(self) -> str:
        return "rightly" if self.host == self.culprit else "wrongly" if self.host else "not known"


@contextlib.contextmanager
def py_spy(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Give the nodes py-spy for a while."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), "py-spy==0.4.3"]
    subprocess.run(argv, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    (name,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/scripts/py-spy")]
    tool = Path(zipfile.ZipFile(wheel).extract(name, folder))
    for node in cluster.box.nodes:
        cluster.engine.run("cp", str(tool), f"{node.container}:{PYSPY}")
        cluster.on(node.name, "chmod", "755", PYSPY)
    try:
        yield
    finally:
        for node in cluster.box.nodes:
            cluster.on(node.name, "rm", "-rf", PYSPY, "/home/cluster/clusterctl", "/home/cluster/.horovod")


@contextlib.contextmanager
def planted(cluster: Cluster, fault: str, host: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if fault == "dead file":
            stack.enter_context(planting.dead_file_system(cluster, host, "/dead"))
        if fault == "full disk":
            cluster.on(host, "mkdir", "-p", "/full")
            stack.callback(cluster.on, host, "rmdir", "/full")
            stack.enter_context(planting.full(cluster, host, "/full"))
        if fault == "out of memory":
            stack.enter_context(planting.little_memory(cluster, host, 1536 << 20))
        yield


def planted_at_a_step(
    cluster: Cluster, fault: str, host: str, rank: int
) -> contextlib.AbstractContextManager[None] | None:
    """Return what plants a fault that comes while the job runs, None for the others."""
    if fault == "firewall":
        rule = "tcp dport 1024-65535 drop"
        return planting.filtered(cluster, host, "input", f'iifname != "lo" {rule}')
    if fault == "large packets":
        return planting.small_packets_alone(cluster, host, "node2")
    if fault == "daemon":
        return planting.changed(cluster, host, "pkill -KILL -x prted", "true")
    if fault == "frozen rank":
        return planting.frozen_rank(cluster, host, rank)
    return planting.frozen(cluster, host) if fault == "frozen node" else None


def since_the_fault(lines: Sequence[tuple[float, str]]) -> Sequence[tuple[float, str]]:
    """Return the output since the last step before the fault: a start on few cores may be silent for long."""
    return next((lines[at:] for at, (_, line) in enumerate(lines) if line == "step 7"), ())


def command_of(
    cluster: Cluster, stack: str, fault: str, rank: int, limit_s: float, stall_after_s: float = STALL_AFTER_S
) -> list[str]:
    given = [f"{name}={value}" for name, value in (("STACK", stack), ("FAULT", fault), ("CULPRIT", rank))]
    launcher = ["--launcher", "torchrun"] if stack == "torch" else []
    words = ["--sync", str(PROGRAM.parent), "--stall-after", str(stall_after_s), "--timeout", str(limit_s)]
    words += [word for one in given for word in ("-x", one)]
    program = [*([] if launcher else ["python"]), PROGRAM.name]
    return [*CLUSTERCTL, "run", str(cluster.box.inventory), *launcher, *words, "--", *program]


def run_healthy(cluster: Cluster, stack: str, fault: str, *, limit_s: float = 300) -> Told:
    """Run the program while its ranks go on without a word for a while; whatever is said of it is wrong."""
    lines: list[tuple[float, str]] = []
    command = command_of(cluster, stack, fault, -1, limit_s)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1) as process:
        for line in process.stdout:
            lines.append((time.monotonic(), line.rstrip("\n")))
            if line == "step 9\n":
                process.terminate()
    output = [line for _, line in lines]
    assert "step 9" in output, "\n".join(output[-40:])
    silent = output[output.index("step 7") : output.index("step 9")]
    told = next((match["stall"] for line in silent if (match := WORDS.search(line))), "")
    return Told(stack, fault, told or "nobody was named", 0.0, "nobody" if told else "", output)


def run(
    cluster: Cluster,
    stack: str,
    fault: str,
    *,
    host: str = "node3",
    rank: int = 4,
    limit_s: float = 150,
    stall_after_s: float = STALL_AFTER_S,
) -> Told:
    """Run the program with a fault in a rank of a host, and return what was said of it."""
    command = command_of(cluster, stack, fault, rank, limit_s, stall_after_s)
    lines: list[tuple[float, str]] = []
    with planted(cluster, fault, host), contextlib.ExitStack() as closed:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1)

        def read() -> None:
            assert process.stdout is not None
            lines.extend((time.monotonic(), line.rstrip("\n")) for line in process.stdout)

        reader = threading.Thread(target=read)
        reader.start()
        end = time.monotonic() + limit_s + 50
        later = planted_at_a_step(cluster, fault, host, rank)
        while process.poll() is None and time.monotonic() < end:
            if any(WORDS.search(line) for _, line in since_the_fault(lines)):
                break
            if later is not None and any(line == "step 8" for _, line in lines):
                closed.enter_context(later)
                later = None
            time.sleep(0.1)
        if process.poll() is None:
            process.terminate()
        process.wait(120)
        reader.join(30)
    told = next(((at, match) for at, line in since_the_fault(lines) if (match := WORDS.search(line))), None)
    output = [line for _, line in lines]
    assert told is not None, "\n".join(output[-40:])
    at, match = told
    last = max((when for when, line in lines if when < at and not line.startswith("clusterctl:")), default=at)
    seconds = at - last - (stall_after_s if match["stall"] else 0)
    return Told(stack, fault, match["stall"] or match["died"], seconds, host, output)


def run_paced(cluster: Cluster, *, host: str = "node3", rank: int = 4, limit_s: float = 150) -> Told:
    """Run an MPI program whose rank loads slowly from a step on under ``--pace``; the seconds count from that step."""
    words = ["--pace", "--sync", str(PROGRAM.parent), "--timeout", str(limit_s), "-x", f"CULPRIT={rank}"]
    command = [*CLUSTERCTL, "run", str(cluster.box.inventory), *words, "--", "python", "pacing.py"]
    output: list[str] = []
    began, told, after_s = 0.0, "", 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1) as process:
        for line in process.stdout:
            output.append(line.rstrip("\n"))
            if line == "slow from now on\n":
                began = time.monotonic()
            elif (match := PACED.search(line)) and not told and began:
                told, after_s = f"{match['words']}. --exclude {match['host']}", time.monotonic() - began
                process.terminate()
    assert told, "\n".join(output[-40:])
    return Told("mpi", "slow loader (--pace)", told, after_s, host, output)
