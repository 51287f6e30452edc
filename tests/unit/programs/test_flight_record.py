"""Records of PyTorch's flight recorder on a node.

They are composed as torch/csrc/distributed/c10d/FlightRecorderDetail.hpp of PyTorch writes them.

PyTorch pickles plain values with protocol 2. ``process_group`` is a pair of name and meaning, ``state`` one of
scheduled, started and completed, and ``profiling_name`` the library and the call.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusterctl.analysis.rank_evidence import Behind, behind
from clusterctl.model.job_outcome import FlightGroup
from clusterctl.support import content
from factory import DATA

FILES = content.role_files("validation")
JOB = f"unit-flight-{os.getpid()}"
sys.path.insert(0, str(FILES))
import flight_record  # noqa: E402 - a program of the nodes, which lies beside its modules


def entry(number: int, state: str = "completed", call: str = "nccl:all_reduce", **more: Any) -> dict[str, Any]:
    return {
        "frames": [{"name": "all_reduce", "filename": "distributed_c10d.py", "line": 2696}],
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": call,
        "time_created_ns": 1,
        "input_sizes": [[1024]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600000,
        "is_p2p": False,
        **more,
    }


def record(*entries: dict[str, Any], version: str = "2.10") -> bytes:
    return pickle.dumps({"version": version, "pg_config": {}, "pg_status": {}, "entries": list(entries)}, protocol=2)


@pytest.fixture
def folder() -> Iterator[Path]:
    assert flight_record.make(JOB) == ""
    yield flight_record.folder(JOB)
    flight_record.remove(JOB)


def test_a_record_tells_the_last_call_of_each_group_and_the_first_that_has_not_ended(folder: Path) -> None:
    other = entry(3, "started", "nccl:broadcast", process_group=("1", "tensor"))
    (folder / "record_5").write_bytes(record(entry(7), entry(8, "started"), entry(9, "scheduled"), other))
    found = flight_record.read(JOB, 5)
    assert found["groups"] == [
        {
            "group": "0",
            "meaning": "default_pg",
            "last": 9,
            "last_call": "all_reduce",
            "waits": 8,
            "call": "all_reduce",
            "sizes": "[[1024]]",
        },
        {
            "group": "1",
            "meaning": "tensor",
            "last": 3,
            "last_call": "broadcast",
            "waits": 3,
            "call": "broadcast",
            "sizes": "[[1024]]",
        },
    ]
    assert 0 <= found["age_s"] < 600
    assert flight_record.read(JOB, 6) is None


@pytest.mark.parametrize(
    ("begin", "call"), [("gpu_h200/flight-late_", "all_reduce #9"), ("flight/record_", "all_reduce #5")]
)
def test_what_pytorch_itself_wrote_names_the_rank_that_has_not_called(folder: Path, begin: str, call: str) -> None:
    """With NCCL on a GPU, and with Gloo."""
    found = {}
    for rank in range(3):
        shutil.copy(DATA / f"{begin}{rank}", folder / f"record_{rank}")
        record = flight_record.read(JOB, rank)
        assert record is not None
        found[rank] = tuple(FlightGroup(**one) for one in record["groups"])
    assert behind(found) == Behind((2,), f"has not called {call}", call)


@pytest.mark.parametrize(
    ("name", "ranks", "words"),
    [
        ("gpu_error", (12, 14), "is still in a call before all_to_all #20537"),
        ("lock_gil", (9, 14), "has not called all_to_all #45265"),
    ],
)
def test_all_ranks_with_a_fault_are_named_in_a_job_with_many_groups(name: str, ranks: tuple[int], words: str) -> None:
    with zipfile.ZipFile(DATA / "flight" / f"{name}.zip") as captured:
        records = [flight_record.plain(captured.read(f"_dump_{rank}")) for rank in range(16)]
    flights = {at: [FlightGroup(**one) for one in flight_record.groups(found)] for at, found in enumerate(records)}
    told = behind(flights)
    assert told is not None
    assert (told.ranks, told.words) == (ranks, words)
    healthy = {rank: groups for rank, groups in flights.items() if rank < 8}
    assert behind(healthy) is None


def test_a_rank_that_receives_from_others_before_its_next_collective_names_them() -> None:
    to_peer = entry(1, "scheduled", "nccl:recv 1<-0", is_p2p=True, process_group=("3", "pipeline"))
    found = {"version": "2.9", "pg_config": {"3": {"desc": "pipeline", "ranks": "[4, 6]"}}, "pg_status": {}}
    first, after = ({**found, "entries": entries} for entries in ([entry(7), to_peer], [entry(7, "started"), to_peer]))
    assert flight_record.groups(first)[0]["peers"] == [4]
    assert "peers" not in flight_record.groups(after)[0]


def test_a_record_of_a_job_over_nccl_that_goes_on_waits_in_no_call(folder: Path) -> None:
    shutil.copy(DATA / "gpu_h200" / "flight-record_0", folder / "record_0")
    found = flight_record.read(JOB, 0)
    assert found["groups"] == [{"group": "0", "meaning": "default_pg", "last": 9, "last_call": "all_reduce"}]


def test_a_call_that_stays_open_behind_one_that_has_ended_is_not_waited_in(folder: Path) -> None:
    (folder / "record_0").write_bytes(record(entry(1), entry(2, "scheduled"), entry(3)))
    found = flight_record.read(JOB, 0)
    assert "waits" not in found["groups"][0]


class Nasty:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch /tmp/clusterctl-pickle-was-run",))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (pickle.dumps({"version": "2.1", "entries": [Nasty()]}, protocol=2), "the record names posix.system"),
        (b"cposix\nsystem\n(S'true'\ntR.", "the record names posix.system"),
        (record(entry(1))[:-30], ""),
        (b"", ""),
        (b"\x80\x02garbage", ""),
        (record(entry(1), version="3.0"), "its format 3.0 is unknown"),
        (pickle.dumps([1, 2], protocol=2), "it has another form"),
        (pickle.dumps({"version": "2.1", "entries": [{}]}, protocol=2), "it has another form"),
        (record(entry("x")), ""),  # type: ignore[arg-type]
    ],
)
def test_a_record_that_is_no_record_is_a_problem_and_runs_nothing(folder: Path, data: bytes, words: str) -> None:
    (folder / "record_0").write_bytes(data)
    found = flight_record.read(JOB, 0)
    assert words in found["problem"]
    assert "groups" not in found
    json.dumps(found)
    assert not Path("/tmp/clusterctl-pickle-was-run").exists()  # noqa: S108 - where it would lie


def test_a_record_behind_a_link_is_not_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "else").write_bytes(record(entry(1)))
    (folder / "record_0").symlink_to(tmp_path / "else")
    assert flight_record.read(JOB, 0) is None


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    place = flight_record.folder(f"{JOB}-link")
    place.symlink_to(tmp_path)
    try:
        assert "belongs to somebody else" in flight_record.make(f"{JOB}-link")
        assert not flight_record.remove(f"{JOB}-link")
        assert tmp_path.exists()
    finally:
        place.unlink()
    place = flight_record.folder(f"{JOB}-open")
    place.mkdir()
    place.chmod(0o755)
    try:
        assert "belongs to somebody else" in flight_record.make(f"{JOB}-open")
    finally:
        place.rmdir()


def test_a_rank_is_asked_through_its_pipe(folder: Path) -> None:
    """A rank makes the pipe and opens it as struct DumpPipe of ProcessGroupNCCL.hpp does."""
    assert not flight_record.request(JOB, 3), "no rank listens"
    pipe = folder / "pipe_3.pipe"
    os.mkfifo(pipe)
    assert not flight_record.request(JOB, 3), "a pipe without a reader makes nobody wait"
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert flight_record.request(JOB, 3)
        assert os.read(reader, 128)
    finally:
        os.close(reader)
    pipe.unlink()
    pipe.write_bytes(b"")
    assert not flight_record.request(JOB, 3), "a file is not written to"
    assert pipe.read_bytes() == b""


@pytest.mark.programs
def test_the_program_makes_and_removes_the_folder() -> None:
    def call(word: str) -> dict[str, Any]:
        command = [sys.executable, str(FILES / "flight_record.py"), f"{JOB}-program", word]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return dict(json.loads(done.stdout))

    place = flight_record.folder(f"{JOB}-program")
    assert call("--make") == {"event": "made", "folder": str(place), "problem": ""}
    assert place.stat().st_mode & 0o777 == 0o700
    assert call("--make")["problem"] == "", "two nodes may share the folder"
    assert call("--remove") == {"event": "removed", "removed": True}
    assert call("--remove") == {"event": "removed", "removed": False}
