"""The probe of pairs over real sockets of this machine: its addresses 127.0.0.0/8 stand for nodes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
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
    return exchange.results


def test_a_connection_that_comes_through_is_ok() -> None:
    with listening("b", "127.0.0.3") as other:
        assert call(target("b", "127.0.0.3", other.ports[NET])) == [[NET, "b", "ok", ""]]
    assert other.answered == {("a", other.ports[NET])}


def test_many_at_once_are_all_answered() -> None:
    with listening("b", "127.0.0.3") as other:
        results = call(*[target("b", "127.0.0.3", other.ports[NET])] * 200)
    assert [result[2] for result in results] == ["ok"] * 200


def test_it_listens_on_a_free_port_of_the_range_that_jobs_use() -> None:
    with closing(socket.create_server(("127.0.0.3", 0))) as taken:
        first = taken.getsockname()[1]
        other = fabric_probe.Exchange("b", TOKEN)
        other.listen({NET: "127.0.0.3"}, (first, 2))
        full = fabric_probe.Exchange("c", TOKEN)
        full.listen({NET: "127.0.0.3"}, (first, 1))
    other.close()
    assert (other.ports, other.problems) == ({NET: first + 1}, {})
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
        port = other.ports[NET]
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
        assert call(target("b", "::1", other.ports[NET], source="::1"))[0][2] == "ok"


def test_the_listener_apart_ends_when_all_were_answered() -> None:
    exchange = fabric_probe.Exchange("b", TOKEN)
    exchange.listen({NET: "127.0.0.3"})
    fabric_probe.listen_apart(exchange, callers=1, lifetime_s=20)
    port = exchange.ports[NET]
    exchange.close()  # this process's own end of it
    assert call(target("b", "127.0.0.3", port))[0][2] == "ok"
    assert gone(port)


def test_the_listener_apart_ends_by_its_deadline() -> None:
    exchange = fabric_probe.Exchange("b", TOKEN)
    exchange.listen({NET: "127.0.0.3"})
    fabric_probe.listen_apart(exchange, callers=9, lifetime_s=0.5)
    port = exchange.ports[NET]
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
