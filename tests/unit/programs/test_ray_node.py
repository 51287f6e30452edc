"""``ray_node.py`` with a stand-in for the command ``ray start``: who is started, told, waited for and ended.

The tests of real nodes have Ray itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusterctl.support import content

PROGRAM = content.role_files("validation") / "ray_node.py"
TOKEN = "f" * 64
# It leaves a raylet with a worker, and beside a head a gcs_server, as daemons in sessions of their own.
START = r"""
import ctypes, json, os, subprocess, sys
DAEMON = '''
import ctypes, subprocess, sys, time
ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
if sys.argv[1] == "raylet":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(flush=True)
time.sleep(600)
'''
def main():
    folder = next(word for word in sys.argv if word.startswith("--temp-dir=")).partition("=")[2]
    if "--resources=none" in sys.argv:
        sys.exit("Traceback of it\n  a line\n2026,1\tINFO words\na sentence about it\nand another")
    for name in ("gcs_server", "raylet") if "--head" in sys.argv else ("raylet",):
        daemon = subprocess.Popen(
            [sys.executable, "-c", DAEMON, name], start_new_session=True, stdout=subprocess.PIPE
        )
        daemon.stdout.readline()
        daemon.returncode = 0
    with open(folder + "/ray_current_cluster", "w") as file:
        file.write("10.0.0.1:4711")
    with open(folder + "/argv.json", "w") as file:
        json.dump([sys.argv[2:], sorted(os.environ)], file)
