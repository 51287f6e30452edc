# SPDX-License-Identifier: Apache-2.0
"""Sensors and the event log of the board's management controller, by ipmitool where it is installed.

The states of a sensor are those of ipmitool(1), "sdr": ok, ns (no reading), nc, cr and nr (non-critical, critical,
non-recoverable), and us for an unspecified fault.
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
        answer.unseen("event log of the board", log.problem)
        return
    rows = [[word.strip() for word in line.split("|")] for line in log.text.splitlines()]
    known = [fields for fields in rows if len(fields) >= _EVENT_FIELDS]
    if log.text.strip() and not known and "has no entries" not in log.text:
        answer.unseen("event log of the board", "ipmitool sel elist has no line of an event")
    for fields in known:
        at = _time(fields[1], fields[2])
        if at is not None and at >= since and fields[5] == "Asserted":
            answer.event(at, "ipmi", fields[3], "", f"{fields[3]}: {fields[4]}")


def _time(date: str, clock: str) -> float | None:
    for form in ("%m/%d/%Y %H:%M:%S", "%m/%d/%y %H:%M:%S"):
        try:
            return float(calendar.timegm(time.strptime(f"{date} {clock.split(' ', maxsplit=1)[0]}", form)))
        except ValueError:
            continue
    return None
