"""A user's project: its lock, and which environment of it the nodes have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import factory
import pytest
from clusterctl.inventory import ansible_inventory
from clusterctl.model.hosts import InventoryOptions
from clusterctl.provisioning import collect, project, project_install
from clusterctl.provisioning.project import NotInstalledError, Project
from clusterctl.state import environments, paths
from clusterctl.state.environments import Environment
from clusterctl.support.errors import ConfigError

TREE = "/usr/local/python_env-3.11-0123456789abcdef"
OTHER = "/usr/local/python_env-3.12-fedcba9876543210"


def with_lock(folder: Path, text: str = "a==1\n", name: str = "requirements.txt") -> Project:
    (folder / name).write_text(text, encoding="utf-8")
    return Project.of(folder)


def test_the_digest_is_that_of_the_lock_and_of_what_uv_reads_with_it(tmp_path: Path) -> None:
    first = with_lock(tmp_path)
    (tmp_path / "train.py").write_text("changed", encoding="utf-8")
    assert Project.of(tmp_path) == first, "code is no part of it"
    assert with_lock(tmp_path, "a==2\n").digest != first.digest
    uv = with_lock(tmp_path, "version = 1\n", "uv.lock")
    assert uv.lock.name == "uv.lock", "it goes before requirements.txt"
    assert with_lock(tmp_path, "[project]\n", "pyproject.toml").digest != uv.digest


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("uv.lock", '[[package]]\nname = "member"\nsource = { editable = "inner" }\n'),
        ("uv.lock", '[[package]]\nname = "member"\nsource = { directory = "inner" }\n'),
        ("pylock.toml", "[[packages]]\nname = 'member'\ndirectory = {path = 'inner'}\n"),
        ("requirements.txt", "numpy\n-e ./inner ; python_version > '3'\n"),
        ("requirements.txt", "member @ file://{}/inner\n"),
    ],
)
def test_a_folder_that_the_lock_names_is_part_of_it(tmp_path: Path, name: str, line: str) -> None:
    inner = tmp_path / "inner"
    (inner / "build").mkdir(parents=True)
    (inner / "member.py").write_text("", encoding="utf-8")
    first = with_lock(tmp_path, line.format(tmp_path) if "{}" in line else line, name)
    (tmp_path / "train.py").write_text("changed", encoding="utf-8")
    (inner / "build" / "member.py").write_text("left", encoding="utf-8")
    (inner / ".cache").mkdir()
    (inner / ".cache" / "x").write_text("left", encoding="utf-8")
    assert Project.of(tmp_path) == first
    (inner / "member.py").write_text("changed", encoding="utf-8")
    assert Project.of(tmp_path).digest != first.digest


@pytest.mark.parametrize(
    ("name", "counts"), [(".data/x", True), ("src/build/x", True), (".cache/x", False), ("a.pyc", False)]
)
def test_what_is_packed_of_a_named_folder_makes_another_environment(tmp_path: Path, name: str, counts: bool) -> None:
    file = tmp_path / "inner" / name
    file.parent.mkdir(parents=True)
    file.write_text("one", encoding="utf-8")
    first = with_lock(tmp_path, "./inner\n")
    file.write_text("two", encoding="utf-8")
    assert (Project.of(tmp_path).digest != first.digest) is counts


def test_a_named_folder_with_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "_MOST_FILES", 1)
    for name in ("inner/a", "inner/b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="inner, which has more than 1 files; move data out of it"):
        with_lock(tmp_path, "./inner\n")


@pytest.mark.parametrize(
    ("pyproject", "src", "given", "directory", "exported"),
    [
        ("[build-system]\n", True, (), "", ("PYTHONPATH=src",)),
        ("[build-system]\n", False, ("A=1",), "", ("A=1", "PYTHONPATH=.")),
        ("[build-system]\n", True, (), "examples/one", ("PYTHONPATH=../../src",)),
        ("[build-system]\n", True, (), "/data", ()),
        ("[build-system]\n", True, ("PYTHONPATH=mine",), "", ("PYTHONPATH=mine",)),
        ("[build-system]\n", True, ("PYTHONPATH",), "", ("PYTHONPATH",)),
        ("[project]\n", True, (), "", ()),
        ("[build-system]\n[tool.uv]\npackage = false\n", True, (), "", ()),
    ],
)
def test_the_program_finds_the_modules_of_a_project_that_is_a_package(
    tmp_path: Path, pyproject: str, src: bool, given: tuple[str, ...], directory: str, exported: tuple[str, ...]
) -> None:
    with_lock(tmp_path, pyproject, "requirements.txt")
    (tmp_path / "pyproject.toml").write_text(pyproject, encoding="utf-8")
    if src:
        (tmp_path / "src").mkdir()
    assert Project.of(tmp_path).exported(given, directory) == exported


def test_what_is_no_project_is_refused_with_a_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"has no lock \(uv.lock, .*make one there with 'uv lock'"):
        Project.of(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder; --project takes the folder of your project"):
        Project.of(tmp_path / "missing")
    monkeypatch.setattr(project, "_MOST_BYTES", 3)
    with pytest.raises(ConfigError, match=r"requirements.txt is longer than"):
        with_lock(tmp_path)


class Nodes:
    """Stands in for the installation on nodes, and counts it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inventory = folder / "i.ini"
        self.inventory.write_text("node1\nnode2\n", encoding="utf-8")
        self.installed: list[Sequence[str]] = []
        self.trees = {"node1": TREE, "node2": TREE}
        self.exit_code = 0
        self.argv: tuple[str, ...] = ()
        monkeypatch.setattr(project_install, "install", self.install)

    def install(self, request: project_install.ProjectRequest, _observer: object) -> project_install.Installed:
        selected = ansible_inventory.load(self.inventory, request.options).selected
        self.installed.append(selected)
        self.argv = request.argv
        record = factory.run_record(exit_code=self.exit_code, warnings=("uv chose 2 packages",))
        return project_install.Installed(record, {name: self.trees[name] for name in selected})

    @contextlib.contextmanager
    def observer(self) -> Iterator[Any]:
        yield None

    def environment(self, its: Project, **more: Any) -> dict[str, str]:
        options = more.pop("options", InventoryOptions())
        return project.environment(its, self.inventory, options, more.pop("observer", self.observer), **more)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Nodes(tmp_path, monkeypatch)


