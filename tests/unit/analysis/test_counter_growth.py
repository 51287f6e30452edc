"""Growth of counters between two looks at a node's hardware."""

from __future__ import annotations

from clusterctl.analysis.counter_growth import Growth, growth
from clusterctl.model.hardware import Counter, Hardware

KEY = ("nic", "eth0", "rx_errors")


def look(time: float, value: int, boot_id: str = "b") -> Hardware:
    return Hardware(schema_version=1, time=time, boot_id=boot_id, counters=(Counter(*KEY, value),))


def test_growth_is_told_with_its_time() -> None:
    found = growth(look(100.0, 7), look(160.0, 10))
    assert found == {KEY: Growth(3, 60.0)}
    assert found[KEY].per_hour == 180.0


def test_a_counter_that_shrank_a_restart_and_a_clock_that_went_back_tell_nothing() -> None:
    assert growth(look(100.0, 7), look(160.0, 2)) == {}
    assert growth(look(100.0, 7), look(160.0, 10, boot_id="c")) == {}
    assert growth(look(100.0, 7), look(100.0, 10)) == {}


def test_growth_between_two_looks_is_computed_once_and_not_taken_for_that_of_others() -> None:
    before, after = look(100.0, 7), look(160.0, 10)
    assert growth(before, after) is growth(before, after)
    assert growth(look(100.0, 8), after) == {KEY: Growth(2, 60.0)}
    later = after.with_counters_of(look(220.0, 17))
    assert growth(before, later) == {KEY: Growth(10, 120.0)}
    assert growth(before, after) == {KEY: Growth(3, 60.0)}
    assert after == look(160.0, 10), "what is kept does not count"
