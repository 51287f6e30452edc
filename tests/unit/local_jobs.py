"""Jobs of the supervisor on this machine: its controller with real processes and without ssh."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from clusterctl.model.hosts import Host
from clusterctl.model.job_outcome import MemoryKills
from clusterctl.remote import supervised_job, supervisor_files
from clusterctl.support import content

SUPERVISOR = content.role_files("validation") / "job_supervisor.py"
# A child that leaves its parent's session and ignores TERM, as a stuck rank's relatives may.
STUBBORN = ("sh", "-c", "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 300' & echo up; sleep 300")


class HereLogin(supervised_job.JobLogin):
    """A node that is this machine."""

    def command(self, remote: Sequence[str], connect_timeout_s: int = 10) -> list[str]:
        assert remote[0] == self.host.python
        options = [word for word in remote[1:3] if word in {"-E", "-s"}]
        program, *words = remote[1 + len(options) :]
        assert Path(program).parent == Path(self.host.layout.programs)
        assert connect_timeout_s > 0
        return [sys.executable, *options, str(SUPERVISOR.parent / Path(program).name), *words]


class DeadLogin(supervised_job.JobLogin):
    """A node that is gone."""

    def command(self, remote: Sequence[str], connect_timeout_s: int = 10) -> list[str]:
        del remote, connect_timeout_s
        return ["sh", "-c", "echo 'ssh: connect to host node9 port 22: No route to host' >&2; exit 255"]


class MuteLogin(supervised_job.JobLogin):
    """A node that stops in the middle, as one behind a cut cable does."""

    def command(self, remote: Sequence[str], connect_timeout_s: int = 10) -> list[str]:
        del connect_timeout_s
        return ["sh", "-c", "exec sleep 300" if remote[-1].endswith(f"/{supervisor_files.SUPERVISOR}") else "exit 255"]


HERE = HereLogin(Host(name="node1", address="127.0.0.1"))
MUTE = MuteLogin(Host(name="node8", address="192.0.2.8"))
GONE = DeadLogin(Host(name="node9", address="192.0.2.9"))


def telling(name: str, memory: MemoryKills, *, silent: int = 0) -> supervised_job.JobLogin:
    """Return a node that tells of kills for lack of memory, once it has left so many looks without an answer."""
    left = [f"echo 'ssh: connect to host {name} port 22: Connection timed out' >&2; exit 255"] * silent
    answer = {"at": 1, "ranks": [], "memory": memory.model_dump()}

    class Telling(supervised_job.JobLogin):
        def command(self, remote: Sequence[str], connect_timeout_s: int = 10) -> list[str]:
            del remote, connect_timeout_s
            return ["sh", "-c", left.pop()] if left else ["echo", json.dumps(answer)]

    return Telling(Host(name=name, address="127.0.0.1"))


def spec(name: str, *argv: str, deadline_s: float = 30, **more: object) -> supervised_job.JobSpec:
    return supervised_job.JobSpec(f"unit-{name}-{os.getpid()}", argv, deadline_s, **more)  # type: ignore[arg-type]


def carrying(name: str) -> list[str]:
    """The processes of this machine that carry the job's id."""
    wanted = f"CLUSTERCTL_JOB=unit-{name}-{os.getpid()}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append(path.name)
        except OSError:
            continue
    return found
