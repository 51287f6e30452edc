"""What the trainings tell of speed, over what real ranks printed."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest
from clusterctl.diagnosis.training_stack import NodeStack
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import Verdict
from clusterctl.validation.checks import base, registry
from clusterctl.validation.checks.training import TrainingOptions

DATA = Path(__file__).parents[3] / "data" / "sweeps"
STACK = NodeStack(framework="pytorch", horovod="0.28.1", horovod_with="pytorch", horovod_gpu_operations="none")
SITE = base.Site(
    version="5.0.7",
    slots={"node1": 2, "node2": 2},
    names={"node1": "node1", "node2": "node2"},
    stack={"node1": STACK, "node2": STACK},
)


def judged(check: str, *, without: str = "") -> base.Judgement:
    """Judge a captured log; the first line of the log says how it was made."""
    lines, ended = [], {}
    for text in (DATA / f"{check}-5.0.7.log").read_text(encoding="utf-8").splitlines():
        if text.startswith("# outcome"):
            ended = json.loads(text[text.index("{") :])
        elif (match := re.fullmatch(r" *([\d.]+) (stdout|stderr) (.*)", text)) and not (without and without in text):
            lines.append(OutputLine(match[2], float(match[1]), match[3]))
    return registry.select([check])[0].judge(SITE, JobOutcome(lines=tuple(lines), **ended))


@pytest.mark.parametrize(("check", "backend"), [("training", "horovod"), ("torchrun", "gloo")])
def test_time_of_a_step_efficiency_and_throughput(check: str, backend: str) -> None:
    judgement = judged(check)
    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert re.search(r"as of one process, scaling efficiency \d+ %$", judgement.reason)
    found = {(figure.quantity, figure.operation): figure for figure in judgement.figures}
    assert set(found) == {
        ("time", "training_step"),
        ("time", "single_process_step"),
        ("efficiency", "training_step"),
        ("throughput", "training_step"),
    }
    assert {figure.backend for figure in judgement.figures} == {backend}
    together, alone = found["time", "training_step"], found["time", "single_process_step"]
    assert len(together.samples) == len(alone.samples) == 19
    assert together.value == statistics.median(together.samples)
    assert (together.unit, together.better, together.nodes) == ("s", "lower", ())
    efficiency = found["efficiency", "training_step"]
    assert efficiency.value == pytest.approx(alone.value / (4 * together.value))
    assert (efficiency.unit, efficiency.better) == ("1", "higher")
    assert efficiency.low is not None
    assert efficiency.high is not None
    assert efficiency.low <= efficiency.value <= efficiency.high
    assert efficiency.confidence == pytest.approx(0.9)
    throughput = found["throughput", "training_step"]
    assert throughput.value == pytest.approx(4096 / together.value)
    assert (throughput.unit, throughput.better) == ("tokens/s", "none")


def test_times_of_one_side_alone_make_no_efficiency() -> None:
    judgement = judged("training", without='"single_process_step"')
    assert judgement.verdict is Verdict.PASS
    assert [figure.operation for figure in judgement.figures] == ["training_step"]
    assert judgement.reason.endswith("as of one process")


def test_options_reach_the_program() -> None:
    chosen = registry.builtin("nightly").model_copy(
        update={"checks": {"training": TrainingOptions(steps=64, tolerance=1e-6)}}
    )
    (check,) = registry.build(chosen)
    words = check.program(SITE, 60.0)
    assert words[-4:] == ("--steps", "64", "--tolerance", "1e-06")
    assert check.deadline_s == 142
