"""Start Ray on this node for one job, run the job's driver on the first node, and leave nothing of Ray behind.

mpirun starts this program once on each node, with the project's or the cluster's Python: ``ray_node.py [--addresses
A,B] [--count-cpus] [OPTION OF RAY START...] -- DRIVER [ARGUMENT...]``. NODE_RANK, NNODES, MASTER_ADDR and MASTER_PORT
say where the node's place is. The first node listens at MASTER_PORT. It starts Ray's head, tells the others where it
is, waits until all have joined, and runs the driver with RAY_ADDRESS. When the driver ends, all nodes end their Ray,
and this program ends as the driver did. A Ray that ends before ends the job.

All processes of Ray are found as descendants of this program: Linux makes it their parent when their own one ends.
RAY_AUTH_TOKEN is the secret of the job, by which Ray and the nodes here know each other.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hmac
import importlib.util
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn, Sequence

import bounded_run
import job_members

CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
START_S = 180.0  # for one node; packages may be read for the first time from a slow disk
JOIN_S = 300.0
END_S = 30.0  # a machine may be busy
TERM_S = 5.0
TURN_S = 0.2
RETRY_S = 0.3
MOST_LINE = 4096
SLOW_S = 20.0
PASSED_OVER = re.compile(r"^\s|^Traceback|\s(?:INFO|WARNING)\s")
MOST_SHOWN = 5  # lines of what a failed start printed
# The folder in which the job starts is the user's; nothing there may pass for a module of Ray.
RAY = "import sys; sys.path[:] = [place for place in sys.path if place]; from ray.scripts.scripts import main; main()"
OURS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NPROC_PER_NODE", "RAY_ADDRESS")
ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - the name of a variable


class FailedError(Exception):
    """The job cannot go on; the text says why."""


class SignalledError(Exception):
    """A signal asks for the end."""

    def __init__(self, number: int) -> None:
        """Take the signal's number."""
        super().__init__(number)
        self.number = number


