"""What the verb decides before it launches anything; the launching itself is proved in tests/cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl import facts, validation
from clusterctl.checks import base, catalogue
from clusterctl.errors import ExitCode
from clusterctl.inventory import Host
from clusterctl.result import ValidationRecord, Verdict

if TYPE_CHECKING:
    from clusterctl.facts import NodeFacts

WANTED = {"/usr/local/libexec/clusterctl/mpi_checks.py": "abc"}


def node(**changed: Any) -> NodeFacts:
    artifacts = [
        {"name": name, "link": f"/usr/local/{name}", "target": "/x", "version": "1", "key": "k", "ok": True}
        for name in ("openmpi", "python_env", "mpi4py")
    ]
    given = {
        "schema_version": 1,
        "hostname": "node1",
        "fqdn": "node1",
        "time": 0.0,
        "kernel": "6.1",
        "machine": "x86_64",
        "distribution": {"id": "debian", "version_id": "12", "name": "Debian", "family": "Debian", "major": "12"},
        "glibc": "2.36",
        "python": {"version": "3.11.2", "executable": "/usr/bin/python3", "has_packaging": True},
        "platform": "debian-12-x86_64-glibc2.36-py3.11",
        "cores": 8,
        "threads": 16,
        "memory_bytes": 1,
        "user": {"name": "cluster", "uid": 1000, "home": "/home/cluster"},
        "artifacts": artifacts,
        "watch": [{"path": path, "kind": "file", "sha256": digest} for path, digest in WANTED.items()],
        **changed,
    }
    return facts.NodeFacts.model_validate(given)


@pytest.mark.parametrize(
    ("slots", "gpus", "cores", "expected"), [(3, 4, 8, 3), (None, 4, 8, 4), (None, 0, 8, 8), (None, 0, 0, 1)]
)
def test_slots_are_the_inventory_s_then_one_per_gpu_then_one_per_core(
    slots: int | None, gpus: int, cores: int, expected: int
) -> None:
    there = node(cores=cores, gpus=[{"bus": f"0000:0{number}:00.0"} for number in range(gpus)])
    assert validation.slots_of(Host("node1", "10.0.0.1", slots=slots), there) == expected


def test_a_node_that_has_everything_is_ready() -> None:
    assert validation.not_ready(node(), WANTED) == ""


def test_what_a_node_lacks_is_said() -> None:
    assert validation.not_ready(node(artifacts=[]), WANTED) == "Open MPI: /usr/local/openmpi does not exist"
    assert "the programs in /usr/local/libexec/clusterctl" in validation.not_ready(node(watch=[]), WANTED)
    broken = [*node().model_dump()["artifacts"]]
    broken[2] |= {"ok": False, "problem": "1 of 9 files are missing or changed, first MPI.so"}
    assert validation.not_ready(node(artifacts=broken), WANTED) == (
        "mpi4py: 1 of 9 files are missing or changed, first MPI.so"
    )


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict.PASS, ExitCode.OK),
        (Verdict.FAIL, ExitCode.VALIDATION_FAILED),
        (Verdict.ERROR, ExitCode.VALIDATION_ERROR),
        (Verdict.SKIP, ExitCode.VALIDATION_ERROR),
    ],
)
def test_exit_codes(verdict: Verdict, code: ExitCode) -> None:
    record = ValidationRecord.model_construct(verdict=verdict)
    assert validation.exit_code(record) is code


def test_the_deadline_grows_with_the_ranks_and_where_they_share_a_core() -> None:
    def deadline(slots: int, cores: int) -> float:
        return base.deadline_s(catalogue.LAUNCHED[0], base.Site("5.0.7", {"node1": slots}, cores={"node1": cores}))

    assert deadline(8, 8) < deadline(1024, 1024) < 120
    assert deadline(8, 16) == deadline(8, 8)
    assert deadline(8, 2) > 3 * deadline(8, 8)


def test_the_watched_programs_are_those_that_the_role_brings() -> None:
    tasks = Path(__file__).parents[2] / "roles" / "validation" / "tasks" / "main.yml"
    text = tasks.read_text(encoding="utf-8")
    assert all(f"path: {entry['path']}\n" in text for entry in validation.watch_entries())
    assert {path.name for path in (tasks.parents[1] / "files").iterdir()} == set(validation.PROGRAMS)


def test_an_extra_that_is_half_there_is_told_from_one_that_was_never_wanted() -> None:
    never = {"link": "/usr/local/horovod", "target": "", "version": "", "key": "", "ok": False, "name": "horovod"}
    half = {**never, "problem": "1 of 9 files are missing or changed, first mpi_lib_v2.so"}
    there = node().model_dump()["artifacts"]
    never["problem"] = "/usr/local/horovod does not exist"
    assert validation.broken_extras(node(artifacts=[*there, never])) == []
    assert validation.broken_extras(node(artifacts=[*there, half])) == [f"Horovod: {half['problem']}"]
