"""The cluster's Python from a user's own uv.lock, on real nodes.

The lock has pure wheels, an extra, a package in C, a commit of a git repository, and a member of the workspace.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import playing
import pytest
from clusterctl.sandbox import Sandbox
from clusterctl.state import paths
from clusterctl.support import content
from wheel_files import make_wheel

Start = Callable[..., Sandbox]

pytestmark = pytest.mark.cluster

PLATFORM = "manylinux2014"
LINK = "/usr/local/python_env"
ALL = '["alpha", "quick", "fetched", "member"]'
PYPROJECT = """[project]
name = "simulation"
version = "0.1"
requires-python = ">=3.11"
dependencies = ["alpha", "quick", "fetched", "member"]
[project.optional-dependencies]
more = ["beta"]
[dependency-groups]
dev = ["gamma"]
[tool.uv.sources]
fetched = {{ git = "file://{fetched}" }}
member = {{ workspace = true }}
[tool.uv.workspace]
members = ["packages/*"]
[tool.uv]
no-index = true
find-links = ["{folder}"]
"""
# its version is known in git's history alone, which does not come along
FETCHED = """[build-system]
requires = ["setuptools>=61", "setuptools-scm"]
build-backend = "setuptools.build_meta"
[project]
name = "fetched"
dynamic = ["version"]
[tool.setuptools]
py-modules = ["fetched"]
[tool.setuptools_scm]
"""
MEMBER = """[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"
[project]
name = "member"
version = "2.0"
[tool.setuptools]
py-modules = ["member"]
"""
GIT = ("git", "-c", "user.name=somebody", "-c", "user.email=somebody@example.org", "-c", "init.defaultBranch=main")
BUILDS = """[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"
[project]
name = "quick"
version = "{version}"
[tool.setuptools]
ext-modules = [{{name = "quick", sources = ["quick.c"]}}]
"""
SOURCE = """#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *unused) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0, 0, 0, 0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "quick", 0, -1, methods};
PyMODINIT_FUNC PyInit_quick(void) { return PyModule_Create(&module); }
"""


def source_archive(folder: Path, version: str, code: str) -> None:
    """Write the source archive of a package in C."""
    files = {
        "pyproject.toml": BUILDS.format(version=version),
        "PKG-INFO": f"Metadata-Version: 2.2\nName: quick\nVersion: {version}\n",
        "quick.c": code,
    }
    with tarfile.open(folder / f"quick-{version}.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"quick-{version}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


class Cluster:
    """Two nodes, a project with a uv.lock, and a folder of packages in place of an index."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box, self.folder = box, folder
        self.packages, self.project = folder / "packages", folder / "project"
        self.repository = folder / "repository"
        self.member = self.project / "packages" / "member"
        for made in (self.packages, self.project, self.repository, self.member):
            made.mkdir(parents=True)
        (self.member / "pyproject.toml").write_text(MEMBER, encoding="utf-8")
        (self.member / "member.py").write_text("value = 1\n", encoding="utf-8")
        (self.repository / "pyproject.toml").write_text(FETCHED, encoding="utf-8")
        (self.repository / "fetched.py").write_text("", encoding="utf-8")
        for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "-m", "x"), ("tag", "v3.1")):
            subprocess.run([*GIT, *words], cwd=self.repository, check=True, stdin=subprocess.DEVNULL)

    def lock(self, *, dependencies: str = ALL) -> Path:
        """Have uv lock the project."""
        text = PYPROJECT.format(folder=self.packages, fetched=self.repository).replace(ALL, dependencies, 1)
        (self.project / "pyproject.toml").write_text(text, encoding="utf-8")
        self.uv("lock", "--upgrade")
        return self.project / "uv.lock"

    def exported(self, lock: Path) -> Path:
        """Have uv write the lock of the project as a pylock.toml."""
        self.uv("export", "--frozen", "--output-file=pylock.toml", "--no-emit-project")
        return lock.with_name("pylock.toml")

    def uv(self, *arguments: str) -> None:
        argv = [str(self.folder / "uv"), *arguments, "--offline", "--no-cache", "--quiet"]
        subprocess.run(argv, cwd=self.project, check=True, stdin=subprocess.DEVNULL)

    def play(self, lock: Path, **more: Any) -> tuple[dict[str, int], str]:
        """Apply the role; return how much each host changed (-1 where it failed) and the text in one line."""
        variables = {
            "python_env_lock": str(lock),
            "preflight_cache_dir": str(self.folder / "cache"),
            "python_env_wheel_dir": str(self.packages),
            **more,
        }
        tasks = [{"import_role": {"name": "clusterctl.hpc.python_env"}, "vars": variables}]
        play = {"hosts": "all", "gather_facts": False, "roles": ["clusterctl.hpc.preflight"], "tasks": tasks}
        done = playing.play(self.box, self.folder, [play], surroundings=playing.without_an_index(), timeout_s=900)
        text = " ".join((done.stdout + done.stderr).split())
        assert "Traceback" not in text
        return playing.changes(done.stdout), text

    def said(self, node: str, *argv: str) -> str:
        return playing.said(self.box, node, "sudo", *argv)

    def installed(self, node: str) -> list[str]:
        code = "from importlib import metadata as m; print(*sorted(f'{d.name} {d.version}' for d in m.distributions()))"
        return self.said(node, f"{LINK}/bin/python", "-I", "-c", code).split()


