"""The probe of pairs over real sockets of this machine: its addresses 127.0.0.0/8 stand for nodes."""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_probe

pytestmark = pytest.mark.programs

NET = "127.0.0.0/8"
TOKEN = "of-this-run"  # noqa: S105 - good for nothing else


@contextmanager
def listening(name: str, address: str, token: str = TOKEN) -> Iterator[fabric_probe.Exchange]:
    exchange = fabric_probe.Exchange(name, token)
    exchange.listen({NET: address})
    done = threading.Event()
    until = time.monotonic() + 20
    thread = threading.Thread(target=exchange.run, args=(lambda: not done.is_set(), until))
    thread.start()
    try:
        yield exchange
    finally:
        done.set()
        thread.join()
        exchange.close()


def target(name: str, address: str, port: int, source: str = "127.0.0.2") -> dict[str, Any]:
    return {"network": NET, "source": source, "name": name, "address": address, "port": port}


def call(*targets: dict[str, Any], name: str = "a", timeout_s: float = 5) -> list[list[str]]:
    exchange = fabric_probe.Exchange(name, TOKEN)
    exchange.connect_all(list(targets), timeout_s)
    exchange.close()
    return [result[:4] for result in exchange.results]


def test_a_connection_that_comes_through_is_ok() -> None:
    with listening("b", "127.0.0.3") as other:
        assert call(target("b", "127.0.0.3", other.ports[NET][0])) == [[NET, "b", "ok", ""]]
    assert other.answered == {("a", other.ports[NET][0])}


def test_many_at_once_are_all_answered() -> None:
    with listening("b", "127.0.0.3") as other:
        results = call(*[target("b", "127.0.0.3", other.ports[NET][0])] * 200)
    assert [result[2] for result in results] == ["ok"] * 200


def test_it_listens_on_a_free_port_of_the_range_that_jobs_use() -> None:
    with closing(socket.create_server(("127.0.0.3", 0))) as taken:
        first = taken.getsockname()[1]
        other = fabric_probe.Exchange("b", TOKEN)
        other.listen({NET: "127.0.0.3"}, [(first, 2)])
        full = fabric_probe.Exchange("c", TOKEN)
        full.listen({NET: "127.0.0.3"}, [(first, 1)])
    other.close()
    assert (other.ports, other.problems) == ({NET: [first + 1]}, {})
    assert full.ports == {}
    assert f"every port that was tried from {first} to {first} is in use" in full.problems[NET]


def test_a_closed_port_refuses() -> None:
    with closing(socket.create_server(("127.0.0.3", 0))) as server:
        port = server.getsockname()[1]
    ((_, _, kind, problem),) = call(target("b", "127.0.0.3", port))
    # Every 127.x is this machine's own: the twin address of docker0 shows itself just so.
    assert (kind, problem) == ("wrong_node", "127.0.0.3 is an address of a itself")


@pytest.mark.parametrize(
    ("name", "token", "words"),
    [
        ("a", TOKEN, "127.0.0.3 port {port} leads back to a itself"),
        ("c", TOKEN, "c answers at 127.0.0.3 port {port}"),
        ("b", "another-run", ""),  # a stranger
    ],
)
def test_whoever_else_answers_is_told(name: str, token: str, words: str) -> None:
    with listening(name, "127.0.0.3", token) as other:
        port = other.ports[NET][0]
        ((_, _, kind, problem),) = call(target("b", "127.0.0.3", port))
    assert kind == "wrong_node"
    assert words.format(port=port) in problem
    assert not other.answered or token == TOKEN


def test_another_source_address_is_told() -> None:
    verdict = fabric_probe.Exchange("a", TOKEN)._verdict(  # noqa: SLF001 - no address here is translated on its way
        target("b", "10.0.0.2", 7, source="10.0.0.1"), ["clusterctl-fabric", TOKEN, "b", "192.168.0.9"]
    )
    assert verdict == ("wrong_source", "it arrives from 192.168.0.9 instead of 10.0.0.1")


def test_a_port_that_accepts_and_says_nothing_times_out() -> None:
    with closing(socket.create_server(("127.0.0.3", 0))) as server:
        began = time.monotonic()
        results = call(target("b", "127.0.0.3", server.getsockname()[1]), timeout_s=0.3)
    assert results == [[NET, "b", "timeout", "connected, but no answer came"]]
    assert time.monotonic() - began < 3


