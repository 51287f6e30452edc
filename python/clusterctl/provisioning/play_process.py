"""Start ansible-playbook under ansible-runner, which this module and ``runner_stream`` alone import.

ansible-runner finds its events in the text of the screen, which also holds what nodes say. They are not used: the
collection's callback ``run_events`` writes events into a file of the run.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.provisioning.ansible_events import complaints_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EVENTS = "events.jsonl"  # in the folder of the run
POLL_S = 0.2
_BLOCK = 1 << 20
_MOST_COMPLAINTS = 1 << 20  # characters of Ansible's output in which its errors are looked for
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what a terminal obeys, but for tab and newline


@dataclass(frozen=True)
class Call:
    """What ansible-runner starts: the playbook, the options of ansible-playbook as for a shell, and the passwords."""

    playbook: str
    words: str
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)  # by the pattern of the prompt


def execute(
    call: Call,
    private: Path,
    settings: Mapping[str, str],
    hear: Callable[[dict[str, Any]], object],
    poll: Callable[[], bool],
    *,
    project: Path | None = None,
    **handlers: Callable[..., object],
) -> int:
    """Start ansible-playbook under ansible-runner, and wait for its end.

    Args:
        call: what to start.
        private: the folder of the run.
        settings: Ansible's settings, see ``playbook.environment``.
        hear: hears each event that the callback ``run_events`` writes.
        poll: says whether the play is to end at once; called about every 0.2 s.
        project: the folder in which the play runs, by default the user's: relative paths among the options mean it.
        handlers: ``status_handler``, ``artifacts_handler`` and ``finished_callback`` of ansible-runner.

    Returns:
        The exit code.
    """
    import ansible_runner  # noqa: PLC0415 - 60 ms that a run with nothing to do need not pay

    channel = _Channel(private / EVENTS, hear)

    class Runner(ansible_runner.Runner):  # type: ignore[misc] # ansible-runner carries no types
        def event_callback(self, event_data: object) -> None:  # noqa: ARG002 - ansible-runner's signature
            """Pass over what looks like an event in the text of the screen."""
            channel.drain()

    def look() -> bool:
        channel.drain()
        return poll()

    config = ansible_runner.RunnerConfig(
        private_data_dir=str(private),
        project_dir=str(project or Path.cwd()),
        ident="run",
        playbook=call.playbook,
        cmdline=call.words,
        envvars=dict(settings),
        passwords=dict(call.passwords) or None,
        fact_cache_type="memory",
        suppress_env_files=True,
        quiet=True,
    )
    config.prepare()
    config.pexpect_timeout = POLL_S
    config.env["ANSIBLE_STDOUT_CALLBACK"] = "default"  # ansible-runner's own would write its events into the text
    runner = Runner(config, cancel_callback=look, **handlers)
    runner.run()
    channel.drain()
    return int(runner.rc)


class _Channel:
    """The file into which the callback ``run_events`` writes the events, read while it grows."""

    def __init__(self, path: Path, hear: Callable[[dict[str, Any]], object]) -> None:
        """Make the file; only its owner can read it."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        self._stream = os.fdopen(descriptor, "rb", buffering=0)
        self._hear = hear
        self._rest = b""

    def drain(self) -> None:
        """Pass on the events that are whole; a broken line is left out, and the end of the run shows the loss."""
        while block := self._stream.read(_BLOCK):
            *lines, self._rest = (self._rest + block).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    self._hear(json.loads(line))


def keep_log(private: Path, log: Path) -> tuple[str, ...]:
    """Append Ansible's output to the run's log, without control characters, and return the errors in it.

    The rest of the folder (environment, raw results) is not kept.
    """
    stdout = private / "artifacts" / "run" / "stdout"
    beginning = ""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may lie across two blocks
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "wb") as target, stdout.open("rb") as source:
            while block := source.read(_BLOCK):
                plain = _CONTROL.sub("", decoder.decode(block))
                target.write(plain.encode())
                beginning += plain[: _MOST_COMPLAINTS - len(beginning)]
    return complaints_in(beginning)
