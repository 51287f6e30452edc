"""``clusterctl run --project`` on real nodes: the lock of a project becomes an environment beside the cluster's own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from validated import CLUSTERCTL, Cluster
from wheel_files import make_wheel

pytestmark = pytest.mark.cluster

BOTH = "node1,node2"
NAME = "clusterctl_project_probe"
PROGRAM = f"import sys, {NAME} as probe; print(probe.version, sys.prefix, flush=True)\n"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("of-user") / "simulation"
    folder.mkdir()
    (folder / "main.py").write_text(PROGRAM, encoding="utf-8")
    (folder / "pyproject.toml").write_text('[build-system]\nrequires = ["setuptools"]\n', encoding="utf-8")
    (folder / "src").mkdir()
    (folder / "src" / "own_modules.py").write_text("", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(fresh_cluster: Cluster, project: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    packages = project.parent / "packages"
    state = tmp_path_factory.mktemp("state")

    wheels = {version: make_wheel(packages, NAME, version).read_bytes() for version in ("1.0", "2.0")}

    def clusterctl(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CLUSTERCTL, *argv],
            env={**os.environ, "PIP_FIND_LINKS": str(packages), "XDG_STATE_HOME": str(state)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def start(
        version: str, *program: str, options: tuple[str, ...] = (), verb: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        if verb:
            return clusterctl(*verb, "--limit", BOTH, str(fresh_cluster.box.inventory), *program)
        digest = hashlib.sha256(wheels[version]).hexdigest()
        lock = f"{NAME}=={version} --hash=sha256:{digest}\n"
        (project / "requirements.txt").write_text(lock, encoding="utf-8")
        argv = ["run", "--limit", BOTH, "--project", str(project), *options]
        return clusterctl(*argv, str(fresh_cluster.box.inventory), "--", *program)

    return start


def said(done: subprocess.CompletedProcess[str]) -> set[str]:
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines())


def test_a_lock_is_installed_once_beside_the_cluster_s_own_environment(fresh_cluster: Cluster, run: Run) -> None:
    link = fresh_cluster.on("node2", "readlink", "/usr/local/python_env")
    first = run("1.0", "python", "main.py")
    (words,) = said(first)
    version, tree = words.split()
    assert version == "1.0"
    assert tree.startswith("/usr/local/python_env-3.")
    assert "software" in first.stderr
    again = run("1.0", "python", "main.py")
    assert said(again) == {words}
    assert "software" not in again.stderr, "nothing is installed a second time"
    assert fresh_cluster.on("node2", "readlink", "/usr/local/python_env") == link
    (changed,) = said(run("2.0", "python", "main.py"))
    assert changed.split()[0] == "2.0"
    assert changed.split()[1] != tree
    assert said(run("1.0", "python", "main.py")) == {words}, "the way back needs no installation"


def test_the_program_imports_the_project_s_own_modules_from_the_copy(run: Run) -> None:
    program = ("python", "-c", "import own_modules; print(own_modules.__file__)")
    (place,) = said(run("1.0", *program))
    assert place.endswith("/clusterctl/simulation/src/own_modules.py")
    assert "own_modules" in run("1.0", *program, options=("--chdir", "/usr")).stderr, (
        "there it is the user's own choice"
    )


def test_an_environment_that_is_gone_is_installed_again(fresh_cluster: Cluster, run: Run) -> None:
    (words,) = said(run("1.0", "python", "main.py"))
    fresh_cluster.on("node2", "rm", "-rf", words.split()[1])
    done = run("1.0", "python", "main.py")
    assert said(done) == {words}
    assert "is gone from node2" in done.stderr


def test_environments_are_shown_and_removed(fresh_cluster: Cluster, run: Run) -> None:
    def shown() -> dict[str, dict[str, object]]:
        done = run("", "--format", "json", verb=("env", "list"))
        assert done.returncode == 0, done.stderr
        return {next(iter(one["folders"].values())): one for one in json.loads(done.stdout)["environments"]}

    trees = {version: said(run(version, "python", "main.py")).pop().split()[1] for version in ("1.0", "2.0")}
    found = shown()
    assert set(found) == set(trees.values())
    one = found[trees["2.0"]]
    assert (one["hosts"], one["gone_from"], one["packages"]) == (["node1", "node2"], [], 1)
    assert trees["2.0"].startswith(f"/usr/local/python_env-{one['python']}-")
    digest = str(one["digest"])
    lines = run("", verb=("env", "list")).stdout.splitlines()
    assert lines[1].split()[:3] == [digest[:12], one["python"], "1"], "the one used last is the first"
    assert run("", digest[:8], "--check", verb=("env", "gc")).returncode == 0
    assert set(shown()) == set(trees.values())
    done = run("", digest[:8], "--yes", verb=("env", "gc"))
    assert done.returncode == 0, done.stderr
    for node in ("node1", "node2"):
        there = fresh_cluster.on(node, "sh", "-c", "ls -d /usr/local/python_env-*").split()
        assert trees["2.0"] not in there
        assert trees["1.0"] in there
    assert set(shown()) == {trees["1.0"]}
    fresh_cluster.on("node2", "rm", "-rf", trees["1.0"])
    assert shown()[trees["1.0"]]["gone_from"] == ["node2"]
    assert run("", "--older-than", "30d", "--yes", verb=("env", "gc")).stderr.count("Nothing to do") == 1
    run("", "--older-than", "0h", "--yes", verb=("env", "gc"))
    assert shown() == {}
    assert "There is no environment of a project" in run("", verb=("env", "list")).stdout


def test_a_launcher_of_nodes_has_the_project_s_programs(run: Run) -> None:
    script = "command -v python; echo $NNODES"
    done = run("1.0", "sh", "-c", script, options=("--launcher", "none"))
    (tree,) = {line.removesuffix("/bin/python") for line in said(done) if line != "2"}
    assert tree.startswith("/usr/local/python_env-3.")


def test_what_the_project_lacks_is_named_before_the_start(run: Run) -> None:
    done = run("1.0", "main.py", options=("--launcher", "torchrun"))
    assert done.returncode == 1
    assert "needs torch, which is missing on node[1-2]; add torch to the lock of the project" in done.stderr


def test_a_lock_that_cannot_be_installed_leaves_the_nodes_alone(
    fresh_cluster: Cluster, run: Run, project: Path
) -> None:
    def trees() -> str:
        return fresh_cluster.on("node1", "sh", "-c", "ls -d /usr/local/python_env*")

    before = trees()
    lock = project / "uv.lock"
    lock.write_text("no lock [", encoding="utf-8")
    try:
        done = run("1.0", "python", "main.py")
    finally:
        lock.unlink()
    assert done.returncode == 1
    assert "uv.lock" in done.stderr
    assert trees() == before
