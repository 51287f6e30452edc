"""The engines of doctor's table: growth between two looks at a node, and counters above their limits."""

from __future__ import annotations

import pytest
from clusterctl.diagnosis.rules import engines, registry
from clusterctl.diagnosis.rules.engines import Growth, GrowthLimit, growth, shrunk
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import Counter, Hardware, HardwareLooks, Part

DAY_S = 86_400.0
LIMIT = GrowthLimit(3600, "warning", "errors", "look", "a book", at_least=10)
KEY = ("nic", "eth0", "rx_errors")


def look(time: float, *values: int, key: tuple[str, str] = ("x", "errors")) -> Hardware:
    counters = tuple(Counter(key[0], f"d{number}", key[1], value) for number, value in enumerate(values))
    return Hardware(schema_version=1, time=time, boot_id="b", counters=counters)


def above(looks: HardwareLooks) -> list[tuple[str, Growth]]:
    return [(one.device, one.grown) for one in engines.above(looks, {("x", "errors"): LIMIT})]


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
    (found,) = registry.diagnose(view)
    assert words in found.cause
    assert found.source


def test_a_crc_error_of_nvlink_now_and_then_is_below_its_limit() -> None:
    now, before = (look(time, value, key=("nvlink", "link 3 crc")) for time, value in ((DAY_S, 20_000), (0.0, 0)))
    view = View(hosts=(), nodes={}, hardware={"node1": HardwareLooks(now, past=(before,))})
    assert registry.diagnose(view) == ()


def counted(time: float, value: int, boot_id: str = "b") -> Hardware:
    return Hardware(schema_version=1, time=time, boot_id=boot_id, counters=(Counter(*KEY, value),))


def test_growth_is_told_with_its_time() -> None:
    found = growth(counted(100.0, 7), counted(160.0, 10))
    assert found == {KEY: Growth(3, 60.0)}
    assert found[KEY].per_hour == 180.0


def test_a_counter_that_shrank_a_restart_and_a_clock_that_went_back_tell_nothing() -> None:
    assert growth(counted(100.0, 7), counted(160.0, 2)) == {}
    assert shrunk(counted(100.0, 7), counted(160.0, 2)) == (KEY,)
    assert shrunk(counted(100.0, 7), counted(160.0, 2, boot_id="c")) == ()
    assert growth(counted(100.0, 7), counted(160.0, 10, boot_id="c")) == {}
    assert growth(counted(100.0, 7), counted(100.0, 10)) == {}


@pytest.mark.parametrize(
    "key",
    [
        ("disk", "nvme0n1", "media errors"),
        ("gpu", "0000:3b:00.0", "rows remapped after uncorrectable errors"),
        ("gpu", "0000:3b:00.0", "pages retired after double bit errors"),
    ],
)
def test_what_a_part_counts_by_itself_outlasts_a_restart_and_is_not_held_against_another_part(
    key: tuple[str, str, str],
) -> None:
    def of(serial: str, time: float, value: int, boot_id: str) -> Hardware:
        parts = (Part(key[0], key[1], "", serial, "", ""),) if serial else ()
        counter = Counter(*key, value)
        return Hardware(schema_version=1, time=time, boot_id=boot_id, counters=(counter,), parts=parts)

    for serial in ("7", ""):
        assert growth(of("7", 0.0, 1, "a"), of(serial, 60.0, 3, "b")) == {key: Growth(2, 60.0)}
    for boot_id in ("a", "b"):
        assert growth(of("7", 0.0, 1, "a"), of("8", 60.0, 3, boot_id)) == {}
        assert shrunk(of("7", 0.0, 3, "a"), of("8", 60.0, 1, boot_id)) == ()
        assert shrunk(of("7", 0.0, 3, "a"), of("7", 60.0, 1, boot_id)) == (key,)


def test_growth_between_two_looks_is_computed_once_and_not_taken_for_that_of_others() -> None:
    before, after = counted(100.0, 7), counted(160.0, 10)
    assert growth(before, after) is growth(before, after)
    assert growth(counted(100.0, 8), after) == {KEY: Growth(2, 60.0)}
    later = after.with_counters_of(counted(220.0, 17))
    assert growth(before, later) == {KEY: Growth(10, 120.0)}
    assert growth(before, after) == {KEY: Growth(3, 60.0)}
    assert after == counted(160.0, 10), "what is kept does not count"
