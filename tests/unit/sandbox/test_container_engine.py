"""How podman is asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from clusterctl.sandbox.container_engine import Podman
from clusterctl.support.errors import HostFailedError

BUSY = "Error: copying to container: passing bulk input to subprocess: write |1: broken pipe"


def failing(folder: Path, times: int) -> Podman:
    """Return a podman that fails so many times and then keeps what it is given."""
    program = folder / "podman"
    program.write_text(
        f'#!/bin/sh\ncat > {folder}/given\necho "$(mktemp)" >> {folder}/calls\n'
        f"if [ $(wc -l < {folder}/calls) -le {times} ]; then echo '{BUSY}' >&2; exit 125; fi\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return Podman(("env", f"PATH={folder}:{os.environ['PATH']}"))


def test_an_archive_is_passed_again_where_podmans_child_died(tmp_path: Path) -> None:
    failing(tmp_path, 2).unpack(b"archive", "node1")
    assert (tmp_path / "given").read_bytes() == b"archive"
    left = [Path(line) for line in (tmp_path / "calls").read_text(encoding="utf-8").splitlines()]
    assert len(left) == 3
    assert not any(path.parent.exists() for path in left), "podman leaves a copy of the archive in TMPDIR"


def test_what_fails_every_time_is_told_in_podmans_words(tmp_path: Path) -> None:
    with pytest.raises(HostFailedError, match="broken pipe"):
        failing(tmp_path, 9).unpack(b"archive", "node1")
    assert len((tmp_path / "calls").read_text(encoding="utf-8").splitlines()) == 3
