"""PyTorch's flight recorder under the watch: processes of this machine that answer as ranks with NCCL do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from clusterctl.jobs import flight
from clusterctl.jobs.watch import Watch, WatchedJob
from clusterctl.launch import flight_recorder
from clusterctl.launch.compose import JobOptions
from clusterctl.launch.launchers import Launcher
from clusterctl.model.facts import Gpu
from clusterctl.model.job_outcome import StallRecord
from factory import provisioned
from local_jobs import GONE, HERE

GPU = Gpu(bus="0000:01:00.0", name="H100", driver="nvidia")
# As struct DumpPipe and DebugInfoWriter of PyTorch: a pipe, and a record whenever something comes out of it.
RANK = """
import os, pickle, sys, time
rank = os.environ["OMPI_COMM_WORLD_RANK"]
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + rank + ".pipe"
os.mkfifo(pipe, 0o666)
end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
calls = 8 if rank == "2" else 9
while True:
    time.sleep(0.2)
    if os.read(end, 128):
        entries = [
            dict(process_group=("0", "default_pg"), collective_seq_id=number, profiling_name="nccl:all_reduce",
                 input_sizes=[[4]], state="completed" if number < 9 else "started", retired=number < 9, is_p2p=False)
            for number in range(1, calls + 1)
        ]
        with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank, "wb") as file:
            pickle.dump(dict(version="2.10", entries=entries), file, protocol=2)
"""


def test_the_rank_that_has_not_called_is_named_although_all_look_alike() -> None:
    job = f"unit-flight-watch-{os.getpid()}"
    folder, problems = flight.make([HERE], job)
    assert not problems
    recorder = dict(word.split("=", 1) for word in flight_recorder.exported(folder, "2.13.0"))
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={**os.environ, **recorder, "CLUSTERCTL_JOB": job, "OMPI_COMM_WORLD_RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(4)
    ]
    found: list[StallRecord] = []
    try:
        watched = WatchedJob(job, (HERE,), ("node1",) * 4, {})
        watch = Watch(watched, 2.0, lambda _hosts: [], list, found.append, [].append)
        end = time.monotonic() + 90
        while not found and time.monotonic() < end:
            watch.poll()
            time.sleep(0.05)
        watch.close()
    finally:
        for one in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
        flight.remove([HERE], job)
    (record,) = found
    assert (record.verdict.cause, record.verdict.ranks) == ("behind", (2,))
    assert "node1 rank 2 has not called all_reduce #9" in record.verdict.sentence
    assert "3 others wait in all_reduce #9" in record.verdict.sentence
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ("2.13.0", {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"}),
        ("2.11.0+cu130", {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"}),
        ("2.10.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"}),
        ("2.8.0+cu126", {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"}),
        ("2.7.1", {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}),
    ],
)
def test_a_release_gets_the_newest_names_with_which_it_makes_a_pipe(release: str, names: set[str]) -> None:
    given = dict(word.split("=", 1) for word in flight_recorder.exported("/tmp/x", release))  # noqa: S108 - not used
    assert set(given) == names | {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}
    assert set(given) <= flight_recorder.NAMES


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (JobOptions(("train.py",), Launcher.TORCHRUN), True),
        (JobOptions(("-m", "train"), Launcher.TORCHRUN), True),
        (JobOptions(("python", "train.py")), True),
        (JobOptions(("/usr/local/python_env/bin/python", "train.py")), True),
        (JobOptions(("/opt/venv/bin/python3.11", "-m", "train")), True),
        (JobOptions(("/opt/bin/pythonia", "train.py")), False),
        (JobOptions(("./train.sh",), Launcher.TORCHRUN), False),
        (JobOptions(("apptainer", "exec", "x.sif", "python", "train.py")), False),
        (JobOptions(("train.py",), Launcher.TORCHRUN, exported=("TORCH_FR_BUFFER_SIZE=0",)), False),
    ],
)
def test_a_program_in_a_container_and_a_setting_of_the_users_are_left_alone(wish: JobOptions, expected: bool) -> None:
    assert flight_recorder.is_for(wish) is expected


def test_the_recorder_is_on_where_all_nodes_have_gpus_and_can_make_the_folder() -> None:
    told: list[str] = []
    job = f"unit-flight-on-{os.getpid()}"
    wish = JobOptions(("train.py",), Launcher.TORCHRUN)

    def words(**more: object) -> tuple[str, ...]:
        facts = {"node1": provisioned("node1", gpus=[GPU]), "node9": provisioned("node9", 9, gpus=[GPU])}
        given = {"hosts": facts, "facts": facts, "logins": [HERE, HERE], **more}
        with flight.recorded(SimpleNamespace(**given), wish, job, told.append) as found:  # type: ignore[arg-type]
            return found

    assert any(word.startswith("TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/clusterctl-flight-unit") for word in words())
    bare = {"node1": provisioned("node1", gpus=[GPU]), "node2": provisioned("node2", 2)}
    assert words(facts=bare) == (), "Gloo's calls would be recorded and never written"
    assert told == []
    assert words(logins=[HERE, GONE]) == ()
    assert told[0].startswith("Note: PyTorch's flight recorder stays off: node9: ")
    assert not Path(f"/tmp/clusterctl-flight-{job}").exists()  # noqa: S108 - the folder of the program
