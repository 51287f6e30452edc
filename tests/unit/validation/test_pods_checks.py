"""Which checks run in pods, by which program; the others say why they do not."""

from __future__ import annotations

from typing import Any

from clusterctl.model.scheduler_options import PodsOptions
from clusterctl.validation import pods_checks, suites
from clusterctl.validation.checks import registry

PROGRAMS = "/usr/local/libexec/clusterctl"


def planned(kind: Any, suite: str = "smoke", **more: Any) -> pods_checks.PodsPlan:
    wish = PodsOptions(kind, "a:1", 2, slots=2, **more)
    return pods_checks.plan(registry.build(suites.builtin(suite)), wish)


def test_an_mpijob_runs_the_checks_of_mpi_and_names_why_the_others_stay_out() -> None:
    plan = planned("mpijob", "full")
    assert [check.name for check in plan.checks] == [
        *("point_to_point", "broadcast", "scatter", "gather", "reduce", "allreduce"),
        *("node_speed", "pairs", "copies", "collectives"),
    ]
    assert plan.left_out["hello"] == "not in pods: its C program is compiled by 'clusterctl provision'"
    assert plan.left_out["torchrun"].startswith("give --via pytorchjob")
    assert set(plan.left_out) | {check.name for check in plan.checks} == set(suites.builtin("full").checks)
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
