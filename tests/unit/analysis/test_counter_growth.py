"""Growth of counters between two looks at a node's hardware."""

from __future__ import annotations

import pytest
from clusterctl.analysis.counter_growth import Growth, growth, shrunk
from clusterctl.model.hardware import Counter, Hardware, Part

KEY = ("nic", "eth0", "rx_errors")


def look(time: float, value: int, boot_id: str = "b") -> Hardware:
    return Hardware(schema_version=1, time=time, boot_id=boot_id, counters=(Counter(*KEY, value),))


def test_growth_is_told_with_its_time() -> None:
    found = growth(look(100.0, 7), look(160.0, 10))
    assert found == {KEY: Growth(3, 60.0)}
    assert found[KEY].per_hour == 180.0


def test_a_counter_that_shrank_a_restart_and_a_clock_that_went_back_tell_nothing() -> None:
    assert growth(look(100.0, 7), look(160.0, 2)) == {}
    assert shrunk(look(100.0, 7), look(160.0, 2)) == (KEY,)
    assert shrunk(look(100.0, 7), look(160.0, 2, boot_id="c")) == ()
    assert growth(look(100.0, 7), look(160.0, 10, boot_id="c")) == {}
    assert growth(look(100.0, 7), look(100.0, 10)) == {}


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
    before, after = look(100.0, 7), look(160.0, 10)
    assert growth(before, after) is growth(before, after)
    assert growth(look(100.0, 8), after) == {KEY: Growth(2, 60.0)}
    later = after.with_counters_of(look(220.0, 17))
    assert growth(before, later) == {KEY: Growth(10, 120.0)}
    assert growth(before, after) == {KEY: Growth(3, 60.0)}
    assert after == look(160.0, 10), "what is kept does not count"
