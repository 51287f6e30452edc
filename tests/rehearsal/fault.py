"""The type of a fault of the rehearsal: it is planted on one node, and doctor must name that node and the fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from recorded_machine import Machine


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: what is wrong, in the table's words.
        cause: its number in the list of 25 causes, 0 if it is not among them.
        machines: the kinds of machine on which it is planted.
        plant: changes the machine. The second argument is 0 for the first look and 1 for the second look, a minute
            later, so that counters can grow between the two.
        check: the check of the finding that is wanted.
        words: what its cause or cure must say.
    """

    name: str
    cause: int
    machines: tuple[str, ...]
    plant: Callable[[Machine, int], None]
    check: str
    words: tuple[str, ...]
