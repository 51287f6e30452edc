# SPDX-License-Identifier: Apache-2.0
"""Run the checks of a validation inside the pods of a Kubernetes job, one after the other, each within its deadline.

It is a program for the image's own Python. An MPIJob's launcher runs it, and so does every pod of a PyTorchJob. Its
only argument is the plan that clusterctl has written. It prints JSON lines, each with ``"clusterctl_pod": 1``:

``up``     This pod runs; what its image has.
``lacks``  What a check needs is missing here or on a worker. Nothing more is run.
``begin``  A check begins; the lines of its ranks follow.
``end``    It has ended: how, with which code, after how many seconds.
``done``   All checks have ended.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

HOSTFILE = "/etc/mpi/hostfile"  # where mpi-operator puts it
MOST_WORDS = 600
MOST_SAID = 16 << 20  # bytes of a command's output
TRY_S = 60.0  # of one start on all workers
PAUSE_S = 2.0
GRACE_S = 10.0  # between asking a check to end and killing it
POLL_S = 0.1
LOOK_S = 120.0  # a framework takes long to import from a slow disk
VERSIONS = """
import json, sys
found = {"python": "%d.%d.%d" % sys.version_info[:3]}
for name in sys.argv[1:]:
    module = __import__(name)
    found[name] = str(getattr(module, "__version__", ""))
    if name == "torch":
        found["cuda"] = str(module.version.cuda or "")
        found["gpus_seen"] = module.cuda.device_count() if found["cuda"] else 0
print(json.dumps(found))
"""
KEY = secrets.token_hex(8)  # a rank, whose lines come the same way, does not know it
GREETING = "import os, socket; os.write(1, ('clusterctl-up %s\\n' % socket.gethostname()).encode())"


class LacksError(Exception):
    """Something that the checks need is missing; the text says what and where."""


class StoppedError(Exception):
    """The pod is being ended."""


def say(event: str, **figures: Any) -> None:
    """Print one line."""
    line = json.dumps({"clusterctl_pod": 1, "event": event, "key": KEY, "pod": socket.gethostname(), **figures})
    os.write(1, f"\n{line}\n".encode())  # an unfinished line of a rank stays one of its own


def ended(process: subprocess.Popen[bytes]) -> None:
    """End a check and everything that it has started in its session; one that cannot end now is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
        until = time.time() + GRACE_S
        while process.poll() is None and time.time() < until:
            time.sleep(POLL_S)


