"""Counters above their limits: since the first look of the run or else since the last run, each once, with a source."""

from __future__ import annotations

import pytest
from clusterctl.analysis.counter_growth import Growth
from clusterctl.diagnosis import growing
from clusterctl.diagnosis.counter_limits import GrowthLimit
from clusterctl.diagnosis.rules import fabric_links, gpu_health, gpu_settings, link_counters, nvlink, pcie
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import Counter, Hardware, HardwareLooks

DAY_S = 86_400.0
LIMIT = GrowthLimit(3600, "warning", "errors", "look", "a book", at_least=10)
RULES = (link_counters, fabric_links, gpu_health, gpu_settings, nvlink, pcie)


def look(time: float, *values: int, key: tuple[str, str] = ("x", "errors")) -> Hardware:
    counters = tuple(Counter(key[0], f"d{number}", key[1], value) for number, value in enumerate(values))
    return Hardware(schema_version=1, time=time, boot_id="b", counters=counters)


def above(looks: HardwareLooks) -> list[tuple[str, Growth]]:
    return [(one.device, one.grown) for one in growing.above(looks, {("x", "errors"): LIMIT})]


def test_growth_in_this_run_comes_first_and_that_since_the_last_run_after_it() -> None:
    first, past = look(DAY_S, 100, 100_000, 40), (look(-DAY_S, 0, 0, 0), look(0.0, 90, 0, 40))
    looks = HardwareLooks(look(DAY_S + 10, 150, 100_000, 45), first, past)
    assert above(looks) == [("d0", Growth(50, 10.0)), ("d1", Growth(100_000, DAY_S + 10))]
    assert above(HardwareLooks(looks.now, past=past)) == [("d1", Growth(100_000, DAY_S + 10))]
    assert above(HardwareLooks(looks.now)) == []


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (("rdma_port", "symbol_error"), "d0 by 20000 in 24 h, and the limit is 120 an hour"),
        (("fabric_port", "SymbolErrorCounter"), "d0 by 20000 in 24 h, and the limit is 120 an hour"),
        (("gpu", "uncorrectable ECC errors"), "20000 more uncorrectable ECC errors in 24 h"),
        (("gpu", "PCIe replays"), "20000 more replays in 24 h, and the limit is 480 an hour"),
        (("pcie", "correctable errors"), "20000 more correctable errors in 24 h, and the limit is 480 an hour"),
        (("nvlink", "link 3 replay"), "link 3: 20000 replay errors in 24 h"),
        (("gpu", "microseconds of thermal slowdown"), "0.0 s of hardware thermal slowdown in 24 h"),
    ],
)
def test_a_rule_of_growth_judges_the_time_since_the_last_run_and_has_a_source(key: tuple[str, str], words: str) -> None:
    now, before = (look(time, value, key=key) for time, value in ((DAY_S, 20_000), (0.0, 0)))
    looks = HardwareLooks(now, first=look(DAY_S - 60, 20_000, key=key), past=(before,))
    view = View(hosts=(), nodes={}, hardware={"node1": looks})
    (found,) = (one for rule in RULES for one in rule.findings(view))
    assert words in found.cause
    assert found.source


def test_a_crc_error_of_nvlink_now_and_then_is_below_its_limit() -> None:
    now, before = (look(time, value, key=("nvlink", "link 3 crc")) for time, value in ((DAY_S, 20_000), (0.0, 0)))
    view = View(hosts=(), nodes={}, hardware={"node1": HardwareLooks(now, past=(before,))})
    assert list(nvlink.findings(view)) == []
