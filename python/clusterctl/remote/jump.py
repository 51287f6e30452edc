"""Name the bastion that ssh goes through, from the options of its command line."""

from __future__ import annotations

import getopt
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_OPTIONS = "46AaCfGgKkMNnqsTtVvXxYyB:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:"  # of OpenSSH's client


def bastion(options: Sequence[str]) -> str:
    """Return the bastion as the options name it; empty where they name none, since ~/.ssh/config may do so.

    Args:
        options: of ssh, such as ``-J gate`` or ``-o ProxyCommand=...``. As for ssh, the first of a kind holds.
    """
    for name, value in _parsed(options)[0]:
        if name == "-J":
            return value
        if name != "-o":
            continue
        keyword, _, setting = value.strip().replace("=", " ", 1).partition(" ")
        if keyword.lower() == "proxyjump":
            return setting.strip()
        if keyword.lower() == "proxycommand":
            return _destination(setting)
    return ""


def _destination(command: str) -> str:
    """Return to which machine a ProxyCommand logs in, where it is an ssh; else the empty text."""
    try:
        program, *rest = shlex.split(command)
    except ValueError:
        return ""
    left = _parsed(rest)[1]
    return left[0] if program.rpartition("/")[2] == "ssh" and left else ""


def _parsed(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return options with their values, and the words after them; nothing of a line that ssh would refuse."""
    try:
        return getopt.getopt(list(words), _OPTIONS)
    except getopt.GetoptError:
        return [], []