def run_check(check: Mapping[str, Any], argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a check to its end or its deadline, and say how it ended."""
    say("begin", check=check["name"])
    began = time.time()
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
    except OSError as problem:
        say("end", check=check["name"], ending="not_started", problem=f"{argv[0]}: {problem.strerror}")
        return
    try:
        while process.poll() is None and time.time() - began < check["deadline_s"]:
            time.sleep(POLL_S)
        late = process.poll() is None
        ending_s = time.time() - began
        if late:
            ended(process)
    except StoppedError:
        ended(process)
        raise
    code = -signal.SIGKILL if process.returncode is None else process.returncode  # a file system may hold it
    say(
        "end",
        check=check["name"],
        ending="deadline" if late else "exited",
        rc=code if code >= 0 and not late else None,
        signal=-code if code < 0 and not late else None,
        ending_s=round(ending_s, 3),
        seconds=round(time.time() - began, 3),
    )


def asked(argv: Sequence[str], limit_s: float) -> Tuple[Optional[int], str]:
    """Run a command and return its exit code and what it said; the code is None where it took too long."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as problem:
        return 127, f"{argv[0]}: {problem.strerror}"
    said: List[bytes] = []

    def read() -> None:
        with process.stdout or io.BytesIO() as stream:  # what says more gets a broken pipe
            said.append(stream.read(MOST_SAID))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    until = time.time() + limit_s
    while process.poll() is None and time.time() < until:
        time.sleep(POLL_S)
    late = process.poll() is None
    if late:
        ended(process)
    reader.join(GRACE_S)
    return None if late else process.returncode, b"".join(said).decode("utf-8", "replace")


def shortened(text: str) -> str:
    """Return the end of a text as one line."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_WORDS else f"... {line[-MOST_WORDS:]}"


def look(plan: Mapping[str, Any]) -> None:
    """Say that this pod is up and what its image has.

    Raises:
        LacksError: the image has no such module, or no mpirun.
    """
    node = {"cores": len(os.sched_getaffinity(0)), "devices": len(list(Path("/dev").glob("nvidia[0-9]*")))}
    if plan["by"] == "mpirun":
        if not shutil.which("mpirun"):
            raise LacksError("mpirun in PATH")
        code, said = asked(["mpirun", "--version"], TRY_S)
        node["mpirun"] = shortened(said.partition("\n")[0]) if code == 0 else ""
    code, said = asked([plan["python"], "-c", VERSIONS, *plan["modules"]], LOOK_S)
    if code != 0:
        raise LacksError(f"{plan['python']} with {' and '.join(plan['modules'])} ({last_words(said)})")
    node.update(json.loads(said.strip().rpartition("\n")[2]))
    if tuple(int(part) for part in node["python"].split(".")[:2]) < (3, 9):
        raise LacksError(f"Python 3.9 or newer ({plan['python']} is {node['python']})")
    if plan["by"] == "torchrun" and plan["gpus"] > node.get("gpus_seen", 0):
        sees = node.get("gpus_seen", 0)
        raise LacksError(f"{plan['gpus']} GPUs that its PyTorch {node.get('torch', '')} can use (it sees {sees})")
    say("up", **node)


def last_words(said: str) -> str:
    """Return the last line that says something."""
    lines = [line.strip() for line in said.split("\n") if line.strip()]
    return shortened(lines[-1]) if lines else "it ended without a word"


def mpirun(ranks: int, *, per_node: bool) -> List[str]:
    """Return the words that start programs on the workers."""
    words = ["mpirun"]
    if Path(HOSTFILE).exists():
        words += ["--hostfile", HOSTFILE]
    words += ["-np", str(ranks), "--bind-to", "none", "--map-by", "ppr:1:node" if per_node else "slot"]
    for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH"):
        if os.environ.get(name):
            words += ["-x", name]
    return [*words, "--mca", "mpi_yield_when_idle", "1"]


def meet_by_mpirun(plan: Mapping[str, Any]) -> None:
    """Wait until mpirun starts a program on every worker; their ssh servers may come up later than this pod.

    Raises:
        LacksError: it does not within the time.
    """
    until = time.time() + plan["start_within_s"]
    said = ""
    while True:
        left_s = min(TRY_S, until - time.time())
        if left_s <= 0:
            raise LacksError(f"an mpirun that starts a program on all {plan['nodes']} workers ({shortened(said)})")
        argv = [*mpirun(plan["nodes"], per_node=True), plan["python"], "-c", GREETING]
        code, said = asked(argv, left_s)
        hosts = {line.split()[1] for line in said.split("\n") if line.startswith("clusterctl-up ")}
        if code == 0 and len(hosts) == plan["nodes"]:
            return
        time.sleep(PAUSE_S)


def by_mpirun(plan: Mapping[str, Any]) -> None:
    """Run the checks by mpirun on the workers."""
    meet_by_mpirun(plan)
    for check in plan["checks"]:
        ranks = plan["nodes"] * (1 if check["per_node"] else plan["ranks_per_pod"])
        run_check(check, [*mpirun(ranks, per_node=check["per_node"]), *check["argv"]], dict(os.environ))


def meet_by_socket(number: int, count: int, address: str, port: int, limit_s: float) -> None:
    """Let all pods wait for each other: pod 0 listens, and says go when all others have connected.

    Raises:
        LacksError: they do not come within the time.
    """
    until = time.time() + limit_s
    if number == 0:
        with listening(port) as door:
            guests = []
            while len(guests) < count - 1:
                door.settimeout(max(POLL_S, until - time.time()))
                try:
                    guests.append(door.accept()[0])
                except OSError:
                    missing = count - 1 - len(guests)
                    raise LacksError(f"connections of {missing} other pods to port {port}") from None
            for guest in guests:
                guest.sendall(b"go")
                guest.close()
        return
    problem = ""
    while time.time() < until:
        try:
            with socket.create_connection((address, port), PAUSE_S) as way:
                way.settimeout(max(POLL_S, until - time.time()))
                if way.recv(2) == b"go":
                    return
                problem = "it closed the connection"
        except OSError as error:
            problem = str(error)
        time.sleep(POLL_S)
    raise LacksError(f"a connection to {address} port {port} ({problem})")


def listening(port: int) -> socket.socket:
    """Return a socket that listens on a port of all addresses."""
    family = socket.AF_INET6 if socket.has_ipv6 and Path("/proc/net/if_inet6").exists() else socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind(("", port))
    door.listen(128)
    return door


def by_torchrun(plan: Mapping[str, Any]) -> None:
    """Run the checks by torchrun, started in every pod of a PyTorchJob, whose operator sets these variables.

    Raises:
        LacksError: a variable is missing or wrong, or the pods do not find each other.
    """
    given: Dict[str, str] = {}
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        given[name] = os.environ.get(name, "")
        if not given[name]:
            raise LacksError(f"the variable {name}, which the operator of PyTorchJobs sets")
    number, port = int(given["RANK"]), int(given["MASTER_PORT"])
    if int(given["WORLD_SIZE"]) != plan["nodes"]:
        raise LacksError(f"WORLD_SIZE={plan['nodes']} (it is {given['WORLD_SIZE']})")
    places = {"{node}": str(number), "{port}": str(port), "{first}": given["MASTER_ADDR"]}
    # torchrun starts the ranks and sets their variables; those of the operator are for programs without it.
    environment = {name: value for name, value in os.environ.items() if name not in given}
    for check in plan["checks"]:
        meet_by_socket(number, plan["nodes"], given["MASTER_ADDR"], port, plan["start_within_s"])
        run_check(check, [places.get(word, word) for word in check["argv"]], environment)


def stop(*_unused: object) -> None:
    """End what runs; the first process of a container ignores the signal without a handler."""
    raise StoppedError


def main(arguments: Sequence[str]) -> int:
    """Follow the plan."""
    signal.signal(signal.SIGTERM, stop)
    plan = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    try:
        look(plan)
        (by_mpirun if plan["by"] == "mpirun" else by_torchrun)(plan)
    except LacksError as problem:
        say("lacks", what=str(problem))
        return 3
    except StoppedError:
        return 128 + signal.SIGTERM
    say("done")
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # all is written; a part of a module never raises SystemExit
