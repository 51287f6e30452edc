"""Tell 'clusterctl run --pace' how long each rank's own part of a step takes, apart from waiting for the others.

    from clusterctl import pace

    for batch in loader:
        pace.step()
        loss = compute(batch)
        with pace.waiting():
            exchange(loss)

Ranks that step together all have the same step time, since the others wait for the slowest. Its own part tells which
rank that is. This module needs the standard library alone. Without CLUSTERCTL_PACE in the environment it does nothing.
"""

from __future__ import annotations

import os
import socket
import time

# What a report begins with; clusterctl takes such lines out of the output of the job.
MARK = "clusterctl-pace"
# The variables in which launchers tell a rank its number.
RANKS = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
REPORT_S = 1.0  # seconds between two reports
_STDERR = 2


class _Pace:
    """The steps of this process since its last report; all times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.is_on = bool(os.environ.get("CLUSTERCTL_PACE"))
        self.rank = next((os.environ[name] for name in RANKS if os.environ.get(name, "").isdigit()), "")
        self.process = os.getpid()
        self.began = -1.0  # of this step; before the first one it is negative
        self.waited = 0.0  # in this step
        self.depth = 0
        self.reported = 0.0
        self.steps, self.whole_s, self.waited_s = 0, 0.0, 0.0

    def step(self) -> None:
        if not self.is_on or self.process != os.getpid():  # a data loader that was forked has no steps
            return
        now = time.monotonic()
        if self.began < 0:
            self.reported = now
        else:
            self.steps += 1
            self.whole_s += now - self.began
            self.waited_s += self.waited
            if now - self.reported >= REPORT_S:
                self.report(now)
        self.began, self.waited = now, 0.0

    def report(self, now: float) -> None:
        """Write what the steps since the last report took."""
        host = socket.gethostname().partition(".")[0]
        figures = f"{self.steps} {self.whole_s:.6f} {self.waited_s:.6f}"
        line = f"{MARK} 1 {self.rank or '-'} {host} {figures}\n"
        try:
            os.write(_STDERR, line.encode("ascii", "replace"))  # one call: no other thread writes in between
        except OSError:
            self.is_on = False
        self.reported = now
        self.steps, self.whole_s, self.waited_s = 0, 0.0, 0.0


class _Waiting:
    """The block in which a rank waits for others; an inner one belongs to the outer one."""

    began = 0.0

    def __enter__(self) -> None:
        if not _pace.depth:
            self.began = time.monotonic()
        _pace.depth += 1

    def __exit__(self, *_error: object) -> None:
        _pace.depth -= 1
        if not _pace.depth:
            _pace.waited += time.monotonic() - self.began


_pace = _Pace()


def step() -> None:
    """Begin a step, and end the one before it; call it once in each turn of the training loop."""
    _pace.step()


def waiting() -> _Waiting:
    """Return a context for the part of a step that needs other ranks: a collective, a barrier, a backward pass."""
    return _Waiting()
