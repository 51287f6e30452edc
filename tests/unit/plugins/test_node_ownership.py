"""The mark of a cluster and the lock of a run on a node: this machine, with folders of the test's own."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_ownership import mark_and_lock
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_ownership.mark_and_lock import Node
from clusterctl.provisioning import node_ownership
from clusterctl.remote import python

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunModule  # type: ignore[attr-defined]

WANTED = {
    "cluster": "ours",
    "name": "lab",
    "controller": "first@desk",
    "inventory": "/lab.ini",
    "members": {"node1": "192.0.2.1", "node2": "192.0.2.2"},
}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(str(tmp_path / "state"), str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("cluster", "names", "addresses", "lost"),
    [
        ("ours", [], [], []),  # the cluster's own inventory may list fewer nodes
        ("theirs", ["node1", "node2"], [], []),
        ("theirs", ["node1", "node2", "node3"], [], []),
        ("theirs", ["node1"], [], ["node2"]),
        ("theirs", ["Node1", "NODE2"], [], []),
        ("", ["node1"], ["192.0.2.1"], ["node2"]),
        ("theirs", ["a", "b"], ["192.0.2.1", "192.0.2.2"], []),
        ("theirs", ["a", "192.0.2.2"], ["192.0.2.1", ""], ["node2"]),
    ],
)
def test_a_node_is_foreign_where_its_cluster_would_lose_a_member(
    cluster: str, names: list[str], addresses: list[str], lost: list[str]
) -> None:
    mark = mark_and_lock.fresh_mark(WANTED, None, "now")
    assert mark_and_lock.lost_members(mark, cluster, names, addresses) == lost


@pytest.mark.parametrize(
    "data", [None, [], {}, {"schema": 2}, {"schema": 1, "members": []}, {"schema": 1, "members": {}}]
)
def test_a_damaged_mark_counts_as_missing(data: Any) -> None:
    assert mark_and_lock.mark_of(data) is None


def test_a_mark_is_written_once_and_keeps_its_beginning(node: Node, tmp_path: Path) -> None:
    assert node.mark() is None
    assert node.write_mark(WANTED)
    before = node.mark()
    assert before is not None
    assert not node.write_mark(WANTED)
    assert node.write_mark({**WANTED, "members": {"node1": "192.0.2.1"}})
    after = node.mark()
    assert (after["since"], after["members"]) == (before["since"], {"node1": "192.0.2.1"})
    assert node.write_mark({**WANTED, "cluster": "other", "since": "2026-01-02T03:04:05Z"})
    assert (node.mark() or {})["since"] == "2026-01-02T03:04:05Z", "the run's time, which is that of all its nodes"
    place = tmp_path / "state" / "cluster.json"
    assert stat.S_IMODE(place.stat().st_mode) == 0o644
    node.forget_mark()
    node.forget_mark()
    assert list((tmp_path / "state").iterdir()) == []


def test_a_lock_excludes_other_runs_and_other_names_of_the_machine(node: Node, tmp_path: Path) -> None:
    mine = {"run": "a", "host": "node1", "user": "first"}
    assert node.take(mine) is None
    assert node.take(mine) is None, "the run has it already"
    assert node.take({"run": "a", "host": "alias"}) == mine
    assert node.take({"run": "b", "host": "node1"}) == mine
    assert node.take({"run": "b", "host": "node1"}, instead="c") == mine, "another run has ended"
    node.release("b")
    assert (tmp_path / "run" / "lock").is_file(), "only its own run releases it"
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700, "no other user may open and hold it"
    assert node.take({"run": "b", "host": "node1"}, instead="a") is None
    node.release("b")
    assert not (tmp_path / "run").exists()
    node.release("b")


def test_a_lock_that_a_killed_program_left_half_written_is_free(node: Node, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").write_text('{"run": "a"')
    assert node.take({"run": "b", "host": "node1"}) is None


def test_of_many_runs_at_once_one_gets_the_lock(node: Node) -> None:
    for turn in range(20):
        with ThreadPoolExecutor(8) as pool:
            taken = list(pool.map(lambda n: node.take({"run": f"{n}", "host": "node1"}), range(8)))
        assert sum(answer is None for answer in taken) == 1, turn
        for run in range(8):
            node.release(f"{run}")


def test_root_writes_through_no_link(node: Node, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="run"):
        node.take({"run": "a", "host": "node1"})
    assert list((tmp_path / "elsewhere").iterdir()) == []


def send(tmp_path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Run the program as ssh runs it on a node."""
    program = python.program(node_ownership.NODE_OWNERSHIP)
    done = subprocess.run(
        program.argv(sys.executable, "/usr/bin", ""),
        input=program.data + json.dumps(request).encode(),
        capture_output=True,
        check=True,
        env={**os.environ, **folders(tmp_path)},
    )
    return dict(json.loads(done.stdout)["node_ownership"])


