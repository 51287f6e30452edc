"""What doctor advises for a code of NVIDIA's catalogue."""

from __future__ import annotations

import pytest
from clusterctl.diagnosis.rules import kernel_log
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import Event, Hardware, HardwareLooks


@pytest.mark.parametrize("code", ["8", "11", "13", "25", "31", "39", "43", "44", "45", "68", "69", "98", "137", "142"])
def test_what_a_program_causes_blames_no_hardware(code: str) -> None:
    assert kernel_log.cure(code, "0000:3b:00.0") is None


@pytest.mark.parametrize(
    ("code", "severity", "words"),
    [
        ("48", "error", "--gpu-reset -i 0000:3b:00.0"),
        ("63", "warning", "when it is free"),
        ("64", "error", "have it replaced"),
        ("74", "error", "--gpu-reset"),
        ("79", "error", "restart it"),
        ("94", "warning", "when it is free"),
        ("95", "error", "--gpu-reset"),
        ("119", "error", "--gpu-reset"),
        ("140", "error", "--gpu-reset"),
        ("149", "error", "--gpu-reset"),
        ("51", "warning", "support"),
        ("167", "warning", "support"),
        ("154", "error", "nvidia-smi -q -i 0000:3b:00.0"),
        ("154, GPU Reset Required", "error", "--gpu-reset -i 0000:3b:00.0"),
        ("154, PF FLR", "error", "--gpu-reset"),
        ("154, Drain and Reset", "error", "--gpu-reset"),
        ("154, Node Reboot Required", "error", "restart it"),
        ("154, OS Reboot", "error", "restart it"),
        ("154, Drain P2P", "error", "drain the node"),
        ("154, Sing a Song", "error", "what the driver asks for"),
        ("99999", "warning", "https://docs.nvidia.com/deploy/xid-errors/"),
    ],
)
def test_what_the_hardware_needs_is_said(code: str, severity: str, words: str) -> None:
    found = kernel_log.cure(code, "0000:3b:00.0")
    assert found is not None
    assert found[0] == severity
    assert words in found[1]


@pytest.mark.parametrize("code", ["154, None", "145, Nonfatal", "162", "171", "172"])
def test_what_asks_for_nothing_is_no_fault(code: str) -> None:
    assert kernel_log.cure(code, "0000:3b:00.0") is None
    assert kernel_log.row(code).meaning


def test_the_catalogue_has_every_code_that_nvidia_publishes() -> None:
    assert set(kernel_log.XIDS) == {str(code) for code in range(1, 173)}


@pytest.mark.parametrize(("code", "words"), [("11012", "corrected"), ("20001", "sent again"), ("22013", "ignored")])
def test_an_sxid_that_nvidia_says_is_harmless_is_told_with_that(code: str, words: str) -> None:
    found = kernel_log.SXIDS[code]
    assert words in found.meaning
    assert found.severity is None


@pytest.mark.parametrize(
    ("code", "severity", "words"),
    [
        ("20012", "warning", "connections"),
        ("10004", "warning", "cooling"),
        ("12028", "error", "restart"),
        ("19084", "error", "reset all GPUs"),
        ("11004", "error", "partition"),
    ],
)
def test_an_sxid_that_the_driver_calls_not_fatal_may_need_a_cure(code: str, severity: str, words: str) -> None:
    found = kernel_log.SXIDS[code]
    assert found.severity == severity
    assert words in found.cure


def test_every_row_has_a_number_and_a_meaning() -> None:
    rows = (*kernel_log.XIDS.items(), *kernel_log.SXIDS.items())
    assert all(code.isdigit() and row.meaning for code, row in rows)
    assert all(bool(row.severity) == bool(row.cure) for row in kernel_log.SXIDS.values())


GPU, CARD = "0000:b3:00.0", "0000:53:00.0"
OFF = Event(40.0, "nvrm", GPU, "fallen off the bus", f"NVRM: GPU {GPU}: GPU has fallen off the bus.")
XID = Event(41.0, "xid", GPU, "79", f"NVRM: Xid (PCI:{GPU}): 79, GPU has fallen off the bus.")
DOWN = Event(40.0, "link", "ens1", "down", f"mlx5_core {CARD} ens1: Link down")
RDMA_DOWN = Event(40.0, "link", "mlx5_3", "DOWN", f"mlx5_core {CARD} mlx5_3: Port: 1 Link DOWN")


@pytest.mark.parametrize(
    ("events", "severity", "words"),
    [
        ((OFF,), "error", f"once, 60 s ago of {GPU}: the GPU has fallen off the bus"),
        ((OFF, XID), "error", f"Xid 79 of GPU {GPU} once, 59 s ago: the GPU has fallen off the bus"),
        ((RDMA_DOWN,) * 2, "warning", "2 times, the last 60 s ago of mlx5_3: the link went down"),
        ((DOWN, RDMA_DOWN) * 2, "warning", "2 times, the last 60 s ago of ens1: the link went down"),
        ((Event(40.0, "nic", CARD, "compromised", ""),), "error", f"{CARD}: the firmware of the network card"),
        ((Event(40.0, "module", CARD, "Cable error, High Temperature", ""),), "warning", "(Cable error, High Temp"),
        ((Event(40.0, "lockup", "CPU#49", "soft", ""),), "warning", "of CPU#49: it was stuck in the kernel (soft lock"),
        (
            (Event(40.0, "neighbours", "", "table overflow", ""),),
            "error",
            "once, 60 s ago: the kernel's table of",
        ),
        ((Event(40.0, "lockup", "", "stall", ""),), "warning", "once, 60 s ago: a processor did not get on in the"),
    ],
)
def test_what_was_told_once_is_one_finding(events: tuple[Event, ...], severity: str, words: str) -> None:
    look = Hardware(schema_version=1, time=100.0, events=events)
    view = View(hosts=(), nodes={}, hardware={"node1": HardwareLooks(look)})
    (finding,) = kernel_log.kernel_log(view)
    assert (finding.severity, finding.hosts) == (severity, ("node1",))
    assert words in finding.cause
    assert finding.cure
