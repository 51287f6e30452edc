"""Clocks of a node's GPUs and the reasons that slow them down, as ``nvidia-smi`` reports them.

The programs import this module by its bare name, because it lies in their folder. It needs Python 3.9 or newer.

The driver's bit mask of reasons is NVML's (nvml.h, ``nvmlClocksThrottleReason*``, since release 535 named
``nvmlClocksEventReason*``). Three reasons are normal: an idle GPU, the power limit, and clocks that a user has set. A
slowdown by the hardware, from heat or the power supply, at least halves the clocks, and the machine needs repair. The
header says that the general reason may also appear while the clocks change. So a reason counts only when several looks
in a row show it.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Sequence

import bounded_run

PROGRAM = "nvidia-smi"
LIMIT_S = 20.0  # a driver that nothing has used for a while takes seconds to come up
LOOKS = 3
PAUSE_S = 0.3
MHZ = 1e6
# The mask's name changed with driver 535; each driver knows one of them at least.
MASKS = ("clocks_throttle_reasons.active", "clocks_event_reasons.active")
FIELDS = ("index", "name", "pci.bus_id", "temperature.gpu", "clocks.sm", "clocks.max.sm", "power.draw", "power.limit")
UNKNOWN_FIELD = "not a valid field"
REASONS = {
    0x001: "idle",
    0x002: "clocks set by a user",
    0x004: "power limit",
    0x008: "hardware slowdown",
    0x010: "in step with others",
    0x020: "thermal limit of the driver",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "clocks set by a display",
}
_LOST = re.compile(r"GPU is lost|device handle for GPU")
_PLACE = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
HARDWARE = 0x008 | 0x040 | 0x080


class StateError(Exception):
    """``nvidia-smi`` gave no answer; the sentence says why. ``lost`` has the PCI addresses of GPUs that it lost."""

    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gpu:
    """One GPU at one moment; None is a value that it does not report."""

    index: int
    name: str
    place: str
    temperature_c: float | None
    clock_mhz: float | None
    most_mhz: float | None
    power_w: float | None
    limit_w: float | None
    mask: int | None

    @property
    def reasons(self) -> tuple[str, ...]:
        """What keeps its clocks from being higher."""
        mask = self.mask or 0
        known = [words for bit, words in REASONS.items() if mask & bit]
        rest = mask & ~sum(REASONS)
        return (*known, f"unknown reason {rest:#x}") if rest else tuple(known)

    @property
    def words(self) -> str:
        """The state in one line: ``1980 of 1980 MHz, 54 C, 612 of 700 W: power limit``."""
        clock = f"{_plain(self.clock_mhz)} of {_plain(self.most_mhz)} MHz"
        power = f"{_plain(self.power_w)} of {_plain(self.limit_w)} W"
        return f"{clock}, {_plain(self.temperature_c)} C, {power}: {', '.join(self.reasons) or 'nothing slows it down'}"


def _plain(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


def parsed(text: str) -> tuple[Gpu, ...]:
    """Read what ``nvidia-smi --query-gpu`` printed as csv, without header and units.

    Raises:
        StateError: a line is no GPU's.
    """
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(FIELDS) + 1 or not _is_index(cells[0]):
            raise StateError(f"nvidia-smi printed {line.strip()[:100]!r}, which is no GPU's state")
        index, name, place, *figures, mask = cells
        found.append(Gpu(int(index), name, place, *map(_number, figures), mask=_mask(mask)))
    return tuple(found)


def _is_index(cell: str) -> bool:
    return cell.isascii() and cell.isdigit() and len(cell) <= 9  # noqa: PLR2004 - no node has a billion GPUs


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None  # [N/A], [Not Supported], [Unknown Error]
    return value if math.isfinite(value) else None


def _mask(cell: str) -> int | None:
    try:
        return int(cell, 16)
    except ValueError:
        return None


def question(program: str, mask: str) -> tuple[str, ...]:
    """Return the argv that asks for all GPUs, with one of the names of the reasons' mask."""
    return (program, f"--query-gpu={','.join((*FIELDS, mask))}", "--format=csv,noheader,nounits")


def look(program: str = PROGRAM) -> tuple[Gpu, ...]:
    """Ask for all GPUs of this node.

    Raises:
        StateError: there is no such program, it ended with an error or not at all.
    """
    said = ""
    for mask in MASKS:
        try:
            done = bounded_run.run(question(program, mask), LIMIT_S)
        except FileNotFoundError as problem:
            raise StateError(f"there is no {program}") from problem
        except ValueError as problem:
            raise StateError(f"{program} {problem}") from problem
        except OSError as problem:
            raise StateError(f"{program} does not start: {problem}") from problem
        if done.status == 0:
            return parsed(done.output)
        said = " ".join((done.output + done.errors).split())
        if UNKNOWN_FIELD not in said.lower():
            break
    failure = StateError(f"{program} ended with an error: {said[:120]}")
    lines = [line for line in (done.output + "\n" + done.errors).splitlines() if _LOST.search(line)]
    failure.lost = tuple(place.lower() for line in lines for place in _PLACE.findall(line))
    raise failure


