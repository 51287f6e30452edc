"""The way that traffic took: NCCL's log read by the node's own program, the counters, and the verdicts over both."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clusterctl.analysis.carriers import FabricPath
from clusterctl.analysis.nccl_path import GidTable
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import Verdict
from clusterctl.validation.checks import base, nccl_diagnostics
from node_programs import load

ROOT = Path(__file__).parents[4]
LOGS = ROOT / "tests" / "data" / "nccl_log"
NODES = ("node1", "node2", "node3")
H200 = "../gpu_h200/nccl-log"  # captured: two ranks on one GPU, over sockets
PASSED = base.Judgement(Verdict.PASS, "4 ranks on 2 nodes")


def site(*ports: str, fabric: str = "eth0", **changed: Any) -> base.Site:
    return base.Site(
        version="5.0.7",
        slots=dict.fromkeys(NODES, 2),
        names={name: name for name in NODES},
        fabric=dict.fromkeys(NODES, FabricPath((fabric,))),
        rdma=dict.fromkeys(NODES, ports) if ports else {},
        **changed,
    )


def told(log: str) -> dict[str, Any]:
    found: dict[str, Any] = load("nccl_log").told((LOGS / f"{log}.log").read_text().splitlines())
    return found


def line(event: str, host: str, **values: Any) -> OutputLine:
    words = {"clusterctl": 1, "event": event, "check": "nccl", "rank": NODES.index(host), "host": host, **values}
    text = json.dumps(words)
    assert len(text) < 4096, "a line is written in one piece"
    return OutputLine("stdout", 1.0, text)


def judged(where: base.Site, *logs: str, more: tuple[OutputLine, ...] = ()) -> base.Judgement:
    lines = [line("nccl_path", host, **told(log)) for host, log in zip(NODES, logs, strict=False)]
    return nccl_diagnostics.path_judged(PASSED, where, JobOutcome("exited", 1.0, lines=(*lines, *more)))


LINK_LOCAL = "NET/IB: NCCL Dev 1 IbDev 1 Port 1 qpn 704 mtu 3 GID 0 (80FE/46442FFEFF47BB4E) fifoRkey=0x1 fifoLkey=0x1"
ROUTED = (
    "NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 34 mtu 3 query_ece={supported=0, vendor_id=0x0, options=0x0, comp_mask=0x0}"
    " GID 3 (0/1064A8C0FFFF0000) fifoRkey=0x2 fifoLkey=0x2"
)


def test_the_gid_that_nccl_takes_is_held_against_the_table_of_the_port() -> None:
    said = load("nccl_log").told([f"node1:1:2 [0] NCCL INFO {text}" for text in (LINK_LOCAL, ROUTED)])
    assert said["gids"] == {"0": [3, "::ffff:192.168.100.16"], "1": [0, "fe80::4ebb:47ff:fe2f:4446"]}
    found = told("ib-direct") | {"gids": said["gids"], "settings": {}}
    table = GidTable(3, "::ffff:192.168.200.16", {0: "link-local", 2: "IB/RoCE v1"})
    where = site("mlx5_0:1", "mlx5_1:1", gids={"node1": {"mlx5_0:1": table, "mlx5_1:1": table}})
    judgement = nccl_diagnostics.path_judged(
        PASSED, where, JobOutcome("exited", 1.0, lines=(line("nccl_path", "node1", **found),))
    )
    assert judgement.verdict is Verdict.FAIL
    assert "NCCL takes GID 0 (fe80::4ebb:47ff:fe2f:4446) of mlx5_1:1, which is link-local" in judgement.reason
    assert "index 3 is RoCE v2 for IPv4 (::ffff:192.168.200.16); set NCCL_IB_GID_INDEX=3" in str(judgement)
    assert "mlx5_0:1" not in judgement.reason


def test_what_a_log_says() -> None:
    assert told("ib-direct") == {
        "network": "IB",
        "hcas": {"0": "mlx5_0:1/RoCE", "1": "mlx5_1:1/RoCE"},
        "interfaces": [],
        "ways": {"NET/IB/0/GDRDMA": 1, "NET/IB/1/GDRDMA": 2, "P2P/CUMEM/read": 1},
        "settings": {"NCCL_IB_GID_INDEX": "3"},
        "direct": {"mlx5_0": True, "mlx5_1": True},
        "no_device": False,
        "named": "IB",
        "ring": [0, 1, 2, 3],
        "devices": 0,
        "version": "2.24.3",
    }
    old = told("old-form")
    assert (old["hcas"], old["interfaces"], old["version"]) == ({"0": "mlx5_0:1/IB"}, ["ib0"], "2.8.4")
    assert told("form-2.27")["version"] == "2.27.6"
    assert old["ways"] == {"NET/IB/0/GDRDMA": 1, "direct shared memory": 1, "SHM/direct/direct": 1}
    fused = told("fused")
    assert fused["hcas"] == {"0": "mlx5_2+mlx5_3", "1": "mlx5_0+mlx5_1"}
    assert fused["settings"] == {"NCCL_P2P_LEVEL": "LOC"}
    assert told("ib-left-out")["settings"] == {"NCCL_IB_HCA": "=mlx5_0:1"}
    assert told("gb10")["direct"] == {"rocep1s0f0": False}, "what is used, not what the card can"
    able = "node1:1:2 [0] NCCL INFO NET/IB : GPU Direct RDMA ({}) enabled for HCA 0 'mlx5_0"
    for way in ("DMABUF", "nvidia-peermem"):
        assert load("nccl_log").told([able.format(way)])["direct"] == {"mlx5_0": True}
    assert told("plugin")["network"] == "AWS Libfabric"
    assert load("nccl_log").told(["no word of it", ""]) == {}


def test_what_the_log_of_a_gpu_says() -> None:
    """Two ranks with all of NCCL's log; what each rank itself told of it stands in the same file."""
    lines = (LOGS / f"{H200}.log").read_text(encoding="utf-8").splitlines()
    then = {one["rank"]: one for one in (json.loads(text) for text in lines if '"event": "nccl_path"' in text)}
    for rank, process in enumerate(("node1:578:", "node1:581:")):
        now = load("nccl_log").told(text for text in lines if text.startswith(process))
        assert (now["network"], now["interfaces"], now["version"]) == ("Socket", ["eth0"], "2.28.9")
        assert (now["ways"], now["ring"]) == ({"NET/Socket/0": 8}, [] if rank else [0, 1])
        assert now["direct"] == {"eth0": False}
        assert {**then[rank], **now} == then[rank]


