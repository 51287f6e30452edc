"""NCCL over one way alone: verdicts over output that is composed here, for no machine of this project has two GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from clusterctl.analysis import speed_verdict
from clusterctl.analysis.robust_stats import OutlierPolicy
from clusterctl.diagnosis.training_stack import NodeStack
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import CheckResult, Verdict
from clusterctl.support.errors import ConfigError
from clusterctl.validation.checks import base, nccl_ways, registry
from node_programs import load

pytestmark = pytest.mark.programs

MPI, NCCL = "/usr/local/openmpi-5.0.7-aa", "/usr/local/nccl-2.32.3-bb/lib/libnccl.so.2.32.3"
TOOK = {
    "nvlink": "P2P/CUMEM",
    "pcie": "SHM/direct/direct",
    "nic": "NET/IB/0/GDRDMA",
    "pairs": "P2P/CUMEM, NET/IB/0/GDRDMA",
}
RANKS = 2  # of a node
NODES = tuple(f"node{number}" for number in range(1, 9))


def check(way: str) -> nccl_ways.NcclWay:
    (made,) = registry.select([f"nccl_{way}"])
    assert isinstance(made, nccl_ways.NcclWay)
    return made


def site(nodes: Sequence[str], gpus: int = RANKS) -> base.Site:
    return base.Site(
        version="5.0.7",
        slots=dict.fromkeys(nodes, RANKS),
        names={node: node for node in nodes},
        libraries=dict.fromkeys(nodes, MPI),
        stack=dict.fromkeys(nodes, NodeStack(gpus=gpus, nccl="2.32.3", nccl_cuda="13")),
        gpus=dict.fromkeys(nodes, "NVIDIA H200") if gpus else {},
    )


def result(way: str, rank: int, node: str, **facts: str) -> dict[str, Any]:
    known = {"nccl_installed": NCCL, "nccl_version": "2.32.3", "nccl_path": NCCL, "gpu": "NVIDIA H200"}
    played = {} if "no_way" in facts else {"way": way, "took": TOOK[way], "took_other": ""}
    return {
        "clusterctl": 1,
        "event": "result",
        "check": f"nccl_{way}",
        "rank": rank,
        "host": node,
        "ok": True,
        "compared": 1000,
        "wrong": 0,
        "problems": [],
        "library_path": f"{MPI}/lib/libmpi.so.40.40.7",
        "facts": {**known, **played, **facts},
    }


def bandwidth(way: str, rank: int, value: float, *ends: str) -> dict[str, Any]:
    peer = {"peer": ends[1]} if len(ends) > 1 else {"algorithm": f"{RANKS} x NVIDIA H200"}
    return {
        "clusterctl": 1,
        "event": "measured",
        "rank": rank,
        "host": ends[0],
        **peer,
        "backend": "nccl",
        "quantity": f"{way}_bandwidth",
        "unit": "B/s",
        "better": "higher",
        "bytes": 1 << 28,
        "samples": [value * factor for factor in (0.999, 1.0, 1.001, 0.9995, 1.0005, 1.0)],
    }


def judged(way: str, nodes: Sequence[str], *events: dict[str, Any]) -> base.Judgement:
    lines = tuple(OutputLine("stdout", 1.0, json.dumps(event)) for event in events)
    return check(way).judge(site(nodes), JobOutcome("exited", 9.0, 9.0, rc=0, lines=lines))


def results(way: str, nodes: Sequence[str], **odd: dict[str, str]) -> list[dict[str, Any]]:
    ranks = [node for node in nodes for _ in range(RANKS)]
    return [result(way, rank, node, **odd.get(node, {})) for rank, node in enumerate(ranks)]


def inside(way: str, values: dict[str, float], **odd: dict[str, str]) -> base.Judgement:
    """Return the judgement over nodes that each measured their own GPUs."""
    measured = [bandwidth(way, RANKS * at, value, node) for at, (node, value) in enumerate(values.items()) if value]
    return judged(way, tuple(values), *measured, *results(way, tuple(values), **odd))


def assessed(way: str, judgement: base.Judgement) -> CheckResult:
    found = CheckResult(
        check=f"nccl_{way}",
        verdict=judgement.verdict,
        reason=judgement.reason,
        ranks=judgement.ranks,
        figures=judgement.figures,
        matrices=judgement.matrices,
    )
    return speed_verdict.assess(found, OutlierPolicy())


def close_to(value: float, nodes: Sequence[str] = NODES) -> dict[str, float]:
    """Return a value for each node, some thousandths apart."""
    return {node: value * (1 + 0.001 * (at % 3)) for at, node in enumerate(nodes)}


@pytest.mark.parametrize(("way", "words"), [("nvlink", "NVLink"), ("pcie", "PCIe")])
def test_the_node_whose_way_is_slow_is_named_with_the_way(way: str, words: str) -> None:
    healthy = inside(way, close_to(3.0e11))
    assert healthy.verdict is Verdict.PASS
    assert "; allreduce of 256 MiB: 300 GB/s on node1 to " in healthy.reason
    assert assessed(way, healthy).verdict is Verdict.PASS
    found = assessed(way, inside(way, close_to(3.0e11) | {"node3": 1.5e11}))
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node3",))
    assert found.reason.startswith(f"node3: {words} bandwidth of 256 MiB is 150 GB/s, 50 % below its neighbours'")


@pytest.mark.parametrize(("way", "words"), [("nic", "NIC"), ("pairs", "pairs")])
def test_a_slow_node_and_a_slow_link_of_the_network_are_named(way: str, words: str) -> None:
    def over(slow: tuple[set[str], float]) -> CheckResult:
        rounds = load("nccl_sweep").rounds(way, NODES)
        pairs = [tuple(NODES[rank] for rank in group) for groups in rounds for group in groups]
        measured = []
        for number, ends in enumerate(pairs):
            value = 4.0e10 * (1 + 0.002 * (number % 3)) * (slow[1] if slow[0] <= set(ends) else 1)
            measured.append(bandwidth(way, RANKS * NODES.index(ends[0]), value, *ends))
        judgement = judged(way, NODES, *measured, *results(way, NODES))
        assert judgement.verdict is Verdict.PASS, judgement.reason
        return assessed(way, judgement)

    assert over(({"nobody"}, 0.5)).verdict is Verdict.PASS
    node = over(({"node5"}, 0.5))
    assert (node.verdict, node.hosts) == (Verdict.FAIL, ("node5",))
    assert node.reason.startswith(f"node5: {words} bandwidth of 256 MiB on its links is 20")
    link = over(({"node2", "node6"}, 0.5))
    assert (link.verdict, link.hosts) == (Verdict.FAIL, ("node2", "node6"))
    assert link.reason.startswith(f"node2 and node6: {words} bandwidth of 256 MiB between them is 20")


def test_nodes_without_nvlink_are_said_and_not_failed() -> None:
    other = {"took": "NET/Socket/0", "took_other": "NET/Socket/0"}
    none = inside("nvlink", close_to(3.0e9, NODES[:2]), node1=other, node2=other)
    assert (none.verdict, none.hosts, none.figures) == (Verdict.SKIP, (), ())
    assert none.reason == "NVLink was not measured: NCCL took NET/Socket/0 (node[1-2])"
    silent = {"took": "", "took_other": ""}
    untold = inside("pcie", close_to(3.0e10, NODES[:2]), node1=silent, node2=silent)
    assert untold.reason.endswith("NCCL took a way that its log does not name (node[1-2])")


def test_a_node_without_the_nvlink_that_most_nodes_with_the_same_gpus_have_is_a_fail() -> None:
    other = {"took": "P2P/CUMEM, NET/IB/0", "took_other": "NET/IB/0"}
    found = inside("nvlink", close_to(3.0e11, NODES[:4]), node2=other)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node2",))
    assert "not carry NCCL on node2, where it took NET/IB/0; it does on node[1,3-4] with the same GPUs" in found.reason
    two = inside("nvlink", close_to(3.0e11, NODES[:2]), node2=other)  # nothing says which of two is right
    assert (two.verdict, [figure.nodes for figure in two.figures]) == (Verdict.PASS, [("node1",)])
    assert two.reason.endswith("300 GB/s on node1; NCCL took NET/IB/0 (node2)")


def test_what_cannot_be_measured_is_said() -> None:
    single = inside("nvlink", {"node1": 0}, node1={"no_way": "one GPU on the node"})
    assert single.verdict is Verdict.SKIP
    assert single.reason == "NVLink was not measured: one GPU has no other on its node (node1)"
    alone = inside("nic", {"node1": 0}, node1={"no_way": "one node"})
    assert (alone.verdict, "there is no second node (node1)" in alone.reason) == (Verdict.SKIP, True)
    shared = inside("nic", close_to(0, NODES[:2]), node2={"took": "SHM/direct", "took_other": "SHM/direct"})
    assert (shared.verdict, "NCCL took SHM/direct (node2)" in shared.reason) == (Verdict.SKIP, True)
    late = inside("pcie", {"node1": 3.0e10, "node2": 0})
    assert (late.verdict, late.hosts) == (Verdict.ERROR, ("node2",))
    assert late.reason == "time or memory was too short to measure PCIe and main memory of node2"


def test_a_figure_of_two_nodes_is_none_of_a_way_inside_a_node() -> None:
    strange = bandwidth("nvlink", 0, 3.0e11, *NODES[:2])
    found = judged("nvlink", NODES[:2], strange, *results("nvlink", NODES[:2]))
    assert (found.verdict, found.hosts, found.figures) == (Verdict.ERROR, NODES[:2], ())


def test_without_a_gpu_it_is_skipped_with_the_words_of_the_nccl_check() -> None:
    events = results("nvlink", NODES[:1])
    for event in events:
        event["facts"] = {name: event["facts"][name] for name in ("nccl_installed", "nccl_version", "nccl_path")}
        event["facts"]["no_gpu"] = "no CUDA driver"
    lines = tuple(OutputLine("stdout", 1.0, json.dumps(event)) for event in events)
    found = check("nvlink").judge(site(NODES[:1], gpus=0), JobOutcome("exited", 9.0, 9.0, rc=0, lines=lines))
    assert found.verdict is Verdict.SKIP
    assert found.reason == f"no GPU on node1; NCCL 2.32.3 loads there ({NCCL})"
    assert check("nvlink").absent(NodeStack()) == "no GPU and no NCCL"


def test_pairs_of_nodes_count_whatever_way_nccl_took_and_run_in_the_suite_full() -> None:
    measured = bandwidth("pairs", 0, 4.0e10, *NODES[:2])
    silent = {"took": "", "took_other": ""}
    found = judged("pairs", NODES[:2], measured, *results("pairs", NODES[:2], node1=silent))
    assert (found.verdict, len(found.matrices)) == (Verdict.PASS, 1)
    alone = inside("pairs", {"node1": 0}, node1={"no_way": "one node"})
    words = "NCCL between two nodes at a time was not measured: there is no second node (node1)"
    assert (alone.verdict, alone.reason) == (Verdict.SKIP, words)
    assert "nccl_pairs" in registry.builtin("full").checks


def test_the_ways_are_those_of_the_program_and_run_on_request_alone() -> None:
    program = load("nccl_sweep")
    names = [f"nccl_{way}" for way in program.WAYS if way != "pairs"]
    assert [name for name, one in registry.catalogue().checks.items() if one.first_suite is None] == names
    assert not any(set(names) & set(registry.builtin(name).checks) for name in ("smoke", "nightly", "full"))
    own = registry.parse("extends: smoke\nchecks: {nccl_nic: {sizes: 64 MiB}, nccl_pcie: true}\n", "validation.yml")
    assert [name for name in own.checks if name in names] == ["nccl_pcie", "nccl_nic"]
    argv = registry.select(["nccl_nic"], own)[0].program(site(NODES), 90.0)
    assert argv[argv.index("--sizes") + 1] == str(64 << 20)
    assert argv[argv.index("--operations") + 1] == "allreduce"
    many, few = (base.deadline_s(check("nic"), site(nodes)) for nodes in (NODES, NODES[:2]))
    assert many > few > base.deadline_s(check("nvlink"), site(NODES[:2]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nccl_nvlik: true", "unknown check 'nccl_nvlik'; did you mean 'nccl_nvlink'?"),
        ("nccl_nvlink: {sizes: []}", "the list is empty"),
        ("nccl_pcie: {size: 1 GiB}", "unknown key 'size'; did you mean 'sizes'?"),
        ("nccl_nic: {sizes: 17 GiB}", "is not at most 16 GiB"),
        ("nccl_nic: [nvlink]", "'nccl_nic' (or true, or false) has to be keys with values"),
    ],
)
def test_a_mistake_in_a_suite_file_is_one_sentence(given: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        registry.parse(f"extends: smoke\nchecks:\n  {given}\n", "validation.yml")
    assert words in str(error.value)
    assert str(error.value).startswith("validation.yml, line 3: checks.nccl_")
    assert "\n" not in str(error.value)
