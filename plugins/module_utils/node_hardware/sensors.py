# SPDX-License-Identifier: Apache-2.0
"""Sensors and the event log of the board's management controller, by ipmitool where it is installed.

The states of a sensor are those of ipmitool(1), "sdr": ok, ns (no reading), nc, cr and nr (non-critical, critical,
non-recoverable), and us for an unspecified fault. An event of before the clock was set has the date "Pre-Init".
"""

from __future__ import annotations

import calendar
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_DEVICES = ("/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0")
_SDR_S, _SEL_S = 4.0, 2.0
_WRONG = frozenset({"nc", "cr", "nr", "us"})
_DAY_S = 86400.0
_LOG = "event log of the board"
_MOST_EVENTS = 50
_FIELDS = 3
_EVENT_FIELDS = 6  # number, date, time, sensor, event, direction


def read(tree: Tree, answer: Answer, request: Json) -> None:
    """Tell the sensors that are not well, and the events since ``since``, by default those of the last day."""
    if not any(tree.exists(path) for path in _DEVICES):
        return
    ipmitool = tree.tool("ipmitool")
    if not ipmitool:
        answer.unseen("sensors", "the node has a management controller, and ipmitool is not installed")
        return
    sensors = tree.run([ipmitool, "sdr", "list"], _SDR_S)
    rows = [[word.strip() for word in line.split("|")] for line in sensors.text.splitlines()]
    known = [row for row in rows if len(row) == _FIELDS and row[2] in {*_WRONG, "ok", "ns"}]
    if not known:
        answer.unseen("sensors", sensors.problem or "ipmitool sdr list has no line of a sensor")
        return
    for name, value, state in known:
        if state in _WRONG:
            answer.reading("sensor", name, "state", f"{state}, {value}")
    _events(tree, answer, ipmitool, float(request.get("since") or time.time() - _DAY_S))


def _events(tree: Tree, answer: Answer, ipmitool: str, since: float) -> None:
    log = tree.run([ipmitool, "sel", "elist", "last", str(_MOST_EVENTS)], _SEL_S)
    if log.problem and "printed nothing" not in log.problem and "has no entries" not in log.text:
        answer.unseen(_LOG, log.problem)
        return
    rows = [[word.strip() for word in line.split("|")] for line in log.text.splitlines()]
    known = [fields for fields in rows if len(fields) >= _EVENT_FIELDS]
    if log.text.strip() and not known and "has no entries" not in log.text:
        answer.unseen(_LOG, "ipmitool sel elist has no line of an event")
    behind = _behind(tree, answer, ipmitool) if known else 0.0
    undated = []
    for fields in known:
        if fields[5] != "Asserted":
            continue
        at, text = _time(f"{fields[1]} {fields[2]}"), f"{fields[3]}: {fields[4]}"
        if at is None:
            undated.append(text)
        elif at + behind >= since:
            answer.event(at + behind, "ipmi", fields[3], "", text)
    if undated:
        answer.unseen(_LOG, f"{len(undated)} events have no time, the last is {undated[-1]}")


def _behind(tree: Tree, answer: Answer, ipmitool: str) -> float:
    """Return by how many seconds the board's clock is behind that of the node; 0 if it does not tell."""
    output = tree.run([ipmitool, "sel", "time", "get"], _SEL_S)
    board = _time(output.text)
    if board is None or output.problem:
        answer.unseen(_LOG, f"its clock could not be read: {output.problem or 'ipmitool sel time get tells no time'}")
        return 0.0
    behind = time.time() - board
    if abs(behind) > _DAY_S:
        words = f"{abs(behind) / _DAY_S:.0f} days {'behind' if behind > 0 else 'ahead'}"
        answer.unseen(_LOG, f"its clock is {words}; the times of its events are set right")
    return behind


def _time(text: str) -> float | None:
    """Return the time that a text begins with: a date and a time of the day, as ipmitool prints them."""
    words = " ".join(text.split()[:2])
    for form in ("%m/%d/%Y %H:%M:%S", "%m/%d/%y %H:%M:%S"):
        try:
            return float(calendar.timegm(time.strptime(words, form)))
        except ValueError:
            continue
    return None