@pytest.fixture(scope="module")
def cluster(sandbox: Start, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    sys.path.insert(0, str(content.collections_path()))
    from ansible_collections.clusterctl.hpc.plugins.plugin_utils import wheels  # noqa: PLC0415 - its path is known now

    made = Cluster(sandbox("lock", nodes=2), tmp_path_factory.mktemp("lock"))
    store = wheels.WheelStore(paths.cache_dir().value)
    target = wheels.Target.of("debian-12-x86_64-glibc2.36-py3.11")
    wanted = wheels.parse_requirements(["uv", "setuptools", "setuptools-scm", "wheel"], "test")
    for path in store.files(store.lock("test_python_lock", target, wanted, "test"), target, "test"):
        shutil.copy(path, made.packages)
    wheels.uv_program(store, made.folder)
    for name in ("alpha", "beta"):
        make_wheel(made.packages, name, "1.0")
    # some of NVIDIA's wheels for aarch64 name another platform inside
    make_wheel(made.packages, "gamma", "1.0", tag=f"py3-none-{PLATFORM}_x86_64", tag_inside=f"py3-none-{PLATFORM}_sbsa")
    source_archive(made.packages, "1.0", SOURCE)
    return made


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> str:
    """Install the project's lock; returns the folder's name."""
    recap, text = cluster.play(cluster.lock(), python_env_lock_extras=["more"])
    assert sorted(recap) == ["node1", "node2"], text
    assert -1 not in recap.values(), text
    return Path(cluster.said("node2", "readlink", LINK)).name


def test_the_nodes_have_exactly_the_packages_of_the_lock_and_what_was_built_computes(
    cluster: Cluster, installed: str
) -> None:
    for node in ("node1", "node2"):
        # the extra that was asked for, and uv's default group
        assert cluster.installed(node) == [
            *("alpha", "1.0", "beta", "1.0", "fetched", "3.1", "gamma", "1.0", "member", "2.0", "quick", "1.0")
        ]
        assert cluster.said(node, f"{LINK}/bin/python", "-c", "import quick; print(quick.answer())") == "42"
    left = cluster.said(
        "node2", "find", f"/usr/local/{installed}", "-name", "uv_*.json", "-o", "-name", "direct_url.json"
    )
    assert left == "", "notes of the build have its time and its folder"


def test_the_same_lock_elsewhere_changes_nothing_and_needs_no_file(cluster: Cluster, installed: str) -> None:
    elsewhere = cluster.folder / "elsewhere"
    shutil.copytree(cluster.project, elsewhere, dirs_exist_ok=True)
    empty = cluster.folder / "empty"
    empty.mkdir()
    for wheel in cluster.packages.glob("uv-*.whl"):
        shutil.copy(wheel, empty)
    recap, text = cluster.play(elsewhere / "uv.lock", python_env_lock_extras=["more"], python_env_wheel_dir=str(empty))
    assert recap == {"node1": 0, "node2": 0}, text
    assert cluster.said("node1", "readlink", LINK) == installed


def test_a_source_that_does_not_compile_is_named_and_the_former_environment_stays(
    cluster: Cluster, installed: str
) -> None:
    source_archive(cluster.packages, "2.0", "#error this does not compile\n")
    recap, text = cluster.play(cluster.lock())
    assert -1 in recap.values(), text
    assert "build quick" in text
    assert cluster.said("node1", "readlink", LINK) == installed
    assert cluster.said("node2", "sh", "-c", f"ls -d {LINK}-*") == f"/usr/local/{installed}"
    (cluster.packages / "quick-2.0.tar.gz").unlink()


def test_a_changed_member_of_the_workspace_is_built_anew(cluster: Cluster, installed: str) -> None:
    (cluster.member / "member.py").write_text("value = 2\n", encoding="utf-8")
    recap, text = cluster.play(cluster.lock(), python_env_lock_extras=["more"])
    assert -1 not in recap.values(), text
    assert cluster.said("node2", "readlink", LINK) != installed
    assert cluster.said("node2", f"{LINK}/bin/python", "-c", "import member; print(member.value)") == "2"


def test_a_commit_that_is_gone_is_named_and_nothing_is_changed(cluster: Cluster) -> None:
    before = cluster.said("node1", "readlink", LINK)
    lock = cluster.lock()
    text = lock.read_text(encoding="utf-8")
    lock.write_text(re.sub(r"#[0-9a-f]{40}", f"#{'1' * 40}", text), encoding="utf-8")
    recap, text = cluster.play(lock)
    assert -1 in recap.values()
    assert f"does not have the commit {'1' * 40}; run 'uv lock' again, or push the commit" in text
    assert cluster.said("node1", "readlink", LINK) == before


def test_a_changed_lock_is_a_new_environment(cluster: Cluster, installed: str) -> None:
    recap, text = cluster.play(cluster.lock(dependencies='["alpha"]'))
    assert -1 not in recap.values(), text
    assert cluster.installed("node2") == ["alpha", "1.0", "gamma", "1.0"]
    assert cluster.said("node2", "readlink", LINK) != installed


@pytest.mark.usefixtures("installed")
def test_a_file_that_differs_from_the_lock_is_refused_before_anything_is_changed(cluster: Cluster) -> None:
    make_wheel(cluster.packages, "delta", "1.0")
    # uv.lock has no sums of a folder's files, and pylock.toml has
    lock = cluster.exported(cluster.lock(dependencies='["delta"]'))
    make_wheel(cluster.packages, "delta", "1.0", "alpha")
    before = cluster.said("node1", "readlink", LINK)
    recap, text = cluster.play(lock)
    assert -1 in recap.values()
    assert "delta==1.0 is not the one that was pinned (its sha256 differs)" in text
    assert "kind: configuration" in text
    assert cluster.said("node1", "readlink", LINK) == before
    assert "python_env_lock (pylock.toml)" in text
