# SPDX-License-Identifier: Apache-2.0
"""Run one step of a build: log its output, report its progress, and end all its processes with it."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, List, Mapping, NamedTuple, NoReturn, Optional

from ansible_collections.clusterctl.hpc.plugins.module_utils import build_user
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, Progress

_POLL_S = 0.25
_PROGRESS_S = 1.0
_GRACE_S = 3.0


class Abandoned(BaseException):
    """The reader of the result is gone; a BaseException, so that no handler on the way swallows it."""


def abandon(_signum: int, _frame: Any) -> NoReturn:
    """Handle a signal that ends the build."""
    raise Abandoned


def channel_is_gone(descriptor: int = 1) -> bool:
    """Tell whether the reader of this program's standard output is gone."""
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _unused, event in poller.poll(0))


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all its children: SIGTERM first, SIGKILL after a grace period."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            process.poll()  # reaps the leader, because a zombie keeps its group alive
            if not _group_alive(process.pid):
                return
            time.sleep(0.05)


class Step(NamedTuple):
    """One command of a build, its placeholders replaced."""

    name: str
    argv: List[str]
    folder: Path
    environment: Mapping[str, str]
    user: Optional[int] = None  # id of the user to become; None stays who runs the module


class Outcome(NamedTuple):
    """How a step ended."""

    status: int  # negative: the number of the signal that killed it
    log_start: int  # byte of the log at which the step's output begins
    seconds: float
    cpu_seconds: float

    def times(self, name: str) -> Dict[str, Any]:
        """Return the row of the build's result."""
        return {"name": name, "seconds": round(self.seconds, 2), "cpu_seconds": round(self.cpu_seconds, 2)}


def run_step(step: Step, log: BinaryIO, say: Callable[[str], None]) -> Outcome:
    """Run a step to its end; none of its processes outlives it.

    Args:
        step: what to run.
        log: where its output goes; a file that has a name.
        say: gets the progress, about once a second.

    Raises:
        ArtifactError: its program is not on this host.
        Abandoned: the reader of this program's standard output is gone.
    """
    log.write(f"==> {step.name}: {step.argv}\n".encode())
    log.flush()
    start = log.tell()
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        process = subprocess.Popen(
            step.argv,
            env=dict(step.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=build_user.becoming(step.user, str(step.folder)),  # noqa: PLW1509 - the module has one thread
        )
    except FileNotFoundError as error:
        raise ArtifactError(
            f"The step '{step.name}' needs {error.filename}, which is not on this host; install it."
        ) from error
    except subprocess.SubprocessError as error:
        raise ArtifactError(
            f"The step '{step.name}' could not enter {step.folder} as user id {step.user}; correct the step's chdir."
        ) from error
    try:
        status = _follow(process, step.name, Path(log.name), start, say)
    finally:
        end_group(process)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return Outcome(status, start, time.monotonic() - began, cpu_seconds)


def _follow(process: "subprocess.Popen[bytes]", name: str, path: Path, start: int, say: Callable[[str], None]) -> int:
    progress, said = Progress(name), 0.0
    with path.open("rb") as log:
        log.seek(start)
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S)
            if channel_is_gone():
                raise Abandoned
            if time.monotonic() - said >= _PROGRESS_S:
                said = time.monotonic()
                progress.feed(log.read().decode(errors="replace"))
                say(progress.line())