def processes() -> dict[int, tuple[int, str]]:
    """Return the parent and the name of each process, by its number."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            head, _unused, rest = job_members.read_bytes(f"{path}/stat").decode("utf-8", "replace").rpartition(")")
            if rest:
                found[int(path.name)] = (int(rest.split()[1]), head.partition("(")[2])
    return found


def descendants() -> list[int]:
    """Return all processes below this one, parents first."""
    known = processes()
    found = [os.getpid()]
    for pid in found:
        found += [child for child, (parent, _name) in known.items() if parent == pid]
    return found[1:]


class Node:
    """Ray on this node, from its folder to its last process."""

    def __init__(self, environment: dict[str, str]) -> None:
        """Begin with nothing; signals come through :meth:`turn` from here on."""
        self.environment = environment
        self.folder = ""
        self.selector = selectors.DefaultSelector()
        self.vital: dict[int, str] = {}  # what Ray needs on this node, by process
        self.ended: dict[int, int] = {}  # wait status by process
        self.signal = 0
        if ctypes.CDLL(None, use_errno=True).prctl(CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise FailedError(f"processes cannot be adopted: {os.strerror(ctypes.get_errno())}")
        wakeup, target = os.pipe()
        for descriptor in (wakeup, target):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(target, warn_on_full_buffer=False)
        self.selector.register(wakeup, selectors.EVENT_READ)
        for number in ENDINGS:
            signal.signal(number, self.note)
        signal.signal(signal.SIGCHLD, lambda *_unused: None)

    def note(self, number: int, _frame: object) -> None:
        """Keep the signal for :meth:`turn`."""
        self.signal = number

    def turn(self, wait_s: float = TURN_S) -> list[Any]:
        """Wait for news, and return the links that have some.

        Raises:
            SignalledError: a signal asks for the end.
            FailedError: Ray has ended on this node.
        """
        ready = []
        for key, _unused in self.selector.select(wait_s):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, MOST_LINE)
            else:
                ready.append(key.data)
        self.reap()
        if self.signal:
            raise SignalledError(self.signal)
        for pid, name in self.vital.items():
            if pid in self.ended:
                raise FailedError(f"{name} has {words_of(self.ended[pid])}")
        return ready

    def reap(self) -> None:
        """Take the ends of all children, also of those that this process was given."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self.ended[pid] = status

    def spawn(self, argv: Sequence[str], environment: dict[str, str], output: Any = None) -> int:
        """Start a program, and return its process."""
        process = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        process.returncode = 0  # its end is taken here
        return process.pid

    def make_folder(self, folder: str) -> None:
        """Make the folder of this job's Ray, which nobody else may have made.

        Raises:
            FailedError: it cannot be made.
        """
        try:
            Path(folder).mkdir(mode=0o700)
        except OSError as problem:
            raise FailedError(f"the folder {folder} cannot be made: {problem.strerror}") from None
        self.folder = folder

    def start(self, options: Sequence[str]) -> None:
        """Start Ray, and wait until it is up.

        Raises:
            FailedError: it does not start; the text ends with what it printed.
        """
        began = time.monotonic()
        status, said = self.started(options)
        if status != 0 and time.monotonic() - began > SLOW_S:  # Ray gives itself 30 s; the second time less is cold
            self.kill()
            status, said = self.started(options)
        if status != 0:
            raise FailedError("\n".join([f"Ray did not start ({words_of(status)}):", *said]))
        own = {child: name for child, (parent, name) in processes().items() if parent == os.getpid()}
        self.vital = {child: name for child, name in own.items() if name in {"raylet", "gcs_server"}}
        if "raylet" not in self.vital.values():
            raise FailedError("Ray ended as soon as it was up")

    def started(self, options: Sequence[str]) -> tuple[int, list[str]]:
        """Run ``ray start``, and return its wait status and the sentences that it printed last.

        Raises:
            FailedError: it does not end.
        """
        said = Path(self.folder, "start.log")
        argv = [sys.executable, "-c", RAY, "start", f"--temp-dir={self.folder}", *options]
        with said.open("wb") as output:
            pid = self.spawn(argv, self.environment, output)
        end = time.monotonic() + START_S
        while pid not in self.ended:
            if time.monotonic() > end:
                raise FailedError(f"Ray was not up after {START_S:g} s")
            self.turn()
        lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
        return self.ended[pid], [line for line in lines if line.strip() and not PASSED_OVER.search(line)][-MOST_SHOWN:]

    def kill(self) -> None:
        end = time.monotonic() + END_S
        while (left := descendants()) and time.monotonic() < end:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
            self.reap()

    def end(self) -> list[int]:
        """End all processes of Ray, the raylet in its own way, and remove the folder; return what does not end."""
        raylets = [pid for pid, name in self.vital.items() if name == "raylet" and pid not in self.ended]
        for pid in raylets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + TERM_S
        while any(pid not in self.ended for pid in raylets) and not self.signal and time.monotonic() < end:
            self.selector.select(TURN_S)
            self.reap()
        self.kill()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        return descendants()


def words_of(status: int) -> str:
    """Return how a process ended."""
    code = os.waitstatus_to_exitcode(status)
    return f"ended with exit code {code}" if code >= 0 else f"been ended by signal {-code}"


