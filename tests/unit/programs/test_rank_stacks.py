"""Which ranks' stacks are taken with the functions of libraries, and which of them first."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from clusterctl.analysis.rank_evidence import Place, place
from clusterctl.support import content

sys.path.insert(0, str(content.role_files("validation")))

import rank_stacks

LOOP = 'Thread 7 (active+gil): "MainThread"\n    spin (train.py:3)\n    <module> (train.py:9)\n'
WAITS = 'Thread {} (idle): "MainThread"\n    step (train.py:5)\n    <module> (train.py:9)\n'
TORCH = (
    'Thread 8 (idle): "Thread-1"\n    wait (threading.py:324)\n'
    'Thread 5 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:2810)\n'
)
HOROVOD = 'Thread 5 (idle): "MainThread"\n    synchronize (horovod/torch/mpi_ops.py:1282)\n    step (train.py:5)\n'
BESIDE = (
    'Thread 5 (idle): "MainThread"\n    step (train.py:5)\n'
    'Thread 8 (idle): "loader"\n    _worker (torch/utils/data/dataloader.py:9)\n'
)
NAMELESS = "Thread 9 (idle)\n    nap (train.py:2)\n    <module> (train.py:9)\n"


def test_frames_that_name_the_communication_are_enough() -> None:
    taken = {1: TORCH, 2: HOROVOD, 3: LOOP, 4: BESIDE}
    assert rank_stacks.without_library(taken, [1, 2, 3, 4]) == [3, 4]


def test_one_rank_of_each_place_comes_before_the_others() -> None:
    taken = {1: WAITS.format(1), 2: WAITS.format(2), 3: LOOP, 4: WAITS.format(4), 5: NAMELESS}
    assert rank_stacks.without_library(taken, [1, 2, 3, 4, 5]) == [1, 3, 5, 2, 4]


def test_ranks_without_a_stack_are_tried_too() -> None:
    assert rank_stacks.without_library({1: TORCH}, [1, 2, 3]) == [2, 3]
    assert rank_stacks.main_thread(NAMELESS) == NAMELESS
    assert rank_stacks.main_thread("") == ""


def test_a_process_whose_interpreter_is_gone_has_ended_its_program(tmp_path: Path) -> None:
    said = "Error: Failed to find a python interpreter in the .data section"  # py-spy 0.4, in Python's atexit
    tool = tmp_path / "py-spy"
    tool.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n", encoding="utf-8")
    tool.chmod(0o755)
    end = time.monotonic() + 10
    taken = rank_stacks.with_tool("py-spy", str(tool), os.getpid(), end)
    assert place(f"python: sleeping, waits in hrtimer_nanosleep\n\n{taken}") == Place(has_ended=True)
    tool.write_text("#!/bin/sh\necho 'Error: Failed to find python version from target process' >&2\nexit 1\n")
    assert rank_stacks.with_tool("py-spy", str(tool), os.getpid(), end) == ""
