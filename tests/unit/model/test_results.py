from __future__ import annotations

from typing import get_args

import pytest
from clusterctl.model import nodeset, units
from clusterctl.model.findings import majority
from clusterctl.model.results import CheckResult, Unit, ValidationRecord, Verdict, worst
from clusterctl.support.errors import ExitCode, TooManyHostsError
from report_records import CHECKS, record


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ([], Verdict.ERROR),
        ([Verdict.PASS, Verdict.SKIP], Verdict.PASS),
        ([Verdict.SKIP], Verdict.SKIP),
        ([Verdict.PASS, Verdict.ERROR], Verdict.ERROR),
        ([Verdict.ERROR, Verdict.FAIL, Verdict.PASS], Verdict.FAIL),
    ],
)
def test_the_whole_is_as_bad_as_its_worst_part(verdicts: list[Verdict], whole: Verdict) -> None:
    assert worst([CheckResult(check="x", verdict=verdict, reason="") for verdict in verdicts]) is whole


def test_a_record_survives_the_disk() -> None:
    plain = record(CHECKS[:1])
    assert ValidationRecord.model_validate_json(plain.model_dump_json()) == plain


# --- the one rule of who differs from the others ---


def test_the_usual_value_is_the_most_frequent_one() -> None:
    found = majority({"node1": "5.0.7", "node2": "5.0.6", "node3": "5.0.7", "node4": "4.1.4"})
    assert found.usual == "5.0.7"
    assert found.others == {"5.0.6": ("node2",), "4.1.4": ("node4",)}
    assert found.odd == ("node2", "node4")


def test_a_plurality_is_enough() -> None:
    assert majority({"a": 1, "b": 1, "c": 2, "d": 3, "e": 4}).usual == 1


def test_without_a_majority_every_member_is_named() -> None:
    found = majority({"node1": "a", "node2": "b"})
    assert found.usual is None
    assert found.others == {"a": ("node1",), "b": ("node2",)}


def test_members_that_agree_leave_nothing_to_say() -> None:
    assert majority({"node1": "a", "node2": "a"}).others == {}
    assert majority({}).others == {}


# --- folded lists of host names: how many they name, without expanding them ---


@pytest.mark.parametrize(
    "word", ["node1", "node[1-3,7]", "node[1:9:2]", "node[001-100]", "r[1-3]n[1-4]", "node[0000000001-0000000003]"]
)
def test_a_list_is_counted_as_it_is_expanded(word: str) -> None:
    names = nodeset.expanded(word.replace("1:9:2", "1-9/2"))
    assert names is not None
    assert nodeset.count(word) == len(names)


@pytest.mark.parametrize("word", ["node[1-999999999]", "node[1:100001]", "a[1-999]b[1-999]", f"n[1-{'9' * 5000}]"])
def test_a_list_of_too_many_hosts_is_refused_before_it_is_expanded(word: str) -> None:
    with pytest.raises(TooManyHostsError, match="more than 100,000 hosts") as caught:
        nodeset.expanded(word)
    assert word[:200] in str(caught.value)
    assert caught.value.exit_code == ExitCode.USAGE


def test_the_refusal_is_one_line_whatever_the_word_holds() -> None:
    with pytest.raises(TooManyHostsError) as caught:
        nodeset.expanded("\x1b[2J\nnode[1-999999999]")
    assert str(caught.value).isprintable()


def test_what_is_no_range_is_not_counted() -> None:
    assert nodeset.count("~(a[bc][de][fg][hi][jk])$") == 1
    assert nodeset.count("rack[a:z]") == 26


@pytest.mark.parametrize("name", ["@@0", "0^@@0", "*", "a&b", "a!b", "a^b", "@all"])
def test_signs_in_a_name_are_no_operators(name: str) -> None:
    """A NodeSet asks its groups for a name with '@', and that runs commands of the site."""
    assert nodeset.folded(["node1", name, "node2"]) == f"node1,{name},node2"


def test_a_group_in_a_list_is_a_name() -> None:
    assert nodeset.expanded("@all[1-2]") == ["@all1", "@all2"]


# --- sizes, fractions and values with units, as text and as numbers ---


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
