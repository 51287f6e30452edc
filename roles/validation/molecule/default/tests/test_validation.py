"""The supervisor really ends a job, and all of it: at its deadline, when its stdin closes, and in a sweep."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.inventory import ansible_inventory
from clusterctl.remote import reach

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testinfra.host import Host

    Login = Callable[..., subprocess.CompletedProcess[str]]

PROGRAMS = "/usr/local/libexec/clusterctl"
SUPERVISOR = ["/usr/bin/python3", f"{PROGRAMS}/job_supervisor.py"]
# A child that leaves its parent's session and ignores TERM, as a stuck rank's relatives may.
STUBBORN = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 300' & echo up; sleep 300"


@pytest.fixture
def node(host: Host) -> str:
    return host.check_output("hostname")


class Supervised:
    """A supervisor on a node, as the controller runs it."""

    def __init__(self, node: str, job: str, argv: list[str], **request: Any) -> None:
        cluster = ansible_inventory.load(Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "inventory" / "sandbox.ini")
        self.process = subprocess.Popen(
            reach.ssh_command(cluster.host(node), SUPERVISOR), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"job": job, "argv": argv, "deadline_s": 60, **request}) + "\n")
        self.process.stdin.flush()

    def events(self, until: str) -> list[dict[str, Any]]:
        assert self.process.stdout is not None
        found = []
        for line in self.process.stdout:
            found.append(json.loads(line))
            if found[-1]["event"] == until:
                break
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def supervise(node: str) -> Iterator[Callable[..., Supervised]]:
    started: list[Supervised] = []

    def start(job: str, argv: list[str], **request: Any) -> Supervised:
        started.append(Supervised(node, job, argv, **request))
        return started[-1]

    yield start
    for supervised in started:
        supervised.process.kill()
        supervised.process.wait()


LOOK = """
import pathlib, sys
for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
    try:
        if ("CLUSTERCTL_JOB=" + sys.argv[1]).encode() in path.read_bytes().split(bytes(1)):
            print(path)
    except OSError:
        pass
"""


Carrying = Callable[[str], list[str]]


@pytest.fixture
def carrying(node: str, login: Login) -> Carrying:
    """Return who carries a job's id; asked as the job's own user, for even a container's root may not look."""

    def look(job: str) -> list[str]:
        return login(node, "python3", "-c", LOOK, job).stdout.split()

    return look


def test_output_and_exit_code_come_back(supervise: Callable[..., Supervised]) -> None:
    events = supervise("molecule-plain", ["sh", "-c", "echo out; echo err >&2; exit 3"]).events("ended")
    lines = {(event["stream"], event["text"]) for event in events if event["event"] == "line"}
    assert lines == {("stdout", "out"), ("stderr", "err")}
    assert (events[-1]["reason"], events[-1]["rc"]) == ("exited", 3)


def test_the_deadline_ends_all_of_it(carrying: Carrying, supervise: Callable[..., Supervised]) -> None:
    events = supervise("molecule-deadline", ["sh", "-c", STUBBORN], deadline_s=1).events("ended")
    assert events[-1]["reason"] == "deadline"
    assert events[-1]["seconds"] < 10
    assert carrying("molecule-deadline") == []


def test_a_closed_stdin_ends_all_of_it(carrying: Carrying, supervise: Callable[..., Supervised]) -> None:
    supervised = supervise("molecule-rope", ["sh", "-c", STUBBORN])
    supervised.events("line")
    assert carrying("molecule-rope")
    supervised.close()
    assert supervised.events("ended")[-1]["reason"] == "stdin_closed"
    assert carrying("molecule-rope") == []


def test_a_controller_that_is_killed_ends_all_of_it(carrying: Carrying, supervise: Callable[..., Supervised]) -> None:
    supervised = supervise("molecule-killed", ["sh", "-c", STUBBORN])
    supervised.events("line")
    supervised.process.kill()
    end = time.monotonic() + 20
    while carrying("molecule-killed") and time.monotonic() < end:
        time.sleep(0.5)
    assert carrying("molecule-killed") == []


def test_a_sweep_kills_its_own_job_alone(carrying: Carrying, node: str, login: Login) -> None:
    for job in ("molecule-mine", "molecule-theirs"):
        login(node, "sh", "-c", 'CLUSTERCTL_JOB="$1" setsid sleep 300 >/dev/null 2>&1 &', "sh", job)
    answer = json.loads(login(node, *SUPERVISOR, "--sweep", "molecule-mine").stdout)
    assert [entry["command"] for entry in answer["killed"]] == ["sleep 300"]
    assert carrying("molecule-mine") == []
    assert len(carrying("molecule-theirs")) == 1
    assert len(json.loads(login(node, *SUPERVISOR, "--sweep", "molecule-theirs").stdout)["killed"]) == 1


def test_the_files_of_a_job_are_private_and_gone_afterwards(host: Host, supervise: Callable[..., Supervised]) -> None:
    command = ["sh", "-c", 'stat -c %a "$1"; cat "$1/hostfile"', "sh", "{work_dir}"]
    events = supervise("molecule-files", command, files={"hostfile": "node1 slots=2\n"}).events("ended")
    assert [event["text"] for event in events if event["event"] == "line"] == ["700", "node1 slots=2"]
    assert not host.file(events[0]["argv"][-1]).exists


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("mpi_checks", "allreduce"),
        ("nccl_checks", "nccl"),
        ("torch_checks", "torchrun"),
        ("horovod_checks", "training"),
        ("node_checks", "node_speed"),
        ("copy_checks", "copies"),
        ("pair_checks", "pairs"),
    ],
)
def test_the_programs_of_the_checks_run_with_the_nodes_python(node: str, login: Login, program: str, word: str) -> None:
    done = login(node, "/usr/bin/python3", f"{PROGRAMS}/{program}.py", "--help")
    assert done.returncode == 0
    assert word in done.stdout
