"""Artifacts that are installed and not switched to yet: the links of a build, the jobs in the way, and the install."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact, artifact_links
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact_links import by_tree, links_to_switch
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_build, artifact_install

if TYPE_CHECKING:
    from conftest import RunModule

pytestmark = pytest.mark.programs
KEY = "0123456789abcdef"


def install(root: Path, version: str) -> str:
    tree = root / f"mpi-{version}-{KEY}"
    tree.mkdir()
    (tree / "program").write_text(version, encoding="utf-8")
    manifest = artifact.manifest_bytes(artifact.make_manifest(str(tree)))
    (tree / artifact.MANIFEST).write_bytes(manifest)
    digest = hashlib.sha256(manifest).hexdigest()
    (tree / artifact.MARKER).write_bytes(artifact.marker_bytes("mpi", version, KEY, {}, digest))
    return tree.name


def links(root: Path) -> dict[str, str]:
    return {path.name: str(path.readlink()) for path in root.iterdir() if path.is_symlink()}


def a_build(folder: Path, argv: list[str], links: dict[str, str]) -> artifact_build.Build:
    step = {"name": "look", "argv": argv, "chdir": ".", "environment": {}, "speaks": False}
    given = {
        "name": "demo",
        "version": "1",
        "key": argv[0],
        "prefix": "/usr/local/demo",
        "host": "node1",
        **dict.fromkeys(("root", "log_dir", "work_dir"), str(folder)),
        "links_to": [],
        **dict.fromkeys(("needs_bytes", "jobs"), 0),
        "memory_per_job_bytes": 1 << 20,
        **dict.fromkeys(("memory_strict", "fresh", "while_busy"), False),
        **dict.fromkeys(("files", "prune"), ()),
        "steps": [step],
        "links": links,
    }
    return artifact_build.Build(SimpleNamespace(params=given))  # type: ignore[arg-type] # the parameters are all it reads


@pytest.fixture
def root(reachable: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two versions of an artifact, the first one linked, in a folder of their own that a build reaches."""
    monkeypatch.setattr(artifact_links, "RECORD", str(reachable / "state" / "borrowed.json"))
    folder = reachable / "root"
    folder.mkdir()
    (folder / "mpi").symlink_to(install(folder, "1"))
    install(folder, "2")
    return folder


def wanted(root: Path) -> dict[str, str]:
    return {f"{root}/mpi": f"{root}/mpi-2-{KEY}", f"{root}/new": f"{root}/mpi-2-{KEY}"}


def test_a_build_sees_the_new_links_and_leaves_the_old_ones(
    root: Path, reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_build.artifact_pack, "FOLDER", str(reachable / "packs"))
    monkeypatch.setattr(
        artifact_links.processes, "busy", lambda wanted, root: {"busy": [] if wanted and root else None}
    )
    argv = ["sh", "-c", f"mkdir -p @TREE@ && readlink {root}/mpi {root}/new > @TREE@/seen"]
    build = a_build(reachable, argv, wanted(root))
    before = links(root)
    assert build.run()["way"] == "built"
    subprocess.run(["tar", "-C", reachable, "-xf", build.packs.kept()["pack"]], check=True)
    (seen,) = reachable.rglob("seen")
    assert seen.read_text(encoding="utf-8").split() == [f"mpi-2-{KEY}"] * 2
    assert links(root) == before
    with pytest.raises(artifact.ArtifactError):
        a_build(reachable, ["false"], wanted(root)).run()
    assert links(root) == before
    assert not Path(artifact_links.RECORD).exists()


def test_a_killed_build_is_put_right_by_the_next_module(root: Path) -> None:
    before = links(root)
    pid = os.fork()
    if pid == 0:
        with artifact_links.borrowed(wanted(root), "node1", while_busy=True):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert links(root) == {"mpi": f"mpi-2-{KEY}", "new": f"mpi-2-{KEY}"}
    artifact_links.give_back()
    assert links(root) == before
    (root / "mpi").unlink()
    (root / "mpi").symlink_to(f"mpi-2-{KEY}")
    artifact_links.give_back()
    assert links(root) == {"mpi": f"mpi-2-{KEY}"}, "the record holds once"


def test_what_a_build_that_goes_on_has_borrowed_stays_with_it(root: Path) -> None:
    before = links(root)
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        with artifact_links.borrowed(wanted(root), "node1", while_busy=True):
            os.write(go, b"1")
            signal.pause()
    try:
        os.read(ready, 1)
        assert not artifact_links.give_back()
        assert links(root) == {"mpi": f"mpi-2-{KEY}", "new": f"mpi-2-{KEY}"}
        threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
        assert artifact_links.give_back(30)
        assert links(root) == before
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_links_that_already_lead_there_are_not_borrowed(root: Path) -> None:
    with artifact_links.borrowed({f"{root}/mpi": f"{root}/mpi-1-{KEY}"}, "node1", while_busy=False):
        assert not Path(artifact_links.RECORD).exists()


def test_ranks_stop_a_switch_of_links_that_are_in_use(
    root: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_links, "_MOST_NAMED", 10**6)  # this machine may have ranks of others
    argv = [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"]
    new, old = {f"{root}/new": f"{root}/mpi-2-{KEY}"}, {f"{root}/mpi": f"{root}/mpi-1-{KEY}"}
    given: Any = {"phase": "check", "while_busy": False, "host": "node7"}
    environment = {**os.environ, "OMPI_COMM_WORLD_RANK": "0"}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment) as rank:
        rank.stdout.readline()
        try:
            refused = run_module("artifact_switch", links=wanted(root), **given)
            assert refused["failed"]
            (problem,) = refused["problems"]
            assert (problem["host"], problem["check"]) == ("node7", "jobs")
            assert problem["problem"].startswith("jobs run here: ")
            assert "--while-busy" in problem["cure"]
            named = pytest.raises(artifact_links.JobsError, match=f"rank {rank.pid} of ")
            with named, artifact_links.borrowed(wanted(root), "node7", while_busy=False):
                pytest.fail("the links are not borrowed")
            assert not run_module("artifact_switch", links=wanted(root), **{**given, "while_busy": True}).get("failed")
            assert not run_module("artifact_switch", links={**new, **old}, **given).get("failed"), "nothing is left"
        finally:
            rank.kill()
    assert links(root) == {"mpi": f"mpi-1-{KEY}"}


