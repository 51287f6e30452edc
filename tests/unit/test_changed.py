"""What counts as the change, and which long groups of tests it leaves out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import changed
import long_groups
import pytest


def commit(root: Path, hours: int, **files: str) -> str:
    """Commit files so many hours after the first commit, and return the commit's name."""
    for name, text in files.items():
        (root / name).write_text(text, encoding="utf-8")
    date = f"{1_700_000_000 + hours * 3600} +0000"
    identity = {f"GIT_{who}_{what}": "a@example.test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {"GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date, "HOME": str(root), "PATH": "/usr/bin:/bin"}
    for words in (("add", "-A"), ("commit", "-q", "--allow-empty", "-m", "x")):
        subprocess.run(["git", *words], cwd=root, env={**environment, **identity}, check=True)
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(changed.VARIABLE, raising=False)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def test_the_last_day_of_history_is_the_change(repository: Path) -> None:
    commit(repository, 0, old="1", kept="1")
    before = commit(repository, 1, other="1")
    commit(repository, 26, old="2")
    commit(repository, 30, new="1")
    (repository / "kept").write_text("2", encoding="utf-8")
    (repository / "unknown to git").write_text("1", encoding="utf-8")
    assert changed.base(repository) == before
    assert changed.paths(repository) == {"old", "new", "kept", "unknown to git"}


def test_a_named_base_goes_before_the_day(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(repository, 0, one="1")
    named = commit(repository, 50, two="1")
    commit(repository, 51, three="1")
    monkeypatch.setenv(changed.VARIABLE, named[:8])
    assert changed.paths(repository) == {"three"}


def test_a_base_that_is_no_commit_is_named(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(repository, 0, one="1")
    monkeypatch.setenv(changed.VARIABLE, "--nowhere")
    with pytest.raises(changed.UnknownBaseError, match=f"{changed.VARIABLE}=--nowhere .* 'all'"):
        changed.paths(repository)


def test_everything_changed_without_a_day_of_history(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changed.paths(repository) is None, "no commit"
    commit(repository, 0, one="1")
    commit(repository, 23, one="2")
    assert changed.paths(repository) is None, "the first day"
    assert changed.paths(tmp_path_factory.mktemp("archive")) is None
    commit(repository, 50, one="3")
    assert changed.paths(repository) == {"one"}
    monkeypatch.setenv(changed.VARIABLE, changed.EVERYTHING)
    assert changed.paths(repository) is None
    monkeypatch.delenv(changed.VARIABLE)
    monkeypatch.setenv("PATH", "/nowhere")
    assert changed.paths(repository) is None, "no git"


def test_a_merge_of_old_commits_is_part_of_the_change(repository: Path) -> None:
    commit(repository, 0, one="1")
    subprocess.run(["git", "checkout", "-q", "-b", "side"], cwd=repository, check=True)
    commit(repository, 10, side="1")
    subprocess.run(["git", "checkout", "-q", "-"], cwd=repository, check=True)
    commit(repository, 5, two="1")
    commit(repository, 39, three="1")
    merge = ["git", "-c", "user.name=a", "-c", "user.email=a@example.test", "merge", "-q", "--no-commit", "side"]
    subprocess.run(merge, cwd=repository, check=True)
    commit(repository, 40)
    assert changed.paths(repository) == {"three", "side"}


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("roles/nccl/tasks/main.yml", "nccl"),
        ("examples/mpi/gather.py", "examples"),
        ("tests/cluster/test_ca.py", "ca"),
        ("tests/cluster/disturbed.py", "kills"),
        ("python/clusterctl/provisioning/rollback.py", "rollback"),
    ],
)
def test_a_group_runs_whole_where_what_it_depends_on_changed(path: str, group: str) -> None:
    test = f"{long_groups.file_of(group)}::test_of_less_weight"
    left = long_groups.untouched(frozenset({path}))
    assert group not in left
    assert long_groups.is_left_out(test, left) == ""
    left = long_groups.untouched(frozenset({"README.md"}))
    assert set(left) == set(long_groups.GROUPS)
    assert long_groups.is_left_out(test, left) == group
    assert long_groups.untouched(None) == []


@pytest.mark.parametrize("group", long_groups.GROUPS)
def test_the_map_names_what_exists(group: str) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=changed.ROOT, capture_output=True, text=True, check=True).stdout
    files = frozenset(listed.splitlines())
    assert [one for one in long_groups.patterns(group) if not changed.matching(files, (one,))] == []
    text = (changed.ROOT / long_groups.file_of(group)).read_text(encoding="utf-8")
    tests = re.findall(r"^def (test_\w+)", text, re.MULTILINE)
    assert long_groups.GROUPS[group].always
    for name in long_groups.GROUPS[group].always:
        assert name.partition("[")[0] in tests


def test_a_main_promise_runs_always() -> None:
    left = list(long_groups.GROUPS)
    kept = (
        "kills.py::test_a_killed_run_is_made_good_by_a_plain_one[provision]",
        "examples.py::test_mpi[allreduce-1 + 8]",
    )
    assert [long_groups.is_left_out(f"tests/cluster/test_{one}", left) for one in kept] == ["", ""]
    assert long_groups.is_left_out("tests/cluster/test_examples.py::test_mpi[gather-1]", left) == "examples"
    assert long_groups.is_left_out("tests/cluster/test_preflight.py::test_x", left) == ""
