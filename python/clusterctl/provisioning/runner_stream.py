"""The two ends of a play on another controller: one stream each way, over ssh.

There go the settings as a line, and the folder of the play as a plain zip. Back come the events as lines, and last the
text of Ansible. Neither end writes a password to a disk.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
import zipfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from clusterctl.provisioning.playbook import Call, Cancel, Stop, environment, execute, of_first
from clusterctl.remote import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_EVENT, _END, _SIZE = "event", "rc", "size"  # keys of a line; a line without any says that the worker lives
_BEAT_S = 1.0
_MOST_LINE = 64 << 20  # bytes of an event
_MOST_LOG = 1 << 30  # bytes of Ansible's text; what is longer is cut off
_BLOCK = 1 << 20
# What JSON of another form raises.
_OTHER_FORMS = (ArithmeticError, AttributeError, EOFError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class Received:
    """How the play ended on the other controller: Ansible's exit code, None where its stream broke off, and why."""

    rc: int | None = None
    explanation: str = ""


def transmit(
    folder: Path,
    target: IO[bytes],
    playbook: str,
    words: str,
    passwords: Mapping[str, str],
    settings: Mapping[str, str],
) -> None:
    """Write a play into the stream.

    ``folder`` holds ``project/``, in which the play runs; its files travel. ``playbook`` is a path on the other
    controller, ``words`` are for a shell, and ``passwords`` are by the pattern of the prompt. ``settings`` is what
    ``playbook.travelling`` returned.

    Raises:
        OSError: the stream broke off.
    """
    with tempfile.TemporaryFile(dir=folder) as packed:
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted((folder / "project").rglob("*")):
                archive.write(path, path.relative_to(folder))
        head = {"playbook": playbook, "words": words, "passwords": dict(passwords), "settings": dict(settings)}
        target.write(json.dumps({**head, _SIZE: packed.tell()}).encode() + b"\n")
        packed.seek(0)
        shutil.copyfileobj(packed, target)
    target.flush()


def receive(source: IO[bytes], folder: Path, hear: Callable[[dict[str, Any]], object]) -> Received:
    """Read the events of a play from the stream to its end, or until the other controller breaks its form.

    ``folder`` gets ``artifacts/run/stdout``, and ``hear`` each event of the callback ``run_events``.
    """
    try:
        while line := source.readline(_MOST_LINE):
            data = json.loads(line)
            if _END in data:
                _take_log(source, data[_SIZE], folder / "artifacts" / "run" / "stdout")
                return Received(_whole(data[_END]))
            if _EVENT in data:
                hear(data[_EVENT])
    except _OTHER_FORMS as error:
        return Received(explanation=f"it sent something else than a play ({type(error).__name__})")
    return Received()


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value


def _take_log(source: IO[bytes], size: object, target: Path) -> None:
    left = _whole(size)
    if not 0 <= left <= _MOST_LOG:
        raise ValueError(size)
    target.parent.mkdir(parents=True, mode=0o700)
    with target.open("xb") as out:
        while left:
            if not (block := source.read(min(left, _BLOCK))):
                raise EOFError
            out.write(block)
            left -= len(block)


def serve(source: IO[bytes], target: IO[bytes], folder: Path, retries: int, is_alone: Callable[[], bool]) -> None:
    """Play what another controller transmits, and stream the events back.

    ``folder`` is private and gets the play's files. ``is_alone`` says whether the other controller is gone or wants the
    play to stop.
    """
    head = json.loads(source.readline())
    with tempfile.TemporaryFile(dir=folder) as packed:
        packed.write(source.read(head[_SIZE]))
        zipfile.ZipFile(packed).extractall(folder)
    (folder / "project").mkdir(exist_ok=True)
    cancel = Cancel()
    with reach.control_folder() as control_dir:
        stop = Stop(cancel, mark=str(folder), control_dir=control_dir)
        told = 0.0

        def say(**line: object) -> None:
            target.write(json.dumps(line).encode() + b"\n")
            target.flush()

        def poll() -> bool:
            nonlocal told
            if time.monotonic() - told > _BEAT_S:
                told = time.monotonic()
                with contextlib.suppress(OSError):
                    say()
            if not cancel.requested and is_alone():
                cancel.request()
            return stop.poll()

        try:
            call = Call(head["playbook"], head["words"], head["passwords"])
            settings = environment(folder, control_dir, retries, of_first(head["settings"]))
            rc = execute(call, folder, settings, lambda event: say(event=event), poll, project=folder / "project")
            with (folder / "artifacts" / "run" / "stdout").open("rb") as log:
                size = min(log.seek(0, 2), _MOST_LOG)
                log.seek(0)
                say(rc=rc, size=size)
                for at in range(0, size, _BLOCK):
                    target.write(log.read(min(_BLOCK, size - at)))
        except OSError:  # the other controller is gone, so nobody hears how the play goes on
            stop.end()
        finally:
            with contextlib.suppress(OSError):
                target.flush()
            stop.verify()
