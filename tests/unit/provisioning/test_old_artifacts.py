"""Which artifacts a collection takes: old ones by count and age, and never one that something needs."""

from __future__ import annotations

import fcntl
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import factory
import pytest
from clusterctl.model.run_record import HostResult
from clusterctl.model.snapshot import Hold, HostSoftware, Snapshot, SoftwareSet
from clusterctl.provisioning import collect, software
from clusterctl.provisioning.collect import CacheFile, Tree
from clusterctl.state import paths
from clusterctl.state import snapshots as kept

WHEN = datetime(2026, 3, 1, tzinfo=timezone.utc)
LINK = "/usr/local/openmpi"
A, B, C, D = (f"{LINK}-5.0.{number}-{str(number) * 16}" for number in range(4))


def left(run_id: str, tree: str, verb: str = "provision") -> SoftwareSet:
    host = HostSoftware(platform="p", links={LINK: tree})
    return SoftwareSet(run_id=run_id, verb=verb, left=WHEN, hosts={"node1": host})


def tree(path: str, *, in_use: bool = False, installed: float = 100.0) -> Tree:
    return Tree(path, 3 << 20, installed, in_use)


NEWEST_FIRST = [left("6", C), left("5", C), left("4", B), left("3", B), left("2", A)]


def test_equal_sets_count_once_and_two_always_stay() -> None:
    assert collect.kept_folders(NEWEST_FIRST, None, Snapshot(), 2) == {C, B}
    assert collect.kept_folders(NEWEST_FIRST, None, Snapshot(), 0) == {C, B}
    assert collect.kept_folders(NEWEST_FIRST, None, Snapshot(), 3) == {C, B, A}
    assert collect.kept_folders([], None, Snapshot(), 2) == set()


def test_the_set_to_which_a_rollback_goes_back_stays() -> None:
    present = {"node1": HostSoftware(platform="p", links={LINK: C})}
    target = software.earlier(NEWEST_FIRST, present, None)
    assert target is not None
    assert target.hosts["node1"].links[LINK] in collect.kept_folders(NEWEST_FIRST, None, Snapshot(), 2)


def test_a_hold_and_a_snapshot_keep_what_they_name() -> None:
    watch: tuple[dict[str, Any], ...] = ({"path": D, "kind": "artifact"}, {"path": "/etc/hosts", "kind": "file"})
    host = factory.host_snapshot(*watch)
    hold = Hold(software=left("2", A), since=WHEN)
    assert collect.kept_folders(NEWEST_FIRST, hold, Snapshot(hosts={"node1": host}), 2) == {C, B, A, D}


def test_what_is_in_use_kept_or_young_stays() -> None:
    trees = {"node1": [tree(A), tree(B, in_use=True), tree(C)], "node2": [tree(C)], "node3": [tree(A, installed=900.0)]}
    assert collect.old_trees(trees, {C}, None) == {"node1": (tree(A),), "node3": (tree(A, installed=900.0),)}
    assert collect.old_trees(trees, {C}, 500.0) == {"node1": (tree(A),)}


def test_a_node_tells_of_its_own_artifacts_alone_that_they_went() -> None:
    old = {"node1": (tree(A),), "node2": (tree(A), tree(B))}
    said = ((f"removed {A}", f"removed {B}"), (f"removed {B}",))
    results = [
        HostResult(at=1.0, host=host, stage="", task="", outcome="changed", changes=its)
        for host, its in zip(("node3", "node2"), said, strict=True)
    ]
    assert collect.removed_trees(old, results) == {"node1": (), "node2": (tree(B),)}


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "/home/alice"},
        {"path": "/" + "x" * 5000 + A},
        {"path": 5},
        {"size": 1 << 70},
        {"size": -1},
        {"size": "many"},
        {"installed": None},
    ],
)
def test_what_is_no_artifact_is_not_taken_for_one(changed: dict[str, Any]) -> None:
    told = {"path": A, "size": 5, "installed": 1.0, "linked": False, "used_by": []}
    assert Tree.of(told) == Tree(A, 5, 1.0, in_use=False)
    with pytest.raises((TypeError, ValueError)):
        collect.trees_of([{**told, **changed}])
    with pytest.raises(ValueError, match="too many"):
        collect.trees_of([told] * 1001)


def cached(kind: Any, name: str, written: float = 100.0) -> CacheFile:
    return CacheFile(kind, name, name, (), 10, written)


