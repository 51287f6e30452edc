"""The verdict of ``clusterctl launch --prove`` over what its ranks reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clusterctl.analysis.carriers import FabricPath
from clusterctl.analysis.launch_proof import NodeWord, judge
from clusterctl.support.errors import ExitCode
from node_programs import load

LOGS = Path(__file__).resolve().parents[2] / "data" / "nccl_log"
RDMA = NodeWord(rdma=("mlx5_0:1", "mlx5_1:1"), gpu_devices=1, settings={"NCCL_IB_DISABLE": "/etc/nccl.conf"})
NOT_STARTED = "the program was not started"


def reports(log: str = "", word: NodeWord = RDMA, **changed: Any) -> list[dict[str, Any]]:
    """Return two ranks on two nodes as ``launch_proof.py`` reports them, through the JSON of PyTorch's store."""
    path = load("nccl_log").told((LOGS / f"{log}.log").read_text().splitlines()) if log else {}
    found = []
    for rank in range(2):
        one = {"rank": rank, "host": f"pod-{rank}", "state": "answered", "backend": "nccl", "gpu": "H100", "wrong": ""}
        found.append({**one, "path": path, "node": word.record, **changed})
    read: list[dict[str, Any]] = json.loads(json.dumps(found))
    return read


def test_a_right_way_lets_the_program_start() -> None:
    verdict = judge(reports("ib-direct"))
    assert verdict.may_start
    assert verdict.lines == (
        "proof PASS: 2 ranks on 2 nodes have right sums; NCCL goes over IB (mlx5_0:1, mlx5_1:1) with GPUDirect RDMA",
    )


def test_the_log_of_ranks_on_a_gpu_without_rdma_lets_the_program_start() -> None:
    verdict = judge(reports("../gpu_h200/nccl-log", NodeWord(gpu_devices=1, fabric=FabricPath(("eth0",)))))
    assert verdict.may_start
    assert verdict.lines == ("proof PASS: 2 ranks on 2 nodes have right sums; NCCL goes over Socket (eth0)",)


@pytest.mark.parametrize(
    ("log", "word", "words"),
    [
        (
            "socket-disabled",
            RDMA,
            (
                "pod-0, pod-1: NCCL goes over sockets on eth0 although mlx5_0:1, mlx5_1:1 are up, by "
                "NCCL_IB_DISABLE=1 of /etc/nccl.conf; take that setting away"
            ),
        ),
        (
            "ib-left-out",
            RDMA,
            (
                "pod-0, pod-1: NCCL leaves out mlx5_1:1 of 2 ports that are up, by NCCL_IB_HCA==mlx5_0:1; take that "
                "setting away, or name all ports in it"
            ),
        ),
        (
            "socket-docker",
            NodeWord(gpu_devices=1, fabric=FabricPath(("eth0",))),
            (
                "pod-0, pod-1: NCCL's sockets go over docker0, not over eth0, by NCCL_SOCKET_IFNAME=docker0; set "
                "NCCL_SOCKET_IFNAME to =eth0"
            ),
        ),
    ],
)
def test_a_wrong_way_is_named_with_node_port_and_setting(log: str, word: NodeWord, words: str) -> None:
    verdict = judge(reports(log, word))
    assert verdict.code is ExitCode.VALIDATION_FAILED
    assert verdict.lines == (f"proof FAIL: {words}", NOT_STARTED)


def test_what_was_not_proved_is_said() -> None:
    verdict = judge(reports(word=NodeWord(), backend="gloo", gpu=""))
    assert verdict.may_start
    assert verdict.lines == (
        (
            "proof PASS: 2 ranks on 2 nodes have right sums over Gloo; the way of NCCL was not proved, for there is no "
            "GPU on pod-0, pod-1"
        ),
    )
    silent = "NCCL's way was not proved on pod-0, pod-1, for its log says nothing of it (is NCCL_DEBUG_FILE set?)"
    assert silent in judge(reports()).lines[0]


