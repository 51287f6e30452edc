"""What an API server, a webhook or a pod puts into kubectl's answers has a type and bounds."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clusterctl.remote import kubectl_output, pod_job
from clusterctl.remote.kubectl import Kubectl
from clusterctl.remote.pod_job import PodJob
from clusterctl.support.errors import ClusterctlError, ValidationCouldNotRunError

_SUBMITTED = SimpleNamespace(name="job1", resource="mpijobs.kubeflow.org", selector="a=b", pod_count=1)


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Kubectl]:
    """Return a cluster whose kubectl is a script of sh."""

    def made(script: str) -> Kubectl:
        program = tmp_path / "kubectl"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return Kubectl(namespace="here")

    return made


@pytest.mark.parametrize(
    "said",
    ["x" * 65536, "error: stat " * 5400, "context " * 8000, 'x is forbidden: User "' * 3000, "\n" * 65536],
    ids=["word", "stat", "context", "forbidden", "lines"],
)
def test_no_refusal_takes_long_to_read(said: str) -> None:
    began = time.monotonic()
    assert len(str(kubectl_output.refusal(said))) < 1000
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("value", [["x"], {"x": ["y"]}, 7, "\x1b[2J" + "x" * 100_000, None], ids=type)
@pytest.mark.parametrize(
    "pod",
    [
        lambda value: {"status": {"phase": value, "conditions": value, "containerStatuses": value}},
        lambda value: {"status": {"containerStatuses": [{"state": {"waiting": {"reason": value, "message": value}}}]}},
        lambda value: {
            "status": {"containerStatuses": [{"state": {"terminated": {"exitCode": value, "reason": value}}}]}
        },
        lambda value: {"status": {"conditions": [{"type": value, "status": value, "reason": value}]}},
        lambda value: {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": value}]}},
        lambda value: {"status": {"reason": value, "message": value}},
        lambda value: {"metadata": {"name": value}, "spec": {"nodeName": value}},
        lambda value: {"metadata": value, "spec": value, "status": value},
    ],
)
def test_a_pod_of_any_form_has_printable_words_of_bounded_length(pod: Callable[[Any], Any], value: Any) -> None:
    (found,) = kubectl_output.pods({"items": [pod(value)]})
    assert all(one.isprintable() and len(one) < 1000 for one in (found.name, found.node, found.waits, found.died))


@pytest.mark.parametrize("value", [["x"], 7, "\x1b[2J" + "x" * 100_000], ids=type)
def test_a_job_of_any_form_has_printable_words_of_bounded_length(value: Any) -> None:
    for condition in ({"type": "Failed", "status": "True", "reason": value, "message": value}, {"type": value}, value):
        found = kubectl_output.job({"metadata": {"uid": value}, "status": {"conditions": [condition]}})
        assert all(one.isprintable() and len(one) < 1000 for one in (found.uid, found.reason, found.message))


@pytest.mark.parametrize(
    "answer",
    ['{"items": ' + "[" * 200_000, '{"items": 1e999}', "[]", "x", '{"items": ' + "9" * 10_000 + "}"],
    ids=["deep", "infinite", "list", "text", "long"],
)
def test_an_answer_of_another_form_is_one_sentence(
    answer: str, kubectl: Callable[[str], Kubectl], tmp_path: Path
) -> None:
    (tmp_path / "answer").write_text(answer)
    with pytest.raises(ValidationCouldNotRunError, match="no JSON"):
        kubectl(f"cat {tmp_path}/answer").pods("a=b")


def _job(kubectl: Kubectl, time_s: float = 1.0) -> PodJob:
    return PodJob(kubectl, _SUBMITTED, 1.0, time_s)  # type: ignore[arg-type] - what lines() asks of it


@pytest.mark.parametrize("logs", ["exit 1", "exec sleep 60"], ids=["none", "silent"])
def test_an_api_server_that_answers_no_more_holds_no_run(
    logs: str, kubectl: Callable[[str], Kubectl], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_job, "_LATE_S", 1.0)
    monkeypatch.setattr(pod_job, "_ASK_EVERY_S", 0.5)
    held = _job(kubectl(f'case "$*" in *logs*) {logs};; *) exit 1;; esac'))
    began = time.monotonic()
    assert list(held.lines(lambda: time.monotonic() - began > 30)) == []
    assert time.monotonic() - began < 20
    assert "time limit" in held.gone


@pytest.mark.parametrize("what", ["/dev/zero", "/dev/zero >&2"], ids=["line", "errors"])
def test_logs_without_end_fill_no_memory(
    what: str, kubectl: Callable[[str], Kubectl], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_job, "_LATE_S", 20.0)
    script = f"head -c 300000000 {what}; echo; echo '[pod/p/c] last'; exec sleep 60"
    tracemalloc.start()
    held = _job(kubectl(f'case "$*" in *logs*) {script};; *) exit 1;; esac'))
    pods = [pod for pod, _text, _at in _until_first(held)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pods == ["p"]
    assert peak < 100 << 20


def test_a_long_line_of_a_pod_begins_no_line_of_another_pod(
    kubectl: Callable[[str], Kubectl], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_job, "_LATE_S", 20.0)
    monkeypatch.setattr(pod_job, "_MOST_OF_A_LINE", 1000)
    begin = "[pod/p/c] "
    fill = f"head -c {1000 - len(begin)} /dev/zero"
    script = f"printf '{begin}'; {fill}; echo '[pod/other/c] forged'"
    held = _job(kubectl(f"""case "$*" in *logs*) {script}; echo '[pod/q/c] last'; exec sleep 60;; *) exit 1;; esac"""))
    lines = held.lines(lambda: False)
    assert [next(lines)[0] for _unused in range(2)] == ["p", "q"]
    lines.close()  # type: ignore[attr-defined] - it is a generator


def _until_first(held: PodJob) -> list[tuple[str, str, float]]:
    lines = held.lines(lambda: False)
    try:
        return [next(lines)]
    finally:
        lines.close()  # type: ignore[attr-defined] - it is a generator


def test_a_flood_of_lines_waits_for_its_reader(kubectl: Callable[[str], Kubectl]) -> None:
    held = _job(kubectl("""case "$*" in *logs*) yes '[pod/p/c] x' | head -c 200000000;; *) exit 1;; esac"""))
    tracemalloc.start()
    lines = held.lines(lambda: False)
    next(lines)
    time.sleep(3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    lines.close()  # type: ignore[attr-defined] - it is a generator
    assert peak < 50 << 20


def test_a_right_that_is_neither_yes_nor_no_is_one_sentence(kubectl: Callable[[str], Kubectl]) -> None:
    with pytest.raises(ClusterctlError):
        kubectl("echo maybe").may("get", "pods/log")
