"""Folded lists of host names: how many they name, without expanding them."""

from __future__ import annotations

import pytest
from clusterctl.model import nodeset
from clusterctl.support.errors import ExitCode, TooManyHostsError


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
