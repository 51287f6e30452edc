# SPDX-License-Identifier: Apache-2.0
"""Whoever waits for another process of the controller says so, and names that process."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import chain_head, disk_files
from ansible_collections.clusterctl.hpc.plugins.module_utils.mesh_ca import authority
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import artifact_chain, wheels
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_cache import ArtifactCache, CachedArtifact
from clusterctl.model.shared_cache import EntryName
from clusterctl.state import cache_entries
from clusterctl.state.history import file as history
from clusterctl.state.history.file import StoreError

Lock = contextlib.AbstractContextManager[Any]


def _wheels(folder: Path, note: Callable[[str], None]) -> Lock:
    return wheels.WheelStore(folder, note=note).alone(folder / "x")  # without an index to ask


def _authority(folder: Path, note: Callable[[str], None]) -> Lock:
    return authority.Authority(str(folder), note)._locked()  # noqa: SLF001 - without keys to make


def _meeting(folder: Path, note: Callable[[str], None]) -> Lock:
    return artifact_chain.Meeting(folder, "x").held(note, math.inf)


LOCKS = {
    "wheels": (".x.flock", _wheels),
    "authority": ("lock", _authority),
    "chain": ("clusterctl-chain-x.json", _meeting),
}


@pytest.mark.parametrize("name", LOCKS)
def test_the_holder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(artifact_chain, "_QUIET_S", 0.0)
    lock, held = LOCKS[name]
    notes: list[str] = []

    with (tmp_path / lock).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = threading.Thread(target=_enter, args=[held(tmp_path, notes.append)])
        waiting.start()
        _until(lambda: bool(notes))
    waiting.join(10)

    assert notes[0].endswith(f"(process {os.getpid()})")


def test_the_conversion_of_a_pack_is_waited_for_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ArtifactCache(tmp_path)
    pack = CachedArtifact(cache.folder / "demo.tar.zst", "", 0, {})
    cache.folder.mkdir(parents=True)
    monkeypatch.setattr(cache, "_transcode", lambda artifact: artifact)
    notes: list[str] = []

    with (cache.folder / ".demo.tar.zst.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = threading.Thread(target=cache.gzip_of, args=[pack, notes.append])
        waiting.start()
        _until(lambda: bool(notes))
    waiting.join(10)

    assert notes == [f"waiting for demo.tar.zst as .tar.gz (process {os.getpid()})"]


def test_an_entry_of_the_cache_is_waited_for_on_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    with (tmp_path / ".demo-1.0-k.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        held = cache_entries._alone(tmp_path, EntryName.parse("pack/demo-1.0-k"))  # noqa: SLF001 - without a pack
        waiting = threading.Thread(target=_enter, args=[held])
        waiting.start()
        _until(lambda: bool(said.append(capfd.readouterr().err) or "".join(said)))
    waiting.join(10)

    assert f"(process {os.getpid()})" in "".join(said)


def test_a_history_that_stays_locked_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_BUSY_S", 0.1)
    with (tmp_path / "history.db.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        with pytest.raises(StoreError, match="is held by"):
            history.connect(tmp_path / "history.db")


def test_a_usual_wait_is_quiet_at_first(tmp_path: Path) -> None:
    notes: list[str] = []
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        held = disk_files.held(tmp_path / "lock", "x", notes.append, quiet_s=60)
        waiting = threading.Thread(target=_enter, args=[held])
        waiting.start()
        time.sleep(0.3)
    waiting.join(10)

    assert not waiting.is_alive()
    assert notes == []


def _enter(held: Lock) -> None:
    with contextlib.suppress(authority.AuthorityError), held:  # it has no record
        pass


def _until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_chain_that_does_not_end_is_given_up_by_those_that_wait(tmp_path: Path) -> None:
    with (tmp_path / "clusterctl-chain-x.json").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with (
            pytest.raises(TimeoutError, match="waiting for the nodes that pass the pack on"),
            artifact_chain.Meeting(tmp_path, "x").held(print, 0.2),
        ):
            pass


def test_a_chain_may_take_longer_than_its_first_node_gives_it(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    with pack.open("wb") as stream:
        stream.truncate(1 << 30)
    for limit in (0.0, 400_000.0):
        head = chain_head.ChainHead("n1", [], _asked(limit), [], b"")
        assert artifact_chain.Settings(8, 1, limit).longest_s(pack) > 1.9 * head._longest_s  # noqa: SLF001 - its bound


def _asked(limit: float) -> dict[str, Any]:
    return {"size": 1 << 30, "bytes_per_s": limit, "piece_bytes": 1 << 20, "sums": ""}