def folders(tmp_path: Path) -> dict[str, str]:
    names = {"STATE": "state", "RUN": "run", "AUDIT": "log/audit.jsonl"}
    return {f"CLUSTERCTL_CLAIM_{word}": str(tmp_path / name) for word, name in names.items()}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root claims a node")
def test_the_program_takes_no_lock_on_a_foreign_node_unless_it_is_adopted(tmp_path: Path) -> None:
    lock = {"run": "a", "host": "node1"}
    look = {"names": ["node1"], "addresses": ["192.0.2.1"], "cluster": "theirs", "lock": lock}
    assert send(tmp_path, {**look, "mark": WANTED})["taken"]
    again = send(tmp_path, {**look, "lock": {**lock, "run": "b"}})
    assert (again["taken"], again["lost"], again["mark"]["inventory"]) == (False, ["node2"], "/lab.ini")
    held = send(tmp_path, {**look, "adopt": True, "lock": {**lock, "run": "b"}})
    assert held["holder"]["run"] == "a"
    send(tmp_path, {"release": "a"})
    send(tmp_path, {"forget": "theirs"})
    assert send(tmp_path, {})["mark"] is not None
    send(tmp_path, {"forget": "ours"})
    assert send(tmp_path, {})["mark"] is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root claims a node")
def test_what_a_run_takes_from_others_is_audited_once_it_has_it(tmp_path: Path) -> None:
    audit = {"run": "b", "user": "operator", "controller": "desk", "changes": ["took the lock"]}
    place = tmp_path / "log" / "audit.jsonl"
    send(tmp_path, {"lock": {"run": "a", "host": "node1"}})
    send(tmp_path, {"lock": {"run": "b", "host": "node1"}, "instead": "z", "audit": audit})
    assert not place.exists(), "the lock stayed with its run"
    send(tmp_path, {"lock": {"run": "b", "host": "node1"}, "instead": "a", "audit": audit})
    send(tmp_path, {"mark": WANTED, "audit": {**audit, "changes": ["taken over"]}})
    lines = [json.loads(line) for line in place.read_text().splitlines()]
    assert [line["changes"] for line in lines] == [["took the lock"], ["taken over"]]
    assert {(line["run"], line["user"], line["controller"], line["action"]) for line in lines} == {
        ("b", "operator", "desk", "clusterctl.hpc.node_ownership")
    }


def test_the_module_refuses_and_adopts(run_module: RunModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in folders(tmp_path).items():
        monkeypatch.setenv(name, value)
    given = {"host": "node1", "names": ["node1"], "members": [{"name": "node1", "address": "192.0.2.1"}]}
    assert not run_module("node_ownership", **given)["changed"]
    Node(str(tmp_path / "state"), "").write_mark(WANTED)
    refused = run_module("node_ownership", **given)
    assert refused["failed"]
    for word in ("node1 belongs to the cluster of /lab.ini", "first@desk", "would lose node2", "preflight_adopt=true"):
        assert word in refused["msg"]
    assert refused["problems"][0]["kind"] == "configuration"
    assert not run_module("node_ownership", **given, cluster="ours")["changed"]
    assert run_module("node_ownership", **given, adopt=True, check=True)["changed"]
    done = run_module("node_ownership", **given, adopt=True)
    assert done["changes"] == ["taken over from the cluster ours of /lab.ini, set up by first@desk"]
    assert not run_module("node_ownership", **given)["changed"]