def test_the_output_of_two_healthy_ranks_on_a_gpu_has_no_finding() -> None:
    """All lines as they came: on one node, and as if each rank had a node."""
    text = (LOGS / f"{H200}.log").read_text(encoding="utf-8")
    for whole in (text, re.sub(r'("rank": 1, "host": )"node1"', r'\1"node2"', text)):
        lines = tuple(OutputLine("stdout", 1.0, one) for one in whole.splitlines())
        found = nccl_diagnostics.path_judged(PASSED, site(), JobOutcome("exited", 1.0, lines=lines))
        assert found.verdict is Verdict.PASS
        assert found.reason == "4 ranks on 2 nodes; NCCL goes over Socket (eth0)"


def test_a_log_of_any_length_is_told_in_one_piece() -> None:
    begin = "node1:1:2 [0] NCCL INFO "
    many = [f"{begin}Channel 00/0 : 0[0] -> {n}[0] [send] via NET/IB/{n}/{'x' * 300}" for n in range(500)]
    many += [f"{begin}NCCL_SETTING_{'A' * n} set by environment to {'y' * 900}." for n in range(200)]
    many += [begin + "NET/IB : Using " + " ".join(f"[{n}]mlx5_{n}:1/RoCE" for n in range(99))]
    found = load("nccl_log").told(many)
    assert len(found["ways"]) == load("nccl_log").MOST_WAYS
    assert len(json.dumps(found)) < 4000


def test_a_right_way_stays_a_pass_and_is_told() -> None:
    found = judged(site("mlx5_0:1", "mlx5_1:1"), *["ib-direct"] * 3)
    assert found.verdict is Verdict.PASS
    assert found.reason == "4 ranks on 2 nodes; NCCL goes over IB (mlx5_0:1, mlx5_1:1) with GPUDirect RDMA"
    assert judged(site(), *[H200] * 3).reason.endswith("; NCCL goes over Socket (eth0)")
    assert judged(site("efa0:1"), *["plugin"] * 3).reason.endswith("NCCL goes over AWS Libfabric with GPUDirect RDMA")
    assert judged(site("mlx5_0:1")) == PASSED, "no log, no word"


