"""What differs between nodes, from captured facts: each fault with the right nodes, and nothing on equal ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clusterctl.diagnosis import skew
from clusterctl.model import findings
from clusterctl.model.facts import NodeFacts

Record = dict[str, Any]
Change = Callable[[Record], object]

CAPTURED = Path(__file__).resolve().parents[2] / "data" / "stack" / "node.json"
NODES = ("node1", "node2", "node3", "node4")


def cluster(**changes: Change) -> dict[str, NodeFacts]:
    """Return four nodes of one captured record, some of them changed."""
    nodes = {}
    for name in NODES:
        record = json.loads(CAPTURED.read_text(encoding="utf-8"))
        record["hostname"] = name
        if name in changes:
            changes[name](record)
        nodes[name] = NodeFacts.model_validate(record)
    return nodes


def artifact(record: Record, name: str) -> Record:
    found: Record = next(entry for entry in record["artifacts"] if entry["link"] == f"/usr/local/{name}")
    return found


def without(*names: str) -> Change:
    def change(record: Record) -> None:
        for name in names:
            artifact(record, name).update(target="", version="", key="", ok=False, problem="does not exist")

    return change


def changed(name: str, **values: str) -> Change:
    return lambda record: artifact(record, name).update(values)


def loading_nccl(version: str) -> Change:
    """Make a node that has no NCCL of ours and whose sessions load another."""

    def change(record: Record) -> None:
        without("nccl", "horovod")(record)
        found = next(entry for entry in record["libraries"] if entry["soname"] == "libnccl.so.2")
        found.update(path="/opt/nccl/libnccl.so.2", real="/opt/nccl/libnccl.so.2", version=version, others=[])

    return change


def test_equal_nodes_differ_in_nothing() -> None:
    assert skew.skew(cluster()) == ()


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [
        (changed("openmpi", version="5.0.6"), "error", "Open MPI is 5.0.6, and "),
        (changed("openmpi", key="0000"), "error", "the build of Open MPI is "),
        (changed("mpi4py", version="3.1.6"), "error", "mpi4py is 3.1.6, and "),
        (changed("horovod", version="0.27.0"), "error", "Horovod is 0.27.0, and "),
        (changed("python_env", key="0000"), "warning", "the build of the cluster's Python is "),
        (without("mpi4py"), "error", "mpi4py is missing, and other nodes have it"),
        (lambda record: record.update(kernel="5.10.0"), "warning", "the kernel is 5.10.0, and "),
        (lambda record: record["cuda"].update(toolkit_version="11.8"), "", ""),
    ],
)
def test_the_one_that_differs_is_named(change: Change, severity: str, words: str) -> None:
    found = [finding for finding in skew.skew(cluster(node3=change)) if finding.check == "versions"]
    assert [(finding.severity, finding.hosts) for finding in found] == ([(severity, ("node3",))] if severity else [])
    assert all(finding.cause.startswith(words) for finding in found)


def test_what_one_node_alone_has_is_no_difference() -> None:
    assert skew.skew(cluster(node3=lambda record: record["cuda"].update(toolkit_version="11.8"))) == ()


def test_all_are_named_where_there_is_no_majority() -> None:
    change = changed("openmpi", version="5.0.6")
    (found,) = skew.differences(cluster(node3=change, node4=change))
    assert found.hosts == NODES
    assert "with no majority: " in found.cause
    assert "5.0.6 on node[3-4]" in found.cause


def test_the_python_of_another_platform_is_no_difference_that_a_provision_mends() -> None:
    def other(platform: str) -> Change:
        def change(record: Record) -> None:
            record["platform"] = platform
            artifact(record, "python_env").update(version="3.13", key="0000")

        return change

    fedora = other("fedora-42-x86_64-glibc2.41-py3.13")
    assert skew.differences(cluster(node3=fedora, node4=fedora)) == ()
    here = str(cluster()["node1"].platform).partition("-cuda")[0]
    (found,) = skew.differences(cluster(node3=other(f"{here}-cuda12"), node4=fedora))
    assert (found.hosts, found.cause[:27]) == (("node3",), "the cluster's Python is 3.1")


def test_a_node_that_lacks_everything_gets_one_line() -> None:
    (found,) = skew.differences(cluster(node2=without("openmpi", "python_env", "mpi4py", "nccl", "horovod")))
    assert found.hosts == ("node2",)
    assert found.cause == "Open MPI, the cluster's Python and mpi4py are missing, and other nodes have them"


def test_a_session_that_loads_another_nccl_is_named() -> None:
    changes = dict.fromkeys(NODES, loading_nccl("2.29.7")) | {"node3": loading_nccl("2.20.5")}
    (found,) = skew.skew(cluster(**changes))
    assert (found.severity, found.hosts) == ("error", ("node3",))
    assert found.cause == "libnccl.so.2 as a session loads it is 2.20.5, and 2.29.7 on most nodes"


def test_a_missing_framework_is_told_and_stops_nothing() -> None:
    change = changed("python_env", inputs={})  # type: ignore[arg-type]
    found = [finding for finding in skew.differences(cluster(node3=change)) if finding.hosts == ("node3",)]
    assert [finding.severity for finding in found] == ["warning"]
    assert found[0].cause.startswith("no training framework is installed, and other nodes of the platform have ")


def test_a_damaged_artifact_is_left_to_who_verifies_it() -> None:
    assert skew.differences(cluster(node3=changed("openmpi", version="", ok=False))) == ()  # type: ignore[arg-type]


def test_what_stack_finds_is_an_error_unless_all_nodes_share_it() -> None:
    change = changed("nccl", version="2.20.5")
    assert ("stack", "error", ("node3",)) in {
        (finding.check, finding.severity, finding.hosts) for finding in skew.skew(cluster(node3=change))
    }
    everywhere = cluster(**dict.fromkeys(NODES, changed("openmpi", key="0000")))
    assert skew.stacked(everywhere) != ()
    assert skew.skew(everywhere) == ()


def test_errors_come_first_and_equal_findings_share_a_line() -> None:
    def finding(severity: skew.Severity, host: str) -> findings.Finding:
        return findings.Finding("disk", severity, (host,), "full", "empty it")

    given = [finding("warning", "node1"), finding("error", "node2"), finding("error", "node3")]
    assert [(found.severity, found.hosts) for found in skew.ordered(given)] == [
        ("error", ("node2", "node3")),
        ("warning", ("node1",)),
    ]