class Watch:
    """Look at the GPUs again and again while they are at work, from :meth:`start` to :meth:`stop`."""

    def __init__(self, program: str = PROGRAM, pause_s: float = PAUSE_S) -> None:
        """Begin with nothing seen."""
        self.program, self.pause_s = program, pause_s
        self.looks: list[tuple[Gpu, ...]] = []
        self.problem = ""
        self.lost: tuple[str, ...] = ()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; a look that is under way may end."""
        self._over.set()
        self._thread.join(LIMIT_S)

    def _go(self) -> None:
        while True:
            try:
                self.looks.append(look(self.program))
            except StateError as problem:
                self.problem, self.lost = str(problem), problem.lost
                return
            if self._over.wait(self.pause_s):
                return


def several_looks(program: str = PROGRAM, count: int = LOOKS) -> list[tuple[Gpu, ...]]:
    """Look several times.

    Raises:
        StateError: see :func:`look`.
    """
    found = []
    for number in range(count):
        if number:
            time.sleep(PAUSE_S)
        found.append(look(program))
    return found


def held(looks: Sequence[Sequence[Gpu]], count: int = LOOKS) -> dict[int, int]:
    """Return by GPU the hardware's reasons that so many looks in a row agree on, as a mask."""
    found: dict[int, int] = {}
    for first in range(max(0, len(looks) - count + 1)):
        masks: dict[int, list[int]] = {}
        for seen in looks[first : first + count]:
            for gpu in seen:
                masks.setdefault(gpu.index, []).append((gpu.mask or 0) & HARDWARE)
        for index, bits in masks.items():
            agreed = bits[0]
            for other in bits[1:]:
                agreed &= other
            if len(bits) == count:
                found[index] = found.get(index, 0) | agreed
    return {index: mask for index, mask in found.items() if mask}


def vanished(looks: Sequence[Sequence[Gpu]], lost: Sequence[str] = ()) -> list[Gpu]:
    """Return the GPUs of the first look that the last one lacks, and those that nvidia-smi lost after it."""
    left = {gpu.index for gpu in looks[-1]} if looks else set()
    return [
        gpu for gpu in (looks[0] if looks else ()) if gpu.index not in left or gpu.place.lower().endswith(tuple(lost))
    ]


def report(rank: Any, looks: Sequence[Sequence[Gpu]], lost: Sequence[str] = ()) -> None:
    """Note the state of a node's GPUs in a rank's result: facts ``gpu0_state``, and a wrong answer for each slow one.

    A GPU that vanished meanwhile is a wrong answer as well.

    Args:
        rank: ``rank_program.Rank`` of the one rank that speaks for the node.
        looks: what was seen, oldest first.
        lost: PCI addresses of the GPUs that nvidia-smi lost after the last look.
    """
    for gpu in vanished(looks, lost):
        rank.findings.compared += 1
        rank.findings.note(
            f"GPU {gpu.index} ({gpu.name}, {gpu.place})", "an answer to the end", "it is lost to nvidia-smi"
        )
    if not looks or not looks[-1]:
        return
    slow = held(looks)
    for gpu in looks[-1]:
        rank.facts[f"gpu{gpu.index}_state"] = gpu.words
        rank.findings.compared += 1
        if gpu.index in slow:
            why = " and ".join(words for bit, words in REASONS.items() if slow[gpu.index] & bit)
            rank.findings.note(f"GPU {gpu.index} ({gpu.name}, {gpu.place})", "full speed", f"{why}: {gpu.words}")


def clocks(looks: Sequence[Sequence[Gpu]]) -> dict[int, list[float]]:
    """Return by GPU the clock of its multiprocessors at every look, in Hz; GPUs that do not tell are left out."""
    found: dict[int, list[float]] = {}
    for seen in looks:
        for gpu in seen:
            if gpu.clock_mhz is not None:
                found.setdefault(gpu.index, []).append(gpu.clock_mhz * MHZ)
    return found


def clock_figures(looks: Sequence[Sequence[Gpu]]) -> dict[str, float]:
    """Return ``gpu0_clock_hz`` and the like for a rank's figures: the median of what was seen."""
    return {f"gpu{index}_clock_hz": statistics.median(values) for index, values in clocks(looks).items()}


def quietly(program: str = PROGRAM) -> list[tuple[Gpu, ...]]:
    """Look several times; return an empty list without a GPU or without ``nvidia-smi``."""
    with contextlib.suppress(StateError):
        return several_looks(program)
    return []


if __name__ == "__main__":
    sys.exit("This is a module; start one of the programs beside it.")
