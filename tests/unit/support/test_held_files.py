"""Temporary files and folders: those of living processes stay, those of killed processes go."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from clusterctl.remote import ssh
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
    with ssh.control_folder() as folder:
        place = folder / "0123456789012345678901234567890123456789.0123456789abcdef"  # as ssh makes it
        assert len(os.fsencode(place)) < 104
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(place))
    assert not folder.exists()
    monkeypatch.setattr("tempfile.tempdir", "/tmp")  # noqa: S108
    assert held_files.short_base() is None
