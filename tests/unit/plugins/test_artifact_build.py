"""The parts of a build that touch files and processes, on real ones."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from typing import TYPE_CHECKING

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, forget_leftovers
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_build, artifact_check, artifact_install

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def archive(path: Path, members: Mapping[str, str], compression: str = "bz2") -> str:
    with tarfile.open(path, f"w:{compression}") as bundle:  # type: ignore[call-overload]
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode, member.uid = len(text), 1_000_000_000, 0o444, 4711
            bundle.addfile(member, io.BytesIO(text.encode()))
    return str(path)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
def test_an_archive_is_unpacked_without_its_first_folder_and_what_is_excluded(tmp_path: Path, compression: str) -> None:
    members = {"x-1/configure": "a", "x-1/docs/html/index.html": "b", "x-1/docs/keep": "c", "x-1/src/docs/html": "d"}
    where = archive(tmp_path / "x.tar", members, compression)
    artifact_build.unpack(where, tmp_path / "out", 1, ["docs/html"])
    assert names(tmp_path / "out") == ["configure", "docs/keep", "src/docs/html"]
    state = (tmp_path / "out" / "configure").stat()
    assert (state.st_mtime, state.st_uid, state.st_mode & 0o700) == (1_000_000_000, os.getuid(), 0o600)


def test_a_zip_is_unpacked_as_well(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as bundle:
        bundle.writestr("x-1/a/b", "text")
    artifact_build.unpack(str(tmp_path / "x.zip"), tmp_path / "out", 1, [])
    assert names(tmp_path / "out") == ["a/b"]


def test_a_path_that_leads_out_is_refused(tmp_path: Path) -> None:
    where = archive(tmp_path / "x.tar.bz2", {"x-1/../../evil": "a"})
    with pytest.raises(ArtifactError, match="leads out of it"):
        artifact_build.unpack(where, tmp_path / "deep" / "out", 1, [])
    assert not (tmp_path / "evil").exists()


def test_a_pipe_whose_reader_left_is_noticed() -> None:
    reading, writing = os.pipe()
    assert not artifact_build.channel_is_gone(writing)
    os.close(reading)
    assert artifact_build.channel_is_gone(writing)
    os.close(writing)


def test_a_terminal_whose_other_end_left_is_noticed() -> None:
    master, terminal = os.openpty()
    assert not artifact_build.channel_is_gone(terminal)
    os.close(master)
    assert artifact_build.channel_is_gone(terminal)
    os.close(terminal)


def test_the_whole_family_of_a_step_is_ended_even_when_it_does_not_listen() -> None:
    stubborn = "trap '' TERM; sleep 456 & echo started; wait; sleep 456"
    process = subprocess.Popen(["sh", "-c", stubborn], start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    artifact_build.end_group(process)
    assert process.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    process.stdout.close()


def test_the_last_lines_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert artifact_build.last_lines(log, 2) == "line 9998\nline 9999"


def test_a_link_is_switched_without_a_moment_in_between(tmp_path: Path) -> None:
    link = tmp_path / "demo"
    artifact_install.switch_link(str(link), "demo-1")
    artifact_install.switch_link(str(link), "demo-2")
    assert str(link.readlink()) == "demo-2"
    assert list(tmp_path.iterdir()) == [link]
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        artifact_install.switch_link(str(tmp_path / "folder"), "demo-2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo", "folder"], "no temporary link is left"


def test_only_our_own_old_leftovers_are_removed(tmp_path: Path) -> None:
    old = time.time() - 100_000
    for name in ("clusterctl-push-0123456789abcdef-x", "clusterctl-demo-abcdefgh", "clusterctl-mine", "other"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (old, old))
    (tmp_path / "clusterctl-demo-ABCDEFGH").mkdir()
    forget_leftovers(str(tmp_path), ["clusterctl-push-????????????????-*", "clusterctl-demo-????????"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clusterctl-demo-ABCDEFGH", "clusterctl-mine", "other"]


def test_a_check_past_its_time_is_ended_with_its_children() -> None:
    began = time.monotonic()
    code, output = artifact_check.run_check(
        ["sh", "-c", "echo here; sleep 654 & sleep 654"], {"PATH": os.environ["PATH"]}, 1
    )
    assert (code, output) == (124, "here\n")
    assert time.monotonic() - began < 10
    assert artifact_check.run_check([sys.executable, "-c", "raise SystemExit(3)"], {}, 10)[0] == 3


def test_a_signal_is_no_ordinary_exception() -> None:
    with pytest.raises(artifact_build._Abandoned):  # noqa: SLF001 - what it derives from is the point
        artifact_build._abandon(signal.SIGTERM, None)  # noqa: SLF001
    assert not issubclass(artifact_build._Abandoned, Exception)  # noqa: SLF001
