"""A pack goes from node to node in a chain: real processes on this machine, with a stand-in for ssh."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import chain_head, chain_plan, chain_relay
from ansible_collections.clusterctl.hpc.plugins.module_utils.chain_plan import ChainPlan
from waiting import eventually

pytestmark = pytest.mark.programs
PIECE = 1 << 16
FILE = "clusterctl-push-0123456789abcdef-demo.tar.zst"


@dataclass
class Place:
    """A pack on node0, and the folders of the other nodes."""

    folder: Path
    pack: bytes = b""
    nodes: list[str] = field(default_factory=list)

    def make(self, size: int, count: int, *, arrived: bool = True) -> Place:
        self.pack = hashlib.shake_128(b"pack").digest(size)
        self.nodes = [f"node{number}" for number in range(1, count + 1)]
        for name in ("pids", "slow", "shut", *self.nodes):
            (self.folder / name).mkdir()
        self.source.write_bytes(self.pack if arrived else b"")
        return self

    @property
    def source(self) -> Path:
        return self.folder / "source"

    def copy(self, node: str) -> Path:
        return self.folder / node / FILE

    def head(self, **changed: Any) -> chain_head.ChainHead:
        sums = [hashlib.sha256(self.pack[at : at + PIECE]).digest() for at in range(0, len(self.pack), PIECE)]
        request = {
            "size": len(self.pack),
            "piece_bytes": PIECE,
            "sums": base64.b64encode(b"".join(sums)).decode(),
            "marker": "/nonexistent/.clusterctl.json",
            "bytes_per_s": 0,
            "ssh": [sys.executable, str(Path(__file__).with_name("chain_ssh.py"))],
            "python": sys.executable,
            **changed,
        }
        nodes = [
            {"name": name, "python": sys.executable, "file": FILE, "folders": [str(self.folder / name)]}
            for name in self.nodes
        ]
        return chain_head.ChainHead("node0", [str(self.source)], request, nodes, chain_head.relay_text())

    def whole(self, node: str) -> bool:
        return self.copy(node).read_bytes() == self.pack

    def kill(self, node: str) -> None:
        """End all processes of a node, as a machine that loses its power."""
        for path in (self.folder / "pids").glob(f"{node}.*"):
            with suppress(ProcessLookupError):
                os.killpg(int(path.suffix[1:]), signal.SIGKILL)

    def when(self, holds: Callable[[], bool], act: Callable[[], Any]) -> threading.Thread:
        """Act in a thread as soon as something holds."""

        def watch() -> None:
            until = time.monotonic() + 60
            while not holds() and time.monotonic() < until:
                time.sleep(0.005)
            act()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("CHAIN_PLACE", str(tmp_path))
    monkeypatch.delenv("CHAIN_NODE", raising=False)
    return Place(tmp_path)


def test_every_node_gets_the_pack_and_passes_it_on(place: Place) -> None:
    place.make(3_000_001, 5)
    head = place.head()
    found = head.run()
    assert found == {"delivered": dict.fromkeys(place.nodes, 0), "has": [], "reasons": {}, "slow": []}
    assert all(place.whole(node) for node in place.nodes)
    assert {place.copy(node).stat().st_mode & 0o777 for node in place.nodes} == {0o600}
    assert head.plan.source == dict(zip(place.nodes, ["node0", *place.nodes], strict=False))


def test_a_pack_that_still_arrives_is_passed_on(place: Place) -> None:
    place.make(2_000_000, 3, arrived=False)

    def arrive() -> None:
        with place.source.open("ab", buffering=0) as out:
            for at in range(0, len(place.pack), 100_000):
                out.write(place.pack[at : at + 100_000])
                time.sleep(0.02)

    place.when(lambda: True, arrive)
    assert place.head().run()["delivered"] == dict.fromkeys(place.nodes, 0)
    assert all(place.whole(node) for node in place.nodes)


def test_a_node_that_dies_is_skipped_and_the_nodes_behind_it_get_the_pack(place: Place) -> None:
    place.make(6_000_000, 4)
    watch = place.when(
        lambda: place.copy("node2").exists() and place.copy("node2").stat().st_size > PIECE, lambda: place.kill("node2")
    )
    found = place.head(bytes_per_s=2_000_000).run()
    watch.join()
    assert found["delivered"] == dict.fromkeys(["node1", "node3", "node4"], 0)
    assert list(found["reasons"]) == ["node2"]
    assert all(place.whole(node) for node in found["delivered"])


def test_a_node_that_refuses_the_login_is_left_out(place: Place) -> None:
    place.make(500_000, 3)
    (place.folder / "shut" / "node1").touch()
    found = place.head().run()
    assert found["reasons"] == {"node1": "node1: Permission denied (publickey)."}
    assert sorted(found["delivered"]) == ["node2", "node3"]


def test_a_slow_node_does_not_hold_up_the_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_plan, "WORTH_S", 1.0)
    monkeypatch.setattr(chain_plan, "WINDOW_S", 1.0)
    place.make(6_000_000, 3)
    (place.folder / "slow" / "node2").write_text("500000")
    head = place.head(bytes_per_s=2_000_000)
    found = head.run()
    assert "node2" in found["slow"]
    assert head.plan.source["node3"] != "node2"
    assert all(place.whole(node) for node in place.nodes)


def test_a_node_that_has_the_artifact_takes_no_part(place: Place) -> None:
    place.make(500_000, 2)
    marker = place.folder / "marker"
    marker.touch()
    found = place.head(marker=str(marker)).run()
    assert found == {"delivered": {}, "has": place.nodes, "reasons": {}, "slow": []}
    assert not place.copy("node1").exists()


def test_a_damaged_pack_reaches_no_node(place: Place) -> None:
    place.make(1_000_000, 3)
    place.source.write_bytes(place.pack[:-10] + b"0123456789")
    with pytest.raises(chain_head.ChainError, match="damaged"):
        place.head().run()
    assert eventually(lambda: not any(place.copy(node).exists() for node in place.nodes))


def test_a_node_whose_copy_was_damaged_gives_to_nobody(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_head, "AT_ONCE", 1)  # node2 begins when node1 has everything
    place.make(1_000_000, 2)

    def damage() -> None:
        with place.copy("node1").open("r+b") as out:
            out.write(b"damage")

    place.when(
        lambda: place.copy("node1").exists() and place.copy("node1").stat().st_size == len(place.pack), damage
    ).join(0)
    head = place.head()
    head.run()
    assert head.plan.source["node2"] == "node0"
    assert place.whole("node2")
    assert not place.whole("node1")  # whose own install refuses it


def test_a_copy_that_is_given_up_ends_the_chain_and_leaves_nothing(place: Place) -> None:
    place.make(2_000_000, 2, arrived=False)
    place.when(place.copy("node2").exists, place.source.unlink)
    with pytest.raises(chain_head.ChainError, match="given up"):
        place.head().run()
    assert eventually(lambda: not any(place.copy(node).exists() for node in place.nodes))


def test_a_full_disk_is_the_nodes_own_problem(place: Place) -> None:
    place.make(500_000, 2)
    (place.folder / "node1").rmdir()
    found = place.head().run()
    assert found["reasons"] == {"node1": f"{place.folder}/node1: No such file or directory"}
    assert place.whole("node2")


def test_more_nodes_than_connections_are_taken_in_turn(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_head, "AT_ONCE", 2)
    place.make(300_000, 5)
    found = place.head().run()
    assert found["delivered"] == dict.fromkeys(place.nodes, 0)
    assert all(place.whole(node) for node in place.nodes)


def test_no_file_is_written_through_a_link(place: Place) -> None:
    place.make(300_000, 1)
    victim = place.folder / "victim"
    victim.write_text("theirs")
    place.copy("node1").symlink_to(victim)
    assert "node1" in place.head().run()["reasons"]
    assert victim.read_text() == "theirs"
    place.source.unlink()
    place.source.symlink_to(victim)
    with pytest.raises(OSError, match="ymbolic link"):
        chain_relay.open_regular(str(place.source))


def test_a_pace_spreads_bytes_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_relay.time, "monotonic", lambda: 5.0)
    assert chain_relay.Pace(0).wait_s(10**9) == 0
    pace = chain_relay.Pace(1000)
    assert pace.wait_s(500) == pytest.approx(0.5)
    assert pace.wait_s(500) == pytest.approx(1.0)


def chain(count: int, size: int = 10**9) -> ChainPlan:
    plan = ChainPlan("h", size)
    for number in range(1, count + 1):
        plan.join(f"n{number}")
    return plan


def test_the_takers_of_a_dead_node_take_from_its_source() -> None:
    plan = chain(4)
    assert plan.leave("n2") == {"n3": "n1"}
    assert plan.leave("n4") == {}
    assert plan.join("n5") == {"n5": "n3"}


def flow(plan: ChainPlan, rates: dict[str, float], begin: float, seconds: int) -> tuple[dict[str, str], float]:
    """Let each node take at its own rate, at most as far as its source has, until the plan changes; returns when."""
    now = begin
    while now < begin + seconds:
        now += 0.2
        for node in ["h", *plan.source]:
            ahead = plan.have(plan.source[node]) if node in plan.source else plan.size
            plan.progress(node, int(min(ahead, plan.have(node) + rates.get(node, 1e6) / 5)), now)
        changes = plan.around_slow_nodes(now)
        if changes:
            return changes, now
    return {}, now


def test_a_slow_node_becomes_a_leaf() -> None:
    plan = chain(4)
    assert flow(plan, {"n2": 2e5}, 100, 20)[0] == {"n3": "n1"}
    assert plan.slow == {"n2"}
    assert plan.takers("n2") == []


def test_nodes_of_one_pace_stay_in_the_chain() -> None:
    plan = chain(4)
    assert flow(plan, {"n2": 7e5}, 100, 60)[0] == {}


def test_a_source_with_two_slow_takers_is_left() -> None:
    plan = chain(5)
    rates = {"n3": 2e5, "n4": 2e5}
    first, now = flow(plan, rates, 100, 20)
    assert first == {"n4": "n2"}
    assert flow(plan, rates, now, 40)[0] == {"n3": "n1", "n4": "n1"}
    assert plan.slow == {"n2", "n3"}


def test_a_head_that_has_all_at_once_does_not_make_the_nodes_slow() -> None:
    plan = chain(4)
    assert flow(plan, {"h": 1e10}, 100, 60)[0] == {}
    assert plan.source == {"n1": "h", "n2": "n1", "n3": "n2", "n4": "n3"}
    assert not plan.slow


def test_a_head_with_two_slow_takers_goes_on() -> None:
    plan = chain(4)
    first, now = flow(plan, {"n1": 2e5, "n2": 2e5}, 100, 20)
    assert first == {"n2": "h"}
    assert flow(plan, {"n1": 2e5, "n2": 2e5}, now, 60)[0] == {}
    assert plan.slow == {"n1"}


def test_a_node_that_is_passed_over_gives_no_longer() -> None:
    plan = chain(3)
    assert plan.pass_over("n1") == {"n2": "h"}
    assert plan.join("n4") == {"n4": "n3"}
    assert plan.leave("n1") == {}
    assert plan.leave("n2") == {"n3": "h"}


def time_s(plan: ChainPlan, intake: float, sends: dict[str, float], takes: dict[str, float]) -> float:
    """Return when all nodes have the pack, where the takers of a node share what it can send.

    Args:
        plan: the chain.
        intake: bytes/s that the head receives.
        sends: bytes/s that a node can send; 1e8 where it is missing.
        takes: bytes/s that a node can take; 1e8 where it is missing.
    """
    step, now = 0.1, 0.0
    while any(plan.have(node) < plan.size for node in plan.source) and now < 1000:
        now += step
        plan.progress("h", int(min(plan.size, intake * now)), now)
        for node, source in list(plan.source.items()):
            share = sends.get(source, 1e8) / max(len(plan.takers(source)), 1)
            rate = min(share, takes.get(node, 1e8))
            plan.progress(node, int(min(plan.have(source), plan.have(node) + rate * step)), now)
        plan.around_slow_nodes(now)
    return now


def test_a_head_that_receives_faster_than_it_sends_gives_a_taker_back() -> None:
    plan = chain(8, 2 * 10**9)
    assert time_s(plan, 1e9, {}, {}) < 25  # 20 s at the pace of the head
    assert plan.source == {"n1": "h", **{f"n{number}": f"n{number - 1}" for number in range(2, 9)}}
    assert not plan.slow


def test_a_chain_stays_in_one_line_while_its_head_still_receives() -> None:
    plan = chain(8, 20 * 10**9)
    assert time_s(plan, 5e8, {}, {}) < 210
    assert plan.source["n2"] == "n1"


def test_a_slow_first_node_is_passed_over_where_the_head_can_send_more() -> None:
    plan = chain(8, 2 * 10**9)
    assert time_s(plan, 1e9, {}, {"n1": 2e7}) < 105  # 100 s for the slow node itself
    assert plan.slow == {"n1"}
    assert plan.source["n2"] == "h"
