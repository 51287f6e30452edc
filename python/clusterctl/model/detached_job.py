"""A detached job as its launch node tells of it."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from clusterctl.model.base import Fact, Text
from clusterctl.model.job_outcome import TIMED_OUT, exit_code

MOST_JOBS = 1024  # of a node, which forgets old ones far earlier
_MOST_TEXT = 1 << 17
_Words = Annotated[str, Field(max_length=_MOST_TEXT)]
_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")]
_Bytes = Annotated[int, Field(ge=0, lt=1 << 60)]
_Seconds = Annotated[float, Field(ge=0, lt=1e11, allow_inf_nan=False)]

JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{7,63}")


class DetachedJob(Fact):
    """A job whose supervisor stays on its launch node."""

    job: Annotated[str, StringConstraints(pattern=rf"^{JOB_ID.pattern}$")]
    node: Text  # what its launch node calls itself
    # the user's program and its arguments, as typed: a terminal must not get them as they are
    command: tuple[_Words, ...] = Field(max_length=1 << 14)
    nodes: tuple[_Name, ...] = Field(default=(), max_length=1 << 14)  # where it runs, by the inventory's names
    since: _Seconds  # when it was started, by the node's clock in seconds since 1970
    ended_at: _Seconds = 0.0  # when it ended, 0 while it runs
    # ``lost`` is a job whose keeper is gone, as after a restart of the node
    state: Literal["starting", "running", "ended", "lost"]
    reason: _Words = ""  # why it ended, in the supervisor's words
    rc: Annotated[int, Field(ge=0, le=255, strict=True)] | None = None
    signal: Annotated[int, Field(ge=1, le=64, strict=True)] | None = None
    problem: _Words = ""
    remains: tuple[_Words, ...] = Field(default=(), max_length=256)  # what may still run, in sentences
    tail: _Words = ""  # the end of its output
    folder: Text = ""  # where its log is
    log_from: _Bytes = 0  # the first byte of the log that is kept
    log_end: _Bytes = 0  # the bytes that the log ever had
    log_lost: _Bytes = 0  # bytes that could not be written, because of ``log_problem``
    log_problem: _Words = ""
    prefix: Literal["none", "rank", "host"] = "none"  # what lines of output begin with
    hosts: tuple[_Name, ...] = Field(default=(), max_length=1 << 17)  # the node of each rank where a prefix needs it

    @property
    def runs(self) -> bool:
        """Whether it has not ended, as far as its node knows."""
        return self.state in {"starting", "running"}

    @property
    def word(self) -> Literal["starting", "running", "ended", "timed out", "stopped", "not started", "lost"]:
        """Its state in a word for people."""
        if self.state != "ended":
            return self.state
        if self.reason in {"exited", "deadline"}:
            return "ended" if self.reason == "exited" else "timed out"
        if self.reason in {"not_started", "bad_request"}:
            return "not started"
        return "lost" if self.reason in {"", "lost"} else "stopped"

    @property
    def code(self) -> int | None:
        """The exit code as ``run`` has it: the launcher's own, or 124 after the deadline; None without one."""
        if self.word == "timed out":
            return TIMED_OUT
        if self.word != "ended":
            return None
        return exit_code(self.rc, self.signal)