def test_an_environment_is_installed_once_for_a_lock(nodes: Nodes, tmp_path: Path) -> None:
    its = with_lock(tmp_path)
    assert [nodes.environment(its) for _ in range(3)] == [{"node1": TREE, "node2": TREE}] * 3
    assert len(nodes.installed) == 1
    nodes.environment(with_lock(tmp_path, "a==2\n"))
    assert len(nodes.installed) == 2
    assert nodes.environment(its)["node2"] == TREE, "the former lock is known"
    assert len(nodes.installed) == 2


def test_an_installation_tells_its_warnings_and_a_known_environment_none(nodes: Nodes, tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        nodes.environment(with_lock(tmp_path), tell=told.append)
    assert told == ["uv chose 2 packages"]


def test_hosts_that_joined_or_lost_it_get_it(nodes: Nodes, tmp_path: Path) -> None:
    its = with_lock(tmp_path)
    nodes.environment(its, options=InventoryOptions(limit="node1"))
    nodes.environment(its)
    nodes.environment(its, gone_from=("node2",))
    assert nodes.installed == [("node1",), ("node1", "node2"), ("node1", "node2")]


def test_a_variable_of_the_environment_is_part_of_what_was_asked(nodes: Nodes, tmp_path: Path) -> None:
    its = with_lock(tmp_path)
    nodes.environment(its)
    nodes.inventory.write_text("node1\nnode2\n[all:vars]\npython_env_lock_extras=['web']\n", encoding="utf-8")
    nodes.environment(its)
    assert len(nodes.installed) == 2


def test_nothing_is_installed_where_a_line_is_only_shown(nodes: Nodes, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not installed on node\[1-2\]; run a job with --project once"):
        nodes.environment(with_lock(tmp_path), observer=None)


def test_each_node_of_two_platforms_has_the_environment_of_its_own(nodes: Nodes, tmp_path: Path) -> None:
    nodes.trees["node2"] = OTHER
    its = with_lock(tmp_path)
    assert [nodes.environment(its) for _ in range(2)] == [{"node1": TREE, "node2": OTHER}] * 2
    assert len(nodes.installed) == 1
    assert nodes.environment(its, options=InventoryOptions(limit="node2")) == {"node2": OTHER}


def test_an_installation_that_failed_is_not_kept(nodes: Nodes, tmp_path: Path) -> None:
    nodes.exit_code = 2
    with pytest.raises(NotInstalledError) as caught:
        nodes.environment(with_lock(tmp_path))
    assert caught.value.exit_code == 2
    assert nodes.argv[:3] == ("clusterctl", "run", "--project"), "what is repeated begins with the program"
    assert nodes.argv[3] == str(tmp_path)
    assert not list(tmp_path.glob("state/**/environments.json"))


def test_gc_keeps_what_a_job_used_lately(nodes: Nodes, tmp_path: Path) -> None:
    nodes.environment(with_lock(tmp_path))
    (file,) = tmp_path.glob("state/**/environments.json")
    cluster = file.parent.name
    assert paths.environments_file(cluster) == file
    assert collect.kept_by(cluster, 2) == {TREE}
    (digest, known) = next(iter(environments.read(cluster).items()))
    long_ago = datetime.now(timezone.utc) - environments.KEPT_FOR - timedelta(hours=1)
    environments.keep(cluster, digest, known.model_copy(update={"used": long_ago}))
    assert collect.kept_by(cluster, 2) == set()


def test_a_damaged_file_counts_as_missing(nodes: Nodes, tmp_path: Path) -> None:
    nodes.environment(with_lock(tmp_path))
    (file,) = tmp_path.glob("state/**/environments.json")
    file.write_text("{", encoding="utf-8")
    assert environments.read(file.parent.name) == {}
    assert file.parent.stat().st_mode & 0o077 == 0
    nodes.environment(with_lock(tmp_path))
    assert len(environments.read(file.parent.name)) == 1
    (aside,) = file.parent.glob("environments.json.damaged-*")
    assert aside.read_text(encoding="utf-8") == "{", "nothing of it is lost"


def test_a_file_that_cannot_be_changed_is_told_before_the_installation(nodes: Nodes, tmp_path: Path) -> None:
    told: list[str] = []
    nodes.environment(with_lock(tmp_path))
    (file,) = tmp_path.glob("state/**/environments.json")
    file.write_text("{", encoding="utf-8")
    nodes.environment(with_lock(tmp_path), tell=told.append)
    (aside,) = file.parent.glob("environments.json.damaged-*")
    assert [aside.name in words for words in told] == [True, False], "the second is uv's"
    assert len(nodes.installed) == 2
    file.write_text('{"schema_version": 2}', encoding="utf-8")
    with pytest.raises(ConfigError, match="has schema 2"):
        nodes.environment(with_lock(tmp_path))
    assert len(nodes.installed) == 2, "nothing was installed in vain"


def test_an_environment_says_where_it_is() -> None:
    used = datetime(2026, 1, 1, tzinfo=timezone.utc)
    one = Environment(project="/p", lock="uv.lock", trees={"node1": TREE, "node2": TREE}, used=used)
    assert environments.trees_in_use({"d": one}, used) == {TREE}


def test_a_job_of_a_project_has_its_python_and_its_programs() -> None:
    node = factory.node("node1")
    changed = node.with_project(TREE, TREE)
    assert changed.layout.python == f"{TREE}/bin/python"
    assert changed.environment["PATH"].split(":")[0] == f"{TREE}/bin"
    assert changed.layout.mpirun == node.layout.mpirun
    told = type(node).model_validate({**node.model_dump(), "_project": TREE, "project": TREE})
    assert told.layout.python == node.layout.python, "a node cannot choose the Python of other nodes"


def test_nodes_of_two_platforms_find_their_own_python_by_one_path() -> None:
    nodes = {"node1": (TREE, OTHER), "node2": (OTHER, TREE)}
    for name, trees in nodes.items():
        changed = factory.node(name).with_project(trees[0], TREE, OTHER)
        assert (changed.layout.python, changed.layout.own_python) == ("python", f"{trees[0]}/bin/python")
        assert changed.environment["PATH"].split(":")[:2] == [f"{tree}/bin" for tree in trees]


def kept_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Keep two environments of a cluster, one of them on another node too; return the cluster's id."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    used = datetime(2026, 1, 1, tzinfo=timezone.utc)
    for digest, trees in (("aaaa1", {"node1": TREE, "node2": TREE}), ("aaab2", {"node1": OTHER})):
        known = Environment(project=str(folder / digest), lock="uv.lock", trees=trees, used=used)
        environments.keep("cluster-01234567", digest, known)
    return "cluster-01234567"


def test_what_is_gone_from_a_node_is_forgotten_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = kept_ones(tmp_path, monkeypatch)
    environments.forget(cluster, {"node1": {TREE, OTHER}, "node3": {TREE}})
    assert {digest: one.trees for digest, one in environments.read(cluster).items()} == {"aaaa1": {"node2": TREE}}


def test_an_environment_has_the_name_of_its_digest_or_of_its_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = environments.read(kept_ones(tmp_path, monkeypatch))
    monkeypatch.chdir(tmp_path)
    for word, found in (("aaaa", ["aaaa1"]), ("aaab2", ["aaab2"]), ("aaa", []), ("", []), ("./aaaa1", ["aaaa1"])):
        assert list(environments.chosen(known, word)) == found