@pytest.mark.parametrize(
    ("log", "ports", "words"),
    [
        (
            "socket-disabled",
            2,
            "sockets on eth0 although mlx5_0:1, mlx5_1:1 are up, by NCCL_IB_DISABLE=1 of /etc/nccl.conf; take that",
        ),
        (
            H200,
            1,
            "sockets on eth0 although mlx5_0:1 is up; it found no RDMA port that it can use; see that libibverbs",
        ),
        (
            "socket-docker",
            0,
            "over docker0, not over eth0, by NCCL_SOCKET_IFNAME=docker0; set NCCL_SOCKET_IFNAME to =eth0",
        ),
        (
            "ib-left-out",
            2,
            "leaves out mlx5_1:1 of 2 ports that are up, by NCCL_IB_HCA==mlx5_0:1; take that setting away",
        ),
        ("ib-one-rail", 4, "uses mlx5_2:1 alone of 4 ports that are up, by NCCL_CROSS_NIC=2; take that setting away"),
        ("ib-indirect", 2, "GPUDirect RDMA is off for mlx5_0, mlx5_1; load the module nvidia_peermem"),
        ("old-form", 1, "through its memory, not directly, by NCCL_P2P_DISABLE=1; take that setting away"),
    ],
)
def test_each_wrong_way_names_nodes_port_and_setting(log: str, ports: int, words: str) -> None:
    settings = {host: {"NCCL_IB_DISABLE": "/etc/nccl.conf"} for host in NODES}
    found = judged(site(*(f"mlx5_{number}:1" for number in range(ports)), settings=settings), log, log, log)
    assert (found.verdict, found.hosts) == (Verdict.FAIL, NODES)
    assert found.reason.startswith("node[1-3]: ")
    assert words in found.reason
    assert [culprit.nodes for culprit in found.culprits] == [(host,) for host in NODES]
    assert all(culprit.cure and culprit.quantity == "path" for culprit in found.culprits)


@pytest.mark.parametrize(
    ("logs", "words"),
    [
        ((None, None, None), "; NCCL's way was not proved on node[1-3], for its log says nothing of it"),
        (("ib-direct", None, "empty"), "; NCCL's way was not proved on node[2-3], for its log"),
        (("ib-direct", "ib-direct", "ib-direct"), "; NCCL goes over IB (mlx5_0:1, mlx5_1:1) with GPUDirect RDMA"),
    ],
)
def test_a_log_that_says_nothing_of_the_way_is_told(logs: tuple[str | None, ...], words: str) -> None:
    said = {"empty": {"network": "", "ways": {}, "settings": {}}}
    lines = [
        line("nccl_path", host, **(said.get(log) or told(log))) for host, log in zip(NODES, logs, strict=True) if log
    ]
    outcome = JobOutcome("exited", 1.0, lines=tuple(lines))
    found = nccl_diagnostics.path_judged(PASSED, site("mlx5_0:1", "mlx5_1:1"), outcome, users=NODES)
    assert found.verdict is Verdict.PASS
    assert words in found.reason
    one = replace(site(), slots={"node1": 2})
    assert nccl_diagnostics.path_judged(PASSED, one, JobOutcome("exited", 1.0), users=NODES[:1]) == PASSED, (
        "no way to others"
    )
    assert nccl_diagnostics.path_judged(PASSED, site(), JobOutcome("exited", 1.0), users=NODES[:1]) == PASSED, (
        "one node uses NCCL"
    )


def test_one_node_of_three_is_named_alone() -> None:
    found = judged(site("mlx5_0:1", "mlx5_1:1"), "ib-direct", "socket-disabled", "ib-direct")
    assert found.hosts == ("node2",)
    quiet = told("ib-indirect") | {"direct": {}}
    lines = [line("nccl_path", "node1", **told("ib-direct")), line("nccl_path", "node2", **quiet)]
    found = nccl_diagnostics.path_judged(
        PASSED, site("mlx5_0:1", "mlx5_1:1"), JobOutcome("exited", 1.0, lines=tuple(lines))
    )
    assert found.hosts == ("node2",), "its neighbours have GPUDirect"
    assert found.reason.startswith("node2: GPUDirect RDMA is off for mlx5_0:1, mlx5_1:1; load")


