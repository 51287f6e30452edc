"""What events tell of a run: counts, problems and exit codes."""

from __future__ import annotations

import pytest
from clusterctl.model.run_record import HostResult, Problem, TaskStartedOnHost
from clusterctl.provisioning.playbook import End
from clusterctl.provisioning.task_results import TaskResults, verdict_of


def result(host: str, outcome: str = "ok", **fields: object) -> HostResult:
    return HostResult(at=10.0, host=host, stage="openmpi", task="Install", outcome=outcome, **fields)  # type: ignore[arg-type]


def tally(*results: HostResult) -> TaskResults:
    found = TaskResults()
    for one in results:
        found.add(TaskStartedOnHost(at=4.0, host=one.host, stage="openmpi", task="Install"))
        found.add(one)
    return found


def test_summaries() -> None:
    found = tally(
        result("a", "changed", changes=("/etc/hosts", "openmpi 5.0.7")),
        result("a", "changed", changes=("/etc/hosts",)),
        result("a"),
        result("b", "changed"),
        result("b", "failed", message="disk full"),
        result("c", "unreachable", message="gone"),
        result("d", "failed", message="was rescued"),
    )
    end = End("failed", 2, failed=frozenset({"b"}), unreachable=frozenset({"c"}))
    a, b, c, d, e = found.summaries(["a", "b", "c", "d", "e"], end)
    assert (a.outcome, a.changed, a.changes, a.seconds) == ("changed", 2, ("/etc/hosts", "openmpi 5.0.7"), 6.0)
    assert (b.outcome, b.message, b.failed_stage, b.failed_task) == ("failed", "disk full", "openmpi", "Install")
    assert b.changes == ("Install",), "a module that names nothing is named by its task"
    assert (c.outcome, c.message) == ("unreachable", "gone")
    assert (d.outcome, d.message) == ("ok", ""), "a failure that was put right fails nobody"
    assert e.outcome == "not run"


def test_what_roles_tell_of_the_cluster_is_kept_once_and_in_order() -> None:
    found = tally(
        result("a", data={"told": ["Network: eth0."]}), result("b", data={"told": ["Network: eth0.", "More."]})
    )
    assert found.messages() == ("Network: eth0.", "More.")


def test_problems_of_preflight_and_of_argument_specs() -> None:
    problem = {"host": "x", "check": "disk", "problem": "/usr/local is full", "cure": "free some space"}
    error = "x is of type <class 'str'>: <class 'a.b'> cannot be converted"
    found = tally(
        result("a", "failed", data={"problems": [problem, {**problem, "check": "variable", "kind": "configuration"}]}),
        result("b", "failed", data={"argument_errors": [error]}),
        result("b", "ok", data={"problems": [problem]}),
    ).problems()
    assert [(one.host, one.subject, one.kind) for one in found] == [
        ("x", "disk", "host"),
        ("x", "variable", "configuration"),
        ("b", "openmpi", "configuration"),
    ]
    assert found[2].problem == "x is of type <class 'str'>"


def test_a_refusal_by_a_role_is_about_what_was_asked_for() -> None:
    refused = result("a", "failed", message="No source of 9.9 is known.", data={"assertion": "sources | length > 0"})
    (problem,) = tally(refused).problems()
    assert (problem.subject, problem.problem, problem.kind) == (
        "openmpi",
        "No source of 9.9 is known.",
        "configuration",
    )


@pytest.mark.parametrize(
    ("kinds", "code"),
    [(["host"], 2), (["host", "configuration"], 1), (["unreachable", "configuration", "host"], 4)],
)
def test_the_exit_code_of_problems(kinds: list[str], code: int) -> None:
    problems = [Problem(host="a", subject="s", problem="p", kind=kind) for kind in kinds]  # type: ignore[arg-type]
    assert verdict_of(problems)[1] == code
