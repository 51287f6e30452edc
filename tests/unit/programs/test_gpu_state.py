"""How a node's GPUs run: what nvidia-smi prints, and which of its reasons somebody has to look at."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from node_programs import load
from waiting import eventually

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "gpu_state"
H200 = "../gpu_h200/gpu-state.csv"  # captured


@pytest.fixture(scope="module")
def state() -> ModuleType:
    return load("gpu_state")


def captured(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def reported(state: ModuleType, *names: str) -> Any:
    """Return what a rank notes of some looks."""
    rank = SimpleNamespace(facts={}, findings=load("rank_program").Findings())
    state.report(rank, [state.parsed(captured(name)) for name in names])
    return rank


def program(folder: Path, script: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_gpus_at_rest_and_at_their_power_limit_are_as_they_are_meant_to_be(state: ModuleType) -> None:
    for name in ("idle.csv", "busy.csv"):
        rank = reported(state, *[name] * 3)
        assert rank.findings.wrong == 0
    assert rank.facts == {
        "gpu0_state": "1755 of 1980 MHz, 61 C, 698 of 700 W: power limit",
        "gpu1_state": "1980 of 1980 MHz, 57 C, 513 of 700 W: nothing slows it down",
    }
    assert len(state.parsed(captured("idle.csv"))) == 8


def test_a_healthy_gpu_as_its_driver_told_of_it_has_no_finding(state: ModuleType) -> None:
    rank = reported(state, *[H200] * 3)
    assert (rank.findings.wrong, rank.facts) == (
        0,
        {"gpu0_state": "1980 of 1980 MHz, 38 C, 126 of 700 W: nothing slows it down"},
    )
    assert state.clocks([state.parsed(captured(H200))]) == {0: [1.98e9]}


def test_a_slowdown_by_the_hardware_names_the_gpu(state: ModuleType) -> None:
    rank = reported(state, *["hot.csv"] * 3)
    assert (rank.findings.compared, rank.findings.wrong) == (2, 1)
    assert rank.findings.problems == [
        {
            "what": "GPU 1 (NVIDIA H100 80GB HBM3, 00000000:43:00.0)",
            "expected": "full speed",
            "got": "hardware slowdown and hardware thermal slowdown: 495 of 1980 MHz, 92 C, 241 of 700 W: "
            "hardware slowdown, hardware thermal slowdown",
        }
    ]


def test_what_only_some_looks_show_may_be_a_change_of_clocks(state: ModuleType) -> None:
    assert reported(state, "hot.csv", "busy.csv", "hot.csv", "hot.csv").findings.wrong == 0
    assert reported(state, "busy.csv", "hot.csv", "hot.csv", "hot.csv", "busy.csv").findings.wrong == 1


def test_what_a_gpu_does_not_tell_is_no_number_and_no_alarm(state: ModuleType) -> None:
    looks = [state.parsed(captured("silent.csv"))] * 3
    assert state.clocks(looks) == {}
    assert reported(state, *["silent.csv"] * 3).facts["gpu0_state"] == (
        "? of ? MHz, 44 C, ? of ? W: nothing slows it down"
    )


def test_an_unknown_reason_is_told(state: ModuleType) -> None:
    (gpu,) = state.parsed("0, New, 0:0, 30, 100, 200, 1, 2, 0x0000000000000a01\n")
    assert gpu.reasons == ("idle", "unknown reason 0xa00")


def test_clocks_are_in_hertz(state: ModuleType) -> None:
    looks = [state.parsed(captured(name)) for name in ("hot.csv", "busy.csv", "busy.csv")]
    assert state.clocks(looks) == {0: [1.98e9, 1.755e9, 1.755e9], 1: [4.95e8, 1.98e9, 1.98e9]}
    assert state.clock_figures(looks) == {"gpu0_clock_hz": 1.755e9, "gpu1_clock_hz": 1.98e9}


@pytest.mark.parametrize("text", ["half a line, 1\n", "x, y, z, 1, 2, 3, 4, 5, 6\n", "No devices were found\n"])
def test_something_else_is_a_sentence(state: ModuleType, text: str) -> None:
    with pytest.raises(state.StateError, match="which is no GPU's state"):
        state.parsed(text)


def test_a_driver_that_has_renamed_the_field_is_asked_again(state: ModuleType, tmp_path: Path) -> None:
    script = f"case $1 in *throttle*) cat {DATA}/unknown-field.txt; exit 2;; esac; cat {DATA}/busy.csv"
    assert len(state.look(program(tmp_path, script))) == 2


def test_no_answer_is_a_sentence(state: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(state.StateError, match="there is no /nowhere/nvidia-smi"):
        state.look("/nowhere/nvidia-smi")
    with pytest.raises(state.StateError, match="ended with an error: NVIDIA-SMI has failed because it couldn't"):
        state.look(program(tmp_path, f"cat {DATA}/failed.txt; exit 9"))
    monkeypatch.setattr(state, "LIMIT_S", 0.2)
    with pytest.raises(state.StateError, match=r"did not answer within 0\.2 s"):
        state.look(program(tmp_path, "exec sleep 5"))
    assert state.quietly("/nowhere/nvidia-smi") == []


def await_looks(watch: Any, count: int) -> None:
    """Wait until a watch has looked this often, or has a problem."""
    looked = eventually(lambda: len(watch.looks) >= count or watch.problem, within_s=30)
    assert looked, f"{len(watch.looks)} looks in 30 s"


@pytest.mark.parametrize(
    "later",
    [
        pytest.param("head -n 1 {busy}", id="not listed any more"),
        pytest.param(
            "echo 'Unable to determine the device handle for GPU0000:43:00.0: GPU is lost.'; exit 15",
            id="no handle",
        ),
        pytest.param("sed 's/57, .*/[GPU is lost], [GPU is lost]/' {busy}; exit 15", id="no values"),
    ],
)
def test_a_gpu_that_vanishes_in_the_middle_of_a_check_is_named(state: ModuleType, tmp_path: Path, later: str) -> None:
    first = f"test -e {tmp_path}/seen && {{ {later.format(busy=DATA / 'busy.csv')}; exit; }}"
    watch = state.Watch(program(tmp_path, f"{first}\ntouch {tmp_path}/seen; cat {DATA}/busy.csv"), pause_s=0.01)
    watch.start()
    await_looks(watch, 2)
    watch.stop()
    rank = SimpleNamespace(facts={}, findings=load("rank_program").Findings())
    state.report(rank, watch.looks, watch.lost)
    assert rank.findings.wrong == 1
    (words,) = rank.findings.problems
    assert "GPU 1 (NVIDIA H100 80GB HBM3, 00000000:43:00.0)" in str(words)
    assert "it is lost to nvidia-smi" in str(words)


def test_gpus_are_watched_while_something_else_goes_on(state: ModuleType, tmp_path: Path) -> None:
    watch = state.Watch(program(tmp_path, f"cat {DATA}/busy.csv"), pause_s=0.01)
    watch.start()
    await_looks(watch, 4)
    watch.stop()
    assert watch.problem == ""
    broken = state.Watch("/nowhere/nvidia-smi")
    broken.start()
    broken.stop()
    assert (broken.looks, broken.problem) == ([], "there is no /nowhere/nvidia-smi")
