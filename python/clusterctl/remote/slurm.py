"""Ask Slurm for its nodes, and hold one allocation for the time of a ``with`` block.

The allocation is salloc's, with a command of ours in the place of a shell: ``plugins/module_utils/slurm_holder.py``.
The command lasts as long as its stdin, and that is a pipe to this process. So the allocation ends with this process,
however it ends, and also while it still waits in the queue. ``salloc --no-shell`` and ``sbatch`` leave a job behind
when their caller is killed. sbatch also needs a folder that the nodes share for what its script has to tell.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, final

from pydantic import BaseModel, Field, TypeAdapter

from clusterctl.remote import python, reach, slurm_text, ssh_failure
from clusterctl.support import node_json
from clusterctl.support.errors import ValidationCouldNotRunError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from clusterctl.model.hosts import Host
    from clusterctl.remote.slurm_text import JobState, SlurmNode, SlurmRequest

HOLDER = "slurm_holder"
_ANSWER_S = 30.0  # of a command of Slurm; its own wait for the controller is shorter
_SSH_FAILED = 255
_FIRST_LOOK_S = 1.0
_LOOK_EVERY_S = 5.0
_POLL_S = 0.2
_HOLDER_START_S = 15.0
_RELEASE_S = 40.0  # the holder gives the steps twelve seconds, and salloc ten twice
_RUNNING = frozenset({"RUNNING", "CONFIGURING"})
_END_IS_TOLD_S = 15.0  # a job is COMPLETING while its processes end, and squeue tells its end after that
_MOST_SAID = 40
_HAS_ENDED = "Invalid job id"  # as scancel says it
_TIME_IS_UP = "has exceeded its time limit"  # as salloc says it
_ERRORS_S = 1.0  # the rest of stderr comes with the end of stdout
_END_S = 5.0  # of the holder, after the end of its output
_MOST_EVENTS = 1000  # that wait for this process; the holder waits with more
_MOST_OF_A_LINE = 1 << 20
_BLOCK = 1 << 16
_BEGIN = b'{"holder"'


class _Variables(BaseModel):
    """What the holder says of an allocation that runs, by Slurm's names."""

    job: Annotated[int, Field(alias="SLURM_JOB_ID", gt=0, lt=1 << 32)]
    names: Annotated[str, Field(alias="SLURM_JOB_NODELIST", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]*$")]
    cpus: Annotated[str, Field(alias="SLURM_JOB_CPUS_PER_NODE")] = ""


class _Granted(BaseModel):
    holder: Literal["granted"]
    variables: _Variables


class _Said(BaseModel):
    holder: Literal["said"]
    text: str


class _Ended(BaseModel):
    holder: Literal["ended"] = "ended"
    rc: Annotated[int, Field(ge=-(1 << 8), lt=1 << 8)]
    why: Literal["released", "late", "ended"]


_Event = Annotated[_Granted | _Said | _Ended, Field(discriminator="holder")]
_EVENT: TypeAdapter[_Granted | _Said | _Ended] = TypeAdapter(_Event)


class Slurm:
    """The commands of Slurm, on this machine or on a submit host.

    Each raises a ValidationCouldNotRunError where Slurm does not answer or refuses.
    """

    def __init__(self, submit: Host | None = None, *, sudo: bool = False) -> None:
        """Take the host that runs them, None for this machine; with ``sudo``, changes of nodes run there as root."""
        self.submit, self._sudo = submit, sudo

    def nodes(self, partition: str = "") -> tuple[SlurmNode, ...]:
        """Return the nodes of a partition, of the default one where none is named."""
        text = self._asked(slurm_text.sinfo(partition))
        found = slurm_text.nodes(text, partition)
        if not found and not partition and not slurm_text.default_partition(text):
            raise ValidationCouldNotRunError("Slurm has no default partition; name one of 'sinfo' with -p.")
        if not found:
            named = f"partition '{partition}'" if partition else "default partition"
            raise ValidationCouldNotRunError(f"Slurm's {named} has no node; name one of 'sinfo' with -p.")
        return found

    def every_node(self) -> tuple[SlurmNode, ...]:
        """Return the nodes of all partitions."""
        return slurm_text.nodes(self._asked(slurm_text.sinfo()), slurm_text.EVERY_PARTITION)

    def drain(self, name: str, reason: str) -> None:
        """Drain a node: its jobs end as they would, and no other starts there."""
        self._update(name, "state=drain", f"reason={reason}")

    def resume(self, name: str) -> None:
        """Let a drained node take jobs again."""
        self._update(name, "state=resume")

    def cluster_name(self) -> str:
        """Return the name that Slurm gives to its cluster."""
        return slurm_text.cluster_name(self._asked(["scontrol", "show", "config"])) or "slurm"

    def host_names(self, folded: str) -> tuple[str, ...]:
        """Return the NodeNames of a list as Slurm folds it."""
        return slurm_text.host_names(self._asked(["scontrol", "show", "hostnames", folded]))

    def mpi_types(self) -> tuple[str, ...]:
        """Return the types of MPI that srun has."""
        return slurm_text.mpi_types(self._asked(["srun", "--mpi=list"], with_errors=True))

    def state(self, job: int) -> JobState | None:
        """Return the state of a job; None where Slurm no longer knows it, or does not answer."""
        with contextlib.suppress(ValidationCouldNotRunError):
            return slurm_text.job_state(self._asked(slurm_text.squeue(job)))
        return None

    def cancel(self, job: int) -> str:
        """Cancel a job, and return why that failed, '' where it did not; a job that has ended is no problem."""
        try:
            self._asked(["scancel", str(job)])
        except ValidationCouldNotRunError as error:
            return "" if _HAS_ENDED in str(error) else str(error)
        return ""

    @property
    def place(self) -> str:
        """Where the commands run, for messages."""
        return "This machine" if self.submit is None else self.submit.name

    def _update(self, name: str, *words: str) -> None:
        """Change a node, which Slurm lets root and its operators do."""
        done = self._ran(["scontrol", "update", f"nodename={name}", *words], as_user="root" if self._sudo else None)
        said = " ".join(done.errors.decode("utf-8", "replace").split())
        if done.returncode == _SSH_FAILED and self.submit is not None:
            raise self.refused(said, returncode=done.returncode)
        if done.returncode != 0:
            raise ValidationCouldNotRunError(
                f"scontrol does not set {words[0]} ({said or 'without a word'}); run it as root or as an operator of "
                "Slurm, or name a --submit-host that has ansible_become."
            )

    def _asked(self, argv: Sequence[str], *, with_errors: bool = False) -> str:
        """Run a command and return what it says, on stderr as well where that is asked for."""
        done = self._ran(argv)
        if done.returncode != 0:
            raise self.refused(done.errors.decode("utf-8", "replace"), returncode=done.returncode)
        return (done.output + (done.errors if with_errors else b"")).decode("utf-8", "replace")

    def _ran(self, argv: Sequence[str], as_user: str | None = None) -> python.Done:
        """Run a command to its end."""
        command = list(argv) if self.submit is None else reach.ssh_command(self.submit, argv, as_user=as_user)
        try:
            return python.run(command, b"", _ANSWER_S)
        except FileNotFoundError:
            raise self.refused(f"{command[0]}: command not found") from None
        except subprocess.TimeoutExpired:
            raise ValidationCouldNotRunError(
                f"{argv[0]} gave no answer within {_ANSWER_S:.0f} s; see 'scontrol ping', and start slurmctld."
            ) from None
        except python.TooMuchOutputError as error:
            raise ValidationCouldNotRunError(f"{argv[0]}: {error}; run it by hand.") from None

    def refused(
        self, said: str, request: SlurmRequest | None = None, returncode: int = 0
    ) -> ValidationCouldNotRunError:
        """Return the error for what a command of Slurm, or ssh on the way to it, said."""
        if self.submit is not None and returncode == _SSH_FAILED:
            failure = ssh_failure.classify(self.submit, returncode, said)
            return ValidationCouldNotRunError(f"The submit host is needed for Slurm: {failure.message}")
        return ValidationCouldNotRunError(slurm_text.refusal(said, request, place=self.place))


@dataclass(frozen=True)
class Grant:
    """An allocation that runs: its job, its NodeNames in Slurm's order, and the CPUs of each that the job has."""

    job: int
    names: tuple[str, ...]
    cpus: tuple[int, ...]


@final
class Allocation:
    """One allocation, from its request to its release."""

    def __init__(
        self,
        slurm: Slurm,
        request: SlurmRequest,
        start_within_s: float,
        tell: Callable[[str], None] = lambda _words: None,
    ) -> None:
        """Prepare a request.

        An allocation that has not started after ``start_within_s`` is cancelled. ``tell`` hears why the job waits.
        """
        self._slurm, self._request, self._start_within_s, self._tell = slurm, request, start_within_s, tell
        self.left = ""  # after the block: a sentence about a job that could not be cancelled
        self._events: queue.Queue[_Granted | _Said | _Ended | str] = queue.Queue(_MOST_EVENTS)
        self._process: subprocess.Popen[bytes] | None = None
        self._job: int | None = None
        self._said: list[str] = []
        self._ended: _Ended | None = None
        self._problem = ""  # a sentence about the holder, without its point
        self._errors = bytearray()
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Allocation:
        """Start to hold the allocation; :meth:`wait` says when it runs."""
        program = python.program(HOLDER)
        argv = program.argv(sys.executable if self._slurm.submit is None else self._slurm.submit.python)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            argv if self._slurm.submit is None else reach.ssh_command(self._slurm.submit, argv),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,  # the terminal's Ctrl-C is for this process, which then releases the job
        )
        line = {"argv": slurm_text.salloc(self._request, ()), "start_within_s": self._start_within_s}
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(program.data + json.dumps(line).encode() + b"\n")
                self._process.stdin.flush()
        for read in (self._read_errors, self._read_events):
            reader = threading.Thread(target=read, args=(self._process,), name="slurm", daemon=True)
            self._readers.append(reader)
            reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the allocation back, and cancel what is left of it."""
        process = self._process
        if process is None:
            return
        try:
            with contextlib.suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_RELEASE_S)
        finally:
            process.kill()
            process.wait()
            self._take_all()
            if self._job is not None and (why := self._slurm.cancel(self._job)):
                self.left = (
                    f"Slurm job {self._job} may still be in the queue, where its time limit ends it; run 'scancel "
                    f"{self._job}'. {why}"
                )

    def wait(self) -> Grant:
        """Wait until the allocation runs.

        Raises:
            ValidationCouldNotRunError: it is refused, or does not start in time; the sentence says why.
        """
        until = time.monotonic() + self._start_within_s + _HOLDER_START_S
        look_at = time.monotonic() + _FIRST_LOOK_S
        state: JobState | None = None
        while time.monotonic() < until and self._ended is None:
            if (variables := self._next()) is not None:
                return self._grant(variables)
            if self._job is not None and time.monotonic() >= look_at:
                state = self._slurm.state(self._job) or state
                if words := slurm_text.hopeless(self._job, state, self._request):
                    raise ValidationCouldNotRunError(words)
                self._tell(_waiting(self._job, state))
                look_at = time.monotonic() + _LOOK_EVERY_S
        if self._problem:
            raise ValidationCouldNotRunError(f"{self._problem}.")
        if self._ended is None or self._ended.why == "late":
            words = slurm_text.never_started(self._job, state, self._start_within_s)
            raise ValidationCouldNotRunError(words)
        if self._job is not None:  # it was taken into the queue, and ended there
            raise ValidationCouldNotRunError(f"{self._why_gone(self._job, self._slurm.state(self._job))}.")
        raise self._slurm.refused("\n".join(self._said), self._request, self._ended.rc)

    def ended(self, *, look: bool) -> str:
        """Return why the allocation has ended, as a clause with its cure; '' while it runs.

        With ``look``, Slurm is asked too, which takes a moment; otherwise only what salloc has said counts.
        """
        self._take_all()
        if self._problem:
            return self._problem
        if self._job is None or (self._ended is None and not look):
            return ""
        state = self._slurm.state(self._job)
        if self._ended is None and state is not None and state.state in _RUNNING:
            return ""
        if self._ended is None and state is None:
            return ""  # Slurm did not answer; the checks say what they see
        return self._why_gone(self._job, state)

    def _why_gone(self, job: int, state: JobState | None) -> str:
        until = time.monotonic() + _END_IS_TOLD_S
        while state is not None and not slurm_text.tells_end(state) and time.monotonic() < until:
            time.sleep(_POLL_S)
            state = self._slurm.state(job) or state
        if any(_TIME_IS_UP in line for line in self._said):
            state = slurm_text.JobState("TIMEOUT")
        return slurm_text.ended(job, state, slurm_text.minutes(self._request.time_s))

    def _grant(self, variables: _Variables) -> Grant:
        self._job = variables.job
        names = self._slurm.host_names(variables.names)
        cpus = slurm_text.counts(variables.cpus)
        return Grant(variables.job, names, cpus if len(cpus) == len(names) else ())

    def _next(self) -> _Variables | None:
        """Take one event, after a moment at most, and return the variables of the allocation where it has begun."""
        with contextlib.suppress(queue.Empty):
            return self._taken(self._events.get(timeout=_POLL_S))
        return None

    def _take_all(self) -> None:
        with contextlib.suppress(queue.Empty):
            for _unused in range(_MOST_EVENTS):
                self._taken(self._events.get_nowait())

    def _taken(self, event: _Granted | _Said | _Ended | str) -> _Variables | None:
        if isinstance(event, _Granted):
            return event.variables
        if isinstance(event, _Said):
            self._job = slurm_text.job_id(event.text) or self._job
            self._said = [*self._said, event.text][-_MOST_SAID:]
        elif isinstance(event, _Ended):
            self._ended = event
        else:  # the holder has gone, perhaps without a word
            said = self._errors.decode("utf-8", "replace")
            self._said += said.splitlines()[-_MOST_SAID:]
            if event:
                self._problem = f"{self._slurm.place} {event} while it holds the allocation; name another --submit-host"
            self._ended = self._ended or _Ended(rc=self._status(), why="ended")
        return None

    def _status(self) -> int:
        """Return the exit status of the holder, which is killed where it stays without output."""
        if self._process is None:
            return 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(0 if self._problem else _END_S)
        self._process.kill()
        return self._process.wait()

    def _read_events(self, process: subprocess.Popen[bytes]) -> None:
        """Pass the events on, and at the end a clause about their form, or ''."""
        problem, left = "", python.MOST_BYTES
        while process.stdout and not problem and (line := process.stdout.readline(_MOST_OF_A_LINE)):
            left -= len(line)
            if left < 0:
                problem = f"answers with more than {python.MOST_BYTES >> 20} MiB"
            elif line.startswith(_BEGIN):
                try:
                    self._events.put(_EVENT.validate_python(node_json.loads(line)))
                except ValueError:
                    problem = "answers in another form"
        self._readers[0].join(_ERRORS_S)
        self._events.put(problem)

    def _read_errors(self, process: subprocess.Popen[bytes]) -> None:
        while process.stderr and (block := os.read(process.stderr.fileno(), _BLOCK)):
            self._errors += block
            del self._errors[: -python.MOST_ERRORS]


def _waiting(job: int, state: JobState | None) -> str:
    reason = f": {state.reason}" if state is not None and state.reason else ""
    return f"Slurm job {job} waits for its nodes{reason}"
