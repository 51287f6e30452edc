# SPDX-License-Identifier: Apache-2.0
"""Hold a Slurm allocation for as long as standard input stays open, and give it back afterwards.

The program runs where salloc is: on the controller, or on a submit host. It needs the standard library of Python 3.9
alone. It reads one line of JSON, ``{"argv", "start_within_s"}``, and starts ``argv``, a line of salloc. salloc's own
command is this program's second part (:data:`INSIDE`): it writes the variables of the allocation and then waits for the
end of its stdin.

It writes lines of JSON: ``{"holder": "said", "text"}`` for each line that salloc writes, ``{"holder": "granted",
"variables"}`` once, and last ``{"holder": "ended", "rc", "why"}``. ``why`` is "released" (stdin has ended), "late" (no
allocation in time) or "ended" (salloc has ended by itself).

When stdin ends, the steps of the job see the end of theirs too. They get a while to end and to remove their files.

The allocation never outlasts this program. salloc gets TERM, by which it cancels a job that still waits and gives back
one that runs. If this program is killed, the kernel sends TERM to salloc, and the pipe of the second part ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from typing import Any, Dict, Sequence

# salloc runs it in the place of a shell.
INSIDE = (
    "import json,os,sys;"
    "print(json.dumps({n:v for n,v in os.environ.items() if n.startswith('SLURM_')}),flush=True);"
    "sys.stdin.read()"
)
_PR_SET_PDEATHSIG = 1
_TERM_GRACE_S = 10.0
_STEPS_GRACE_S = 12.0
_ANSWER_S = 5.0
# Of the user's programs; "extern" and "batch" are steps of Slurm itself.
_STEP = re.compile(r"\d+\.\d+")
_POLL_S = 0.2
_BLOCK = 1 << 16
_MOST_BYTES = 1 << 20


def _leave(*_unused: object) -> None:
    raise SystemExit(1)


def main(_arguments: Sequence[str] = ()) -> int:
    """Serve one request."""
    request = json.loads(sys.stdin.buffer.readline())
    argv = [str(word) for word in request["argv"]]
    try:
        process = subprocess.Popen(
            [*argv, sys.executable, "-I", "-c", INSIDE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - this program has one thread
        )
    except OSError as problem:
        _tell(holder="said", text=f"{argv[0]}: {problem.strerror}: No such file or command not found")
        _tell(holder="ended", rc=127, why="ended")
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _leave)
    try:
        why = _hold(process, float(request["start_within_s"]))
    finally:
        rc = _end(process)
    _tell(holder="ended", rc=rc, why=why)
    return 0


def environment() -> Dict[str, str]:
    """Return the environment of salloc: without what a Slurm job around this program would add to the request."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SALLOC_")) or name in {"SLURM_CONF", "SLURM_CLUSTERS"}
    }


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _tell(**event: Any) -> None:
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


def _hold(process: "subprocess.Popen[bytes]", start_within_s: float) -> str:
    """Pass on what salloc says until the end has come, and return its reason."""
    until = time.monotonic() + start_within_s
    job = ""
    rest: Dict[str, bytes] = {"out": b"", "err": b""}
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ, "in")
        selector.register(process.stdout, selectors.EVENT_READ, "out")
        selector.register(process.stderr, selectors.EVENT_READ, "err")
        while process.poll() is None or _is_open(selector):
            if not job and time.monotonic() > until:
                return "late"
            for key, _unused in selector.select(_POLL_S):
                data = os.read(key.fd, _BLOCK)
                if key.data == "in":
                    if not data:
                        _let_steps_end(job)
                        return "released"
                    continue
                if not data:
                    selector.unregister(key.fileobj)
                    continue
                *lines, rest[key.data] = (rest[key.data] + data)[-_MOST_BYTES:].split(b"\n")
                for line in lines:
                    job = _passed_on(key.data, line) or job
            if process.poll() is not None and not selector.select(0):
                break
    return "ended"


def _is_open(selector: selectors.BaseSelector) -> bool:
    return any(key.data != "in" for key in selector.get_map().values())


def _let_steps_end(job: str) -> None:
    """Wait until the job has no step of a program, for a while at most."""
    until = time.monotonic() + (_STEPS_GRACE_S if job else 0.0)
    command = ["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        while time.monotonic() < until:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_ANSWER_S,
                check=True,
            )
            if not any(_STEP.fullmatch(line.strip()) for line in done.stdout.decode("utf-8", "replace").splitlines()):
                return
            time.sleep(_POLL_S)


def _passed_on(stream: str, line: bytes) -> str:
    """Tell one line; return the job's number where it is the first one of the allocation."""
    text = line.decode("utf-8", "replace").strip()
    if stream == "out":
        with contextlib.suppress(ValueError):
            found = json.loads(text)
            if isinstance(found, dict) and "SLURM_JOB_ID" in found:
                _tell(holder="granted", variables=found)
                return str(found["SLURM_JOB_ID"])
    if text:
        _tell(holder="said", text=text)
    return ""


def _end(process: "subprocess.Popen[bytes]") -> int:
    """End salloc, which gives the allocation back, and return its exit status."""
    with contextlib.suppress(OSError):
        process.stdin.close()
    for number, wait_s in ((signal.SIGTERM, _TERM_GRACE_S), (signal.SIGKILL, _TERM_GRACE_S)):
        if process.poll() is None:
            with contextlib.suppress(OSError):
                process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(wait_s)
    return -1


if __name__ == "__main__":
    raise SystemExit(main())
