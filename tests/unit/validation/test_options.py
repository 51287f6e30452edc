"""The options of a validation: the command that repeats it, and when a search begins."""

from __future__ import annotations

import shlex
from typing import Any

import factory
import pytest
from clusterctl.model.hosts import InventoryOptions, InventorySources
from clusterctl.model.results import CheckResult, Verdict
from clusterctl.support.errors import ConfigError
from clusterctl.validation import expectations
from clusterctl.validation.checks import registry
from clusterctl.validation.options import ValidationOptions

INVENTORY = InventorySources(("/srv/my inventory.ini",))


def test_a_plain_run_is_repeated_by_a_plain_line() -> None:
    words = ["clusterctl", "validate", "/srv/my inventory.ini", "--checks", "pairs"]
    assert shlex.split(ValidationOptions().repeat(INVENTORY, "pairs")) == words


def test_every_option_that_matters_is_repeated() -> None:
    own = registry.parse("name: ours\nextends: smoke\n", "/etc/validation.yml")
    asked = InventoryOptions(limit="node1,node2", user="root", private_key="/k")
    given = ValidationOptions(asked, "node2", own, timeout_s=90, gate=False)
    assert shlex.split(given.repeat(INVENTORY)) == [
        *("clusterctl", "validate", str(INVENTORY), "--suite", "ours", "--suite-file", "/etc/validation.yml"),
        *("--limit", "node1,node2", "--user", "root", "--private-key", "/k", "--launch-node", "node2"),
        *("--timeout", "90", "--no-gate"),
    ]
    beside = own.model_copy(update={"path": "/srv/validation.yml"})
    assert "--suite-file" not in ValidationOptions(suite=beside).repeat(INVENTORY)


@pytest.mark.parametrize(
    ("suite", "search", "searches"),
    [("smoke", None, False), ("nightly", None, True), ("smoke", True, True), ("nightly", False, False)],
)
def test_smoke_alone_does_not_search(suite: str, search: bool | None, searches: bool) -> None:
    assert ValidationOptions(suite=registry.builtin(suite), search=search).searches is searches


def test_a_launch_node_outside_the_selection_is_refused() -> None:
    cluster = factory.inventory([f"node{number}" for number in range(1, 9)])
    ValidationOptions(launch_node="node8").refuse_unknown_launch_node(cluster)
    with pytest.raises(ConfigError, match=r"'node9' is not one of .* node5, node6 and 2 more\.$"):
        ValidationOptions(launch_node="node9").refuse_unknown_launch_node(cluster)


def test_several_inventories_are_repeated_with_i() -> None:
    both = InventorySources(("/srv/a.ini", "node1,node2,"))
    assert shlex.split(ValidationOptions().repeat(both)) == [
        "clusterctl",
        "validate",
        "-i",
        "/srv/a.ini",
        "-i",
        "node1,node2,",
    ]


# --- what a run's figures are held against, beyond what the verdict's own tests prove ---


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
    assert ["the reference of bandwidth of 3 MiB; correct" in note for note in notes] == [True]


def test_of_a_check_that_failed_no_reference_is_missed() -> None:
    assert assessed(Verdict.FAIL)[1] == []


@pytest.mark.parametrize(
    ("quantity", "device", "unlike"),
    [
        ("compute", "", {"machine": "aarch64"}),
        ("gpu_compute", "GPU 0", {"gpus": [{"bus": "0000:01:00.0", "name": "NVIDIA A100-SXM4-80GB"}]}),
    ],
)
def test_a_node_is_slow_beside_nodes_of_its_own_hardware_alone(
    quantity: str, device: str, unlike: dict[str, Any]
) -> None:
    h100 = {"gpus": [{"bus": "0000:01:00.0", "name": "NVIDIA H100 80GB HBM3"}]}

    def named(**last: Any) -> tuple[str, ...]:
        nodes = {f"node{at}": factory.node(f"node{at}", **{**h100, **(last if at == 7 else {})}) for at in range(8)}
        run = expectations.MeasuredRun("here", 8, {})
        judge = expectations.Expectations(registry.builtin("smoke"), run, nodes, remembered=False)
        figures = (
            factory.figure(1e9 / (4 if name == "node7" else 1), name, quantity=quantity, algorithm=device)
            for name in nodes
        )
        return judge.assess(factory.check("node_speed", Verdict.PASS, *figures)).hosts

    assert named() == ("node7",)
    assert named(**unlike) == ()
