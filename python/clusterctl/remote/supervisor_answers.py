"""Take apart the lines that a job's supervisor writes on its node.

A node may write anything. A line that is not an event of the supervisor is passed over, as the banner of a shell is.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.model.job_outcome import OutputLine, Sweep
from clusterctl.support import node_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_TEXT = 1 << 28  # characters of a job's output that are kept; all pairs of 500 nodes take a quarter
_OF_A_LINE = 128  # that an empty line counts for, since it takes memory too
_MOST_OF_LINE = 1 << 17  # characters; the supervisor cuts lines at half of it
_STREAMS = frozenset({"stdout", "stderr"})
_NOT_EVENTS = (ValueError, TypeError, LookupError, AttributeError, OverflowError)


@dataclass(frozen=True)
class Ended:
    """The last event: how the command ended."""

    reason: str
    seconds: float
    rc: int | None
    signal: int | None
    problem: str


class SupervisorAnswers:
    """What the supervisor has said so far."""

    def __init__(
        self, on_line: Callable[[OutputLine], None] | None, on_data: Callable[[str, bytes], None] | None
    ) -> None:
        """Begin with nothing; the arguments are those of :func:`clusterctl.remote.supervised_job.run`."""
        self.lines: list[OutputLine] = []
        self.argv: tuple[str, ...] = ()
        self.session = ""
        self.ending_s = 0.0
        self.late = False
        self.ended: Ended | None = None
        self.swept: Sweep | None = None  # without its host
        self.flood = ""  # why nothing more is read
        self.on_data = on_data
        self._on_line = on_line
        self._kept = 0

    def take(self, text: str) -> None:
        """Take a line."""
        try:
            event = node_json.loads(text)
            kind = event["event"]
            line = _line(event) if kind == "line" else None
            data = base64.b64decode(event["data"], validate=True) if kind == "data" else b""
            stream = _stream(event) if kind == "data" else ""
            if kind not in {"line", "data"}:
                self._take_state(kind, event)
        except _NOT_EVENTS:
            return
        if line is not None:
            self._keep(line)
        elif data and self.on_data is not None:
            self.on_data(stream, data)

    def _keep(self, line: OutputLine) -> None:
        self._kept += len(line.text) + _OF_A_LINE
        if self._kept > MOST_TEXT:
            self.flood = f"its job printed more than {MOST_TEXT >> 20} MiB"
            return
        self.lines.append(line)
        if self._on_line is not None:
            self._on_line(line)

    def _take_state(self, kind: str, event: Mapping[str, Any]) -> None:
        if kind == "started":
            argv = event["argv"]
            self.argv, self.session = tuple(map(str, argv if isinstance(argv, list) else [])), str(event["session"])
        elif kind == "swept" and event.get("host") is None:
            self.swept = sweep_of("", event)
        elif kind == "ending":
            self.ending_s = _seconds(event["at"])
            self.late = event.get("reason") == "deadline"
        elif kind == "ended":
            self.ended = _ended(event)


def sweep_of(host: str, answer: Mapping[str, Any]) -> Sweep:
    """Return what a sweep found on a node.

    Raises:
        TypeError, LookupError: the answer has another form.
    """
    killed, left = (tuple(str(entry["command"]) for entry in answer[part]) for part in ("killed", "left"))
    return Sweep(host, killed=killed, left=left)


def _line(event: Mapping[str, Any]) -> OutputLine:
    return OutputLine(stream=_stream(event), at_s=_seconds(event["at"]), text=str(event["text"])[:_MOST_OF_LINE])


def _stream(event: Mapping[str, Any]) -> str:
    name = str(event["stream"])
    if name not in _STREAMS:
        raise ValueError(f"{name} is not a stream")
    return name


def _ended(event: Mapping[str, Any]) -> Ended:
    reason = str(event["reason"])
    return Ended(
        reason=reason,
        seconds=_seconds(event["seconds"]),
        rc=_status(event["rc"] if reason not in {"not_started", "bad_request"} else None),
        signal=_status(event.get("signal")),
        problem=str(event.get("problem", "")),
    )


def _seconds(value: Any) -> float:
    """Return a time since the begin of the job.

    Raises:
        ValueError: it is before the job, or not finite.
    """
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{number} is not a time")
    return number


def _status(value: Any) -> int | None:
    if value is not None and type(value) is not int:  # True would count as 1, and 0.0 as success
        raise TypeError(f"{value!r} is not an exit status")
    return value
