"""Factories for nodes, inventories and records in unit tests; a test gives only the fields that it is about."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.model.facts import NodeFacts
from clusterctl.model.hosts import Host, Inventory, InventorySources
from clusterctl.model.job_outcome import JobOutcome, OutputLine, Sweep
from clusterctl.model.layout import DEFAULT_LAYOUT
from clusterctl.model.results import (
    Better,
    CheckResult,
    Figure,
    PairMatrix,
    RankReport,
    Unit,
    ValidationRecord,
    Verdict,
    worst,
)
from clusterctl.model.run_record import HostResult, RunRecord
from clusterctl.model.snapshot import HostSnapshot
from clusterctl.remote import supervisor_files

OWN_PATH = "/usr/local/openmpi/bin:/usr/local/horovod/bin"
DATA = Path(__file__).resolve().parents[1] / "data"


class CapturedRas(NamedTuple):
    """Answers of NCCL's RAS to a job of three ranks on one GPU; ``ranks`` is the rank of each process."""

    ranks: dict[int, int]
    culprit: int
    answers: list[str]

    @property
    def process(self) -> int:
        """The process of the rank that stayed away or was stopped."""
        return next(pid for pid, rank in self.ranks.items() if rank == self.culprit)


def captured_ras(name: str) -> CapturedRas:
    """Return the answers of ``late`` (one), or of ``stopped`` (before and after) in tests/data/gpu_h200."""
    kept = json.loads((DATA / "gpu_h200" / f"nccl-ras-{name}.json").read_text(encoding="utf-8"))
    ranks = {pid: int(rank) for rank, pid in kept["processes"].items()}
    return CapturedRas(ranks, kept["culprit"], kept["answers"])


BEGAN = datetime(2026, 3, 1, 2, tzinfo=timezone.utc)
MIB = 1 << 20
GIB = 1 << 30

_LOGGED_LINE = re.compile(r" *([\d.]+) (stdout|stderr) (.*)")


# --- nodes and inventories ---


def node(name: str = "node1", **changed: Any) -> NodeFacts:
    """Return the facts of a plain Debian 12 node with 4 cores: not provisioned, no network, no GPU."""
    given: dict[str, Any] = {
        "schema_version": 1,
        "hostname": name,
        "fqdn": name,
        "time": 0.0,
        "kernel": "6.1",
        "machine": "x86_64",
        "distribution": {"id": "debian", "version_id": "12", "name": "Debian 12", "family": "Debian", "major": "12"},
        "glibc": "2.36",
        "python": {"version": "3.11.2", "executable": "/usr/bin/python3", "has_packaging": True},
        "platform": "debian-12-x86_64",
        "cores": 4,
        "threads": 4,
        "memory_bytes": 16 * GIB,
        "user": {"name": "user1", "uid": 1000, "home": "/home/user1"},
    }
    return NodeFacts.model_validate({**given, **changed})


def artifact(name: str, version: str = "1", **inputs: Any) -> dict[str, Any]:
    """Return an artifact that is installed and whole; ``inputs`` are what it was built from."""
    link = f"/usr/local/{name}"
    return {
        "name": name,
        "link": link,
        "target": f"{link}-{version}",
        "version": version,
        "key": "0123456789abcdef",
        "ok": True,
        "inputs": inputs,
    }


def programs(names: Iterable[str] = supervisor_files.SUPERVISOR_FILES) -> list[dict[str, Any]]:
    """Return the watch entries of node programs as this version of clusterctl installs them."""
    return [
        {"path": path, "kind": "file", "sha256": digest}
        for path, digest in supervisor_files.digests(names, DEFAULT_LAYOUT).items()
    ]


def provisioned(
    name: str = "node1", number: int = 1, *, version: str = "5.0.7", stack: bool = True, **changed: Any
) -> NodeFacts:
    """Return a node as provision leaves it: Open MPI ``version``, fabric address 10.0.0.``number``, the supervisor.

    With ``stack`` it has PyTorch and Horovod as well.
    """
    artifacts = [artifact("openmpi", version, configure=["./configure", "--without-ucx"]), artifact("mpi4py", "4.1.2")]
    if stack:
        framework = {"name": "pytorch", "version": "2.8.0", "cuda": ""}
        artifacts += [
            artifact("python_env", "1", framework=framework),
            artifact("horovod", "0.28.1", framework=framework, gpu_operations="none"),
        ]
    given: dict[str, Any] = {
        "environment": {"PATH": f"{OWN_PATH}:/usr/bin:/bin", "LD_LIBRARY_PATH": "/usr/local/openmpi/lib"},
        "artifacts": artifacts,
        "fabric": {"cidrs": ["10.0.0.0/24"], "interface": "eth0", "address": f"10.0.0.{number}"},
        "watch": programs(),
    }
    return node(name, **{**given, **changed})


def captured_facts() -> dict[str, Any]:
    """Return what the probe program said on a real node with the whole training stack, as a record to change."""
    found: dict[str, Any] = json.loads((DATA / "stack" / "node.json").read_text(encoding="utf-8"))
    return found


def hosts(names: Iterable[str], slots: int | None = None, **fields: Any) -> tuple[Host, ...]:
    """Return hosts of an inventory whose addresses are their names."""
    return tuple(Host(**{"name": name, "address": name, "slots": slots, **fields}) for name in names)


def inventory(names: Iterable[str], selected: Iterable[str] | None = None, **fields: Any) -> Inventory:
    """Return an inventory of these hosts; ``selected`` is what ``--limit`` leaves, None all of them."""
    there = hosts(names, **fields)
    left = tuple(host.name for host in there) if selected is None else tuple(selected)
    return Inventory(InventorySources(("/inventory.ini",)), there, left, "digest")


