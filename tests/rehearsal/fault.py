"""The type of a fault of the rehearsal: it is planted on one node, and doctor must name that node and the fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recorded_machine import Machine

Plant = Callable[["Machine", int], None]


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
    plant: Plant
    check: str
    words: tuple[str, ...]


def shows(path: str, text: str | int) -> Plant:
    """Return a plant that writes a file."""
    return lambda machine, _look: machine.add(path, text)


def grows(path: str, count: int) -> Plant:
    """Return a plant that lets a counter's file grow between the two looks."""
    return lambda machine, look: machine.grow(path, count * look)


def prints(tool: str, old: str, new: str, count: int = -1) -> Plant:
    """Return a plant that changes what a tool prints."""
    return lambda machine, _look: machine.replace(tool, old, new, count)


def edits(path: str, old: str, new: str) -> Plant:
    """Return a plant that changes the text of a file."""

    def plant(machine: Machine, _look: int) -> None:
        machine.files[path] = machine.files[path].replace(old, new)

    return plant
