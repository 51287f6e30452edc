"""The programs of a build change nothing outside of their work folder, and none of their processes is left."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import build_files, build_user, library_closure
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_check

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def run(space: build_user.Space, script: str, log: Path) -> str:
    """Run a script as a step of a build; return what it wrote."""
    environment = {"PATH": "/usr/bin:/bin", **space.environment()}
    with log.open("ab") as out, build_user.owning(space, out):
        step = build_user.Step("try", ["sh", "-c", script], space.work, environment, space.uid)
        build_user.run_step(step, out, lambda _text: None)
    return log.read_text(encoding="utf-8").partition("\n")[2]


@as_root
@pytest.mark.programs
def test_a_step_reaches_its_work_folder_alone(reachable: Path) -> None:
    secret = reachable / "secret"
    secret.write_text("root's", encoding="utf-8")
    secret.chmod(0o600)
    script = (
        f"id -u; id -G; grep -c '^NoNewPrivs:.1' /proc/self/status; echo $HOME $TMPDIR; cat {secret};"
        f" touch {reachable}/outside; ln {secret} twin; echo said >> /dev/stderr; echo more >> given; chmod 777 . given"
    )
    with build_user.space(str(reachable), "demo") as space:
        assert space.uid is not None
        (space.work / "given").write_text("text", encoding="utf-8")
        said = run(space, script, reachable / "log").splitlines()
        uid = str(space.uid)
        assert said[:4] == [uid, uid, "1", f"{space.work}/home {space.work}/tmp"]  # noqa: S108 - below the work folder
        assert len([line for line in said if "ermission denied" in line or "not permitted" in line]) == 3, said
        assert not [line for line in said if "root's" in line]
        assert "said" in said
        assert (space.work / "given").read_text(encoding="utf-8") == "textmore\n"
        states = [path.stat() for path in [space.work, *space.work.iterdir()]]
        assert {(state.st_uid, state.st_gid, state.st_mode & 0o022) for state in states} == {(0, 0, 0)}
        outer = space.work.parent
        assert (outer.stat().st_uid, outer.stat().st_gid, outer.stat().st_mode & 0o777) == (0, space.uid, 0o710)
    assert not outer.exists()
    log = (reachable / "log").stat()
    assert (log.st_uid, log.st_mode & 0o777) == (0, 0o644)


@as_root
@pytest.mark.programs
def test_processes_and_files_of_a_step_end_with_it(reachable: Path) -> None:
    with build_user.space(str(reachable), "demo") as space:
        script = "setsid sleep 300 & mktemp -p /tmp; mktemp -d -p /dev/shm; sleep 0.1"
        left = run(space, script, reachable / "log").split()
        assert space.uid is not None
        assert build_user.processes_of(space.uid) == []
    assert [str(Path(path).parent) for path in left] == ["/tmp", "/dev/shm"]  # noqa: S108 - open to all users
    assert not [path for path in left if Path(path).exists()]


@as_root
@pytest.mark.programs
@pytest.mark.parametrize(
    ("script", "complaint"),
    [("cp /usr/bin/true x; chmod 4755 x", "setuid"), ("cp /usr/bin/true x; chmod 2755 x", "setgid")],
)
def test_a_file_that_would_run_with_its_owners_rights_is_refused(reachable: Path, script: str, complaint: str) -> None:
    with build_user.space(str(reachable), "demo") as space, pytest.raises(ArtifactError, match=complaint):
        run(space, script, reachable / "log")


@as_root
def test_a_hard_link_to_a_file_of_another_user_is_refused(reachable: Path) -> None:
    (reachable / "file").write_text("alice's", encoding="utf-8")
    os.chown(reachable / "file", 1234, 1234)
    with build_user.space(str(reachable), "demo") as space:
        assert space.uid is not None
        build_user.give(space.work, space.uid)
        os.link(reachable / "file", space.work / "file")
        with pytest.raises(ArtifactError, match="not its own"):
            build_user.take_back(space.work, space.uid)
    assert (reachable / "file").stat().st_uid == 1234


@as_root
def test_links_are_not_followed_when_a_folder_changes_hands(reachable: Path) -> None:
    (reachable / "outside").write_text("root's", encoding="utf-8")
    (reachable / "outside").chmod(0o666)
    with build_user.space(str(reachable), "demo") as space:
        (space.work / "link").symlink_to(reachable / "outside")
        with build_user.owning(space):
            assert (space.work / "link").lstat().st_uid == space.uid
            assert (reachable / "outside").stat().st_uid == 0
        assert (reachable / "outside").stat().st_mode & 0o777 == 0o666


@as_root
@pytest.mark.programs
def test_a_step_enters_its_folder_without_roots_rights(reachable: Path) -> None:
    (reachable / "closed" / "open").mkdir(parents=True)
    (reachable / "closed").chmod(0o700)
    with build_user.space(str(reachable), "demo") as space, (reachable / "log").open("wb") as out:
        (space.work / "way").symlink_to(reachable / "closed" / "open")
        step = build_user.Step("try", ["pwd"], space.work / "way", {"PATH": "/usr/bin:/bin"}, space.uid)
        with build_user.owning(space, out), pytest.raises(ArtifactError, match=r"could not enter .*way"):
            build_user.run_step(step, out, lambda _text: None)


@as_root
def test_two_builds_at_once_have_two_user_ids() -> None:
    with build_user.held("demo") as first, build_user.held("demo") as second:
        assert first is not None
        assert first != second
        with build_user.held("demo") as third:
            assert third not in {first, second}
    with build_user.held("demo") as again:
        assert again == first


@as_root
@pytest.mark.programs
def test_a_user_id_with_a_process_of_a_killed_build_is_passed_over() -> None:
    with build_user.held("demo") as uid:
        pass
    assert uid is not None
    with subprocess.Popen(["sleep", "60"], user=uid, group=uid) as process:
        with build_user.held("demo") as other:
            assert other != uid
        process.kill()


def test_a_user_id_with_an_account_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = list(build_user.candidates("demo"))[:2]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(build_user, "_has_account", lambda uid: uid == first)
    with build_user.held("demo") as uid:
        assert uid == second


def test_every_id_of_the_range_is_a_candidate_once() -> None:
    assert sorted(build_user.candidates("demo")) == list(range(60578, 61184))
    assert next(build_user.candidates("demo")) != next(build_user.candidates("other"))


def test_a_build_without_a_free_user_id_does_not_run_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(build_user, "_mapped", lambda _path: [(0, 1)])
    with pytest.raises(ArtifactError, match=r"No user id .* is free"), build_user.held("demo"):
        pass


def test_who_is_not_root_builds_as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with build_user.space(str(tmp_path), "demo") as space:
        assert space.uid is None
        assert run(space, "id -u; pwd", tmp_path / "log").split() == [str(os.getuid()), str(space.work)]
    assert not list(tmp_path.glob("clusterctl-*"))


@as_root
def test_a_work_folder_that_only_root_can_reach_is_named_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "closed" / "work").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    with (
        pytest.raises(ArtifactError, match=r"closed to others\. .*_work_dir"),
        build_user.space(str(tmp_path / "closed" / "work"), "demo"),
    ):
        pass
    assert not list((tmp_path / "closed" / "work").iterdir())


@as_root
@pytest.mark.programs
def test_proofs_are_not_roots(tmp_path: Path) -> None:
    script = "import getpass, os; print(os.getuid(), getpass.getuser(), os.environ['HOME'])"
    asked = {"name": "demo", "link": str(tmp_path), "environment": {}, "timeout_s": 20}
    check = {"argv": ["/usr/bin/python3", "-c", script], "stdin": "", "expect": []}
    (said,) = artifact_check.run_checks({**asked, "checks": [check]})
    uid, name, home = said.split()
    assert int(uid) in range(60578, 61184)
    assert name == "clusterctl"
    assert home.startswith(f"{artifact_check._WORK}/clusterctl-demo-")  # noqa: SLF001 - where it works
    assert not Path(home).exists()


AUDIT = """
#include <stdio.h>
#include <unistd.h>
unsigned la_version(unsigned version) {
    FILE *out = fopen("@FOLDER@/said", "a");
    if (out) { fprintf(out, "%d", geteuid()); fclose(out); }
    return version;
}
"""


@as_root
@pytest.mark.programs
def test_code_that_the_loader_starts_while_it_is_asked_is_not_roots(reachable: Path) -> None:
    tree = reachable / "tree"
    tree.mkdir()
    (reachable / "said").touch()
    (reachable / "said").chmod(0o666)
    (reachable / "audit.c").write_text(AUDIT.replace("@FOLDER@", str(reachable)), encoding="utf-8")
    (reachable / "program.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
    library, program = tree / "audit.so", tree / "program"
    for argv in (
        ["gcc", "-shared", "-fPIC", "-o", str(library), "audit.c"],
        ["gcc", "-o", str(program), "program.c", f"-Wl,--audit={library}"],
    ):
        subprocess.run(argv, cwd=reachable, check=True)
    closure = library_closure.ask_loader(str(tree), [])
    assert closure.missing == []
    assert any(Path(path).name == "libc.so.6" for path in closure.found)
    assert int((reachable / "said").read_text(encoding="utf-8")[:5]) in range(60578, 61184)
    reachable.chmod(0o700)
    with pytest.raises(ArtifactError, match=r"closed to others; open it"):
        library_closure.ask_loader(str(tree), [])


def test_nothing_is_removed_through_a_link_that_a_build_left(tmp_path: Path) -> None:
    (tmp_path / "tree" / "lib").mkdir(parents=True)
    (tmp_path / "other" / "doc").mkdir(parents=True)
    (tmp_path / "tree" / "lib" / "a.la").write_text("x", encoding="utf-8")
    build_files.prune(tmp_path / "tree", ["lib/*.la", "absent/*"])
    assert not list((tmp_path / "tree" / "lib").iterdir())
    (tmp_path / "tree" / "share").symlink_to("../other")
    with pytest.raises(ArtifactError, match=r"share is a link"):
        build_files.prune(tmp_path / "tree", ["share/doc"])
    assert (tmp_path / "other" / "doc").is_dir()


def test_a_program_of_a_build_has_not_the_memory_limit_of_a_worker_of_ansible(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, hard))
    try:
        child = build_user.becoming(None, str(tmp_path))
        said = subprocess.run(
            ["sh", "-c", "ulimit -S -d; pwd"], preexec_fn=child, capture_output=True, text=True, check=True
        )
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    limit = "unlimited" if hard == resource.RLIM_INFINITY else str(hard >> 10)
    assert said.stdout.split() == [limit, str(tmp_path)]