class Link:
    """A connection between the first node and another one: lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rest = b""
        self.rank = 0
        self.is_up = False
        connection.settimeout(0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def put(self, **message: object) -> None:
        """Send a message, which is short enough for the buffer of any socket."""
        with contextlib.suppress(OSError):  # what has become of the other end is read
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def take(self) -> dict[str, Any] | None:
        """Return the message that has come, empty where it is not complete yet; None at the end."""
        try:
            data = self.connection.recv(MOST_LINE)
        except BlockingIOError:
            return {}
        except OSError:
            return None
        self.rest += data
        line, sign, rest = self.rest.partition(b"\n")
        if not sign:
            return {} if data and len(self.rest) < MOST_LINE else None
        self.rest = rest
        try:
            message = json.loads(line)
        except ValueError:
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        self.connection.close()


class Head:
    """The first node: Ray's head, the other nodes, and the driver."""

    def __init__(self, node: Node, asked: Asked) -> None:
        """Keep what the run needs."""
        self.node, self.asked = node, asked
        self.links: list[Link] = []
        self.waiting: list[Link] = []

    def run(self) -> int:
        """Return the wait status of the driver."""
        try:
            place = next(place for place in bounded_run.SCRATCH_FOLDERS if os.access(place, os.W_OK | os.X_OK))
        except StopIteration:
            raise FailedError("neither /tmp nor /var/tmp can be written to") from None
        self.node.make_folder(f"{place}/ray-{self.asked.job}")
        with listening(self.asked) as server:
            self.node.selector.register(server, selectors.EVENT_READ, server)
            options = ["--head", "--port=0", "--include-dashboard=false"]
            if importlib.util.find_spec("grpc"):  # then Ray also serves its clients, by default at a fixed port
                options.append(f"--ray-client-server-port={free_port()}")
            self.node.start([*options, *self.asked.options])
            address = Path(self.node.folder, "ray_current_cluster").read_text(encoding="utf-8").strip()
            self.gather(server, address)
        driver = self.node.spawn(self.asked.driver, {**self.node.environment, "RAY_ADDRESS": address})
        while driver not in self.node.ended:
            self.listen(self.node.turn())
        return self.node.ended[driver]

    def gather(self, server: socket.socket, address: str) -> None:
        """Wait until Ray is up on all nodes."""
        end = time.monotonic() + JOIN_S
        while sum(link.is_up for link in self.links) < self.asked.nodes - 1:
            if time.monotonic() > end:
                raise FailedError(f"{self.asked.nodes - 1 - len(self.links)} nodes did not join Ray in time")
            ready = self.node.turn()
            if server in ready:
                connection, _unused = server.accept()
                self.waiting.append(Link(connection))
                self.node.selector.register(connection, selectors.EVENT_READ, self.waiting[-1])
            for link in ready:
                if link in self.waiting:
                    self.greet(link, address)
            self.listen([link for link in ready if link in self.links])
        self.node.selector.unregister(server)
        for link in list(self.waiting):
            self.drop(link)

    def greet(self, link: Link, address: str) -> None:
        """Tell a node of the job where Ray's head is; anybody else is sent away."""
        message = link.take()
        if message == {}:
            return
        token = str((message or {}).get("token", ""))
        if message is None or not hmac.compare_digest(token.encode(), self.asked.token.encode()):
            self.drop(link)
            return
        self.waiting.remove(link)
        self.links.append(link)
        link.rank = int(message["rank"])
        link.put(address=address, folder=self.node.folder)

    def drop(self, link: Link) -> None:
        """Forget a link that is none of the job's."""
        self.waiting.remove(link)
        self.node.selector.unregister(link.connection)
        link.close()

    def listen(self, ready: Sequence[Link]) -> None:
        """Hear the other nodes.

        Raises:
            FailedError: one has left.
        """
        for link in ready:
            message = link.take()
            if message is None:
                raise FailedError(f"the node with rank {link.rank} has left the job")
            link.is_up = link.is_up or bool(message.get("up"))

    def close(self) -> None:
        """Have the other nodes end, and wait until they have."""
        for link in self.links:
            with contextlib.suppress(OSError):
                link.connection.shutdown(socket.SHUT_WR)

    def wait(self) -> None:
        """Wait until the other nodes have ended their Ray."""
        end = time.monotonic() + END_S + TERM_S
        open_links = list(self.links)
        while open_links and not self.node.signal and time.monotonic() < end:
            ready = [key.data for key, _unused in self.node.selector.select(TURN_S)]
            for link in [link for link in open_links if link in ready]:
                if link.take() is None:
                    open_links.remove(link)
                    self.node.selector.unregister(link.connection)