def test_what_cannot_be_expected_is_no_fault() -> None:
    ports = ("mlx5_0:1", "mlx5_1:1")
    assert judged(site(), *["socket-disabled"] * 3).verdict is Verdict.PASS, "no RDMA port is up"
    cards = dict.fromkeys(NODES, "NVIDIA GeForce RTX 4090")
    assert judged(site(*ports, gpus=cards), *["ib-indirect"] * 3).verdict is Verdict.PASS
    spark = site("rocep1s0f0:1", gpus=dict.fromkeys(NODES, "NVIDIA GB10"))
    assert judged(spark, *["gb10"] * 3).reason.endswith("; NCCL goes over NCCL RDMA Plugin v10 (rocep1s0f0:1)")
    others = site("rocep1s0f0:1", gpus=dict.fromkeys(NODES, "NVIDIA GB100"))
    assert "GPUDirect RDMA is off for rocep1s0f0" in judged(others, *["gb10"] * 3).reason
    one = replace(site(*ports), slots={"node1": 2})
    assert judged(one, "socket-disabled") == PASSED, "one node has no way to others"
    failed = replace(PASSED, verdict=Verdict.FAIL)
    outcome = JobOutcome("exited", 1.0, lines=(line("nccl_path", "node1", **told("socket-disabled")),))
    assert nccl_diagnostics.path_judged(failed, site(*ports), outcome) == failed


@pytest.mark.parametrize(
    ("log", "ports", "words"),
    [
        ("form-2.27", 2, "NCCL goes over IB (mlx5_0:1, mlx5_1:1) with GPUDirect RDMA"),
        ("form-2.28-data-direct", 2, "NCCL goes over IB (mlx5_0:1, mlx5_1:1) with GPUDirect RDMA"),
        ("fused", 4, "NCCL goes over IBext_v8 (mlx5_0+mlx5_1)"),
        ("form-timestamps", 2, "NCCL goes over IB (mlx5_0:1, mlx5_1:1) with GPUDirect RDMA"),
        ("ibext", 2, "NCCL goes over IBext_v8 (mlx5_0:1, mlx5_1:1)"),
        ("ofi-efa", 4, "NCCL goes over Libfabric with GPUDirect RDMA"),
        ("ofi-cxi", 8, "NCCL goes over AWS Libfabric with GPUDirect RDMA"),
        ("mnnvl", 2, "NCCL goes over NVLink between nodes"),
    ],
)
def test_no_published_form_of_a_healthy_machine_is_a_fail(log: str, ports: int, words: str) -> None:
    found = judged(site(*(f"mlx5_{number}:1" for number in range(ports))), *[log] * 3)
    assert (found.verdict, found.reason) == (Verdict.PASS, f"4 ranks on 2 nodes; {words}")


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("ofi-efa-indirect", "node2: GPUDirect RDMA is off for Libfabric; load the module nvidia_peermem"),
        ("ofi-efa-fewer", "node2: Libfabric finds 1 of the 2 devices that it finds on other nodes; compare the"),
        ("ofi-efa-one", "node2: Libfabric uses its device 0 alone of 2, and 2 on other nodes; compare"),
    ],
)
def test_a_plugin_is_held_against_the_other_nodes(log: str, words: str) -> None:
    found = judged(site("rdmap1:1"), "ofi-efa", log, "ofi-efa")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, ("node2",))
    assert found.reason.startswith(words)
    other = {"node1": "NVIDIA H200", "node2": "NVIDIA L4", "node3": "NVIDIA H200"}
    assert judged(site("rdmap1:1", gpus=other), "ofi-efa", log, "ofi-efa").verdict is (
        Verdict.FAIL if log == "ofi-efa-one" else Verdict.PASS
    ), "another kind of machine is not held against them, but as many ranks as devices use more than one"


def test_names_of_one_network_are_not_those_of_another() -> None:
    both = told("ofi-efa") | {"hcas": {"0": "mlx5_0:1/IB", "1": "mlx5_1:1/IB"}, "named": "IB"}
    lines = tuple(line("nccl_path", host, **both) for host in NODES)
    found = nccl_diagnostics.path_judged(PASSED, site("mlx5_0:1", "mlx5_1:1"), JobOutcome("exited", 1.0, lines=lines))
    assert found.reason.endswith("; NCCL goes over Libfabric with GPUDirect RDMA")


def test_two_ranks_whose_gpus_have_the_same_port_nearest_are_no_fault() -> None:
    ports = tuple(f"mlx5_{number}:1" for number in range(4))
    one = told("ib-one-rail") | {"settings": {}}
    lines = tuple(line("nccl_path", host, **one) for host in NODES)
    outcome = JobOutcome("exited", 1.0, lines=lines)
    assert nccl_diagnostics.path_judged(PASSED, site(*ports), outcome).verdict is Verdict.PASS
    whole = replace(site(*ports), slots=dict.fromkeys(NODES, 4))
    assert nccl_diagnostics.path_judged(PASSED, whole, outcome).verdict is Verdict.FAIL, "four ranks have four ports"


