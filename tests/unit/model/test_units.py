"""Sizes, fractions and values with units, as text and as numbers."""

from __future__ import annotations

from typing import get_args

import pytest
from clusterctl.model import units
from clusterctl.model.results import Unit


@pytest.mark.parametrize(
    ("given", "expected"),
    [(4096, 4096), ("4096", 4096), ("64 KiB", 65536), ("64KiB", 65536), ("1.5 MiB", 1572864), ("1 MB", 10**6), (0, 0)],
)
def test_sizes(given: object, expected: int) -> None:
    assert units.size(given) == expected


@pytest.mark.parametrize(
    "given", ["64M", "64 Mb", "-1", "1.5", "", "MiB", True, None, "nan", [1], "1 2", pytest.param(10**400, id="huge")]
)
def test_no_sizes(given: object) -> None:
    with pytest.raises(ValueError, match="is not a "):
        units.size(given)


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (1.25e9, "B/s", "1.25 GB/s"),
        (999.96e6, "B/s", "1,000 MB/s"),
        (0.0, "B/s", "0 B/s"),
        (12, "B/s", "12 B/s"),
        (18.44, "us", "18.4 us"),
        (1234.0, "us", "1.23 ms"),
        (0.5, "us", "0.5 us"),
        (61.0, "s", "61 s"),
        (0.25, "s", "250 ms"),
        (3.2e12, "FLOP/s", "3.2 TFLOP/s"),
        (0.873, "1", "0.873"),
        (123456.0, "tokens/s", "123,456 tokens/s"),
        (8, "nodes", "8 nodes"),
    ],
)
def test_values_in_words(value: float, unit: Unit, words: str) -> None:
    assert units.value_words(value, unit) == words


@pytest.mark.parametrize("size", [0, 1, 1000, 1024, 1536, 65536, 1 << 20, (1 << 20) + 1, 64 << 20, 3 << 30])
def test_a_size_in_words_is_that_size_again(size: int) -> None:
    assert units.size(units.size_words(size)) == size


def test_every_unit_of_a_record_is_read_as_itself() -> None:
    for unit in get_args(Unit):
        assert units.unit(unit) == (unit, 1.0)
    assert units.unit("GB/s") == ("B/s", 1e9)
    assert units.unit("ms") == ("s", 1e-3)
    assert all(units.unit(name)[1] > 0 for name in units.known())
    with pytest.raises(ValueError, match="'Gb/s' is not a unit"):
        units.unit("Gb/s")


@pytest.mark.parametrize(("part", "words"), [(0.1, "10 %"), (0.004, "0.4 %"), (0.123, "12 %"), (9.0, "900 %")])
def test_fractions(part: float, words: str) -> None:
    assert units.percent(part) == words
    assert units.fraction("-10 %") == units.fraction("-0.1") == units.fraction(-0.1)
