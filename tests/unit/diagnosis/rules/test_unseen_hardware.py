"""Counters that are smaller than before are one note: links and all others, in this run and since the last one."""

from __future__ import annotations

import pytest
from clusterctl.diagnosis.rules import registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import Counter, Hardware, HardwareLooks

CULPRIT = "is smaller than before: it was reset or wrapped, and its growth is unknown."


def look(time: float, value: int, *keys: tuple[str, str, str], boot_id: str = "b") -> Hardware:
    counters = tuple(Counter(*key, value) for key in keys)
    return Hardware(schema_version=1, time=time, boot_id=boot_id, counters=counters)


def notes(**looks: HardwareLooks) -> list[str]:
    return list(registry.notes(View(hosts=(), nodes={}, hardware=looks)))


@pytest.mark.parametrize(
    "key",
    [
        ("gpu", "0000:3b:00.0", "corrected ECC errors"),
        ("gpu", "0000:3b:00.0", "microseconds of thermal slowdown"),
        ("nvlink", "0000:3b:00.0", "link 4 replay"),
        ("memory", "P1-DIMMA1", "corrected"),
        ("pcie", "0000:3b:00.0", "correctable errors"),
        ("disk", "nvme0n1", "media errors"),
        ("rdma_port", "mlx5_0/1", "link_downed"),
        ("fabric_port", "leaf1 port 1 to leaf2 port 1", "SymbolErrorCounter"),
    ],
)
def test_a_counter_that_is_smaller_than_before_is_a_note(key: tuple[str, str, str]) -> None:
    told = [f"On node1, {key[2]} of {key[1]} {CULPRIT}"]
    now, before = look(100.0, 1, key), look(0.0, 7, key)
    assert notes(node1=HardwareLooks(now, first=before)) == told
    assert notes(node1=HardwareLooks(now, past=(before,))) == told, "since the last run"
    assert notes(node1=HardwareLooks(now, first=look(50.0, 1, key), past=(before,))) == told
    assert notes(node1=HardwareLooks(now, first=before, past=(look(-9.0, 7, key),))) == told, "once"


def test_a_restart_and_a_counter_that_no_rule_judges_tell_nothing() -> None:
    replays = ("gpu", "0000:3b:00.0", "PCIe replays")
    for key in (("interface", "eth0", "rx_packets"), ("disk", "sda", "pending sectors"), ("process", "7 (cp)", "ran")):
        assert notes(node1=HardwareLooks(look(100.0, 1, key), first=look(0.0, 7, key))) == []
    assert notes(node1=HardwareLooks(look(100.0, 1, replays), past=(look(0.0, 7, replays, boot_id="a"),))) == []


def test_a_driver_that_was_loaded_again_is_one_note_for_all_its_counters() -> None:
    links = [("nvlink", "0000:3b:00.0", f"link {number} crc") for number in range(18)]
    looks = HardwareLooks(look(100.0, 0, *links), past=(look(0.0, 7, *links),))
    shown = "link 0 crc of 0000:3b:00.0, link 1 crc of 0000:3b:00.0, link 2 crc of 0000:3b:00.0 and 15 more"
    words = "are smaller than before: they were reset or wrapped, and their growth is unknown."
    assert notes(node1=looks, node2=looks) == [f"On node[1-2], {shown} {words}"]