def test_a_setting_of_more_digits_than_a_number_has_ends_no_validation() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)  # the least; a rank that lies may write a longer line
    try:
        assert with_rails(2, 4, NCCL_MAX_NCHANNELS="9" * 1000).verdict is Verdict.PASS
    finally:
        sys.set_int_max_str_digits(before)


def with_rails(used: int, there: int, ranks: int = 4, telling: int = 4, **settings: str) -> base.Judgement:
    """Judge three nodes of so many ranks, of which some tell their way: over these rails of those that are opened."""
    one = told("ib-direct") | {
        "hcas": {str(at): f"mlx5_{at}:1/IB" for at in range(there)},
        "ways": {f"NET/IB/{at}/GDRDMA": 2 for at in range(used)},
        "settings": settings,
    }
    lines = tuple(line("nccl_path", host, **one) for host in NODES for _rank in range(telling))
    where = replace(site(*(f"mlx5_{at}:1" for at in range(4))), slots=dict.fromkeys(NODES, ranks))
    return nccl_diagnostics.path_judged(PASSED, where, JobOutcome("exited", 1.0, lines=lines))


def test_rails_that_too_few_channels_leave_out_on_every_node_are_a_fail() -> None:
    found = with_rails(2, 4, NCCL_MAX_NCHANNELS="2")
    assert (found.verdict, found.hosts) == (Verdict.FAIL, NODES)
    assert (
        "node[1-3]: NCCL uses mlx5_0:1, mlx5_1:1 of 4 ports that are up, by NCCL_MAX_NCHANNELS=2; take" in found.reason
    )
    assert with_rails(1, 4, NCCL_MAX_CTAS="1").reason.startswith("node[1-3]: NCCL uses mlx5_0:1 of 4 ports that are up")


def test_rails_that_no_known_setting_leaves_out_are_a_note() -> None:
    found = with_rails(2, 4)
    assert found.verdict is Verdict.PASS
    assert "; NCCL uses 2 of 4 ports that are up on every node, not mlx5_2:1, mlx5_3:1; see " in found.reason
    assert ", with NCCL_TOPO_FILE=/opt/topo.xml;" in with_rails(2, 4, NCCL_TOPO_FILE="/opt/topo.xml").reason
    for many in ("4", "16", "x"):
        assert with_rails(2, 4, NCCL_MAX_NCHANNELS=many).verdict is Verdict.PASS, "so many channels had room on all"
    assert with_rails(1, 4, NCCL_MAX_NCHANNELS="2").reason.endswith("topo -m')"), "both channels took the same port"


@pytest.mark.parametrize(("ranks", "telling"), [(2, 2), (4, 3)])
@pytest.mark.parametrize("settings", [{}, {"NCCL_MAX_NCHANNELS": "2"}])
def test_fewer_ranks_than_rails_and_silent_ranks_tell_nothing(
    ranks: int, telling: int, settings: dict[str, str]
) -> None:
    found = with_rails(2, 4, ranks, telling, **settings)
    assert found.verdict is Verdict.PASS
    assert "of 4 ports" not in found.reason


def test_ports_that_are_joined_to_one_are_all_used() -> None:
    for settings in ({}, {"NCCL_MAX_NCHANNELS": "2"}):
        one = told("ib-direct") | {"hcas": {"0": "mlx5_0+mlx5_1", "1": "mlx5_2+mlx5_3"}, "settings": settings}
        lines = tuple(line("nccl_path", host, **one) for host in NODES for _rank in range(4))
        where = replace(site(*(f"mlx5_{at}:1" for at in range(4))), slots=dict.fromkeys(NODES, 4))
        found = nccl_diagnostics.path_judged(PASSED, where, JobOutcome("exited", 1.0, lines=lines))
        assert found.reason.endswith("; NCCL goes over IB (mlx5_0+mlx5_1, mlx5_2+mlx5_3) with GPUDirect RDMA")


def test_rails_that_are_all_used_are_no_note() -> None:
    for found in (with_rails(4, 4), with_rails(4, 4, NCCL_MAX_NCHANNELS="2")):
        assert found.reason.endswith("; NCCL goes over IB (mlx5_0:1, mlx5_1:1, mlx5_2:1, mlx5_3:1) with GPUDirect RDMA")