def test_what_timed_out_is_tried_once_more() -> None:
    with closing(socket.create_server(("127.0.0.3", 0))) as server:
        answers = threading.Thread(target=answer_the_second, args=(server,))
        answers.start()
        results = call(target("b", "127.0.0.3", server.getsockname()[1]), timeout_s=0.5)
        answers.join()
    assert results == [[NET, "b", "ok", ""]]


def answer_the_second(server: socket.socket) -> None:
    with server.accept()[0], server.accept()[0] as second:
        second.recv(512)
        second.send(f"clusterctl-fabric {TOKEN} b 127.0.0.2\n".encode())
        assert len(second.recv(1 << 16, socket.MSG_WAITALL)) == 1 << 16
        second.send(b"+")
        second.sendall(b"x" * (1 << 16))


def test_after_a_pause_it_is_tried_a_third_time(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = iter(("timeout", "cut_back", "ok"))
    exchange = fabric_probe.Exchange("a", TOKEN)
    paused: list[float] = []

    def connect(targets: list[dict[str, Any]], _timeout_s: float) -> None:
        for one in targets:
            exchange.results.append([NET, one["name"], next(kinds), "", str(one["port"])])

    monkeypatch.setattr(exchange, "connect", connect)
    monkeypatch.setattr(exchange, "run", lambda _go_on, until, **_: paused.append(until - time.monotonic()))
    exchange.connect_all([target("b", "127.0.0.3", 9)], 1, pauses_s=fabric_probe.PAUSES_S)
    exchange.close()
    assert [result[2] for result in exchange.results] == ["ok"]
    assert 5 < paused[3] <= 6  # the kernel drops an unused entry of a full neighbour table after 5 s


@pytest.mark.parametrize("code", ["EHOSTUNREACH", "ENETUNREACH", "EACCES", "EPERM", "ECONNRESET"])
def test_what_a_firewall_answers_is_a_rejection(code: str) -> None:
    number = getattr(errno, code)
    exchange = fabric_probe.Exchange("a", TOKEN)
    failure = exchange._failure(target("b", "192.0.2.1", 9), number)  # noqa: SLF001 - no firewall here answers so
    exchange.close()
    assert failure == ("rejected", os.strerror(number))


def test_what_the_callers_own_kernel_answers_is_told_apart() -> None:
    assert call(target("b", "192.0.2.1", 9)) == [[NET, "b", "no_route", "Invalid argument"]]  # from 127.0.0.2


_NO_PORTS = """
import pathlib, socket, subprocess, sys
sys.path.insert(0, sys.argv[1])
import fabric_probe
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
server = socket.create_server(("127.0.0.3", 2000))
pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("60990 60991")
taken = [socket.create_server(("127.0.0.2", 60990 + number)) for number in range(2)]
exchange = fabric_probe.Exchange("a", "token")
target = {"network": "n", "source": "127.0.0.2", "name": "b", "address": "127.0.0.3", "port": 2000}
exchange.connect_all([target], 1)
print(exchange.results)
"""


def test_a_caller_without_a_free_port_is_told_apart() -> None:
    folder = str(Path(fabric_probe.__file__).parent)
    argv = ["unshare", "--map-root-user", "--net", sys.executable, "-c", _NO_PORTS, folder]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip("this machine makes no network namespaces")
    assert done.stdout == "[['n', 'b', 'no_route', 'no port is free for them', '2000']]\n", done.stderr


def test_a_connection_that_is_reset_is_rejected() -> None:
    with closing(socket.create_server(("127.0.0.3", 0))) as server:
        answers = threading.Thread(target=reset, args=(server,))
        answers.start()
        results = call(target("b", "127.0.0.3", server.getsockname()[1]))
        answers.join()
    assert results == [[NET, "b", "rejected", "Connection reset by peer"]]


def reset(server: socket.socket) -> None:
    link = server.accept()[0]
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()


@pytest.mark.parametrize(
    ("sent", "kind", "problem"),
    [
        (b"+", "cut_back", "large packets are lost on their way back"),
        (b"+" + b"x" * 100, "timeout", "100 of 65536 bytes came back"),
        (b"", "timeout", "65536 of 65536 bytes arrived"),  # its kernel has them, and the program is late
    ],
)
def test_large_packets_that_do_not_come_back_are_told_from_slow_ones(sent: bytes, kind: str, problem: str) -> None:
    with closing(socket.create_server(("127.0.0.3", 0))) as server:
        answers = threading.Thread(target=answer_in_part, args=(server, sent), daemon=True)
        answers.start()
        results = call(target("b", "127.0.0.3", server.getsockname()[1]), timeout_s=0.5)
        answers.join()
    assert results == [[NET, "b", kind, problem]]


def answer_in_part(server: socket.socket, sent: bytes) -> None:
    for _ in range(2):
        with server.accept()[0] as link:
            link.recv(512)
            link.send(f"clusterctl-fabric {TOKEN} b 127.0.0.2\n".encode())
            link.recv(1 << 16, socket.MSG_WAITALL)
            link.send(sent)
            link.recv(1)  # until the caller hangs up


def test_large_packets_that_do_not_arrive_are_told() -> None:
    exchange = fabric_probe.Exchange("a", TOKEN)
    with closing(socket.socket()) as link:
        waiting = fabric_probe._Call(link, 0, target("b", "192.0.2.1", 9))  # noqa: SLF001 - no link here has an MTU
        waiting.words, waiting.due = b"x" * 65536, 65537
        assert exchange._late(waiting) == ("cut", "large packets are lost")  # noqa: SLF001
        waiting.words = b"x" * 65436
        assert exchange._late(waiting) == ("timeout", "100 of 65536 bytes arrived")  # noqa: SLF001
    exchange.close()


def test_ports_are_spread_over_the_range_and_a_small_one_is_left_to_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = fabric_probe.spread([(1024, 100), (40000, 7000)])
    assert parts == [(1024, 100), *((40000 + 1000 * part, 1000) for part in range(7))]
    assert fabric_probe.spread([(40000, 9)]) == [(40000, 4), (40004, 5)]
    assert fabric_probe.spread([(40000, 1)]) == [(40000, 1)]
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    parts = fabric_probe.spread([(0, 0)])
    assert (len(parts), parts[0][0], sum(parts[-1]) - 1) == (8, low, high)
    monkeypatch.setattr(fabric_probe, "_PORT_RANGE", "/nonexistent")
    assert fabric_probe.spread([(0, 0)])[0][0] == 32768


def test_the_same_seed_leads_to_the_same_ports() -> None:
    found = []
    for _ in range(2):
        exchange = fabric_probe.Exchange("b", TOKEN)
        exchange.listen({NET: "127.0.0.3"}, fabric_probe.spread([(0, 0)]), "7 b")
        found.append(exchange.ports)
        exchange.close()
    assert found[0] == found[1]


def test_an_address_that_is_gone_is_told_on_either_side() -> None:
    ((_, _, kind, problem),) = call(target("b", "127.0.0.3", 9, source="192.0.2.1"))
    assert (kind, problem) == ("error", "a no longer has the address 192.0.2.1")
    exchange = fabric_probe.Exchange("a", TOKEN)
    exchange.listen({NET: "192.0.2.1"})
    assert exchange.ports == {}
    assert exchange.problems[NET].startswith("cannot listen on 192.0.2.1: ")
    exchange.close()


def test_ipv6_is_spoken_as_well() -> None:
    with listening("b", "::1") as other:
        assert call(target("b", "::1", other.ports[NET][0], source="::1"))[0][2] == "ok"


def test_the_listener_apart_ends_when_all_were_answered() -> None:
    exchange = fabric_probe.Exchange("b", TOKEN)
    exchange.listen({NET: "127.0.0.3"})
    fabric_probe.listen_apart(exchange, callers=1, lifetime_s=20)
    port = exchange.ports[NET][0]
    exchange.close()  # this process's own end of it
    assert call(target("b", "127.0.0.3", port))[0][2] == "ok"
    assert gone(port)


def test_the_listener_apart_ends_by_its_deadline() -> None:
    exchange = fabric_probe.Exchange("b", TOKEN)
    exchange.listen({NET: "127.0.0.3"})
    fabric_probe.listen_apart(exchange, callers=9, lifetime_s=0.5)
    port = exchange.ports[NET][0]
    exchange.close()
    assert gone(port)


def gone(port: int, within_s: float = 10) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.3", port), timeout=1).close()
        except ConnectionRefusedError:
            return True
        time.sleep(0.1)
    return False