def test_packs_go_by_need_and_sources_and_wheels_by_age() -> None:
    files = [cached("pack", "old"), cached("pack", "kept"), cached("pack", "fresh", 950.0)]
    loose = [
        cached("source", "cited"),
        cached("source", "plain"),
        cached("wheel", "w.whl"),
        cached("wheel", "x", 600.0),
    ]
    taken = collect.chosen_cache_files([*files, *loose], {"kept"}, '{"source": "cited"}', None, 900.0)
    assert [file.name for file in taken] == ["old"]
    taken = collect.chosen_cache_files([*files, *loose], {"kept"}, '{"source": "cited"}', 500.0, 900.0)
    assert [file.name for file in taken] == ["old", "plain", "w.whl"]


def test_lines_fold_hosts_and_count_bytes() -> None:
    lines = collect.artifact_lines({"node1": [tree(A)], "node2": [tree(A)], "node3": [tree(B)]}, [cached("pack", "p")])
    assert lines[0].startswith("node[1-2]: 3 MiB on each: openmpi-5.0.0-")
    assert lines[1].startswith("node3: 3 MiB: openmpi-5.0.1-")
    assert lines[2] == "cache: 10 B: p (10 B)"
    assert collect.artifact_lines({}, []) == []


@pytest.mark.parametrize(("text", "seconds"), [("12h", 43200), ("30d", 2592000), (" 4 w ", 2419200)])
def test_ages(text: str, seconds: int) -> None:
    assert collect.age(text) == seconds


@pytest.mark.parametrize("text", ["30", "d", "-1d", "1.5d", "30 days"])
def test_what_is_not_an_age(text: str) -> None:
    with pytest.raises(ValueError, match="is not an age such as"):
        collect.age(text)


def test_a_rollback_says_what_was_collected() -> None:
    probe = {"node1": factory.node(artifacts=[])}
    (problem,) = software.missing(left("2", A), {"node1": {LINK: A}}, probe, "provision {tree}", {A: WHEN})
    assert f"{A} was collected by 'clusterctl gc' on 2026-03-01" in problem.problem
    assert problem.cure == "provision openmpi 5.0.0"
    (problem,) = software.missing(left("2", A), {"node1": {LINK: A}}, probe, "provision {tree}", {B: WHEN})
    assert f"{A} is gone" in problem.problem


def test_files_of_the_cache_are_found_and_removed_with_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    base, other = "openmpi-5.0.7-0123456789abcdef", "mpi4py-4.1.2-0123456789abcdef"
    names = {
        "artifacts": [f"{base}.json", f"{base}.tar.zst", f"{base}.tar.gz", f"{base}.tar.gz.json", f"{other}.json"],
        "sources": ["openmpi-5.0.7-97f10c04e9b9a177.tar.xz"],
        "wheels": ["numpy-2.4.6-cp311.whl"],
        "locks": ["python_env-1.json"],
        "images": ["debian12.tar"],
    }
    cache = tmp_path / "clusterctl"
    for folder, inside in names.items():
        (cache / folder).mkdir(parents=True)
        for name in inside:
            (cache / folder / name).write_text(f"text of {name}")
    found = collect.found()
    assert [(file.kind, file.name, len(file.paths)) for file in found] == [
        ("pack", other, 1),
        ("pack", base, 4),
        ("source", "openmpi-5.0.7-97f10c04e9b9a177.tar.xz", 1),
        ("wheel", "numpy-2.4.6-cp311.whl", 1),
    ]
    assert found[2].mark == "97f10c04e9b9a177"
    words = collect.words({other})
    assert (f"text of {other}.json" in words, base in words, "python_env-1" in words) == (True, False, True)
    with (cache / "artifacts" / f".{other}.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # as a run that builds it
        gone, staying = collect.remove(found)
    assert ([file.name for file in staying], len(gone)) == ([other], 3)
    left_over = sorted(path.name for path in cache.rglob("*") if path.is_file() and not path.name.startswith("."))
    assert left_over == ["debian12.tar", f"{other}.json", "python_env-1.json"]


def test_what_was_collected_is_kept_by_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert kept.collected("lab") == {}
    kept.note_collected("lab", [A], WHEN)
    kept.note_collected("lab", [B], WHEN)
    assert kept.collected("lab") == {A: WHEN, B: WHEN}
    paths.collected_file("lab").write_text("[")
    assert kept.collected("lab") == {}
    kept.note_collected("lab", [A], WHEN)
    assert kept.collected("lab") == {A: WHEN}
    (aside,) = paths.collected_file("lab").parent.glob("*.damaged-*")
    assert aside.read_text() == "["


@pytest.mark.parametrize("size", [float("inf"), float("nan"), 10**400, "x", None, []])
def test_an_artifact_without_a_size_is_of_another_form(size: object) -> None:
    said = {"path": "/usr/local/x-1-a", "size": size, "installed": size, "linked": False, "used_by": []}
    with pytest.raises((KeyError, TypeError, ValueError)):
        Tree.of(said)
