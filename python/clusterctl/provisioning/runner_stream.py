"""The two ends of a play on another controller: ansible-runner's transmit and worker, and a reader of our own.

The play travels as one stream over ssh: the settings as a line, and the folder of the play as a plain zip. The events
come back as lines. Neither end writes a password to a disk.
"""

from __future__ import annotations

import base64
import contextlib
import json
import struct
import tempfile
import time
import zipfile
import zlib
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from clusterctl.provisioning.playbook import Call, Cancel, Stop, environment, execute, of_first
from clusterctl.remote import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_OURS = "clusterctl"  # the key of a line that holds an event of the callback ``run_events``
_BEAT = b"{}\n"  # a line without a meaning: the worker lives
_BEAT_S = 1.0
_HANDLERS = ("status_handler", "artifacts_handler", "finished_callback")
_MOST_LINE = 64 << 20  # bytes of an event
_MOST_ZIP = 64 << 20  # bytes
_MOST_WORDS, _MOST_SAID = 1000, 10  # characters of an explanation, and how many
_MOST_LOG = 1 << 30  # bytes of the text of the screen; what is longer is cut off
_BLOCK = 1 << 20  # bytes, a multiple of 4 for base64
_ENDS = frozenset({"successful", "failed", "canceled", "timeout"})

# What JSON and a zip of another form raise.
_OTHER_FORMS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass
class Received:
    """How the play ended on the other controller; ``status`` is empty where its stream broke off."""

    status: str = ""
    explanations: list[str] = field(default_factory=list)

    def take(self, data: Mapping[str, Any]) -> None:
        """Hear a status of ansible-runner."""
        status = str(data.get("status"))
        if status in _ENDS:
            self.status = status
        elif status == "error":
            self.explanations = [*self.explanations, str(data.get("job_explanation") or "")[:_MOST_WORDS]][-_MOST_SAID:]


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
    import ansible_runner  # noqa: PLC0415 - see playbook.execute

    ansible_runner.run(
        streamer="transmit",
        _output=target,
        private_data_dir=str(folder),
        ident="run",
        playbook=playbook,
        cmdline=words,
        passwords=dict(passwords) or None,
        envvars=dict(settings),
        suppress_env_files=True,
    )


def receive(source: IO[bytes], folder: Path, hear: Callable[[dict[str, Any]], object]) -> Received:
    """Read the events of a play from the stream to its end, or until the other controller breaks its form.

    ansible-runner's own reader would unpack a zip whose members may climb out of the folder. ``folder`` gets
    ``artifacts/run/stdout``, and ``hear`` each event of the callback ``run_events``.
    """
    received = Received()
    try:
        while line := source.readline(_MOST_LINE):
            data = json.loads(line)
            if "status" in data:
                received.take(data)
            elif "zipfile" in data:
                _take_log(source, data["zipfile"], folder / "artifacts" / "run" / "stdout")
            elif "eof" in data:
                break
            elif data.get(_OURS):
                hear(data[_OURS])
    except _OTHER_FORMS as error:
        received.status = ""
        received.explanations.append(f"it sent something else than a play ({type(error).__name__})")
    return received


def _take_log(source: IO[bytes], size: object, target: Path) -> None:
    """Take the text of the screen out of a zip in base64; no other member is unpacked."""
    if not isinstance(size, int) or not 0 < size <= _MOST_ZIP or target.exists():
        raise ValueError(size)
    with tempfile.TemporaryFile(dir=target.parents[2]) as packed:
        left = -(-size // 3) * 4
        while left:
            block = source.read(min(left, _BLOCK))
            if not block or len(block) % 4:
                raise ValueError(size)
            left -= len(block)
            packed.write(base64.b64decode(block, validate=True))
        with zipfile.ZipFile(packed) as archive, archive.open("stdout") as text:
            if archive.getinfo("stdout").compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise ValueError(size)
            target.parent.mkdir(parents=True, mode=0o700)
            with target.open("xb") as out:
                rest = _MOST_LOG
                while rest and (block := text.read(min(rest, _BLOCK))):
                    out.write(block)
                    rest -= len(block)


def serve(source: IO[bytes], target: IO[bytes], folder: Path, retries: int, is_alone: Callable[[], bool]) -> None:
    """Play what another controller transmits, and stream the events back.

    ``folder`` is private and gets the play's files. ``is_alone`` says whether the other controller is gone or wants the
    play to stop.
    """
    from ansible_runner.streaming import Worker  # noqa: PLC0415 - see playbook.execute
    from ansible_runner.utils.streaming import unstream_dir  # noqa: PLC0415

    cancel = Cancel()
    with reach.control_folder() as control_dir:
        stop = Stop(cancel, mark=str(folder), control_dir=control_dir)
        told = 0.0

        def poll() -> bool:
            nonlocal told
            if time.monotonic() - told > _BEAT_S:
                told = time.monotonic()
                with contextlib.suppress(OSError):
                    target.write(_BEAT)
                    target.flush()
            if not cancel.requested and is_alone():
                cancel.request()
            return stop.poll()

        class Player(Worker):  # type: ignore[misc] # ansible-runner carries no types
            """Plays with our own events: those of ansible-runner come out of the text of the screen."""

            def run(self) -> None:
                given: dict[str, Any] = {}
                while not (data := json.loads(source.readline())).get("eof"):
                    given = data.get("kwargs") or given
                    if "zipfile" in data:
                        unstream_dir(source, data["zipfile"], str(folder))
                call = Call(given["playbook"], given["cmdline"], given.get("passwords") or {})
                settings = environment(folder, control_dir, retries, of_first(given.get("envvars")))
                handlers = {name: getattr(self, name) for name in _HANDLERS}
                execute(call, folder, settings, self.hear, poll, project=folder / "project", **handlers)

            def hear(self, event: dict[str, Any]) -> None:
                self.event_handler({_OURS: event})

        try:
            Player(_input=source, _output=target, private_data_dir=str(folder)).run()
        except OSError:  # the other controller is gone, so nobody hears how the play goes on
            stop.end()
        finally:
            with contextlib.suppress(OSError):
                target.flush()
            stop.verify()