class Asked:
    """What this node is asked for, from the environment and the command line."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
        at = list(arguments).index("--")
        parser = argparse.ArgumentParser(description="Start Ray on this node for one job.", allow_abbrev=False)
        parser.add_argument("--addresses", default="", help="of the nodes in the cluster's network, by rank")
        parser.add_argument("--count-cpus", action="store_true", help="Ray uses NPROC_PER_NODE cores")
        known, options = parser.parse_known_args(list(arguments)[:at])
        self.driver = list(arguments)[at + 1 :]
        self.rank, self.nodes = int(environment["NODE_RANK"]), int(environment["NNODES"])
        self.place = (environment["MASTER_ADDR"], int(environment["MASTER_PORT"]))
        self.token = environment.get(TOKEN, "")
        self.job = environment.get(job_members.JOB_VARIABLE) or os.urandom(6).hex()
        addresses = known.addresses.split(",") if known.addresses else []
        self.address = addresses[self.rank] if self.rank < len(addresses) else ""
        own = [f"--node-ip-address={self.address}"] if self.address else []
        own += [f"--num-cpus={environment['NPROC_PER_NODE']}"] if known.count_cpus else []
        # Two jobs may share a node: the kernel chooses all ports.
        self.options = [*own, "--min-worker-port=0", "--max-worker-port=0", *options]


def free_port() -> int:
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def listening(asked: Asked) -> socket.socket:
    """Return the socket at which the first node waits for the others."""
    family = socket.AF_INET6 if ":" in asked.address else socket.AF_INET
    try:
        server = socket.create_server((asked.address, asked.place[1]), family=family)
    except OSError as problem:
        raise FailedError(f"port {asked.place[1]} cannot be listened at: {problem.strerror}") from None
    server.settimeout(0)
    return server


def connected(node: Node, asked: Asked) -> Link:
    """Return the link to the first node, which may not listen yet."""
    end = time.monotonic() + JOIN_S
    while True:
        try:
            return Link(socket.create_connection(asked.place, timeout=TERM_S))
        except OSError as problem:
            if time.monotonic() > end:
                raise FailedError(f"{asked.place[0]} is not reached: {problem}") from None
        node.turn(RETRY_S)


def follow(node: Node, asked: Asked) -> Link:
    """Be one of the other nodes, until the first one ends the job; return the link to it."""
    link = connected(node, asked)
    node.selector.register(link.connection, selectors.EVENT_READ, link)
    link.put(rank=asked.rank, token=asked.token)
    while True:
        for _ready in node.turn():
            message = link.take()
            if message is None:
                return link
            if "address" in message:
                node.make_folder(str(message["folder"]))
                node.start([f"--address={message['address']}", *asked.options])
                link.put(up=True)


def main() -> int:
    """Be this node of the job, and end as the job ends."""
    asked = Asked(sys.argv[1:], dict(os.environ))
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    environment.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    environment["SPT_NOENV"] = "1"  # else the titles of Ray's processes overwrite the job's id in their environment
    try:
        node = Node(environment)
    except FailedError as problem:
        return failed(problem)
    head = Head(node, asked) if asked.rank == 0 else None
    status, link = 0, None
    try:
        if head is not None:
            status = head.run()
        else:
            link = follow(node, asked)
    except FailedError as problem:
        status = failed(problem) << 8
    except SignalledError as problem:
        status = problem.number
    if head is not None:
        head.close()
    if (left := node.end()) and not status:  # with another end than 0, all nodes are swept
        status = failed(FailedError(f"these processes do not end: {', '.join(map(str, left))}")) << 8
    if head is not None:
        head.wait()
    if link is not None:
        link.close()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        die(-code)
    return code


def failed(problem: FailedError) -> int:
    """Tell why the job cannot go on, and return the exit code."""
    sys.stderr.write(f"Ray on {socket.gethostname()}: {problem}\n")
    sys.stderr.flush()
    return 1


def die(number: int) -> NoReturn:
    """End as the driver did, so that mpirun tells of its signal."""
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