def test_a_ring_that_changes_nodes_too_often_is_a_note() -> None:
    def reason(*order: object) -> str:
        lines = (line("nccl_path", "node1", **(told("ib-direct") | {"ring": list(order)})),)
        found = nccl_diagnostics.path_judged(
            PASSED, site("mlx5_0:1", "mlx5_1:1"), JobOutcome("exited", 1.0, lines=lines)
        )
        assert found.verdict is Verdict.PASS
        return found.reason

    note = "; NCCL's ring changes nodes 6 times where 3 are enough; see whether NCCL_HOSTID or a container's host name"
    assert note in reason(0, 2, 4, 1, 3, 5)
    assert "ring" not in reason(0, 1, 3, 2, 4, 5), "a ring of three nodes"
    for other in ((), (0, 1, 2), (0, 1, 3, 2, 4, 4), ("0", 2, 4, 1, 3, 5)):
        assert "ring" not in reason(*other)


def carried(host: str, rows: dict[str, list[object]], **settings: str) -> OutputLine:
    return line("carried", host, ports=rows, settings=settings)


def test_traffic_outside_the_cluster_s_network_names_interface_and_setting() -> None:
    rows: dict[str, list[object]] = {"eth1": [9 << 20, 8 << 20, ""], "eth0": [1 << 20, 0, ""], "lo9": [0, 0, ""]}
    lines = tuple(carried(host, rows, GLOO_SOCKET_IFNAME="eth1") for host in NODES[:2])
    found = nccl_diagnostics.path_judged(PASSED, site(), JobOutcome("exited", 1.0, lines=lines))
    assert found.hosts == NODES[:2]
    assert found.reason.startswith(
        "node[1-2]: 17.0 MiB of 18.0 MiB went over eth1, not over eth0, by GLOO_SOCKET_IFNAME=eth1;"
    )
    assert "set GLOO_SOCKET_IFNAME to eth0" in found.reason
    without = tuple(carried(host, rows) for host in NODES[:2])
    found = nccl_diagnostics.path_judged(PASSED, site(), JobOutcome("exited", 1.0, lines=without))
    assert "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to eth0, or provision it again" in found.reason
    alone = nccl_diagnostics.path_judged(PASSED, site(), JobOutcome("exited", 1.0, lines=without[:1]))
    assert alone == PASSED, "a file server of one node is no path of a job"


def test_the_node_whose_setting_chose_the_way_is_named_and_not_those_that_follow() -> None:
    rows: dict[str, list[object]] = {"eth1": [9 << 20, 8 << 20, ""], "eth0": [1 << 20, 0, ""]}
    part: dict[str, list[object]] = {"eth1": [3 << 20, 3 << 20, ""], "eth0": [9 << 20, 9 << 20, ""]}
    places = {"node2": {"GLOO_SOCKET_IFNAME": "/etc/environment"}}
    for own in (rows, part):
        lines = (carried("node1", rows, GLOO_SOCKET_IFNAME="eth0"), carried("node2", own, GLOO_SOCKET_IFNAME="eth1"))
        outcome = JobOutcome("exited", 1.0, lines=lines)
        found = nccl_diagnostics.path_judged(PASSED, replace(site(), settings=places), outcome)
        assert found.hosts == ("node2",)
        assert "went over eth1, not over eth0, by GLOO_SOCKET_IFNAME=eth1 of /etc/environment; set" in found.reason


@pytest.mark.parametrize(
    ("name", "value", "guilty"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", True),
        ("NCCL_SOCKET_IFNAME", "=eth1", True),
        ("NCCL_SOCKET_IFNAME", "=eth", False),
        ("NCCL_SOCKET_IFNAME", "^eth0,docker", True),
        ("NCCL_SOCKET_IFNAME", "^eth1", False),
        ("GLOO_SOCKET_IFNAME", "eth0,eth1", True),
        ("GLOO_SOCKET_IFNAME", "eth", False),
    ],
)
def test_a_setting_is_blamed_for_interfaces_that_it_chooses(name: str, value: str, guilty: bool) -> None:
    rows: dict[str, list[object]] = {"eth1": [9 << 20, 9 << 20, ""], "eth0": [0, 0, ""]}
    lines = (carried("node1", rows, **{name: value}),)
    found = nccl_diagnostics.path_judged(PASSED, site(), JobOutcome("exited", 1.0, lines=lines))
    assert (found.verdict is Verdict.FAIL) is guilty


