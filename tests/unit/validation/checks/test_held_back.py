"""A node whose control group held it back: the kernel's count becomes the cause of a FAIL."""

from __future__ import annotations

import hashlib
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import factory
import node_programs
import pytest
from clusterctl.model.job_outcome import OutputLine
from clusterctl.model.results import Culprit, Verdict
from clusterctl.validation import check_runner
from clusterctl.validation.checks import base, judging, rank_output

SITE = base.Site("5.0.7", {"node1": 2, "node2": 2}, names={"n1": "node1", "n2": "node2"})
WORDS = "node2 was held back 4.1 s by its control group (quota 0.1 of a core for 2 slots)"


def line(host: str = "n2", **changed: Any) -> OutputLine:
    given = {"held_s": 4.1, "held_part": 0.9, "quota_cores": 0.1, **changed}
    event = {"clusterctl": 1, "event": "held_back", "check": "hello", "rank": 2, "host": host, **given}
    return OutputLine("stdout", 5.0, json.dumps(event))


def test_the_last_count_of_a_node_is_taken_and_named_with_quota_and_slots() -> None:
    (found,) = check_runner.throttled([line(held_s=1.0), line()], SITE)
    assert found.words == WORDS
    (two,) = check_runner.throttled([line(quota_cores=1.5)], SITE)
    assert "(quota 1.5 cores for 2 slots)" in two.words


@pytest.mark.parametrize(
    "harmless", [{"held_s": 0.4}, {"held_part": 0.05}, {"quota_cores": 2.0}, {"host": "elsewhere"}, {"held_s": "x"}]
)
def test_a_quota_that_covers_the_slots_or_hardly_matters_names_nobody(harmless: dict[str, Any]) -> None:
    assert check_runner.throttled([line(**harmless)], SITE) == ()


def test_a_pass_becomes_a_fail_and_slow_links_of_the_node_follow_from_the_quota() -> None:
    held = check_runner.throttled([line()], SITE)
    failed = check_runner.with_throttling(factory.check(), held)
    assert (failed.verdict, failed.hosts) == (Verdict.FAIL, ("node2",))
    assert failed.reason.startswith(f"{WORDS}; raise its CPU quota")
    assert [(one.kind, one.nodes) for one in failed.culprits] == [("node", ("node2",))]
    assert "CPU quota" in failed.culprits[0].cure
    slow = Culprit(kind="pair", nodes=("node1", "node2"), words="slow")
    suspect = factory.check(verdict=Verdict.FAIL, hosts=("node1", "node2"), culprits=(slow,))
    again = check_runner.with_throttling(suspect, held)
    assert (again.hosts, len(again.culprits)) == (("node2",), 1)
    assert again.reason.startswith(f"{WORDS}; pairs is FAIL; raise")


def test_groups_that_are_slow_towards_each_other_stay_and_no_node_of_them_is_blamed() -> None:
    sides = (("node3", "node4"), ("node5", "node6"))
    between = Culprit(kind="boundary", nodes=(*sides[0], *sides[1]), groups=sides, words="slow between them")
    suspect = factory.check(verdict=Verdict.FAIL, hosts=(), culprits=(between,))
    again = check_runner.with_throttling(suspect, check_runner.throttled([line()], SITE))
    assert (again.hosts, len(again.culprits)) == (("node2",), 2)


def test_wrong_answers_keep_their_node() -> None:
    wrong = factory.ranks("node1", "node2", ok=False, compared=9, wrong=1)
    result = factory.check(verdict=Verdict.FAIL, hosts=("node1",), ranks=wrong)
    assert check_runner.with_throttling(result, check_runner.throttled([line()], SITE)).hosts == ("node1", "node2")


def test_the_event_is_not_taken_for_an_answer_of_the_rank() -> None:
    output = rank_output.read([line()], SITE.placement, SITE.names)
    assert {report.state for report in output.ranks} == {"absent"}


# --- what the node's program counts ---


def group(folder: Path, throttled: int, usec: int, quota: str = "10000") -> Path:
    (folder / "job").mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.controllers").write_text("cpu", encoding="ascii")
    (folder / "job" / "cpu.max").write_text(f"{quota} 100000\n", encoding="ascii")
    counts = f"nr_periods {2 * throttled}\nnr_throttled {throttled}\nthrottled_usec {usec}\n"
    (folder / "job" / "cpu.stat").write_text(counts, encoding="ascii")
    (folder / "own").write_text("0::/job/rank\n", encoding="ascii")
    return folder


def test_the_program_counts_what_came_since_its_start(tmp_path: Path) -> None:
    program = node_programs.load("control_group")
    before = program.count(group(tmp_path, 10, 1_000_000), tmp_path / "own")
    after = program.count(group(tmp_path, 40, 5_100_000), tmp_path / "own")
    assert after.since(before) == {"held_s": 4.1, "held_part": 0.5, "quota_cores": 0.1}
    assert before.since(before) == {}
    assert program.count(group(tmp_path, 40, 5_100_000, "max"), tmp_path / "own") == program.Count()


def test_the_older_control_groups_are_counted_where_a_container_sees_its_own_as_the_root(tmp_path: Path) -> None:
    program = node_programs.load("control_group")
    (tmp_path / "cpu").mkdir()
    files = {
        "cpu.cfs_quota_us": "150000",
        "cpu.cfs_period_us": "100000",
        "cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 2000000000",
    }
    for name, text in files.items():
        (tmp_path / "cpu" / name).write_text(text, encoding="ascii")
    (tmp_path / "own").write_text("3:cpu:/of/the/host\n2:cpuset:/\n", encoding="ascii")
    assert program.count(tmp_path, tmp_path / "own") == program.Count(1.5, 9, 3, 2.0)


