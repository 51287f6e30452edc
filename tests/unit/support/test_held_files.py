"""Temporary files and folders: those of living processes stay, those of killed processes go."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from clusterctl.remote import reach
from clusterctl.support import held_files

HOLDER = """
import sys, time
from pathlib import Path
from clusterctl.support import held_files
descriptor = held_files.open_held(Path(sys.argv[1]) / ".record.json.1")
with held_files.folder() as folder:
    (folder / "inner").write_text("")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.mark.programs
def test_what_a_process_holds_is_litter_once_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        folder, file = Path(process.stdout.readline().strip()), tmp_path / ".record.json.1"
        for _ in range(2):
            held_files.remove_abandoned([file])
            held_files.remove_folders_of_killed()
            assert [folder.is_dir(), file.exists()] == [process.poll() is None] * 2
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_gone_after_its_block(tmp_path: Path) -> None:
    with held_files.folder(str(tmp_path)) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_a_socket_has_room_where_the_folder_for_temporary_files_has_a_long_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = tmp_path / "var" / "folders" / "zz" / "zyxvpxvq6csfxvn_n0000000000000" / "T"  # as on macOS
    usual.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(usual))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with reach.control_folder() as folder:
        place = folder / "0123456789012345678901234567890123456789.0123456789abcdef"  # as ssh makes it
        assert len(os.fsencode(place)) < 104
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(place))
    assert not folder.exists()
    monkeypatch.setattr("tempfile.tempdir", "/tmp")  # noqa: S108
    assert held_files.short_base() is None


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "pipe", "folder"])
def test_what_another_put_in_place_of_a_new_file_is_neither_emptied_nor_waited_for(tmp_path: Path, kind: str) -> None:
    other, place = tmp_path / "other", tmp_path / "shared" / ".index.json.1"
    place.parent.mkdir()
    other.write_text("kept")
    match kind:
        case "link":
            place.symlink_to(other)
        case "dangling link":
            place.symlink_to(tmp_path / "missing")
        case "hard link":
            place.hardlink_to(other)
        case "pipe":
            os.mkfifo(place)
        case _:
            place.mkdir()
    with pytest.raises(FileExistsError, match=r"not a file of this process; remove it.*index\.json"):
        held_files.open_held(place)
    assert other.read_text() == "kept"
    assert not (tmp_path / "missing").exists()


def test_a_file_that_is_left_under_the_name_is_emptied(tmp_path: Path) -> None:
    place = tmp_path / ".index.json.1"
    place.write_text("left by a killed process that had the same number")
    os.close(held_files.open_held(place))
    assert place.read_bytes() == b""
