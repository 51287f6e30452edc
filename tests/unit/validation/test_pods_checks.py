"""Which checks run in pods, by which program; the others say why they do not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.results import ValidationRecord, Verdict
from clusterctl.model.scheduler_options import PodsOptions
from clusterctl.remote.kubectl_output import Pod
from clusterctl.state import runs
from clusterctl.validation import via_pods
from clusterctl.validation.checks import registry
from clusterctl.validation.options import ValidationOptions
from typing_extensions import Self

PROGRAMS = "/usr/local/libexec/clusterctl"


def planned(kind: Any, suite: str = "smoke", **more: Any) -> via_pods.PodsPlan:
    wish = PodsOptions(kind, "a:1", 2, slots=2, **more)
    return via_pods.plan_of(registry.build(registry.builtin(suite)), wish)


def test_an_mpijob_runs_the_checks_of_mpi_and_names_why_the_others_stay_out() -> None:
    plan = planned("mpijob", "full")
    assert [check.name for check in plan.checks] == [
        *("point_to_point", "broadcast", "scatter", "gather", "reduce", "allreduce"),
        *("node_speed", "pairs", "copies", "collectives"),
    ]
    assert plan.left_out["hello"] == "not in pods: its C program is compiled by 'clusterctl provision'"
    assert plan.left_out["torchrun"].startswith("give --via pytorchjob")
    assert set(plan.left_out) | {check.name for check in plan.checks} == set(registry.builtin("full").checks)
    assert plan.left_out["dcgm"].startswith("not in pods: ")
    assert all(one.argv[0] == "python3" and one.argv[1].startswith(PROGRAMS) for one in plan.planned)


def test_a_check_that_measures_runs_twice() -> None:
    plan = planned("mpijob")
    assert len(plan.numbers["pairs"]) == 2
    assert len(plan.numbers["allreduce"]) == 1
    assert sorted(number for numbers in plan.numbers.values() for number in numbers) == list(range(len(plan.planned)))
    assert all(plan.planned[number].name == name for name, numbers in plan.numbers.items() for number in numbers)


def test_a_pytorchjob_runs_torchrun_with_what_the_operator_says() -> None:
    plan = planned("pytorchjob", python="/opt/conda/bin/python")
    assert [check.name for check in plan.checks] == ["torchrun"]
    argv = plan.planned[0].argv
    assert argv[:2] == ("/opt/conda/bin/python", f"{PROGRAMS}/torch_checks.py")
    assert argv[argv.index("--first-node") + 1] == "{first}"
    assert argv[argv.index("--slots") + 1] == "2,2"
    assert argv[-4:] == ("--node", "{node}", "--port", "{port}")
    assert argv[argv.index("--backend") + 1] == "gloo"
    assert plan.left_out["allreduce"] == "mpirun starts it; give --via mpijob"


def test_gpus_make_torchrun_use_nccl() -> None:
    argv = planned("runai", gpus_per_node=2).planned[0].argv
    assert argv[argv.index("--backend") + 1] == "nccl"


# --- A validation in pods is a run with a record and logs, whatever becomes of its pods; kubectl is a stand-in ---


CHECKS = ("gather", "allreduce")  # in the order of the suite
OPTIONS = ValidationOptions(checks=CHECKS, remembered=False)
WISH = PodsOptions("mpijob", "image:1", nodes=2)


def event(name: str, **more: Any) -> str:
    return json.dumps({"clusterctl_pod": 1, "event": name, "pod": "launcher", **more})


@dataclass
class Pods:
    """The pods of a job: the lines of the launcher, and why they went away."""

    said: tuple[str, ...]
    gone: str = ""
    left: str = ""
    job: str = ""
    pods: tuple[Pod, ...] = field(default=())

    def __call__(self, _kubectl: object, job: Any, *_more: object) -> Pods:
        self.job = job.name
        self.pods = tuple(Pod(f"{job.name}-worker-{number}", f"gpu{number}", "Running") for number in range(2))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def wait(self) -> tuple[Pod, ...]:
        return self.pods

    def lines(self, _is_done: Callable[[], bool]) -> Iterator[tuple[str, str, float]]:
        for number, line in enumerate(self.said):
            if line == "interrupt":
                raise KeyboardInterrupt
            yield f"{self.job}-launcher", line, time.monotonic() + number


class Kubectl:
    context, namespace = "here", "ml"


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Pods], ValidationRecord]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(via_pods, "cluster", lambda _wish: Kubectl())
    monkeypatch.setattr(via_pods, "checked", lambda *_given: None)

    def run(pods: Pods) -> ValidationRecord:
        monkeypatch.setattr(via_pods, "PodJob", pods)
        return via_pods.validate(OPTIONS, WISH)

    return run


FAILED = (
    event("up", mpirun="mpirun (Open MPI) 4.1.4"),
    event("begin", check="gather"),
    "mpirun: nothing works",
    event("end", check="gather", ending="exited", rc=1, seconds=2.0, ending_s=2.0),
)


def test_each_check_has_its_result_and_its_log(validated: Callable[[Pods], ValidationRecord], tmp_path: Path) -> None:
    record = validated(Pods((*FAILED, event("begin", check="allreduce")), gone="The job was deleted"))
    assert (record.via, record.verdict, record.hosts) == ("mpijob", Verdict.ERROR, ("worker-0", "worker-1"))
    first, second = (next(one for one in record.checks if one.check == name) for name in CHECKS)
    assert first.verdict is not Verdict.PASS
    assert (round(first.seconds), first.log) == (2, "logs/gather.log")
    assert first.command[0] == "python3"
    assert first.next_step
    assert (second.verdict, second.hosts, second.culprits) == (Verdict.ERROR, (), ())
    assert second.reason == "The job was deleted; it ended during this check"
    (folder,) = (path.parent for path in tmp_path.rglob("validation.json"))
    assert "nothing works" in (folder / "logs" / "gather.log").read_text(encoding="utf-8")
    assert ValidationRecord.model_validate_json((folder / "validation.json").read_bytes()) == record
    kept = runs.settled(folder)
    assert (kept.outcome, kept.exit_code) == ("failed", 11)


def test_an_interrupted_validation_keeps_what_it_has(
    validated: Callable[[Pods], ValidationRecord], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        validated(Pods((*FAILED, "interrupt")))
    (path,) = tmp_path.rglob("validation.json")
    assert "gather" in {one.check for one in ValidationRecord.model_validate_json(path.read_bytes()).checks}
