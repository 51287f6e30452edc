"""Segments that jobs left in the real /dev/shm of this machine: which are told, by root and by an ordinary user."""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.hardware import machine, record

pytestmark = [pytest.mark.programs, pytest.mark.skipif(os.geteuid() != 0, reason="it takes another user's place")]

SHM = Path("/dev/shm")  # noqa: S108 - what is tested
SIZE = 64 << 20
NOBODY = 65534


@pytest.fixture
def segment() -> Iterator[Path]:
    path = SHM / f"nccl-test-{os.getpid()}"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, SIZE)
    path.chmod(0o600)
    os.chown(path, NOBODY, NOBODY)
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    try:
        yield path
    finally:
        path.unlink()


def look(user: int = 0) -> dict[str, Any]:
    """Look at /dev/shm as a user; this process stays who it is."""
    assert machine.__name__  # loaded here, since the user may not be able to read the files
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.setresuid(user, user, user)
        found = record.collect({"sections": ["shared_memory"], "section_s": 60, "all_s": 100})
        os.write(writing, json.dumps({name: found[name] for name in ("readings", "unseen")}).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as channel:
        text = channel.read()
    os.waitpid(child, 0)
    answer: dict[str, Any] = json.loads(text)
    return answer


def told(found: dict[str, Any], name: str) -> object:
    return next((value for kind, _, what, value in found["readings"] if (kind, what) == ("shared memory", name)), None)


@pytest.mark.parametrize("user", [0, NOBODY])
def test_a_segment_that_nobody_uses_is_told(segment: Path, user: int) -> None:
    found = look(user)
    assert told(found, "largest") == segment.name
    assert told(found, "stale bytes") == SIZE


@pytest.mark.parametrize("user", [0, NOBODY])
def test_a_segment_that_was_written_just_now_is_left_alone(segment: Path, user: int) -> None:
    os.utime(segment)
    assert look(user) == {"readings": [], "unseen": []}


def test_a_segment_in_use_is_left_alone(segment: Path) -> None:
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert look() == {"readings": [], "unseen": []}


def test_a_segment_that_others_may_use_is_a_note_to_an_ordinary_user(segment: Path) -> None:
    segment.chmod(0o666)
    found = look(NOBODY)
    assert found["readings"] == []
    assert [what for what, _ in found["unseen"]] == ["shared memory"]


@pytest.mark.parametrize(("program", "is_told"), [("sshd", True), ("python3", False)])
def test_a_program_of_a_login_keeps_no_segment_of_its_user_from_being_told(
    tmp_path: Path, program: str, is_told: bool
) -> None:
    """Root of a container may read the mappings of no other user's process, sshd's included."""
    process = tmp_path / "proc" / "48"
    process.mkdir(parents=True)
    os.chown(process, NOBODY, NOBODY)
    (process / "comm").write_text(f"{program}\n", encoding="ascii")
    (process / "maps").symlink_to("maps")  # reading it is an error, for root too
    (tmp_path / "calls").mkdir()
    left = {"nccl-a": {"bytes": SIZE, "owner": NOBODY, "age in s": 3600}}
    (tmp_path / "calls" / "shared_memory.json").write_text(json.dumps(left), encoding="ascii")
    found = record.collect({"root": str(tmp_path), "tools": "", "sections": ["shared_memory"]})
    assert (told(found, "largest"), len(found["unseen"])) == (("nccl-a", 0) if is_told else (None, 1))