# --- libraries of MPI whose content is not what was installed ---


NODES = ("node1", "node2", "node3")
THREE = base.Site(
    "5.0.7",
    dict.fromkeys(NODES, 1),
    platforms={"node1": "debian", "node2": "debian", "node3": "debian", "node4": "rocky"},
    libraries=dict.fromkeys(NODES, "/usr/local/openmpi-5.0.7-k"),
)


def mapped(host: str, digest: str = "a", *changed: str, name: str = "libmpi.so.40") -> OutputLine:
    files = {name: digest, "libpmix.so.2": "p"}
    event = {"clusterctl": 1, "event": "mapped", "rank": 0, "host": host, "files": files, "changed": changed}
    return OutputLine("stdout", 1.0, json.dumps(event))


def test_equal_contents_are_fine_and_platforms_may_differ() -> None:
    assert judging.changed(THREE, [mapped(node) for node in NODES]) is None
    assert judging.changed(THREE, [*(mapped(node) for node in NODES), mapped("node4", "b")]) is None
    assert judging.changed(THREE, []) is None


def test_the_manifest_names_the_node_even_of_two() -> None:
    path = "/usr/local/openmpi-5.0.7-k/lib/libmpi.so.40"
    found = judging.changed(THREE, [mapped("node1"), mapped("node2", "b", path)])
    assert found.hosts == ("node2",)
    assert "libmpi.so.40 on node2 is not the file that was installed" in found.reason
    assert "remove /usr/local/openmpi-5.0.7-k" in found.cure


def test_a_file_of_any_artifact_names_its_node_and_its_folder() -> None:
    path = "/usr/local/mpi4py-4.1.2-9b424f587360b5a6/site-packages/mpi4py/__init__.py"
    found = judging.changed(THREE, [mapped("node1"), mapped("node2", "a", path)])
    assert found.hosts == ("node2",)
    assert "__init__.py on node2 is not the file that was installed" in found.reason
    assert "remove /usr/local/mpi4py-4.1.2-9b424f587360b5a6 and run 'clusterctl provision' again" in found.cure
    stray = judging.changed(THREE, [mapped("node2", "a", "/usr/local/../../etc/nccl-2/x")])
    assert "remove /usr/local/openmpi-5.0.7-k" in stray.cure


def test_without_a_manifest_the_majority_decides() -> None:
    found = judging.changed(THREE, [mapped("node1"), mapped("node2"), mapped("node3", "b")])
    assert (found.hosts, found.reason) == (("node3",), "libmpi.so.40 has another content on node3 than on most nodes")
    tie = judging.changed(THREE, [mapped("node1"), mapped("node3", "b")])
    assert set(tie.hosts) == {"node1", "node3"}


# --- what the node's program finds ---


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """An artifact with one library that this test maps, and its manifest."""
    folder = tmp_path / "openmpi-5"
    (folder / "lib").mkdir(parents=True)
    library = folder / "lib" / "libmpi.so.40"
    library.write_bytes(b"x" * 5000)
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    manifest = {"files": [["lib", "d", 0, ""], ["lib/libmpi.so.40", "f", 5000, digest, "0644"]]}
    (folder / ".clusterctl.files.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


MAPS = (
    "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=1); print(flush=True); input()"
)


def looked(artifact: Path) -> dict[str, Any]:
    """Return what the program says of a process that has the library mapped."""
    program = node_programs.load("mpi_checks")
    said: list[dict[str, Any]] = []
    argv = [sys.executable, "-c", MAPS, str(artifact / "lib" / "libmpi.so.40")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        contents = program.Contents(lambda _event, **figures: said.append(figures))
        assert [contents.look(process.pid) for _ in range(2)] == [False, True]
        process.communicate(b"\n")
    return said[0]


def test_a_flipped_bit_in_a_mapped_library_is_seen(artifact: Path) -> None:
    library = artifact / "lib" / "libmpi.so.40"
    whole = looked(artifact)
    assert whole["changed"] == []
    assert whole["files"]["libmpi.so.40"] == hashlib.sha256(b"x" * 5000).hexdigest()
    data = bytearray(library.read_bytes())
    data[3000] ^= 1
    library.write_bytes(data)
    assert looked(artifact)["changed"] == [str(library)]
    assert library.stat().st_size == 5000


def test_a_file_that_a_check_has_imported_is_compared(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = node_programs.load("contents")
    module = artifact / "lib" / "planted.py"
    module.write_text("value = 1\n", encoding="utf-8")
    manifest = json.loads((artifact / program.MANIFEST).read_text(encoding="utf-8"))
    entry = ["lib/planted.py", "f", 10, hashlib.sha256(module.read_bytes()).hexdigest(), "0644"]
    manifest["files"].append(entry)
    (artifact / program.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    monkeypatch.syspath_prepend(str(artifact / "lib"))
    importlib.import_module("planted")
    assert program.compared(program.used())["changed"] == []
    module.write_text("value = 2\n", encoding="utf-8")
    assert program.compared(program.used())["changed"] == [str(module)]
    assert program.compared(program.used(), within_s=-1.0)["changed"] == []  # there was no time
