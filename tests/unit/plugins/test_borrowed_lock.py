"""The lock of builds that borrow links is root's: no user of the node can keep it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact_links

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acts as two users")
_STRANGER = 1234


@contextlib.contextmanager
def _stranger_holds(path: str) -> Iterator[None]:
    """Let a child of another user open a file and lock it, where the kernel lets it."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setresgid(_STRANGER, _STRANGER, _STRANGER)
            os.setresuid(_STRANGER, _STRANGER, _STRANGER)
            fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
        os.write(sink, b".")
        time.sleep(60)
        os._exit(0)
    try:
        os.read(source, 1)
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(source)
        os.close(sink)


@pytest.fixture
def record(reachable: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record of borrowed links that names no link."""
    path = reachable / "borrowed-links.json"
    monkeypatch.setattr(artifact_links, "RECORD", str(path))
    path.write_text("{}")
    assert artifact_links.give_back()
    path.write_text("{}")
    return path


def test_no_user_can_keep_the_lock(record: Path) -> None:
    with _stranger_holds(f"{record}.flock"):
        assert artifact_links.give_back()
