"""Options of a launcher's own that the user gives before the program, as in ``-- --mixed_precision bf16 train.py``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PYTHON_WORD = re.compile(r"(?:.*/)?python3?")
_MODULE = "--module"
NO_PYTHON = frozenset({"--no_python", "--no-python"})


@dataclass(frozen=True)
class OwnOptions:
    """Options of a launcher; ``ours`` are the names of those that clusterctl sets from what it knows of the nodes."""

    launcher: str
    ours: frozenset[str]

    def parted(self, program: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the launcher's options, and the program behind them.

        The program begins with a script (``.py``), ``-m``, ``python``, or what follows ``--module`` or ``--no_python``.

        Raises:
            ConfigError: an option is clusterctl's to set, or the program is missing.
        """
        words = tuple(program)
        at = next((number for number, word in enumerate(words) if self._begins(words, number, word)), len(words))
        options, rest = words[:at], words[at:]
        if not rest:
            raise ConfigError(f"{self.launcher} has no program to start; name a script or -m MODULE behind {words[0]}.")
        for word in options:
            name = word.partition("=")[0].removeprefix("--").replace("-", "_")
            if word.startswith("--") and name in self.ours:
                raise ConfigError(
                    f"{word.partition('=')[0]} of {self.launcher} comes from the inventory; choose nodes with --limit, "
                    "and processes with --nproc-per-node."
                )
        return (options[:-1], ("-m", *rest)) if options[-1:] == (_MODULE,) else (options, rest)

    @staticmethod
    def value(options: Sequence[str], name: str) -> str:
        """Return the value of an option, ``--name VALUE`` or ``--name=VALUE``; empty without it."""
        found = ""
        for number, word in enumerate(options):
            given, sign, value = word.partition("=")
            if given.replace("-", "_") == f"__{name}":
                found = value if sign else (*options, "")[number + 1]
        return found

    @staticmethod
    def _begins(words: Sequence[str], number: int, word: str) -> bool:
        if number == 0 and not word.startswith("-"):
            return True
        if number and words[number - 1] in {_MODULE, *NO_PYTHON}:
            return True
        return word == "-m" or word.endswith(".py") or bool(_PYTHON_WORD.fullmatch(word))
