"""``clusterctl run`` names the rank that stops a job, on real nodes with planted causes, and never a wrong one."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import planting
import pytest
from validated import CLUSTERCTL, NODES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from validated import Cluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.xdist_group("stack"),
    pytest.mark.usefixtures("torch_litter"),
]

PROGRAM = Path(__file__).parent / "programs" / "stalling.py"
PYSPY = "/usr/local/bin/py-spy"
HOST, CULPRIT = "node3", 4
STALL_AFTER_S = 10
FAULTS = ("endless loop", "dead file", "out of memory", "SIGSTOP", "another collective", "firewall", "slow loader")
WORDS = re.compile(
    r"clusterctl: (?:No output for \d+ s: (?P<stall>.*)|(?P<died>\S+ (?:rank \d+ was ended by|lost \d+ process) .*))"
)
NAMED = re.compile(r"--exclude (?P<host>[^\s.]+)")


@dataclass
class Told:
    """What a run said of a planted cause, and how long after the stall was noticed, in seconds."""

    stack: str
    fault: str
    sentence: str
    seconds: float
    output: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        found = NAMED.search(self.sentence)
        return found["host"] if found else ""

    @property
    def verdict(self) -> str:
        return "rightly" if self.host == HOST else "wrongly" if self.host else "not known"


@pytest.fixture(scope="module")
def cluster(stack_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The shared cluster, whose nodes have py-spy for a while."""
    folder = tmp_path_factory.mktemp("py-spy")
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), "py-spy==0.4.3"]
    subprocess.run(argv, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    (name,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/scripts/py-spy")]
    tool = Path(zipfile.ZipFile(wheel).extract(name, folder))
    for node in stack_cluster.box.nodes:
        stack_cluster.engine.run("cp", str(tool), f"{node.container}:{PYSPY}")
        stack_cluster.on(node.name, "chmod", "755", PYSPY)
    yield stack_cluster
    for node in stack_cluster.box.nodes:
        stack_cluster.on(node.name, "rm", "-rf", PYSPY, "/home/cluster/clusterctl", "/home/cluster/.horovod")


@contextlib.contextmanager
def planted(cluster: Cluster, fault: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if fault == "dead file":
            stack.enter_context(planting.dead_file_system(cluster, HOST, "/dead"))
        if fault == "out of memory":
            stack.enter_context(planting.little_memory(cluster, HOST, 1536 << 20))
        yield


def run(cluster: Cluster, stack: str, fault: str) -> Told:
    """Run the program with a fault, and return what was said of it."""
    given = [f"{name}={value}" for name, value in (("STACK", stack), ("FAULT", fault), ("CULPRIT", CULPRIT))]
    launcher = ["--launcher", "torchrun"] if stack == "torch" else []
    words = ["--sync", str(PROGRAM.parent), "--stall-after", str(STALL_AFTER_S), "--timeout", "150"]
    words += [word for one in given for word in ("-x", one)]
    program = [*([] if launcher else ["python"]), PROGRAM.name]
    command = [*CLUSTERCTL, "run", str(cluster.box.inventory), *launcher, *words, "--", *program]
    lines: list[tuple[float, str]] = []
    with planted(cluster, fault), contextlib.ExitStack() as closed:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1)

        def read() -> None:
            assert process.stdout is not None
            lines.extend((time.monotonic(), line.rstrip("\n")) for line in process.stdout)

        reader = threading.Thread(target=read)
        reader.start()
        end = time.monotonic() + 200
        is_closed = False
        while process.poll() is None and time.monotonic() < end:
            if any(WORDS.search(line) for _, line in lines):
                break
            if fault == "firewall" and not is_closed and any(line == "step 8" for _, line in lines):
                is_closed = True
                rule = "tcp dport 1024-65535 drop"
                closed.enter_context(planting.filtered(cluster, HOST, "input", f'iifname != "lo" {rule}'))
            time.sleep(0.1)
        if process.poll() is None:
            process.terminate()
        process.wait(120)
        reader.join(30)
    told = next(((at, match) for at, line in lines if (match := WORDS.search(line))), None)
    output = [line for _, line in lines]
    assert told is not None, "\n".join(output[-40:])
    at, match = told
    last = max((when for when, line in lines if when < at and not line.startswith("clusterctl:")), default=at)
    seconds = at - last - (STALL_AFTER_S if match["stall"] else 0)
    return Told(stack, fault, match["stall"] or match["died"], seconds, output)


@pytest.mark.parametrize(("stack", "fault"), [("mpi", "SIGSTOP")])
def test_a_frozen_rank_is_named(cluster: Cluster, stack: str, fault: str) -> None:
    told = run(cluster, stack, fault)
    assert told.verdict == "rightly", told.sentence
    assert f"{HOST} rank {CULPRIT} is stopped" in told.sentence
    assert cluster.is_clean()


def test_each_planted_cause_is_named_rightly_or_is_not_known(cluster: Cluster) -> None:
    found: list[Told] = []
    for stack in ("mpi", "torch", "horovod"):
        for fault in FAULTS:
            found.append(run(cluster, stack, fault))
            one = found[-1]
            row = f"{one.stack:8} {one.fault:19} {one.verdict:10} {one.seconds:5.1f} s  {one.sentence[:150]}"
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()
            cluster.remove_torch_litter()
            assert cluster.is_clean()
    assert len(NODES) * 2 > CULPRIT
    wrong = [one for one in found if one.verdict == "wrongly"]
    assert not wrong, [one.sentence for one in wrong]
    rightly = [one for one in found if one.verdict == "rightly"]
    assert len(rightly) >= 0.9 * len(found)
