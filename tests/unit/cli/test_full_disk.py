"""A full disk under the state folder: one sentence that names the folder, wherever the command was."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from clusterctl.state import paths

PROGRAM = str(Path(sys.executable).with_name("clusterctl"))


@pytest.mark.programs
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("free_kb", [0, 8])
def test_a_full_state_folder_is_one_sentence(tmp_path: Path, free_kb: int) -> None:
    inventory = tmp_path / "inventory.ini"
    inventory.write_text("node1 ansible_host=127.0.0.1 ansible_port=1\n", encoding="utf-8")
    state = tmp_path / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(state)], check=True)
    try:
        (state / "fill").write_bytes(bytes((64 - free_kb) << 10))
        done = subprocess.run(
            [PROGRAM, "provision", "--yes", str(inventory)],
            env={**os.environ, "XDG_STATE_HOME": str(state)},
            capture_output=True,
            text=True,
            check=False,
        )
        staged = [path for path in state.rglob(".*.*") if path.is_file()]
    finally:
        subprocess.run(["umount", str(state)], check=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("clusterctl: The disk of this machine is full: ")
    assert str(state) in last
    assert "XDG_STATE_HOME" in last
    assert staged == []


def test_the_cause_may_lie_below_another_error(tmp_path: Path) -> None:
    error = RuntimeError("the run broke off")
    error.__cause__ = OSError(errno.EROFS, "Read-only file system", str(tmp_path / "gone" / "file"))
    assert paths.full_disk_words(error).startswith(f"{tmp_path} is on a read-only file system of this machine")
    assert paths.full_disk_words(ValueError("other")) == ""