@pytest.mark.parametrize(
    "rows",
    [
        {"eth1": [1 << 18, 1 << 18, ""], "eth0": [0, 0, ""]},  # too little to tell
        {"eth1": [8 << 20, 0, ""], "eth0": [9 << 20, 9 << 20, ""]},  # less than the network's
        {"bond0": [9 << 20, 9 << 20, "over eth0 eth1"], "eth0": [9 << 20, 0, ""], "eth1": [0, 9 << 20, ""]},
        {"mlx5_0/1": [9 << 30, 9 << 30, "Ethernet eth0"], "eth0": [1 << 10, 0, ""]},
    ],
)
def test_counters_that_are_right(rows: dict[str, list[object]]) -> None:
    fabric = "bond0" if "bond0" in rows else "eth0"
    lines = tuple(carried(host, rows) for host in NODES)
    assert nccl_diagnostics.path_judged(PASSED, site(fabric=fabric), JobOutcome("exited", 1.0, lines=lines)) == PASSED


STRANGE = [
    None,
    7,
    {f"NET/IB/{'9' * 300}": 1, "NET/IB/\u00b2": 1},
    "x",
    [],
    [["a"]],
    {"a": 1},
    {"0": None},
    {"eth1": [1, "2", 3]},
    {"9" * 9: []},
]


@pytest.mark.parametrize("value", STRANGE)
def test_lines_of_another_form_are_passed_over(value: object) -> None:
    names = ("network", "hcas", "interfaces", "ways", "settings", "direct", "no_device", "ring", "devices", "named")
    lines = [line("nccl_path", "node1", **dict.fromkeys(names, value)), line("carried", "node2", ports=value)]
    found = nccl_diagnostics.path_judged(PASSED, site("mlx5_0:1"), JobOutcome("exited", 1.0, lines=tuple(lines)))
    assert found.verdict in {Verdict.PASS, Verdict.FAIL}


# --- the node's own programs ---

WORKER = """\
import os, sys
sys.path.insert(0, sys.argv[1])
import nccl_log, rank_program
def work(rank):
    def check():
        rank.begin()
        rank.findings.compared += 1
        with open(os.environ["NCCL_DEBUG_FILE"], "w") as log:  # as NCCL does
            log.write(open(sys.argv[2]).read() + "node1:1:2 [0] NCCL WARN something is odd\\n")
            log.flush()
            if len(sys.argv) > 3:
                os.kill(os.getpid(), 9)
    return 0 if rank.attempt(check) else 1
arguments = rank_program.parser("", ("nccl",)).parse_args(["--check", "nccl"])
sys.exit(rank_program.run(arguments, work, nccl=True, counts=True))
"""


