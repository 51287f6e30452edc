from __future__ import annotations

import pytest
from clusterctl.cli import output
from clusterctl.cli.output import shown_command


def test_what_is_shown_of_a_command_holds_no_value() -> None:
    pairs = {
        "-e": "-e",
        "a=1 b=2": "a=…",
        "--extra-vars=token=x": "--extra-vars=token=…",
        "-etoken=x": "-etoken=…",
        "--extra-vars": "--extra-vars",
        '{"a": "x"}': "{…}",
        "-v": "-v",
    }
    assert shown_command(list(pairs)) == ("clusterctl", *pairs.values())
    assert shown_command(["-e", "@f"]) == ("clusterctl", "-e", "@f")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0s"), (9.94, "9.9s"), (59.9, "59s"), (72, "1m12s"), (3780, "1h03m")]
)
def test_durations(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


def test_folded_hosts() -> None:
    assert output.folded(["node1", "node2", "node3", "gpu7"]) in {"gpu7,node[1-3]", "node[1-3],gpu7"}
