from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.hosts import Host
from clusterctl.remote import one_trip, reach
from clusterctl.support import content, memory_room
from clusterctl.support.errors import ConfigError, ExitCode
from clusterctl.support.memory_room import Room

MIB = 1 << 20


def left(monkeypatch: Any, mib: int) -> None:
    monkeypatch.setattr(content.module_util("node_look.machine"), "available_memory_bytes", lambda: mib * MIB)


def test_too_little_memory_is_refused_with_what_is_needed_and_what_there_is(monkeypatch: Any) -> None:
    left(monkeypatch, 900)
    memory_room.allow_for(321)
    with pytest.raises(ConfigError) as refused:
        memory_room.allow_for(1000)
    for words in ("1000 hosts need 2800 MiB of memory", "900 MiB left", "end other programs", "--limit"):
        assert words in str(refused.value)
    assert refused.value.exit_code == ExitCode.BAD_CONFIG


def test_fewer_hosts_are_asked_at_the_same_time_where_that_suffices(monkeypatch: Any) -> None:
    left(monkeypatch, 100)
    assert memory_room.for_questions(1000, 64) == Room(35, shared=False)
    left(monkeypatch, 1000)
    assert memory_room.for_questions(1000, 64) == Room(64, shared=False)
    assert memory_room.for_questions(300, 64) == Room(64)
    left(monkeypatch, 0)
    assert memory_room.for_questions(1000, 64) == Room(4, shared=False)


def test_a_trip_with_too_little_memory_shares_no_connection(monkeypatch: Any, tmp_path: Path) -> None:
    folders: list[object] = []

    def command(_host: Host, _remote: object, *, control_dir: object, **_: Any) -> list[str]:
        folders.append(control_dir)
        return ["sh", "-c", "cat > /dev/null"]

    monkeypatch.setattr(reach, "command", command)
    hosts = {Host(f"node{number}", "192.0.2.1"): b"" for number in range(memory_room.MANY)}
    for mib, folder in ((1000, tmp_path), (8, None)):
        left(monkeypatch, mib)
        folders.clear()
        answers, failures = asyncio.run(
            one_trip.ask(hosts, "login_probe", lambda _host, ending: ending, timeout_s=60, control_dir=tmp_path)
        )
        assert (len(answers), failures) == (len(hosts), {})
        assert folders == [folder] * len(hosts)


def test_small_clusters_and_systems_that_do_not_tell_are_let_pass(monkeypatch: Any) -> None:
    left(monkeypatch, 0)
    memory_room.allow_for(63)
    assert memory_room.for_questions(63, 64) == Room(64)

    def absent() -> int:
        raise FileNotFoundError("/proc/meminfo")

    monkeypatch.setattr(content.module_util("node_look.machine"), "available_memory_bytes", absent)
    memory_room.allow_for(10000)
    assert memory_room.for_questions(10000, 8) == Room(8)
    assert memory_room.left_bytes() is None


def test_this_machine_tells() -> None:
    assert (memory_room.left_bytes() or 0) > MIB