def test_jobs_are_named_and_counted() -> None:
    busy = [{"pid": pid, "user": "user", "command": "x" * 99, "rank": pid < 3, "trees": ["/a"]} for pid in range(6)]
    assert artifact_links.words(busy, {"/b"}).count("rank") == 3
    assert artifact_links.words(busy, {"/a"}).endswith(" and 3 more")
    assert artifact_links.words(busy[3:], {"/b"}) == ""


def test_an_install_leaves_the_link_and_says_where_it_leads(root: Path, run_module: RunModule) -> None:
    given = {"name": "mpi", "version": "2", "key": KEY, "root": str(root), "closure": False}

    def asked(phase: str, *, check: bool = False, **changed: Any) -> dict[str, Any]:
        result = run_module("artifact_install", check=check, artifacts=[{**given, **changed}], phase=phase)
        answer: dict[str, Any] = result["artifacts"]["mpi"]
        assert (result["changes"], result["watch"]) == (answer["changes"], answer["watch"])
        return answer

    for phase in ("inspect", "apply"):
        result = asked(phase)
        assert (result.get("changed", False), result["changes"]) == (False, [])
        assert (result["link"], result["before"]) == (f"{root}/mpi", f"{root}/mpi-1-{KEY}")
        assert links_to_switch([result]) == {f"{root}/mpi": f"{root}/mpi-2-{KEY}"}
    shown = asked("inspect", check=True)
    assert shown["changes"] == [f"{root}/mpi -> mpi-2-{KEY}"], "a check says what the run would switch"
    assert links(root) == {"mpi": f"mpi-1-{KEY}"}
    switch = run_module("artifact_switch", links=links_to_switch([result]), host="n1")
    assert switch["changed"]
    assert links_to_switch([asked("inspect")]) == {}


def test_one_that_fails_keeps_only_what_uses_it_from_being_installed(root: Path, run_module: RunModule) -> None:
    install(root, "3")
    given = {"key": KEY, "root": str(root), "closure": False, "version": "2"}
    one = {**given, "name": "mpi", "link": f"{root}/one"}
    asked = [{**given, "name": "gone"}, {**given, "name": "user", "uses": ["gone"]}, {**given, "name": "deep"}, one]
    asked[2]["uses"] = ["user"]
    told = run_module("artifact_install", artifacts=asked, phase="apply", host="n1")
    assert list(told["artifacts"]) == ["gone", "user", "deep", "mpi"]
    gone, user, deep, mpi = told["artifacts"].values()
    assert gone["msg"].startswith(f"n1: {root}/gone-2-{KEY} is damaged")
    assert (user["left_out"], deep["left_out"]) == ("gone", "gone")
    assert not any("msg" in answer for answer in (user, deep, mpi))
    assert told["changes"] == mpi["changes"] == []
    assert links_to_switch([mpi]) == {f"{root}/one": f"{root}/mpi-2-{KEY}"}
    assert told["watch"] == mpi["watch"]


def test_the_loader_looks_into_the_folder_of_what_is_used_until_its_link_leads_there(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Any] = []

    def ask_loader(_tree: str, paths: list[str], _ignore: list[str], *, within: bool) -> Any:
        looked.append((paths, within))
        return artifact_install.library_closure.Closure([], [])

    monkeypatch.setattr(artifact_install.library_closure, "ask_loader", ask_loader)
    monkeypatch.setattr(artifact_install.library_closure, "remember", lambda *_: None)
    plain = {"version": "2", "key": KEY, "root": str(root), "link": "", "content": False, "host": "n1"}
    given = {**plain, "closure": True, "closure_ignore": [], "closure_within": False, "library_path": ["lib"]}
    paths = {"waiting_paths": [f"{root}/mpi/lib", f"{root}/other/lib"]}
    used = artifact_install.Install({**given, "name": "mpi", "closure": False})
    user = artifact_install.Install({**given, **paths, "name": "mpi", "link": f"{root}/user"}, uses=[used])
    user.inspect()
    assert looked == [], "the used one is not known to be whole yet"
    used.inspect()
    user.inspect()
    (root / "mpi").unlink()
    (root / "mpi").symlink_to(f"mpi-2-{KEY}")
    user.inspect()
    assert looked == [(["lib", f"{root}/mpi-2-{KEY}/lib"], False), (["lib"], False)]


def test_tasks_that_did_not_run_have_no_links() -> None:
    assert links_to_switch([{}, {"skipped": True}, {"failed": True, "msg": "x"}]) == {}
    new = {"link": "/usr/local/mpi", "tree": "/usr/local/mpi-1", "before": ""}
    assert json.dumps(links_to_switch([new])) == '{"/usr/local/mpi": "/usr/local/mpi-1"}'


def test_paths_through_a_link_are_found_in_its_folder() -> None:
    tree = {"/usr/local/mpi": "/usr/local/mpi-2"}
    paths = ["/usr/local/mpi/lib", "/usr/local/mpi", "/usr/local/mpi4py/lib", "/usr/local/mpi-1/lib"]
    assert by_tree(paths, tree) == ["/usr/local/mpi-2/lib", "/usr/local/mpi-2"]
    assert by_tree(paths, {}) == []