def test_a_gpu_that_pytorch_cannot_use_is_a_fault() -> None:
    verdict = judge(reports(backend="gloo", gpu="", no_gpu="RuntimeError: driver too old"))
    assert verdict.code is ExitCode.VALIDATION_FAILED
    assert "PyTorch finds no GPU on pod-0, pod-1, which has 1: RuntimeError: driver too old" in verdict.lines[0]


def test_traffic_over_the_wrong_interface_is_named() -> None:
    carried = {
        "ports": {"eth0": [1000, 1000, ""], "eth1": [40 << 20, 40 << 20, ""]},
        "settings": {"GLOO_SOCKET_IFNAME": "eth1"},
    }
    word = NodeWord(fabric=FabricPath(("eth0",)))
    verdict = judge(reports(word=word, backend="gloo", gpu="", carried=carried))
    assert (
        "pod-0, pod-1: 80.0 MiB of 80.0 MiB went over eth1, not over eth0, by GLOO_SOCKET_IFNAME=eth1"
        in (verdict.lines[0])
    )


def test_pods_without_a_record_are_held_to_the_interface_that_leads_to_node_0() -> None:
    """A user may choose another network for all pods; one pod that differs is at fault."""
    word = NodeWord(fabric=FabricPath(("eth0",)), is_recorded=False, settings={"GLOO_SOCKET_IFNAME": "environment"})
    ports = {"eth0": [1000, 1000, ""], "eth1": [40 << 20, 40 << 20, ""]}
    found = reports(word=word, backend="gloo", gpu="")
    for one in found:
        one["carried"] = {"ports": ports, "settings": {"GLOO_SOCKET_IFNAME": "eth1"}}
    assert judge(found).may_start
    found[0]["carried"]["settings"] = {"GLOO_SOCKET_IFNAME": "eth0"}
    assert judge(found).lines[0] == (
        "proof FAIL: pod-1: 80.0 MiB of 80.0 MiB went over eth1, not over eth0, by GLOO_SOCKET_IFNAME=eth1 of "
        "environment; set GLOO_SOCKET_IFNAME to eth0, or take that setting away"
    )


@pytest.mark.parametrize(
    ("states", "code", "words"),
    [
        (("answered", "no word"), 11, "no word came from rank 1 on pod-1; start 'clusterctl launch --prove' on every"),
        (("stuck", "stuck"), 10, "rank 0 on pod-0, rank 1 on pod-1 did not come back from all_reduce"),
        (("stuck", "died"), 10, "rank 1 on pod-1 ended in all_reduce: signal 11"),
        (("raised", "no word"), 11, "no word came from rank 1 on pod-1"),
        (("died", "no word"), 10, "rank 0 on pod-0 ended in all_reduce: signal 11"),
        (("nonsense", "stuck"), 10, "rank 1 on pod-1 did not come back"),
    ],
)
def test_a_rank_that_gives_no_answer_is_named(states: tuple[str, str], code: int, words: str) -> None:
    found = reports()
    for report, state in zip(found, states, strict=True):
        report.update(state=state, step="all_reduce", text="signal 11")
    verdict = judge(found)
    assert (int(verdict.code), words in verdict.lines[0]) == (code, True), verdict.lines


def test_a_wrong_sum_is_named_with_its_rank() -> None:
    found = reports("ib-direct")
    found[1]["wrong"] = "all_reduce of 1001 numbers over nccl"
    assert judge(found).lines[0] == "proof FAIL: rank 1 on pod-1 got a wrong sum: all_reduce of 1001 numbers over nccl"


@pytest.mark.parametrize("node", [None, 7, {"rdma": 3, "fabric": "eth0", "gpu_devices": "8", "settings": []}])
def test_a_word_of_another_form_is_left_out(node: Any) -> None:
    assert NodeWord.of(node) in (NodeWord(), NodeWord(settings={}))
    assert judge(reports("ib-direct", node=node, carried=[], path=[])).may_start
    assert judge([{"rank": 0, "state": "answered"}]).may_start
