"""A worker of torchrun that sees one MIG instance, of several that ``CUDA_VISIBLE_DEVICES`` names for its node.

``clusterctl launch`` imports this module, so it needs the standard library alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

START = 'exec "$@"'
_ONE_OF_VISIBLE = (
    '_at=0; _mine=; IFS=,; for _one in $CUDA_VISIBLE_DEVICES; do case "$_at $_one" in "${LOCAL} MIG-"*) _mine=$_one; '
    'esac; _at=$((_at + 1)); done; unset IFS; [ -z "$_mine" ] || export CUDA_VISIBLE_DEVICES="$_mine"; '
)


def one_of_visible(local_rank: str) -> str:
    """Return the words of a shell by which a process keeps one of several instances.

    ``local_rank`` is the variable that has the number of the process on its node.
    """
    return _ONE_OF_VISIBLE.replace("{LOCAL}", local_rank)


_OF_WORKER = one_of_visible("LOCAL_RANK") + START


def of_workers(program: Sequence[str], python: str) -> tuple[str, ...]:
    """Return a program of torchrun such that each worker sees one of the instances that its node was given.

    The program is a script, a module (``-m``), either with ``python`` before it, or a command.
    """
    return ("/bin/sh", "-c", _OF_WORKER, "sh", *command(program, python))


def command(program: Sequence[str], python: str) -> tuple[str, ...]:
    """Return a program of torchrun as a command that any process can become; the arguments as :func:`of_workers`."""
    words = tuple(program)
    if re.fullmatch(r"python3?", words[0].rpartition("/")[2]) and len(words) > 1:
        words = (python, "-u", *words[1:])
    elif words[0] == "-m" or words[0].endswith(".py"):
        words = (python, "-u", *words)
    return words
