"""The look at a real subnet that ibsim simulates: opensm manages it, and infiniband-diags read it.

Its own make target, since it installs packages. ibsim lets every port claim 12 lanes, which no link here has.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusterctl.diagnosis.rules import rdma
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.model.hardware import OF_FABRIC, Hardware, HardwareLooks
from clusterctl.support import content

sys.path.append(str(content.root() / "plugins" / "module_utils"))

from node_look import network
from node_look.hardware import record

NODES = ("node1", "node2", "node3", "node4", "node5")
FAR_NODES = ("node6", "node7")  # on the second leaf
TRUNKS = (7, 8)
ALL_LINKS = len(NODES) + len(FAR_NODES) + len(TRUNKS)
LINKS = {"node3": "1xQDR", "node4": "4xSDR"}
WAIT_S = 60.0
NAME = "libumad2sim.so"
READER = "node2"
BY = f" (as {READER} read it)"  # the nodes at the ends say nothing of themselves


def net() -> str:
    """Return a leaf with five nodes, and a second one with two, joined by two links."""
    ports = {"leaf1": dict(enumerate(NODES, start=1)), "leaf2": {4: "node6", 5: "node7"}}
    blocks = []
    for leaf, other in (("leaf1", "leaf2"), ("leaf2", "leaf1")):
        blocks += [f'Switch 8 "{leaf}"']
        blocks += [f'[{at}]\t"{node}"[1]\t# lid 0 {LINKS.get(node, "4xQDR")}' for at, node in ports[leaf].items()]
        blocks += [f'[{at}]\t"{other}"[{at}]\t# lid 0 4xQDR' for at in TRUNKS] + [""]
    for leaf, nodes in ports.items():
        for at, node in nodes.items():
            blocks += [f'Hca 1 "{node}"', f'[1]\t"{leaf}"[{at}]\t# lid 0 {LINKS.get(node, "4xQDR")}', ""]
    return "\n".join(blocks)


def library() -> str:
    found = sorted(Path("/usr/lib").glob(f"*/umad2sim/{NAME}"))
    assert found, f"{NAME} is missing: run 'make test-infiniband', which installs it"
    return str(found[0])


class Fabric:
    """A simulated subnet, and a folder of tools that talk to it as node2."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "f.net").write_text(net(), encoding="utf-8")
        self.tools = folder / "tools"
        self.tools.mkdir()
        for name in ("iblinkinfo", "ibqueryerrors", "smpquery"):
            line = f'cd {folder}; SIM_HOST=node2 LD_PRELOAD={library()} exec /usr/sbin/{name} "$@"'
            (self.tools / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
            (self.tools / name).chmod(0o755)
        self.simulator = subprocess.Popen(
            ["ibsim", "-s", "f.net"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.manager: subprocess.Popen[str] | None = None

    def manage(self) -> None:
        own = {"SIM_HOST": "node1", "LD_PRELOAD": library(), "OSM_CACHE_DIR": ".", "OSM_TMP_DIR": "."}
        self.manager = subprocess.Popen(
            ["/usr/sbin/opensm", "-f", str(self.folder / "opensm.log")],
            cwd=self.folder,
            env={"PATH": "/usr/sbin:/usr/bin:/bin", **own},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def tell(self, command: str) -> None:
        assert self.simulator.stdin is not None
        self.simulator.stdin.write(f"{command}\n")
        self.simulator.stdin.flush()

    def end(self) -> None:
        for process in (self.manager, self.simulator):
            if process is not None:
                process.terminate()
                process.wait()

    def look(self) -> Hardware:
        request = {"root": str(self.folder / "root"), "tools": str(self.tools), "sections": list(OF_FABRIC)}
        return Hardware.model_validate(record.collect(request))

    def until(self, what: Callable[[Hardware], bool]) -> Hardware:
        deadline = time.monotonic() + WAIT_S
        while not what(look := self.look()):
            assert time.monotonic() < deadline, look
            time.sleep(0.2)
        return look


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[Fabric]:
    one = Fabric(tmp_path)
    try:
        one.manage()
        yield one
    finally:
        one.end()


def seen(look: Hardware) -> int:
    return len(look.values("fabric_link", "lanes"))


def told(
    now: Hardware, first: Hardware | None = None, past: tuple[Hardware, ...] = ()
) -> list[tuple[tuple[str, ...], str]]:
    empty = HardwareLooks(Hardware(schema_version=1, time=0))
    looks = {**dict.fromkeys((*NODES, *FAR_NODES), empty), "node2": HardwareLooks(now, first=first, past=past)}
    return [(one.hosts, one.cause) for one in rdma.fabric(View(hosts=(), nodes={}, hardware=looks))]


def test_slow_links_and_growing_errors_are_named_with_both_ends(fabric: Fabric) -> None:
    fabric.tell('PerformanceSet "leaf1"[5] PortCounters.SymbolErrorCounter=9')  # a total from before
    first = fabric.until(lambda look: any(one.value == 9 for one in look.counters) and seen(look) == ALL_LINKS)
    words = "the link of leaf1 port {0} to node{0} port 1 runs at {1}, and most such links at 4X 10 Gb/s"
    slow = [
        (("node3", READER), f"{words.format(3, '1X 10 Gb/s')}{BY}"),
        (("node4", READER), f"{words.format(4, '4X 2.5 Gb/s')}{BY}"),
    ]
    assert told(first) == slow
    fabric.tell('PerformanceSet "leaf1"[2] PortCounters.SymbolErrorCounter=77')
    fabric.tell('PerformanceSet "leaf1"[1] PortCounters.LinkDownedCounter=1')
    later = fabric.until(lambda look: {77, 1} <= {one.value for one in look.counters})
    later = later.model_copy(update={"time": first.time + 60})
    down = "losses of the link grew (LinkDownedCounter): leaf1 port 1 to node1 port 1 by 1 in 60 s"
    symbols = "symbol errors grew (SymbolErrorCounter): leaf1 port 2 to node2 port 1 by 77 in 60 s"
    grown = [(("node1", READER), f"{down}{BY}"), (("node2",), f"{symbols}, and the limit is 120 an hour")]
    assert sorted(told(later, first)[len(slow) :]) == grown


def lost(now: Hardware, past: Hardware) -> list[tuple[tuple[str, ...], str]]:
    """Return what is told besides the two slow links, which are there from the begin."""
    return [one for one in told(now, past=(past,)) if one not in told(past)]


def test_a_link_that_is_gone_is_named_with_the_node_at_its_end(fabric: Fabric) -> None:
    past = fabric.until(lambda look: seen(look) == ALL_LINKS)
    assert lost(past, past) == []
    fabric.tell('Unlink "node6"[1]')
    gone = fabric.until(lambda look: seen(look) == ALL_LINKS - 1)
    words = "the link of leaf2 port 4 to node6 port 1 is gone; an earlier look saw it"
    assert lost(gone, past) == [(("node6", READER), f"{words}{BY}")]
    fabric.tell('ReLink "node6"[1]')
    back = fabric.until(lambda look: seen(look) == ALL_LINKS)
    assert lost(back, past) == []


def test_a_lossy_link_is_named_with_the_node_at_its_end_and_no_counter_is_made_up(fabric: Fabric) -> None:
    fabric.tell('PerformanceSet "leaf2"[4] PortCounters.SymbolErrorCounter=9')
    past = fabric.until(lambda look: seen(look) == ALL_LINKS and any(one.value == 9 for one in look.counters))
    fabric.tell('Error "leaf2"[5] 90')
    lossy = fabric.until(lambda look: "silent" in look.values("fabric_link", "ends").values())
    words = "the link of leaf2 port 5 to node7 port 1 is up, and what is at its other end gives no answer"
    assert lost(lossy, past) == [(("node7", READER), f"{words}: it loses packets{BY}")]
    fabric.tell('Error "leaf2"[5] 0')
    back = fabric.until(lambda look: seen(look) == ALL_LINKS)
    assert lost(back, past) == []


def test_a_lossy_link_between_switches_invents_no_growth(fabric: Fabric) -> None:
    fabric.tell('PerformanceSet "leaf2"[4] PortCounters.SymbolErrorCounter=99')
    past = fabric.until(lambda look: seen(look) == ALL_LINKS and any(one.value == 99 for one in look.counters))
    fabric.tell('Error "leaf2"[7] 90')
    lossy = fabric.until(lambda look: any("gave no answer" in why for _, why in look.unseen))
    assert not any(one.value == 0 for one in lossy.counters)
    fabric.tell('Error "leaf2"[7] 0')
    back = fabric.until(lambda look: seen(look) == ALL_LINKS and not look.unseen)
    later = back.model_copy(update={"time": lossy.time + 60})
    assert [words for _, words in told(later, lossy) if "Symbol" in words] == []
    assert lost(back, past) == []


def test_a_subnet_that_does_not_answer_is_a_note(fabric: Fabric) -> None:
    fabric.until(lambda look: seen(look) == ALL_LINKS)
    fabric.end()
    look = fabric.look()
    assert look.readings == look.counters == ()
    assert [what for what, _ in look.unseen] == ["InfiniBand fabric"]


def test_a_node_names_the_switch_and_the_port_that_its_own_port_hangs_on(fabric: Fabric) -> None:
    smpquery = str(fabric.tools / "smpquery")
    fabric.until(lambda look: seen(look) == ALL_LINKS)
    found = network.asked_of_subnet(smpquery, "ibsim0", "1")
    assert found is not None
    assert (found["switch"], found["port"], found["source"]) == ("leaf1", "2", "subnet")
    fabric.tell('Unlink "node2"[1]')
    assert network.asked_of_subnet(smpquery, "ibsim0", "1") is None
    assert network.asked_of_subnet(smpquery, "mlx5_9", "1") is None
