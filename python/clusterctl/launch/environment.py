"""The variables that a job gets: those that it cannot do without, NCCL's, and what the user asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ALWAYS = ("PATH", "LD_LIBRARY_PATH")
NCCL_PREFIX = "NCCL_"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Words that mpirun of both series, horovodrun and a shell hand on as they are; 4.1 takes a list of variables apart at
# semicolons.
_PLAIN = re.compile(r"[A-Za-z0-9_./:,=+@%^-]*")


@dataclass(frozen=True)
class Variable:
    """A variable of the job; without a value it is the launcher's own."""

    name: str
    value: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether ``NAME=VALUE`` may stand on a command line; another value travels in the launcher's environment."""
        return self.value is None or bool(_PLAIN.fullmatch(self.value))

    @property
    def word(self) -> str:
        """What stands behind ``-x``."""
        return self.name if self.value is None or not self.is_plain else f"{self.name}={self.value}"


def check_name(name: str) -> str:
    """Return the name of a variable.

    Raises:
        ConfigError: it is not a valid name, and might be taken for an option.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not the name of an environment variable; it has letters, digits and '_', as in -x NAME or "
            "-x NAME=VALUE."
        )
    return name


def parse(text: str) -> Variable:
    """Read the value of ``-x``: ``NAME`` or ``NAME=VALUE``.

    Raises:
        ConfigError: it is malformed.
    """
    name, sign, value = text.partition("=")
    check_name(name)
    if "\n" in value or "\0" in value:
        raise ConfigError(f"The value of {name} has a newline in it, which no launcher hands on.")
    return Variable(name, value if sign else None)


def of_job(
    asked: Sequence[str], caller: Mapping[str, str] | None = None, session: Iterable[str] = ALWAYS
) -> tuple[Variable, ...]:
    """Return the variables of a job, each once.

    Args:
        asked: the user's values of ``-x``. One without a value takes the caller's, else the launch node's own.
        caller: the environment in which the user called us. NCCL's variables in it go along.
        session: names among :data:`ALWAYS` that the launch node's session has; mpirun warns of others.

    Raises:
        ConfigError: one of ``asked`` is malformed.
    """
    given = caller or {}
    found = {name: Variable(name) for name in ALWAYS if name in set(session)}
    for name, value in given.items():
        if name.startswith(NCCL_PREFIX) and _NAME.fullmatch(name) and "\n" not in value:
            found[name] = Variable(name, value)
    for text in asked:
        variable = parse(text)
        if variable.value is None and variable.name not in ALWAYS and variable.name in given:
            variable = parse(f"{variable.name}={given[variable.name]}")
        found[variable.name] = variable
    return tuple(found.values())


def beside(variables: Iterable[Variable]) -> dict[str, str]:
    """Return what the launcher's own environment has to hold, since it may not stand on the command line."""
    return {variable.name: str(variable.value) for variable in variables if not variable.is_plain}