"""
SHOW = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]), flush=True)"


class Job:
    """A job of Ray of which some nodes are this machine's."""

    def __init__(self, packages: Path) -> None:
        self.packages, self.program = packages, PROGRAM
        self.name = f"unit-ray-{os.getpid()}-{time.monotonic_ns() % 10**9}"
        self.folder = Path(f"/tmp/ray-{self.name}")  # noqa: S108 - the program's own place
        self.processes: list[subprocess.Popen[str]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def node(self, rank: int, nodes: int, *words: str, driver: tuple[str, ...] = ("true",)) -> subprocess.Popen[str]:
        given = {"NODE_RANK": str(rank), "NNODES": str(nodes), "NPROC_PER_NODE": "3", "WORLD_SIZE": str(3 * nodes)}
        given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port), "CLUSTERCTL_JOB": self.name}
        given |= {"PYTHONPATH": str(self.packages), "RAY_AUTH_TOKEN": TOKEN, "PATH": os.environ["PATH"]}
        argv = [
            sys.executable,
            str(self.program),
            "--addresses=" + ",".join(["127.0.0.1"] * nodes),
            *words,
            "--",
            *driver,
        ]
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, env=given, stdout=pipe, stderr=pipe, text=True)
        self.processes.append(process)
        return process

    def members(self) -> list[int]:
        """Return all processes of the job but those that the test has started."""
        own = {process.pid for process in self.processes}
        there = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return sorted(pid for pid in there if pid not in own and self._has(pid))

    def _has(self, pid: int) -> bool:
        try:
            return f"CLUSTERCTL_JOB={self.name}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def named(self, name: str) -> int:
        """Wait for a daemon of the stand-in."""
        return until(lambda: next((pid for pid in self.members() if _comm(pid) == name), 0))

    def is_gone(self) -> bool:
        return not self.members() and not self.folder.exists()


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def until(ready: Callable[[], Any], within_s: float = 60) -> Any:
    end = time.monotonic() + within_s
    while not (found := ready()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    scripts = tmp_path / "ray" / "scripts"
    scripts.mkdir(parents=True)
    for folder in (scripts, scripts.parent):
        (folder / "__init__.py").touch()
    (scripts / "scripts.py").write_text(START, encoding="utf-8")
    found = Job(tmp_path)
    yield found
    for process in found.processes:
        process.kill()
        process.communicate()
    for pid in found.members():
        os.kill(pid, signal.SIGKILL)


def connected(job: Job) -> socket.socket:
    def tried() -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", job.port), timeout=60)
        except OSError:
            return None

    found: socket.socket = until(tried)
    return found


def said(connection: socket.socket, **message: object) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def heard(connection: socket.socket) -> dict[str, Any]:
    with connection.makefile("r") as lines:
        line = lines.readline()
    return dict(json.loads(line)) if line else {}


def test_a_driver_finds_the_ray_of_its_job_and_nothing_is_left(job: Job) -> None:
    process = job.node(0, 1, "--count-cpus", "--labels=a=b", driver=(sys.executable, "-c", SHOW, "--lr", "1"))
    output, errors = process.communicate(timeout=60)
    environment, words = json.loads(output)
    assert (process.returncode, errors, words) == (0, "", ["--lr", "1"])
    assert environment["RAY_ADDRESS"] == "10.0.0.1:4711"
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environment["SPT_NOENV"] == "1", "a sweep finds processes by their environment, which titles overwrite"
    assert not {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NPROC_PER_NODE"} & environment.keys()
    assert job.is_gone()


def test_the_options_of_ray_start(job: Job) -> None:
    process = job.node(0, 1, "--count-cpus", "--labels=a=b", driver=("cat", str(job.folder / "argv.json")))
    options, variables = json.loads(process.communicate(timeout=60)[0])
    ports = {word for word in options if "port" in word and "client" not in word}
    assert ports == {"--port=0", "--min-worker-port=0", "--max-worker-port=0"}
    wanted = {"--head", "--include-dashboard=false", "--node-ip-address=127.0.0.1", "--num-cpus=3", "--labels=a=b"}
    assert wanted < set(options)
    assert "RAY_ADDRESS" not in variables


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -KILL $$", -signal.SIGKILL)])
def test_it_ends_as_the_driver_does(job: Job, script: str, code: int) -> None:
    process = job.node(0, 1, driver=("sh", "-c", script))
    assert (process.communicate(timeout=60), process.returncode) == (("", ""), code)
    assert job.is_gone()


def test_the_driver_waits_for_the_other_nodes_and_these_for_its_end(job: Job) -> None:
    process = job.node(0, 2, driver=("sh", "-c", "echo up; read -r _ < fifo"))
    other = connected(job)
    said(other, rank=1, token=TOKEN)
    assert heard(other) == {"address": "10.0.0.1:4711", "folder": str(job.folder)}
    assert process.poll() is None
    said(other, up=True)
    assert heard(other) == {}, "the driver has ended, since there is no fifo"
    other.close()
    assert "up" in process.communicate(timeout=60)[0]
    assert job.is_gone()


def test_a_stranger_is_told_nothing(job: Job) -> None:
    process = job.node(0, 2)
    for words in ({"rank": 1, "token": "0" * 64}, {"rank": 1}, {}):
        with connected(job) as stranger:
            said(stranger, **words)
            stranger.shutdown(socket.SHUT_WR)
            assert heard(stranger) == {}
    assert process.poll() is None, "the job goes on waiting for its own node"


def test_a_node_that_leaves_ends_the_job(job: Job) -> None:
    process = job.node(0, 2, driver=("sleep", "600"))
    other = connected(job)
    said(other, rank=1, token=TOKEN)
    heard(other)
    said(other, up=True)
    other.close()
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert "the node with rank 1 has left the job" in errors
    assert job.is_gone()


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_ray_that_ends_before_the_driver_ends_the_job(job: Job, name: str) -> None:
    process = job.node(0, 1, driver=("sh", "-c", "echo up; exec sleep 600"))
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(job.named(name), signal.SIGKILL)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert f"{name} has been ended by signal 9" in errors
    assert job.is_gone()


def test_a_ray_that_does_not_start_says_why(job: Job) -> None:
    process = job.node(0, 1, "--resources=none")
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert errors.splitlines()[0].endswith("Ray did not start (ended with exit code 1):")
    assert errors.splitlines()[1:] == ["a sentence about it", "and another"]
    assert job.is_gone()


def test_a_start_that_fails_late_is_tried_once_more(job: Job, tmp_path: Path) -> None:
    job.program = tmp_path / PROGRAM.name
    for name in ("job_members.py", "bounded_run.py", PROGRAM.name):
        text = (PROGRAM.parent / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("SLOW_S = 20.0", "SLOW_S = 0.5"), encoding="utf-8")
    scripts = tmp_path / "ray" / "scripts" / "scripts.py"
    late = tmp_path / "late"
    text = "def main():\n    import pathlib, time\n    late = pathlib.Path(sys.argv[-1].partition('=')[2])\n"
    text += "    if not late.exists():\n        late.touch()\n        time.sleep(1)\n        sys.exit(1)\n"
    scripts.write_text(START.replace("def main():\n", text, 1), encoding="utf-8")
    process = job.node(0, 1, f"--labels={late}", driver=("echo", "up"))
    assert process.communicate(timeout=60) == ("up\n", "")
    assert late.exists()
    assert job.is_gone()


def test_a_folder_that_somebody_else_made_is_not_used(job: Job) -> None:
    job.folder.mkdir()
    process = job.node(0, 1)
    assert f"the folder {job.folder} cannot be made: File exists" in process.communicate(timeout=60)[1]
    assert process.returncode == 1
    job.folder.rmdir()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_at_once(job: Job, number: signal.Signals) -> None:
    process = job.node(0, 1, driver=("sh", "-c", "trap '' TERM INT; echo up; sleep 600"))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == -number
    assert job.is_gone()


def test_another_node_joins_and_ends_with_the_first(job: Job) -> None:
    with socket.create_server(("127.0.0.1", job.port)) as server:
        process = job.node(1, 2)
        server.settimeout(60)
        first, _address = server.accept()
    assert heard(first) == {"rank": 1, "token": TOKEN}
    said(first, address="10.0.0.1:4711", folder=str(job.folder))
    assert heard(first) == {"up": True}
    options, _variables = json.loads((job.folder / "argv.json").read_text(encoding="utf-8"))
    assert "--address=10.0.0.1:4711" in options
    assert "--head" not in options
    first.shutdown(socket.SHUT_WR)
    assert process.communicate(timeout=60) == ("", "")
    assert (process.returncode, heard(first)) == (0, {})
    assert job.is_gone()
    first.close()
