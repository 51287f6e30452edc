from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from clusterctl.cli.run import joined
from past_runs import run

if TYPE_CHECKING:
    from pathlib import Path


def test_mca_takes_two_words_up_to_the_program() -> None:
    assert joined(["--mca", "a", "-p 1", "-np", "2", "--mca", "b=3", "--", "--mca", "c", "d"]) == [
        *("--mca=a=-p 1", "-np", "2", "--mca", "b=3", "--", "--mca", "c", "d")
    ]


@pytest.mark.programs
@pytest.mark.parametrize(
    ("pattern", "words"),
    [("(?P<seconds>", "the regular expression is invalid"), ("step", "it needs one of the groups")],
)
def test_a_pattern_that_cannot_be_used_is_wrong_usage(tmp_path: Path, pattern: str, words: str) -> None:
    inventory = tmp_path / "inventory.ini"
    inventory.write_text("node1 ansible_host=192.0.2.1\n")
    done = run("run", inventory, "--pace-pattern", pattern, "--", "true")
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
    assert "192.0.2.1" not in done.stderr, "no node was asked"