READY_WATCH = {"/usr/local/libexec/clusterctl/mpi_checks.py": "abc"}


def ready_node(name: str = "node1", **changed: Any) -> NodeFacts:
    """Return a node that can take part in a validation."""
    given = {
        "artifacts": [artifact(name) for name in ("openmpi", "python_env", "mpi4py")],
        "watch": [{"path": path, "kind": "file", "sha256": digest} for path, digest in READY_WATCH.items()],
    }
    return node(name, **{**given, **changed})


# --- what checks say ---


def figure(value: float = 1e9, *nodes: str, **fields: Any) -> Figure:
    """Return a bandwidth of 1 MiB messages in B/s about these nodes; further fields replace any of that."""
    given: dict[str, Any] = {"quantity": "bandwidth", "unit": "B/s", "better": "higher", "size_bytes": MIB}
    return Figure.model_validate({**given, "value": value, "nodes": nodes, **fields})


def matrix(
    nodes: Iterable[str],
    value: float | Mapping[tuple[int, int], float] = 1e9,
    *,
    absent: Iterable[tuple[int, int]] = (),
    better: Better = "higher",
    **fields: Any,
) -> PairMatrix:
    """Return the bandwidth (or, where lower is better, the latency) between all pairs of nodes but the absent ones."""
    names, gone = tuple(nodes), set(absent)
    links = [link for link in itertools.combinations(range(len(names)), 2) if link not in gone]
    unit: Unit = "B/s" if better == "higher" else "us"
    given: dict[str, Any] = {
        "quantity": "bandwidth" if better == "higher" else "latency",
        "size_bytes": MIB,
        "unit": unit,
        "better": better,
        "nodes": names,
        "first": tuple(first for first, _ in links),
        "second": tuple(second for _, second in links),
        "value": tuple(value if isinstance(value, (int, float)) else value[link] for link in links),
        "complete": not gone,
    }
    return PairMatrix.model_validate({**given, **fields})


def ranks(*hosts_of_ranks: str, **fields: Any) -> tuple[RankReport, ...]:
    """Return a report for each rank, on these hosts in this order."""
    return tuple(
        RankReport.model_validate({"rank": number, "host": host, **fields})
        for number, host in enumerate(hosts_of_ranks)
    )


def check(name: str = "pairs", verdict: Verdict | str = Verdict.PASS, *figures: Figure, **fields: Any) -> CheckResult:
    """Return the result of a check."""
    given: dict[str, Any] = {"check": name, "verdict": verdict, "reason": f"{name} is {Verdict(verdict).value}"}
    return CheckResult.model_validate({**given, "figures": figures, **fields})


def record(*checks: CheckResult, night: int = 0, **fields: Any) -> ValidationRecord:
    """Return the record of a validation of node1 and node2, ``night`` days after BEGAN."""
    at = BEGAN + timedelta(days=night)
    given: dict[str, Any] = {
        "clusterctl_version": "1.0",
        "run_id": f"{at:%Y%m%dT%H%M%SZ}-validate-{night}",
        "inventory": "/srv/inventory.ini",
        "started": at,
        "finished": at + timedelta(minutes=1),
        "launch_node": "node1",
        "hosts": ("node1", "node2"),
        "slots": {"node1": 2, "node2": 2},
        "versions": {"openmpi": "5.0.7"},
        "openmpi_version": "5.0.7",
        "folder": "/state/run",
        "verdict": worst(checks),
        "checks": checks,
    }
    return ValidationRecord.model_validate({**given, **fields})


def run_record(**fields: Any) -> RunRecord:
    """Return the record of a provision that is done."""
    given: dict[str, Any] = {
        "verb": "provision",
        "run_id": "r",
        "argv": (),
        "inventory": "/srv/inventory.ini",
        "cluster_id": "c",
        "versions": {},
        "user": "u",
        "pid": 1,
        "started": BEGAN,
        "outcome": "done",
        "exit_code": 0,
    }
    return RunRecord.model_validate({**given, **fields})


def host_result(host: str, outcome: str = "ok", **fields: Any) -> HostResult:
    """Return what a host said to a task."""
    return HostResult(**{"at": 1.0, "host": host, "stage": "s", "task": "t", "outcome": outcome, **fields})


def host_snapshot(*watch: dict[str, Any], **fields: Any) -> HostSnapshot:
    """Return the snapshot of a host with these watched entries."""
    given = {"run_id": "r", "inputs": {}, "members": "m", "platform": "p", "host_keys": (), "user": "me"}
    return HostSnapshot.model_validate({**given, "watch": watch, **fields})


# --- captured output ---


def captured_outcome(name: str, folder: str = "validation", *, without: str = "") -> JobOutcome:
    """Return the outcome of a job from a log in a folder of tests/data, without the lines that hold a text."""
    lines, sweeps, ended = [], [], {}
    for text in (DATA / folder / f"{name}.log").read_text(encoding="utf-8").split("\n"):
        if text.startswith("# outcome"):
            ended = json.loads(text.partition("{")[1] + text.partition("{")[2])
        elif text.startswith("# sweep"):
            host, _, found = text.removeprefix("# sweep").strip().partition(": ")
            sweeps.append(Sweep(host, problem="" if found.startswith(("nothing left", "killed")) else found))
        elif (match := _LOGGED_LINE.fullmatch(text)) and not (without and without in text):
            lines.append(OutputLine(match[2], float(match[1]), match[3]))
    return JobOutcome(lines=tuple(lines), sweeps=tuple(sweeps), **ended)
