"""A validation in pods is a run with a record and logs, whatever becomes of its pods; kubectl is a stand-in."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.model.results import ValidationRecord, Verdict
from clusterctl.model.scheduler_options import PodsOptions
from clusterctl.remote.kubectl_text import Pod
from clusterctl.state import runs
from clusterctl.validation import via_pods
from clusterctl.validation.options import ValidationOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Self

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
