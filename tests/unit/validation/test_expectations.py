"""What a run's figures are held against, beyond what the verdict's own tests prove."""

from __future__ import annotations

import factory
from clusterctl.model.results import CheckResult, Verdict
from clusterctl.validation import expectations
from clusterctl.validation.checks import registry

TEXT = """\
extends: smoke
references:
  - {check: pairs, quantity: bandwidth, size: 1 MiB, value: 1 GB/s, lower: -10 %}
  - {check: pairs, quantity: bandwidth, size: 3 MiB, value: 1 GB/s, lower: -10 %}
  - {check: pairs, quantity: bandwidth, size: 1 MiB, nodes: 64, value: 2 GB/s, lower: -10 %}
  - {check: collectives, quantity: time, operation: allreduce, value: 1 s, upper: 10 %}
"""


def assessed(verdict: Verdict = Verdict.PASS) -> tuple[CheckResult, list[str]]:
    run = expectations.MeasuredRun("here", 4, {})
    judge = expectations.Expectations(registry.parse(TEXT, "validation.yml"), run, {}, remembered=False)
    figure = factory.figure(1e9, backend="mpi", samples=(1e9,))
    return judge.assess(factory.check("pairs", verdict, figure)), judge.notes


def test_a_reference_that_meets_no_figure_is_told_and_one_for_other_clusters_is_not() -> None:
    found, notes = assessed()
    assert [one.reference.value for one in found.comparisons] == [1e9]
    assert notes == [
        "validation.yml: 'pairs' measured no figure for the reference of bandwidth of 3 MiB; correct or remove it."
    ]


def test_of_a_check_that_failed_no_reference_is_missed() -> None:
    assert assessed(Verdict.FAIL)[1] == []