def worked(*more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", WORKER, str(ROOT / "roles/validation/files"), str(LOGS / "ib-direct.log"), *more]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    return subprocess.run(words, env=clean | environment, capture_output=True, text=True, check=False, timeout=60)


def events(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {event["event"]: event for event in map(json.loads, done.stdout.splitlines())}


@pytest.mark.programs
def test_a_rank_tells_its_way_and_passes_warnings_on() -> None:
    done = worked()
    found = events(done)
    assert found["nccl_path"]["network"] == "IB"
    assert found["result"]["ok"]
    assert 0 < len(found["carried"]["ports"]) <= load("measure").MOST_CARRIERS
    assert "lo" not in found["carried"]["ports"]
    assert done.stderr.splitlines() == ["node1:1:2 [0] NCCL WARN something is odd"]


@pytest.mark.programs
def test_the_warnings_of_a_rank_that_dies_are_not_lost() -> None:
    done = worked("die")
    assert "NCCL WARN something is odd" in done.stderr
    assert "nccl_path" not in events(done)


@pytest.mark.programs
def test_a_user_s_own_wishes_for_the_log_stay(tmp_path: Path) -> None:
    assert "NCCL INFO Connected all rings" in worked(NCCL_DEBUG="INFO").stderr
    kept = tmp_path / "log"
    done = worked(NCCL_DEBUG_FILE=str(kept))
    assert "nccl_path" not in events(done)
    assert "Connected all rings" in kept.read_text()


# --- NCCL's RAS ---

# Composed after NCCL's user guide, "Troubleshooting", "RAS".
RAS = """\
NCCL version 2.24.3 compiled with CUDA 12.8

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5
"""


@pytest.fixture
def listener() -> Iterator[str]:
    """An address where NCCL's RAS would answer once; the answer is the text above."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as peer:
                assert peer.recv(100) == b"verbose status\n"
                peer.sendall(RAS.encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)


def test_nccl_is_asked_how_a_job_stands_that_does_not_end(listener: str) -> None:
    slow = WORKER.replace("rank.begin()", "rank.begin(); import time; time.sleep(2.5)")
    slow = slow.replace('"--check", "nccl"]', '"--check", "nccl", "--deadline", "1"]')
    words = [sys.executable, "-c", slow, str(ROOT / "roles/validation/files"), str(LOGS / "ib-direct.log")]
    given = {**os.environ, "NCCL_RAS_ADDR": listener}
    done = subprocess.run(words, env=given, capture_output=True, text=True, check=False, timeout=60)
    said = [text for text in done.stderr.splitlines() if text.startswith("NCCL RAS: ")]
    assert "NCCL RAS:   Missing communicator data from 1 job process" in said
    assert "NCCL RAS:   Process 3487984 on node 172.16.64.213 managing GPU 5" in said
    assert len(said) == len([text for text in RAS.splitlines() if text])


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "", "[::1]:99999999", "host.invalid:28028"])
def test_where_nobody_listens_nothing_is_said(address: str) -> None:
    assert load("nccl_log").answer({"NCCL_RAS_ADDR": address}, 1.0) == []


# --- real counters: two network namespaces with two networks between them ---

SENDER = """\
import os, socket, sys
sys.path.insert(0, sys.argv[1])
import rank_program
PIECE, PIECES = bytes(1 << 16), 64
def work(rank):
    def check():
        rank.begin()
        if rank.rank == 0:
            with socket.create_server((sys.argv[2], 4711)) as server:
                peer = server.accept()[0]
                left = len(PIECE) * PIECES
                while left:
                    left -= len(peer.recv(1 << 16))
                peer.sendall(PIECE * PIECES)
        else:
            while True:
                try:
                    peer = socket.create_connection((sys.argv[2], 4711), timeout=20)
                    break
                except ConnectionRefusedError:
                    pass
            peer.sendall(PIECE * PIECES)
            left = len(PIECE) * PIECES
            while left:
                left -= len(peer.recv(1 << 16))
        rank.findings.compared += 1
    return 0 if rank.attempt(check) else 1
arguments = rank_program.parser("", ("torchrun",)).parse_args(["--check", "torchrun"])
number = int(sys.argv[3])
voice = rank_program.Voice("torchrun", number, 2)
voice.host = f"node{number + 1}"
sys.exit(rank_program.run(arguments, work, voice, counts=True))
"""


@pytest.fixture
def spaces() -> Iterator[list[str]]:
    """Two network namespaces with eth0 and eth1 each, of this test alone."""
    names = [f"cc-path-{os.getpid()}-{number}" for number in range(2)]
    commands = [["ip", "netns", "add", name] for name in names]
    for number in range(2):
        ends = [f"eth{number}", "netns", names[0]], [f"eth{number}", "netns", names[1]]
        commands.append(["ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1]])
        for place, name in enumerate(names):
            inside = ["ip", "-n", name]
            commands.append([*inside, "addr", "add", f"10.233.{number}.{place + 1}/24", "dev", f"eth{number}"])
            commands.append([*inside, "link", "set", f"eth{number}", "up"])
    try:
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"network namespaces cannot be made here: {done.stderr.strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.programs
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")
@pytest.mark.parametrize(("number", "verdict"), [(0, Verdict.PASS), (1, Verdict.FAIL)])
def test_the_kernel_s_own_counters_tell_a_wrong_interface(spaces: list[str], number: int, verdict: Verdict) -> None:
    programs = str(ROOT / "roles/validation/files")
    running = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", SENDER, programs, f"10.233.{number}.1", str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": f"eth{number}"},
        )
        for rank, name in enumerate(spaces)
    ]
    lines = [OutputLine("stdout", 1.0, text) for one in running for text in one.communicate(timeout=60)[0].splitlines()]
    found = nccl_diagnostics.path_judged(PASSED, site(), JobOutcome("exited", 1.0, lines=tuple(lines)))
    assert found.verdict is verdict, lines
    if verdict is Verdict.FAIL:
        assert found.hosts == NODES[:2]
        assert "MiB went over eth1, not over eth0, by GLOO_SOCKET_IFNAME=eth1" in found.reason
