"""What root does with pushed files and with paths that another user changes during the run."""

from __future__ import annotations

import hashlib
import io
import os
import pwd
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact_pack, file_stage, file_transaction
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import RunModule

pytestmark = [pytest.mark.programs, pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")]
NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in which everybody may write, as /tmp is, beside a victim of root's."""
    top = Path(tempfile.mkdtemp(prefix="clusterctl-shared-", dir="/tmp"))
    top.chmod(0o755)
    folder = top / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    (top / "victim").write_text("theirs\n")
    (top / "victim").chmod(0o600)
    yield folder
    shutil.rmtree(top)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_only_the_pushed_content_is_taken(shared: Path, tmp_path: Path) -> None:
    pushed = shared / "clusterctl-push-1"
    pushed.write_bytes(b"x" * 3_000_000)
    artifact_pack.take_pushed(str(pushed), digest(b"x" * 3_000_000), 3_000_000, tmp_path / "good")
    assert (tmp_path / "good").stat().st_size == 3_000_000
    with pytest.raises(ArtifactError, match="not what the controller pushed"):
        artifact_pack.take_pushed(str(pushed), digest(b"y"), 3_000_000, tmp_path / "other")
    with pytest.raises(FileExistsError):
        artifact_pack.take_pushed(str(pushed), digest(b"x"), 3_000_000, tmp_path / "good")


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_nothing_but_a_regular_file_is_read(shared: Path, tmp_path: Path, kind: str) -> None:
    pushed = shared / "clusterctl-push-1"
    if kind == "link":
        pushed.symlink_to(shared.parent / "victim")
    elif kind == "pipe":
        os.mkfifo(pushed)
    else:
        pushed.mkdir()
    with pytest.raises(ArtifactError, match=r"is a link|is not a regular file"):
        artifact_pack.take_pushed(str(pushed), digest(b"theirs\n"), 7, tmp_path / "taken")


def test_a_build_refuses_a_source_that_was_changed_on_the_node(
    shared: Path, tmp_path: Path, run_module: RunModule
) -> None:
    source = shared / "clusterctl-push-1"
    source.write_bytes(b"changed")
    made = tmp_path / "made"
    result = run_module(
        "artifact_build",
        phase="build",
        name="demo",
        version="1",
        key="0123456789abcdef",
        host="n1",
        work_dir=str(shared),
        log_dir=str(tmp_path / "log"),
        root=str(tmp_path),
        files=[{"path": str(source), "dest": "run.sh", "sha256": digest(b"pushed"), "size": 7}],
        steps=[{"name": "run", "argv": ["touch", str(made)]}],
    )
    assert result["failed"] is True
    assert "not what the controller pushed" in result["msg"]
    assert not made.exists()
    assert [path.name for path in shared.iterdir()] == [source.name], "nothing of the build is left"


def evil_pack(path: Path) -> None:
    """Write a pack with a program that would run as root, and a folder that opens itself to everybody."""
    with tarfile.open(path, "w:gz") as bundle:
        for name, mode, kind in ((".", 0o777, tarfile.DIRTYPE), ("rootsh", 0o4755, tarfile.REGTYPE)):
            member = tarfile.TarInfo(name)
            member.mode, member.type = mode, kind
            bundle.addfile(member, io.BytesIO())


@pytest.mark.parametrize("tools", ["tar", "python"])
def test_nothing_of_a_changed_pack_is_unpacked(shared: Path, monkeypatch: pytest.MonkeyPatch, tools: str) -> None:
    root = shared.parent / "root"
    root.mkdir()
    pack = shared / "clusterctl-push-1"
    evil_pack(pack)
    made: list[str] = []
    monkeypatch.setattr(
        artifact_install.shutil, "rmtree", lambda path, **_: made.extend(map(str, Path(path).rglob("*")))
    )
    if tools == "python":
        which = shutil.which
        monkeypatch.setattr(artifact_install.shutil, "which", lambda name: None if name == "tar" else which(name))
    given = {
        "name": "demo",
        "version": "1",
        "key": "0123456789abcdef",
        "host": "n1",
        "root": str(root),
        "link": "",
        "content": False,
        "lost": [],
        "push_dir": str(shared),
        "pack": {
            "path": str(pack),
            "sha256": digest(b"pushed"),
            "size": pack.stat().st_size,
            "compression": "gz",
            "manifest_sha256": digest(b""),
        },
    }
    with pytest.raises(ArtifactError, match="not what the controller pushed"):
        artifact_install.Install(given).apply()
    assert {Path(path).name for path in made} <= {"tree", "pack"}


@pytest.mark.parametrize("size", [3, 4_000_000])
def test_not_one_byte_more_than_the_pushed_size_is_taken(shared: Path, tmp_path: Path, size: int) -> None:
    pushed = shared / "clusterctl-push-1"
    pushed.touch()
    os.truncate(pushed, 1 << 42)  # a hole, which another user can make as large as the file system lets it
    with pytest.raises(ArtifactError, match="not what the controller pushed"):
        artifact_pack.take_pushed(str(pushed), digest(bytes(size)), size, tmp_path / "taken")
    assert (tmp_path / "taken").stat().st_size <= size


@pytest.mark.parametrize("state", ["attributes", "folder", "through"])
def test_a_link_set_between_look_and_change_changes_no_other_file(
    shared: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """The owner of the folder swaps the path for a link after root has looked at it."""
    victim = shared.parent / "victim"
    before = (victim.lstat(), victim.read_bytes())
    os.chown(shared, NOBODY.pw_uid, NOBODY.pw_gid)
    path = shared / "path"
    if state == "folder":
        entry = file_transaction.Entry(path=str(path), state="directory", mode=0o777, uid=NOBODY.pw_uid)
    else:
        path.write_text("old")
        content = b"old" if state == "attributes" else b"new"
        entry = file_transaction.Entry(path=str(path), state="file", content=content, mode=0o666, uid=NOBODY.pw_uid)
    step = file_stage.look(entry, {})

    def swap() -> None:
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.symlink_to(victim)

    if state == "attributes":
        swap()
    elif state == "folder":
        made = os.mkdir

        def mkdir(*words: Any) -> None:
            made(*words)
            swap()

        monkeypatch.setattr(file_transaction.os, "mkdir", mkdir)
    else:
        transaction = file_transaction.Transaction(None)
        with transaction._identity_of(step):  # noqa: SLF001 - only between these two can the path be swapped
            transaction._stage(step)  # noqa: SLF001
        swap()
        with pytest.raises(OSError, match="symbolic links"):
            transaction._write_through(step, "")  # noqa: SLF001
    if state != "through":
        with pytest.raises(file_transaction.StageError):
            file_transaction.Transaction(None).run([step])
    after = victim.lstat()
    assert (after.st_mode, after.st_uid, after.st_gid, victim.read_bytes()) == (
        before[0].st_mode,
        before[0].st_uid,
        before[0].st_gid,
        before[1],
    )
