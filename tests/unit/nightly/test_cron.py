from __future__ import annotations

import shlex
from datetime import time

import pytest
from clusterctl.nightly import schedule as crontab
from clusterctl.support.errors import ConfigError

SPACE = '/opt/my tools/100%/it\'s "$HOME" `id` ;&|<>*/clusterctl'


def test_a_cron_line_says_the_same_to_cron_and_the_shell() -> None:
    argv = [SPACE, "nightly", "run", "--job", "/state %d/job.json"]
    line = crontab.cron_line(argv, time(23, 5))
    assert line.startswith("5 23 * * * ")
    command = line.removeprefix("5 23 * * * ")
    assert "%" not in command.replace("\\%", "")
    assert shlex.split(command.replace("\\%", "%")) == argv  # what cron hands to sh
    with pytest.raises(ConfigError, match="backslash"):
        crontab.cron_line(["/a\\b"], time(2))


@pytest.mark.parametrize(
    "before",
    ["", "MAILTO=me\n# mine\n0 1 * * * true % stdin\n", "0 1 * * * x\n\n\n", "é \udcff\n"],
    ids=["empty", "others", "blank lines", "no utf-8"],
)
def test_a_block_comes_and_goes_and_leaves_the_rest(before: str) -> None:
    once = crontab.with_block(before, "a-1", "0 2 * * * one")
    both = crontab.with_block(once, "b-2", "0 3 * * * two")
    again = crontab.with_block(both, "a-1", "0 4 * * * three")
    assert "one" not in again
    assert again.count("three") == 1
    assert "two" in again
    assert crontab.without_block(crontab.without_block(again, "a-1"), "b-2") == before
    assert crontab.has_block(both, "a-1")
    assert not crontab.has_block(both, "a")


def test_a_line_without_its_end_keeps_its_text() -> None:
    assert crontab.without_block(crontab.with_block("0 1 * * * x", "a", "y"), "a") == "0 1 * * * x\n"


@pytest.mark.parametrize("cut", ["begin", "end"])
def test_a_damaged_block_is_left_to_its_owner(cut: str) -> None:
    text = crontab.with_block("0 1 * * * mine\n", "a", "0 2 * * * x")
    damaged = "".join(line for line in text.splitlines(keepends=True) if f": {cut}" not in line)
    with pytest.raises(ConfigError, match="crontab -e"):
        crontab.without_block(damaged, "a")
