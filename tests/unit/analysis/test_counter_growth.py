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
