"""What hinders a launch on one node, from its facts alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import factory
import pytest
from clusterctl.diagnosis.rules import launchable, registry
from doctor_view import seen

if TYPE_CHECKING:
    from doctor_view import Record

MIB = 1 << 20
TMP = "/tmp"  # noqa: S108 - its name in a record


def scratch(path: str = TMP, **changed: Any) -> list[Record]:
    space = {"exists": True, "free_bytes": 500 * MIB, "total_bytes": 1024 * MIB, "free_inodes": 9999}
    folders: list[Record] = [{"path": TMP, **space}, {"path": launchable.SHM, **space}]
    return [{**folder, **changed} if folder["path"] == path else folder for folder in folders]


def launch(version: str = "5.0.7", **states: str) -> dict[str, Any]:
    own = "/usr/local/openmpi/bin"
    names = ("mpirun", "prterun", "prted", "orted")
    programs = [
        {
            "name": name,
            "path": f"{own}/{name}",
            "real": f"{own}/{name}",
            "own": f"{own}/{name}",
            "own_real": f"{own}/{name}",
            "own_state": states.get(name, "missing" if name == "orted" and version.startswith("5") else "ok"),
        }
        for name in names
    ]
    return {"launch": programs, "artifacts": [factory.artifact("openmpi", version)]}


def told(**changed: Any) -> list[tuple[str, str, str]]:
    node = factory.node(**{"shm_bytes": 1024 * MIB, "scratch": scratch(), **changed})
    return [(one.check, one.severity, one.cause) for one in launchable.of_node("node1", node)]


def test_a_healthy_node_can_launch() -> None:
    assert told() == told(**launch()) == told(**launch("4.1.6", orted="ok", prted="missing", prterun="missing")) == []
    assert told(scratch=scratch(free_inodes=None)) == []


@pytest.mark.parametrize(
    ("changed", "check", "severity", "words"),
    [
        (launch(prted="not executable"), "launch", "error", "/usr/local/openmpi/bin/prted is not executable"),
        (launch("4.1.6", orted="missing"), "launch", "error", "/usr/local/openmpi/bin/orted is missing"),
        ({"scratch": scratch(free_bytes=MIB)}, "temporary files", "error", f"{TMP} is full (1 of 1024 MiB are free)"),
        ({"scratch": scratch(free_inodes=0)}, "temporary files", "error", f"{TMP} is full (0 inodes are free)"),
        ({"scratch": scratch(read_only=True)}, "temporary files", "error", f"{TMP} is read-only"),
        ({"scratch": scratch(writable=False)}, "temporary files", "error", f"{TMP} is not writable for the login user"),
        ({"scratch": scratch(exists=False)}, "temporary files", "error", f"{TMP} does not exist"),
        ({"scratch": scratch(free_bytes=20 * MIB)}, "temporary files", "warning", f"{TMP} has 20 MiB free"),
        (
            {"scratch": scratch(blocked=[f"{TMP}/ompi.node1.1000"])},
            "temporary files",
            "error",
            f"{TMP}/ompi.node1.1000 belongs to another user",
        ),
        (
            {"scratch": scratch(launchable.SHM, free_bytes=0)},
            "shared memory",
            "error",
            f"{launchable.SHM} is full (0 of 1024 MiB are free)",
        ),
        (
            {"scratch": scratch(launchable.SHM, free_bytes=64 * MIB)},
            "shared memory",
            "warning",
            f"{launchable.SHM} has 64 of 1024 MiB free, and its ranks need about 128 MiB",
        ),
        ({"limits": {"nofile": {"soft": 16, "hard": 16}}}, "open files", "error", "a session may open 16 files"),
        (
            {"disk": [{"path": "/usr/local", "free_bytes": 0, "total_bytes": MIB}]},
            "disk",
            "error",
            "less than 100 MiB is free in /usr/local",
        ),
    ],
)
def test_what_hinders_a_launch_is_said_once_with_its_cause(
    changed: dict[str, Any], check: str, severity: str, words: str
) -> None:
    (found,) = told(**changed)
    assert found[:2] == (check, severity)
    assert found[2].startswith(words)


def test_doctor_has_the_same_findings() -> None:
    def full(record: Record) -> None:
        record["scratch"] = scratch(free_bytes=0)

    (found,) = registry.diagnose(seen(node3=full))
    assert (found.check, found.severity, found.hosts) == ("temporary files", "error", ("node3",))
