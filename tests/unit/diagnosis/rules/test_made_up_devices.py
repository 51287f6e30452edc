"""A node that makes up devices decides neither what is usual nor what others are told to do, and holds no run."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from clusterctl.diagnosis.rules import engines, rdma, registry
from clusterctl.diagnosis.rules.evidence import View
from clusterctl.diagnosis.rules.table import FABRIC_PORTS
from clusterctl.model.hardware import FORMS, Counter, Hardware, HardwareLooks, HardwareReading, Value
from clusterctl.state import hardware_looks

HOSTS = ("node1", "node2", "node3")


def look(
    readings: Iterable[tuple[str, str, str, Value]], *counters: tuple[str, str, str, int], at: float = 60.0
) -> Hardware:
    read, counted = tuple(HardwareReading(*one) for one in readings), tuple(Counter(*one) for one in counters)
    return Hardware(schema_version=1, time=at, boot_id="b", readings=read, counters=counted)


def told(hardware: dict[str, HardwareLooks]) -> set[str]:
    found = registry.diagnose(View(hosts=(), nodes={}, hardware=hardware))
    return {host for one in found for host in one.hosts}


@pytest.mark.parametrize(
    ("kind", "name", "usual", "made_up"),
    [
        ("gpu", "persistence", "on", "off"),
        ("gpu", "power limit W", 400, 700),
        ("nvlink", "links up", 12, 18),
        ("rdma_device", "fw_ver", "28.1", "1.0"),
        ("rdma card", "PCIe lanes", 8, 16),
    ],
)
def test_a_node_with_many_devices_does_not_outvote_the_others(
    kind: str, name: str, usual: Value, made_up: Value
) -> None:
    def of(count: int, value: Value) -> HardwareLooks:
        devices = [f"d{number}" for number in range(count)]
        its = {
            (kind, name): value,
            ("gpu", "model"): "X",
            ("rdma_device", "board_id"): "X",
            (kind, f"{name} possible"): 16,
        }
        return HardwareLooks(
            look((of_kind, device, one, its[of_kind, one]) for device in devices for of_kind, one in its)
        )

    honest = {host: of(8, usual) for host in HOSTS[:2]}
    assert not told({**honest, "node3": of(200, made_up)}) & {*honest}


def test_growth_of_devices_that_a_node_makes_up_is_not_the_usual_one() -> None:
    def of(count: int, grown: int) -> HardwareLooks:
        first, now = (
            look((), *(("gpu", f"d{number}", "corrected ECC errors", value) for number in range(count)), at=at)
            for at, value in ((0.0, 0), (60.0, grown))
        )
        return HardwareLooks(now, first=first)

    assert told({"node1": of(8, 500), "node2": of(8, 400), "node3": of(1000, 0)}) == set()


def test_what_is_usual_is_decided_by_as_many_devices_as_most_hosts_have() -> None:
    members = {("a", "0"): 1, ("a", "1"): 1, ("b", "0"): 1, ("b", "1"): 1, **{("c", str(n)): 2 for n in range(100)}}
    found = engines.spread(members)
    assert (found.usual, len(found.others[2])) == (1, 100)
    assert engines.spread({("a", str(n)): n == 7 for n in range(8)}).usual is False  # a node alone
    assert engines.spread({}).usual is None


@pytest.mark.parametrize(("kind", "name"), [("rdma_port", "state"), ("gpu", "persistence"), ("filesystem", "remote")])
@pytest.mark.parametrize("is_odd", [False, True])
def test_a_node_with_all_that_it_may_tell_holds_no_run(kind: str, name: str, *, is_odd: bool) -> None:
    def many(salt: int) -> list[tuple[str, str, str, Value]]:
        text = FORMS[kind, name] == "text"
        values = (f"{number} {salt}" if text is not is_odd else number % 2 == salt for number in range(20_000))
        return [(kind, f"d{number}", name, value) for number, value in enumerate(values)]

    before, now = look(many(0), at=0.0), look(many(1))
    began = time.monotonic()
    told({**{host: HardwareLooks(look(())) for host in HOSTS[:2]}, "node3": HardwareLooks(now, past=(before,))})
    hardware_looks._to_keep(now)  # noqa: SLF001
    assert time.monotonic() - began < 20


LINKS = {f"leaf1 port {number} to node{number} port 1": (4, 10.0) for number in (1, 2, 3)}


def fabric_look(links: dict[str, tuple[int, float]], at: float = 60.0, **silent: str) -> Hardware:
    readings: list[tuple[str, str, str, Value]] = []
    for link, (lanes, speed) in links.items():
        readings += [("fabric_link", link, "lanes", lanes), ("fabric_link", link, "lane_gbps", speed)]
        readings += [("fabric_link", link, "ends", "CA"), ("fabric_link", link, "could_be", "wider")]
    readings += [("fabric_link", port, "ends", "silent") for port in silent.values()]
    return look(readings, at=at)


def port_look(state: str, lanes: int, gbps: float) -> HardwareLooks:
    its = {"state": state, "width": lanes, "rate_gbps": gbps}
    return HardwareLooks(look(("rdma_port", "mlx5_0/1", name, value) for name, value in its.items()))


def named(reader: HardwareLooks, end: HardwareLooks) -> list[tuple[str, ...]]:
    hardware = {"node1": reader, "node2": HardwareLooks(look(())), "node3": end}
    return [one.hosts for one in rdma.fabric(View(hosts=(), nodes={}, hardware=hardware))]


GOOD = port_look("ACTIVE", 4, 40.0)
THIRD = "leaf1 port 3 to node3 port 1"


@pytest.mark.parametrize(
    ("now", "past", "end", "hosts"),
    [
        (fabric_look({**LINKS, THIRD: (1, 10.0)}), None, GOOD, ("node3", "node1")),
        (fabric_look({**LINKS, THIRD: (1, 10.0)}), None, port_look("ACTIVE", 1, 10.0), ("node3",)),
        (fabric_look({**LINKS, THIRD: (4, 2.5)}), None, port_look("ACTIVE", 4, 10.0), ("node3",)),
        (fabric_look(dict(list(LINKS.items())[:2])), fabric_look(LINKS), GOOD, ("node3", "node1")),
        (fabric_look(dict(list(LINKS.items())[:2])), fabric_look(LINKS), port_look("DOWN", 4, 40.0), ("node3",)),
        (fabric_look(LINKS, port=THIRD), None, GOOD, ("node3", "node1")),
    ],
    ids=["slow", "slow by its own word", "slow lanes by its own word", "gone", "gone by its own word", "silent"],
)
def test_the_reader_of_the_fabric_blames_nobody_on_its_word_alone(
    now: Hardware, past: Hardware | None, end: HardwareLooks, hosts: tuple[str, ...]
) -> None:
    assert named(HardwareLooks(now, past=(past,) if past else ()), end) == [hosts]


def test_a_link_that_an_earlier_reader_made_up_names_that_reader() -> None:
    rest = dict(list(LINKS.items())[:2])
    hardware = {
        "node1": HardwareLooks(fabric_look(rest)),
        "node2": HardwareLooks(look(()), past=(fabric_look(LINKS, at=1.0),)),
        "node3": GOOD,
    }
    (found,) = rdma.fabric(View(hosts=(), nodes={}, hardware=hardware))
    assert found.hosts == ("node3", "node1", "node2")


def test_errors_of_a_switchs_port_name_who_read_them() -> None:
    kind, name = next(iter(FABRIC_PORTS))
    first, now = (look((), (kind, THIRD, name, count), at=at) for count, at in ((0, 0.0), (10**6, 60.0)))
    assert named(HardwareLooks(now, first=first), GOOD) == [("node3", "node1")]
