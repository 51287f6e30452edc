"""What an unprivileged user of a node leaves about stops no run, and makes root touch nothing of another's."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    brought,
    build_user,
    job_account,
    leftovers,
    tree_removal,
    user_identity,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import path_state

STRANGER = 65534
RUN = "20200101T000000Z-provision-1"
DEEP = 3000
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def make_deep(folder: Path, name: str) -> Path:
    """Make a folder deeper than a path can be long."""
    words = "import os, sys; os.mkdir(sys.argv[1]); os.chdir(sys.argv[1])\n"
    words += f"for _ in range({DEEP}):\n os.mkdir('d'); os.chdir('d')\nopen('file', 'w').close()"
    subprocess.run([sys.executable, "-I", "-c", words, str(folder / name)], check=True)
    return folder / name


def strangers(argv: list[str], **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv, user=STRANGER, group=STRANGER, extra_groups=[], env={"PATH": "/usr/bin:/bin", **variables}
    )


@as_root
@pytest.mark.programs
def test_a_strangers_process_is_not_one_of_a_run() -> None:
    with strangers(["sleep", "60"], CLUSTERCTL_RUN=json.dumps({"run": RUN})) as process:
        time.sleep(0.2)
        assert leftovers.still_at_work([RUN], 0.0, lambda _text: None) == []
        process.kill()


@pytest.mark.programs
@pytest.mark.parametrize("given", ["[" * 100_000, "[]", "{", '{"run": [[]]}'])
def test_an_environment_that_is_not_of_a_run_is_passed_over(given: str) -> None:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "CLUSTERCTL_RUN": given}) as process:
        time.sleep(0.2)
        assert process.pid not in {worker.pid for worker in leftovers.workers() if worker.run == RUN}
        process.kill()


@as_root
@pytest.mark.programs
def test_a_strangers_folder_with_a_name_of_ours_stays(tmp_path: Path) -> None:
    for name in ("clusterctl-openmpi-abcd1234", "clusterctl-push-0123456789abcdef-openmpi.tar.zst"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, STRANGER, STRANGER)
    assert brought.left_in(str(tmp_path)) == []
    pack = tmp_path / "clusterctl-push-0123456789abcdef-nccl.tar.zst"
    pack.touch()
    os.chown(pack, STRANGER, STRANGER)
    assert brought.left_in(str(tmp_path)) == [str(pack)]
    pack.unlink()
    pack.symlink_to("/etc/passwd")
    os.lchown(pack, STRANGER, STRANGER)
    assert brought.left_in(str(tmp_path)) == []


def test_of_many_files_with_a_name_of_ours_some_are_taken(tmp_path: Path) -> None:
    for number in range(1200):
        (tmp_path / f"clusterctl-push-0123456789abcdef-{number}").touch()
    assert len(brought.left_in(str(tmp_path))) == 1000


@pytest.mark.programs
def test_a_folder_deeper_than_a_path_is_long_goes(tmp_path: Path) -> None:
    folder = make_deep(tmp_path, "clusterctl-openmpi-abcd1234")
    try:
        leftovers.remove(str(folder))
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)  # pytest cannot remove it


def test_a_removal_follows_no_link_and_ends_in_time(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    going = tmp_path / "going"
    (going / "below").mkdir(parents=True)
    (going / "below/link").symlink_to(kept)
    (going / "link").symlink_to(kept)
    with pytest.raises(OSError, match="too many entries"):
        tree_removal.remove(str(going), limit_s=-1)
    tree_removal.remove(str(going))
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    (tmp_path / "link").symlink_to(kept)
    tree_removal.remove(str(tmp_path / "link"))
    assert (kept / "file").exists()


@as_root
def test_root_removes_nothing_through_a_users_link(reachable: Path) -> None:
    kept, home = reachable / "kept", reachable / "home"
    for folder in (kept, home):
        folder.mkdir()
    (kept / ".key.clusterctl-abcd1234").touch()
    (home / ".ssh").symlink_to(kept)
    os.lchown(home / ".ssh", STRANGER, STRANGER)
    os.chown(home, STRANGER, STRANGER)
    leftovers.remove(str(home / ".ssh/.key.clusterctl-abcd1234"))
    assert (kept / ".key.clusterctl-abcd1234").exists()


@as_root
@pytest.mark.programs
def test_no_user_can_keep_the_ids_of_builds_from_root() -> None:
    words = (
        "import socket, time\nkept = []\nfor uid in range(60578, 61184):\n one = socket.socket(socket.AF_UNIX)\n"
        " one.bind(f'\\0clusterctl-user-{uid}')\n kept.append(one)\nprint('all', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen(
        ["/usr/bin/python3", "-I", "-c", words], user=STRANGER, group=STRANGER, extra_groups=[], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"all\n"
        try:
            with build_user.held("openmpi") as uid, build_user.held("openmpi") as other:
                assert uid is not None
                assert other not in {None, uid}
        finally:
            process.kill()
    assert not Path(build_user.LOCK).exists()


@as_root
@pytest.mark.programs
def test_the_lock_of_build_ids_is_roots_alone_and_goes_with_a_killed_process() -> None:
    code = (
        "import sys, time\nfrom ansible_collections.clusterctl.hpc.plugins.module_utils import build_user\n"
        "with build_user.held('x') as uid:\n print(uid, flush=True)\n time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as process:
        taken = int(process.stdout.readline())
        assert os.stat(build_user.LOCK).st_mode & 0o777 == 0o600  # noqa: PTH116
        with build_user.held("x") as uid:
            assert uid != taken
        process.kill()
    with build_user.held("x") as uid:
        assert uid == taken


@as_root
@pytest.mark.programs
def test_deep_folders_of_a_build_are_refused_and_removed(reachable: Path) -> None:
    try:
        with build_user.space(str(reachable), "demo") as space:
            assert space.uid is not None
            make_deep(space.work, "deep")
            with pytest.raises(build_user.ArtifactError, match="deeper than"):
                build_user.take_back(space.work, 0)
        assert list(reachable.iterdir()) == []
    finally:
        subprocess.run(["rm", "-rf", *reachable.glob("*")], check=True)  # Python's own removal cannot


def sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(400 << 30)


def test_a_huge_file_of_a_user_is_not_read_whole(tmp_path: Path) -> None:
    public = tmp_path / "id_clusterctl.pub"
    sparse(public)
    began = time.monotonic()
    with pytest.raises(OSError, match="File too large"):
        user_identity.read_regular(str(public))
    assert job_account.read(public) == ""
    state = path_state.watch_state(str(public))
    assert (state["kind"], state["sha256"]) == ("file", "")
    assert path_state.watch_state(str(public), "block", "mesh")["sha256"] == ""
    assert time.monotonic() - began < 10


@pytest.mark.programs
def test_a_huge_public_key_is_written_anew(tmp_path: Path) -> None:
    made = job_account.ensure_key(str(tmp_path), "id_clusterctl", "me", check=False)
    sparse(tmp_path / ".ssh/id_clusterctl.pub")
    again = job_account.ensure_key(str(tmp_path), "id_clusterctl", "me", check=False)
    assert again["public_key"] == made["public_key"]
    assert again["watch"] == made["watch"]


@as_root
@pytest.mark.programs
@pytest.mark.parametrize(("number", "words"), [(signal.SIGSTOP, "gave no answer"), (signal.SIGKILL, "without an")])
def test_a_child_that_its_user_stops_or_kills_is_a_sentence(
    number: signal.Signals, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_identity, "ANSWER_S", 1.0)

    def work() -> dict[str, str]:
        os.kill(os.getpid(), number)
        return {}

    began = time.monotonic()
    with pytest.raises(user_identity.IdentityError, match=words):
        user_identity.in_child(pwd.getpwuid(STRANGER), work)
    assert time.monotonic() - began < 10


def test_a_childs_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_identity, "MOST_ANSWER", 100)
    if os.geteuid() == 0:
        with pytest.raises(user_identity.IdentityError, match="without an answer"):
            user_identity.in_child(pwd.getpwuid(STRANGER), lambda: {"text": "x" * 1000})
