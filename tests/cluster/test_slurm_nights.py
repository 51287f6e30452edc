"""Nights on a busy Slurm: the idle part is proved, each node has its turn, and nodes are drained and taken back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import planting
import pytest
from clusterctl.model.scheduler_options import SlurmOptions
from clusterctl.model.slurm_drain_choice import DrainOptions
from clusterctl.state import paths, proofs
from nightly_runs import Nights
from slurm_nodes import SUBMIT, drained, is_empty, resumed, states, with_job
from validated import NODES, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.xdist_group("slurm")]

LIBRARY = f"{planting.OPENMPI}/lib/libmpi.so.40"
OF_ADMINISTRATOR = "disk full"
IDLE = dict.fromkeys(NODES, ("idle", "none"))


@pytest.fixture
def nights(slurm_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nights]:
    yield Nights(slurm_cluster, tmp_path, monkeypatch)
    resumed(slurm_cluster)
    assert is_empty(slurm_cluster)
    assert slurm_cluster.is_clean()


def enable(nights: Nights, nodes: int | None = None, **options: Any) -> None:
    nights.enable(via=SlurmOptions(submit_host=SUBMIT, nodes=nodes), skip_busy=True, **options)


def proved(nights: Nights) -> set[str]:
    """Return the nodes that a night has proved so far."""
    return set(proofs.read(paths.cluster_id(nights.inventory)))


def validated(nights: Nights, *options: str) -> tuple[int, dict[str, Any]]:
    done = nights.clusterctl("validate", "--checks", "hello", "--format", "json", *options)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_night_proves_the_idle_part_and_says_which(nights: Nights) -> None:
    enable(nights)
    with drained(nights.cluster, "node4", OF_ADMINISTRATOR), with_job(nights.cluster, "node3", "sleep", "600"):
        before = states(nights.cluster)
        code, night = nights.run()
        assert states(nights.cluster) == before
    proof = night["proof"]
    assert (code, night["verdict"], proof["hosts"]) == (0, "PASS", ["node1", "node2"]), night
    assert proof["left_out"] == {"node3": "allocated", "node4": f"drained: {OF_ADMINISTRATOR}"}
    assert proved(nights) == {"node1", "node2"}
    part = f"2 of 4 nodes, node[1-2]; left out: node3 (allocated); node4 (drained: {OF_ADMINISTRATOR})"
    assert part in " ".join(nights.command("status").stdout.split())


def test_a_cluster_without_an_idle_node_is_no_verdict(nights: Nights) -> None:
    with drained(nights.cluster, "node[1-4]", OF_ADMINISTRATOR):
        done = nights.clusterctl("validate", "--via", "slurm", "--submit-host", SUBMIT, "--skip-busy")
    assert done.returncode == 11
    assert all(
        f"{node} (drained: {OF_ADMINISTRATOR})" in " ".join((done.stdout + done.stderr).split()) for node in NODES
    )


def test_over_nights_every_node_has_its_turn_also_those_that_were_busy_or_fail(nights: Nights) -> None:
    enable(nights, nodes=2)
    seen = []
    with with_job(nights.cluster, "node1", "sleep", "600"):
        seen.append(nights.run()[1]["proof"]["hosts"])
    with planting.cut_short(nights.cluster, "node4", LIBRARY):
        seen += [nights.run()[1]["proof"]["hosts"] for _ in range(2)]
        assert proved(nights) == {"node1", "node2", "node3"}
    assert seen == [["node2", "node3"], ["node1", "node4"], ["node2", "node3"]]
    code, last = nights.run()
    assert (code, last["proof"]["hosts"]) == (0, ["node1", "node4"]), last
    assert proved(nights) == set(NODES)


def test_only_where_it_is_asked_for_a_failed_node_is_drained_and_a_proved_one_taken_back(nights: Nights) -> None:
    on, cluster = nights.cluster.on, nights.cluster
    with planting.cut_short(cluster, "node2", LIBRARY):
        enable(nights)
        code, night = nights.run()
        assert (code, night["verdict"]) == (10, "FAIL"), night
        assert states(cluster) == IDLE  # nobody has asked for a drain

        on(SUBMIT, "scontrol", "update", "nodename=node4", "state=drain", f"reason={OF_ADMINISTRATOR}")
        enable(nights, drains=DrainOptions(failed=True, submit_host=SUBMIT))
        code, night = nights.run()
        assert code == 10, night
        now = states(cluster)
        state, reason = now.pop("node2")
        (finding,) = (bad["reason"] for bad in night["proof"]["bad"] if bad["check"] == "provisioned")
        assert state == "drained"
        assert reason.startswith("clusterctl validate: provisioned: ")
        assert reason.removeprefix("clusterctl validate: provisioned: ")[:60] in finding
        assert now == {"node1": IDLE["node1"], "node3": IDLE["node3"], "node4": ("drained", OF_ADMINISTRATOR)}

        code, night = nights.run()  # the next night is about the others, and the drain keeps its reason
        assert (code, night["verdict"], night["proof"]["hosts"]) == (0, "PASS", ["node1", "node3"]), night
        assert night["proof"]["left_out"]["node2"] == f"drained: {reason}"
        assert states(cluster)["node2"] == ("drained", reason)

        code, record = validated(nights, "--undrain-proved", "--submit-host", SUBMIT, "--limit", "node2,node4")
        assert code == 10, record
        assert states(cluster)["node2"] == ("drained", reason)

    code, record = validated(nights, "--limit", "node2,node4")
    assert code == 0, record
    assert states(cluster)["node2"] == ("drained", reason)  # it is proved, and nobody has asked

    code, record = validated(nights, "--undrain-proved", "--submit-host", SUBMIT, "--limit", "node2,node4")
    assert code == 0, record
    assert states(cluster) == {**IDLE, "node4": ("drained", OF_ADMINISTRATOR)}
    told = " ".join(record["notes"])
    assert "node2 takes jobs again" in told
    assert f"node4 stays drained: its reason is not of clusterctl ({OF_ADMINISTRATOR})" in told
