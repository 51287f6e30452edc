"""The look at the nodes of a check that broke: what is seen there, against what the gate saw before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import factory
import pytest
from clusterctl.diagnosis import training_stack
from clusterctl.model.probe import Probe
from clusterctl.remote import facts
from clusterctl.validation import check_runner
from clusterctl.validation.team import ReadyNode, Team


def test_kills_for_lack_of_memory_and_too_few_processes_reach_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: factory.ready_node(name, memory_kills=2) for name in ("node1", "node2", "node3")}
    hosts = dict(zip(before, factory.hosts(list(before), 2), strict=True))
    nodes = {name: ReadyNode(hosts[name], node, training_stack.of(node), 2, None) for name, node in before.items()}
    after = {
        **before,
        "node2": factory.ready_node("node2", memory_kills=3),
        "node3": factory.ready_node("node3", memory_kills=2, process_room={"left": 3, "by": "nproc"}),
    }
    monkeypatch.setattr(facts, "gather", lambda *_, **__: Probe(after, {}))
    found = check_runner._on_nodes(Team(nodes, "node1"), list(before), Path())  # noqa: SLF001 - of a broken check
    told = {one.hosts: one.cause for one in found}
    assert "the kernel killed 1 of its processes for lack of memory" in told["node2",]
    assert "a session may start 3 more processes and threads (nproc)" in told["node3",]
    assert set(told) == {("node2",), ("node3",)}


def test_a_file_with_another_byte_is_named_where_a_job_broke_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen with one byte of mpi4py: a rank died of SIGSEGV, and sizes and modes were right."""
    before = {name: factory.ready_node(name) for name in ("node1", "node2")}
    hosts = dict(zip(before, factory.hosts(list(before), 2), strict=True))
    nodes = {name: ReadyNode(hosts[name], node, training_stack.of(node), 2, None) for name, node in before.items()}
    problem = "1 of 90 files are missing or changed, first site-packages/mpi4py/MPI.so (content)"
    changed = {**factory.artifact("mpi4py"), "ok": False, "problem": problem}

    def gather(_hosts: object, **asked: Any) -> Probe:
        assert asked["content"] == (0, 1, 2, 3, 4, 5, 6)
        assert [one["name"] for one in asked["artifacts"]] == ["openmpi", "mpi4py"]
        return Probe(
            {**before, "node2": factory.ready_node("node2", artifacts=[factory.artifact("openmpi"), changed])}, {}
        )

    monkeypatch.setattr(facts, "gather", gather)
    (found,) = check_runner._changed_files(Team(nodes, "node1"), list(before), Path())  # noqa: SLF001 - as above
    assert (found.hosts, found.cause) == (("node2",), f"mpi4py: {problem}")
