"""The two ends of a play on another controller: ansible-runner's transmit, worker and process.

The play travels as one stream over ssh: the settings as a line, and the folder of the play as a plain zip. The events
come back as lines. Neither end writes a password to a disk.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from clusterctl.provisioning.play_process import Call, execute
from clusterctl.provisioning.playbook import Cancel, Stop, environment
from clusterctl.remote import ssh

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_OURS = "clusterctl"  # the key of an event of the callback ``run_events`` in one of ansible-runner's
_HANDLERS = ("status_handler", "artifacts_handler", "finished_callback")
_ENDS = frozenset({"successful", "failed", "canceled", "timeout"})


@dataclass
class Received:
    """How the play ended on the other controller; ``status`` is empty where its stream broke off."""

    status: str = ""
    explanations: list[str] = field(default_factory=list)

    def take(self, data: Mapping[str, Any], **_config: object) -> None:
        """Hear a status of ansible-runner."""
        status = str(data.get("status"))
        if status in _ENDS:
            self.status = status
        elif status == "error":
            self.explanations.append(str(data.get("job_explanation") or ""))


def transmit(folder: Path, target: IO[bytes], playbook: str, words: str, passwords: Mapping[str, str]) -> None:
    """Write a play into the stream.

    Args:
        folder: holds ``project/``, in which the play runs; its files travel.
        target: the stream.
        playbook: its path on the other controller.
        words: the options of ansible-playbook, as for a shell.
        passwords: by the pattern of the prompt.

    Raises:
        OSError: the stream broke off.
    """
    import ansible_runner  # noqa: PLC0415 - see play_process.execute

    ansible_runner.run(
        streamer="transmit",
        _output=target,
        private_data_dir=str(folder),
        ident="run",
        playbook=playbook,
        cmdline=words,
        passwords=dict(passwords) or None,
        suppress_env_files=True,
    )


def receive(source: IO[bytes], folder: Path, hear: Callable[[dict[str, Any]], object]) -> Received:
    """Read the events of a play from the stream to its end.

    Args:
        source: the stream.
        folder: gets ``artifacts/run/stdout``.
        hear: hears each event of the callback ``run_events``.
    """
    import ansible_runner  # noqa: PLC0415 - see play_process.execute

    received = Received()
    ansible_runner.run(
        streamer="process",
        _input=source,
        private_data_dir=str(folder),
        ident="run",
        settings={},
        quiet=True,
        event_handler=lambda event: hear(event.get(_OURS) or {}) and False,  # False: the event becomes no file
        status_handler=received.take,
    )
    return received


def serve(source: IO[bytes], target: IO[bytes], folder: Path, retries: int, is_alone: Callable[[], bool]) -> None:
    """Play what another controller transmits, and stream the events back.

    Args:
        source: the stream of the play.
        target: the stream of events.
        folder: private, gets the play's files.
        retries: how often ssh tries again to connect.
        is_alone: says whether the other controller is gone or wants the play to stop.
    """
    from ansible_runner.streaming import Worker  # noqa: PLC0415 - see play_process.execute
    from ansible_runner.utils.streaming import unstream_dir  # noqa: PLC0415

    cancel = Cancel()
    with ssh.control_folder() as control_dir:
        stop = Stop(cancel, mark=str(folder), control_dir=control_dir)
        settings = environment(folder, control_dir, retries)

        def poll() -> bool:
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
                handlers = {name: getattr(self, name) for name in _HANDLERS}
                execute(call, folder, settings, self.hear, poll, project=folder / "project", **handlers)

            def hear(self, event: dict[str, Any]) -> None:
                self.event_handler({"event": _OURS, "uuid": _OURS, "counter": 1, _OURS: event})

        try:
            Player(_input=source, _output=target, private_data_dir=str(folder)).run()
        except OSError:  # the other controller is gone, so nobody hears how the play goes on
            stop.end()
        finally:
            with contextlib.suppress(OSError):
                target.flush()
            stop.verify()
