"""The marked block of a job in a crontab; every other line stays as it is. Pure."""

from __future__ import annotations

import io
import shlex
from typing import TYPE_CHECKING

from clusterctl.nightly import schedule, systemd
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import time


def line(argv: Sequence[str], at: time) -> str:
    """Return the crontab line that runs a night.

    The shell's quoting comes first, then cron's own: an unescaped ``%`` ends the command there (crontab(5)).

    Raises:
        ConfigError: a word does not fit into a crontab line.
    """
    for word in argv:
        systemd.refuse_control_characters(word)
        if "\\" in word:
            raise ConfigError(f"{word!r} holds a backslash, which cron programs read in different ways; rename it.")
    command = shlex.join(argv).replace("%", "\\%")
    return f"{schedule.cron_fields(at)} {command}"


def with_block(text: str, job: str, entry: str) -> str:
    """Return a crontab with this job's block, in place of an earlier one or at its end."""
    kept = without_block(text, job)
    kept += "" if kept.endswith("\n") or not kept else "\n"
    return f"{kept}{_first(job)}\n{entry}\n{_last(job)}\n"


def without_block(text: str, job: str) -> str:
    """Return a crontab without this job's block; every other byte stays.

    Raises:
        ConfigError: the block lacks an end, or there are several blocks.
    """
    first, last = _first(job), _last(job)
    lines = list(io.StringIO(text))  # str.splitlines also ends a line elsewhere
    bare = [each.rstrip("\n") for each in lines]
    if first not in bare and last not in bare:
        return text
    if bare.count(first) != 1 or bare.count(last) != 1 or bare.index(first) > bare.index(last):
        raise ConfigError(
            f"The crontab's lines between '{first}' and '{last}' are damaged; repair them with 'crontab -e'."
        )
    return "".join(lines[: bare.index(first)] + lines[bare.index(last) + 1 :])


def has_block(text: str, job: str) -> bool:
    """Whether this job has a block with a line in it."""
    return without_block(text, job) != text


def _first(job: str) -> str:
    return f"# clusterctl nightly {job}: begin (written by 'clusterctl nightly enable')"


def _last(job: str) -> str:
    return f"# clusterctl nightly {job}: end"
