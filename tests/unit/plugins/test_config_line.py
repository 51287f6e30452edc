"""Lines of configuration files: a value stays within its line and its quotes, or is refused by name."""

from __future__ import annotations

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import config_line


@pytest.mark.parametrize(
    ("value", "telling"),
    [
        ("a\nb", "a newline"),
        ("a\rb", "a carriage return"),
        ("a\0b", "a NUL"),
        ("a\x1b[2Jb", "a control character"),
        ("a\x7f", "a control character"),
        ("a\tb", "a control character"),
        ("a\x85b", "a control character"),
        ("a\u2028b", "a control character"),
    ],
)
def test_a_value_that_would_leave_its_line_is_refused_by_name(value: str, telling: str) -> None:
    with pytest.raises(config_line.LineError) as caught:
        config_line.checked(value, "NCCL_SOCKET_IFNAME in /etc/nccl.conf")
    said = str(caught.value)
    assert said.startswith("NCCL_SOCKET_IFNAME in /etc/nccl.conf is ")
    assert telling in said
    assert said.isprintable()


def test_quotes_are_refused_where_the_file_has_quotes() -> None:
    assert config_line.checked("it's", "a field") == "it's"
    for value in ('a"b', "a\\b"):
        with pytest.raises(config_line.LineError, match=r"a (?:quote|backslash)"):
            config_line.checked(value, "a field", refused='"\\')


def test_a_long_value_is_shown_short() -> None:
    with pytest.raises(config_line.LineError) as caught:
        config_line.checked("x" * 5000 + "\n", "a field")
    assert len(str(caught.value)) < 250


def test_words_of_people_pass() -> None:
    for value in ("", "eth0", "a b", "größe", "\udcff", "10.0.0.0/24,10.1.0.0/24", "A=b"):
        assert config_line.checked(value, "a field") == value
