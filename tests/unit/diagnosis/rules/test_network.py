from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from clusterctl.diagnosis.rules import launchable, logins, machine, registry
from clusterctl.diagnosis.rules.evidence import Blame, View, blame
from clusterctl.model import fabric
from clusterctl.model.hardware import Hardware, HardwareLooks, HardwareReading
from clusterctl.model.hosts import Host
from clusterctl.model.probe import ProbeFailure
from clusterctl.remote import login_probe
from doctor_view import NODES, Change, Record, failing, rdma_port, record_of, seen, told


def test_rdma_ports_are_compared() -> None:
    alike = dict.fromkeys(NODES, rdma_port())
    assert told(seen(**alike)) == []
    assert told(seen(**dict.fromkeys(NODES, rdma_port(state="DOWN")))) == []  # one that nobody uses
    assert told(seen(**alike | {"node3": rdma_port(state="DOWN")})) == [("rdma", "error", ("node3",))]
    assert told(seen(**alike | {"node3": rdma_port(rate_gbps=100.0)})) == [("rdma", "warning", ("node3",))]


def test_an_open_mpi_without_ucx_leaves_rdma_unused() -> None:
    def without(record: Record) -> None:
        rdma_port()(record)
        next(one for one in record["artifacts"] if one["name"] == "openmpi")["inputs"].pop("ucx")

    alike = dict.fromkeys(NODES, without)
    found = list(registry.diagnose(seen(**alike)))
    assert [(one.check, one.severity, one.hosts) for one in found] == [("rdma", "warning", NODES)]
    assert found[0].cause.startswith("MPI goes over TCP, although mlx5_0 is there: Open MPI was built without UCX")
    assert found[0].cure == "set openmpi_ucx to auto and run 'clusterctl provision' again"
    assert told(seen(**dict.fromkeys(NODES[:-1], without))) == []  # RDMA cannot carry a job of all nodes


def test_a_roce_port_without_an_ipv4_gid_of_version_2_is_named() -> None:
    mapped = "0000:0000:0000:0000:0000:ffff:0a00:0001"
    right = rdma_port(link_layer="Ethernet", gids=[{"index": 3, "gid": mapped, "type": "RoCE v2"}])
    wrong = rdma_port(link_layer="Ethernet", gids=[{"index": 2, "gid": mapped, "type": "IB/RoCE v1"}])
    assert told(seen(**dict.fromkeys(NODES, right))) == []
    assert told(seen(**dict.fromkeys(NODES, right) | {"node2": wrong})) == [("rdma", "error", ("node2",))]


def test_an_address_that_several_have_is_named_until_jobs_are_told_another() -> None:
    entry = {"family": 4, "address": "172.17.0.1", "prefix": 16, "scope": "global"}
    docker = {"name": "docker0", "kind": "bridge", "up": True, "carrier": True, "mtu": 1500, "addresses": [entry]}

    def change(record: Record) -> None:
        record["interfaces"].append(docker)

    def told_to(record: Record) -> None:
        change(record)
        record["fabric"] = {"cidrs": ["10.0.0.0/24"], "interface": "eth0", "address": "10.0.0.1"}

    (found,) = registry.diagnose(seen(**dict.fromkeys(NODES, change)))
    assert (found.severity, found.hosts) == ("error", NODES)
    assert found.cause.startswith("docker0 has the address 172.17.0.1 on each of them")
    fine = seen(**dict.fromkeys(NODES, told_to))
    assert registry.diagnose(fine) == ()
    assert "172.17.0.1 on each of node[1-4]; Open MPI and NCCL are told to use 10.0.0.0/24" in registry.notes(fine)[0]


@pytest.mark.parametrize(
    ("family", "address", "note"),
    [
        (
            4,
            "169.254.7.{}",
            "eth1 169.254.0.0/16 on node[1-2,4] is link-local, and carries no jobs: node3 has no address",
        ),
        (
            6,
            "fe80::7:{}",
            "eth1 on node[1-2,4] is link-local, and carries no jobs: has link-local addresses of IPv6 alone",
        ),
    ],
)
def test_a_link_local_network_that_is_left_out_is_told(family: int, address: str, note: str) -> None:
    def joined(record: Record) -> None:
        own = {"family": family, "address": address.format(record["hostname"][-1]), "prefix": 16 if family == 4 else 64}
        link = {**record["interfaces"][0], "name": "eth1", "mac": "", "addresses": [{**own, "scope": "link"}]}
        record["interfaces"].append(link)

    view = seen(**{name: joined for name in NODES if name != "node3"})
    view = dataclasses.replace(view, candidates=fabric.candidates(view.nodes))
    assert [one for one in registry.notes(view) if one.startswith(note)]
    assert not [one for one in registry.notes(seen()) if "link-local" in one]


def test_an_address_that_two_machines_have_is_told_without_what_follows() -> None:
    """Seen on six nodes: each of them had a finding that jobs are told to use a network without its own address."""

    def joined(number: int) -> Change:
        def change(record: Record) -> None:
            record["interfaces"][0]["addresses"][0]["address"] = f"10.0.0.{number}"
            record["fabric"] = {"cidrs": ["10.0.0.0/24"], "interface": "eth0", "address": f"10.0.0.{number}"}

        return change

    view = seen(node1=joined(1), node2=joined(4), node3=joined(3), node4=joined(4))
    found = [one for one in registry.diagnose(dataclasses.replace(view, pairs=())) if one.severity == "error"]
    assert [(one.hosts, one.cause) for one in found] == [(("node2", "node4"), "all have the address 10.0.0.4 (eth0)")]


def test_cards_with_the_same_address_or_without_a_driver_are_named() -> None:
    def twice(record: Record) -> None:
        record["interfaces"].append({**record["interfaces"][0], "name": "eth1", "mac": ""})

    def bare(record: Record) -> None:
        record["driverless_cards"] = ["0000:5e:00.0"]

    def both_bare(record: Record) -> None:
        record["driverless_cards"] = ["0000:5e:00.0", "0000:5e:00.1"]

    found = {
        one.hosts: (one.check, one.severity, one.cause)
        for one in registry.diagnose(seen(node2=twice, node3=bare, node4=both_bare))
    }
    assert found["node2",] == ("network", "error", "eth0 and eth1 have the same address 10.0.0.2")
    assert found["node3",] == ("rdma", "warning", "the RDMA card 0000:5e:00.0 has no driver, so jobs cannot use it")
    words = "the RDMA cards 0000:5e:00.0 and 0000:5e:00.1 have no driver, so jobs cannot use them"
    assert found["node4",] == ("rdma", "warning", words)


def test_a_network_that_one_lacks_is_told() -> None:
    def joined(number: int) -> Change:
        entry = {"family": 4, "address": f"10.1.0.{number}", "prefix": 24, "scope": "global"}
        link = {"name": "ib0", "kind": "infiniband", "up": True, "carrier": True, "mtu": 4092, "addresses": [entry]}
        return lambda record: record["interfaces"].append(link)

    three = {name: joined(number) for number, name in enumerate(NODES[:3], start=1)}
    (found,) = registry.diagnose(seen(**three))
    assert (found.check, found.severity, found.hosts) == ("network", "warning", ("node4",))
    assert found.cause == "it has no address in 10.1.0.0/24 (ib0), in which node[1-3] have one"
    assert told(seen(node1=joined(1), node2=joined(2))) == []  # half of them may be meant


def test_a_node_in_another_rack_lacks_nothing() -> None:
    def moved(record: Record) -> None:
        record["interfaces"][0]["addresses"][0]["address"] = "10.0.9.4"
        record["routes"] += [
            {"family": 4, "destination": "10.0.0.0/16", "gateway": "10.0.9.254", "interface": "eth0", "metric": 0}
        ]

    assert not [one for one in registry.diagnose(seen(node4=moved)) if one.severity == "warning"]


def on_rails(record: Record, **changed: Any) -> None:
    """A node with a second network of the same speed that shares the messages."""
    end = record["hostname"][-1]
    first, second = record["interfaces"][0], f"10.5.0.{end}"
    address = {"family": 4, "address": second, "prefix": 24, "scope": "global"}
    record["interfaces"].append({**first, "name": "eth1", "mac": f"02:1{end}", "addresses": [address], **changed})
    own = first["addresses"][0]["address"]
    carriers = [
        {"cidr": "10.0.0.0/24", "interface": "eth0", "address": own},
        {"cidr": "10.5.0.0/24", "interface": "eth1", "address": second},
    ]
    record["fabric"] = {"cidrs": ["10.0.0.0/24"], "interface": "eth0", "address": own, "carriers": carriers}


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"carrier": False}, "eth1 is down"),
        ({"up": False}, "eth1 is down"),
        ({"addresses": []}, "eth1 has no longer the address 10.5.0.3"),
        ({"name": "eth9"}, "eth1 is gone"),
    ],
)
def test_a_rail_that_a_node_has_lost_is_named(changed: dict[str, Any], what: str) -> None:
    others = {name: on_rails for name in NODES if name != "node3"}
    view = seen(**others, node3=lambda record: on_rails(record, **changed))
    found = [one for one in registry.diagnose(view) if one.hosts == ("node3",) and one.check == "network"]
    assert f"{what}, the rail in 10.5.0.0/24 that carries messages to node[1-2,4]" in [one.cause for one in found]
    whole = seen(**dict.fromkeys(NODES, on_rails))
    assert not [one for one in registry.diagnose(whole) if "rail" in one.cause]


def connected(view: View, *failures: tuple[str, str, fabric.PairKind]) -> View:
    pairs = {(source, target): "ok" for source in NODES for target in NODES if source != target}
    kinds: dict[tuple[str, str], Any] = pairs | {(source, target): kind for source, target, kind in failures}
    results = tuple(
        fabric.PairResult("10.0.0.0/24", source, target, "" if kind == "ok" else "seen", kind)
        for (source, target), kind in kinds.items()
    )
    return dataclasses.replace(view, pairs=results)


def test_a_firewall_between_two_gets_one_line_for_both_ways() -> None:
    (found,) = registry.diagnose(connected(seen(), ("node1", "node3", "timeout"), ("node3", "node1", "timeout")))
    assert (found.check, found.hosts) == ("ports", ("node1", "node3"))
    assert found.cause == "connections between node1 and node3 in 10.0.0.0/24 time out"


def test_many_pairs_are_one_line() -> None:
    pairs = [("node1", "node2"), ("node2", "node3"), ("node3", "node4"), ("node4", "node1")]
    (found,) = registry.diagnose(connected(seen(), *((*pair, "timeout") for pair in pairs)))
    assert found.hosts == NODES
    assert found.cause.startswith("connections from node1 to node2, from node2 to node3, ")
    assert found.cause.endswith(" in 10.0.0.0/24 time out")


def test_what_fails_everywhere_is_one_line() -> None:
    pairs = [(source, target) for source in NODES for target in NODES if source != target]
    (found,) = registry.diagnose(connected(seen(), *((*pair, "refused") for pair in pairs)))
    assert (found.hosts, found.cause) == (NODES, "connections between them in 10.0.0.0/24 are refused")
    view = failing(seen(), *((*pair, "refused") for pair in pairs))
    reports = {name: dataclasses.replace(report, passed=0) for name, report in view.logins.items()}
    (found,) = registry.diagnose(dataclasses.replace(view, logins=reports))
    assert (found.check, found.hosts, found.cause) == ("ssh", NODES, "logins between them fail: ssh: it failed")


def test_a_firewall_on_one_node_is_that_node_s() -> None:
    failures = [(source, "node4", "refused") for source in NODES[:3]]
    (found,) = registry.diagnose(connected(seen(), *failures))  # type: ignore[arg-type]
    assert (found.check, found.hosts) == ("ports", ("node4",))
    assert found.cause == "connections from node[1-3] to it in 10.0.0.0/24 are refused"


def test_nodes_without_a_common_network_are_told_why() -> None:
    def change(record: Record) -> None:
        record["interfaces"][0].update(up=False, carrier=False)

    view = dataclasses.replace(seen(node4=change), pairs=())
    found = [one for one in registry.diagnose(view) if (one.check, one.severity) == ("network", "error")]
    assert [one.hosts for one in found] == [NODES]
    assert found[0].cause.startswith("no network is common to them (")


def test_the_rule_of_a_firewall_stands_beside_the_connections_that_it_stops() -> None:
    others = [name for name in NODES if name != "node2"]
    rule = "firewalld stops them there: zone public, reject"
    view = connected(seen(), *((other, "node2", "refused") for other in others))
    view = dataclasses.replace(view, firewalls={(other, "node2"): rule for other in others})
    (found,) = registry.diagnose(view)
    assert found.hosts == ("node2",)
    assert found.cause.endswith(f"are refused; on node2 {rule}")
    pairs = [(one, other) for one in NODES for other in NODES if one != other]
    view = connected(seen(), *((*pair, "timeout") for pair in pairs))
    view = dataclasses.replace(view, firewalls=dict.fromkeys(pairs, rule))
    (found,) = registry.diagnose(view)
    assert found.cause.endswith(f"time out; on node[1-4] {rule}")


def test_what_could_not_be_tried_is_a_warning() -> None:
    view = connected(seen(), *((other, "node2", "error") for other in NODES if other != "node2"))
    assert {(one.check, one.severity) for one in registry.diagnose(view)} == {("network", "warning")}


def test_a_rule_that_says_prohibited_is_a_firewall_and_no_missing_route() -> None:
    view = connected(seen(), *((other, "node2", "rejected") for other in NODES if other != "node2"))
    (found,) = registry.diagnose(view)
    assert (found.check, found.severity, found.hosts) == ("ports", "error", ("node2",))
    assert found.cause == "connections from node[1,3-4] to it in 10.0.0.0/24 are rejected (seen)"
    rule = "firewalld stops them there: zone public, reject"
    view = dataclasses.replace(view, firewalls={(other, "node2"): rule for other in NODES if other != "node2"})
    (found,) = registry.diagnose(view)
    assert found.hosts == ("node2",)
    assert found.cause.endswith(f"are rejected (seen); on node2 {rule}")
    assert "fabric_open_firewall" in found.cure


def test_a_node_without_a_route_is_named_alone_and_its_missing_answers_are_not_told_again() -> None:
    (found,) = registry.diagnose(connected(seen(), ("node4", "node1", "no_route"), ("node1", "node4", "timeout")))
    assert (found.check, found.severity, found.hosts) == ("ports", "error", ("node4",))
    assert found.cause == (
        "connections from node4 to node1 in 10.0.0.0/24 are stopped by the source's own kernel (seen)"
    )


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("ssh: connect to host 10.0.0.1 port 22: Invalid argument", "look there at 'ip route get'"),  # a blackhole
        ("ssh: connect to host 10.0.0.1 port 22: Connection timed out", "look for a firewall between them"),
    ],
)
def test_a_login_that_the_source_s_own_kernel_stops_has_the_cure_of_routes(said: str, cure: str) -> None:
    view = seen()
    one = login_probe.LoginFailure("node1", login_probe.kind_of(said), said)
    logins = {**view.logins, "node4": dataclasses.replace(view.logins["node4"], failures=(one,))}
    (found,) = registry.diagnose(dataclasses.replace(view, logins=logins))
    assert (found.check, found.hosts) == ("ssh", ("node4", "node1"))
    assert found.cure.startswith(cure)


@pytest.mark.parametrize("kind", ["rejected", "cut"])
def test_one_way_that_fails_is_told_with_its_direction(kind: fabric.PairKind) -> None:
    (found,) = registry.diagnose(connected(seen(), ("node4", "node1", kind)))
    assert (found.check, found.severity, found.hosts) == ("ports", "error", ("node4", "node1"))
    assert found.cause.startswith("connections from node4 to node1 in 10.0.0.0/24 ")


LOW, MIDDLE, HIGH = 33000, 45000, 57000


def on_ports(closing: tuple[str, ...], sources: tuple[str, ...] = NODES, port: int = HIGH) -> View:
    """Return a view in which these targets close a port to some sources; each source has tried two of the three."""
    by_turns = dict(zip(NODES, [(LOW, HIGH), (MIDDLE, HIGH), (LOW, MIDDLE), (HIGH, LOW)], strict=True))
    view, pairs = connected(seen()), []
    for one in view.pairs:
        is_closed = one.target in closing and one.source in sources and port in by_turns[one.source]
        closed = (port,) if is_closed else ()
        passing = tuple(other for other in by_turns[one.source] if other not in closed)
        pairs.append(one._replace(kind="timeout" if is_closed else "ok", closed=closed, open=passing))
    return dataclasses.replace(view, pairs=tuple(pairs))


def test_a_node_that_closes_a_part_of_its_ports_is_named_by_those_who_tried_that_part() -> None:
    assert registry.diagnose(on_ports(())) == ()
    (found,) = registry.diagnose(on_ports(("node3",)))
    assert (found.check, found.severity, found.hosts) == ("ports", "error", ("node3",))
    assert found.cause == (
        "connections from node[1-2,4] to it in 10.0.0.0/24 time out on port 57000, and come through on ports 33000, "
        "45000"
    )
    (found,) = registry.diagnose(on_ports(NODES))
    assert found.hosts == NODES
    assert found.cause.startswith("connections between them in 10.0.0.0/24 time out on port 57000, and come through ")


def test_a_port_that_passes_for_others_is_not_closed() -> None:
    (found,) = registry.diagnose(on_ports(("node3",), sources=("node2",)))
    assert (found.hosts, found.cause) == (
        ("node2", "node3"),
        "connections from node2 to node3 in 10.0.0.0/24 time out",
    )


@pytest.mark.parametrize(("limit", "severity"), [(3, "error"), (4, "warning"), (1024, "")])
def test_a_table_of_neighbours_is_held_against_the_nodes_of_a_network(limit: int, severity: str) -> None:
    reading = HardwareReading("node", "", "IPv4 neighbours", limit)
    looks = {name: HardwareLooks(now=Hardware(schema_version=1, time=1.0, readings=(reading,))) for name in NODES[:2]}
    found = [
        one
        for one in registry.diagnose(dataclasses.replace(seen(), hardware=looks))
        if "gc_thresh3" in one.cause and one.check == "network"
    ]
    assert [(one.severity, one.hosts) for one in found] == ([(severity, ("node1", "node2"))] if severity else [])
    assert all(f"keeps {limit} neighbours (gc_thresh3), and 4 nodes are in 10.0.0.0/24" in one.cause for one in found)


@pytest.mark.parametrize(("ports", "severity"), [(10, "error"), (1000, "warning"), (28232, "")])
def test_a_node_with_few_ports_for_its_connections_is_named(ports: int, severity: str) -> None:
    reading = HardwareReading("node", "", "local ports", ports)
    looks = {"node2": HardwareLooks(now=Hardware(schema_version=1, time=1.0, readings=(reading,)))}
    found = registry.diagnose(dataclasses.replace(seen(), hardware=looks))
    told = [one for one in found if "ip_local_port_range" in one.cause]
    assert [(one.check, one.severity, one.hosts) for one in told] == (
        [("network", severity, ("node2",))] if severity else []
    )
    assert all(one.cause.startswith(f"the kernel has {ports} ports for connections") for one in told)


def test_two_rules_are_told_and_more_are_counted() -> None:
    pairs = [("node1", "node3"), ("node3", "node1")]
    view = connected(seen(), *((*pair, "timeout") for pair in pairs))
    view = dataclasses.replace(view, firewalls={pairs[0]: "a", pairs[1]: "b"})
    (found,) = registry.diagnose(view)
    assert found.cause.endswith("; on node3 a; on node1 b")


# --- machine ---


GIB = 1 << 30


def damaged(record: Record) -> None:
    record["artifacts"][0].update(ok=False, problem="1 of 9 files are missing or changed, first bin/mpirun")


def foreign_mpirun(record: Record) -> None:
    own = "/usr/local/openmpi/bin/mpirun"
    found = {"path": "/opt/foreign/bin/mpirun", "real": "/opt/foreign/bin/mpirun"}
    record["launch"] = [{"name": "mpirun", **found, "own": own, "own_real": f"{own}-5", "own_state": "ok"}]


def leftover(record: Record) -> None:
    entry = {"pid": 7, "user": "user", "command": "python train.py", "age_s": 7300, "why": "its launcher is gone"}
    record["leftovers"] = [entry]


def limited(**limits: int) -> Change:
    return lambda record: record["limits"].update({key: {"soft": soft, "hard": None} for key, soft in limits.items()})


def test_a_pattern_of_a_certificate_authority_covers_the_node() -> None:
    def change(*names: str) -> Change:
        return lambda record: record.update(known_hosts={"has_mesh": True, "own_names": list(names)})

    assert told(seen(node3=change("10.9.9.*", "node*"))) == []
    assert told(seen(node3=change("[node*]:*"))) == []
    assert [one[0] for one in told(seen(node3=change("login*")))] == ["host_key"]


def test_little_memory_may_be_locked_where_rdma_is_used() -> None:
    def change(record: Record) -> None:
        rdma_port()(record)
        limited(memlock=64 << 10)(record)

    assert told(seen(node3=limited(memlock=64 << 10))) == []
    (found,) = registry.diagnose(seen(node3=change))
    assert (found.check, found.cause.partition(",")[0]) == ("memlock", "a session may lock 64 KiB of memory")


@pytest.mark.parametrize(
    ("offset_s", "uncertainty_s", "severity"),
    [(1.9, 0.01, None), (2.5, 0.01, "warning"), (2.5, 0.8, None), (-7.0, 0.1, "warning"), (90.0, 0.1, "error")],
)
def test_a_clock_is_wrong_only_beyond_what_the_round_trip_may_hide(
    offset_s: float, uncertainty_s: float, severity: str | None
) -> None:
    found = dict.fromkeys(NODES, login_probe.Clock(0.3, 0.01)) | {
        "node3": login_probe.Clock(0.3 + offset_s, uncertainty_s)
    }
    assert [(one.hosts, one.severity) for one in machine.clocks(found)] == (
        [(("node3",), severity)] if severity else []
    )


@pytest.mark.parametrize(
    ("offsets", "named"),
    [
        ({"node1": 0.1, "node2": 120.0}, [("node2",)]),
        ({"node1": 120.0, "node2": 0.1}, [("node1",)]),
        ({"node1": -3600.0, "node2": -3480.0}, [("node1", "node2")]),
        ({"node1": 3600.0, "node2": 3600.1}, []),
        ({"node1": 0.0, "node2": 0.1, "node3": 50.0, "node4": -50.0}, [("node3",), ("node4",)]),
        ({"node1": 90.0, "node2": 90.1, "node3": 0.1}, [("node1", "node2", "node3")]),
        ({"node1": 90.0, "node2": 90.1, "node3": 90.2, "node4": 0.1}, [("node1", "node2", "node3", "node4")]),
        ({"node1": 90.0, "node2": 90.1, "node3": 90.2, "node4": 200.0}, [("node4",)]),
    ],
    ids=["2nd", "1st", "neither", "this machine is wrong", "two lie", "as many lie", "most lie", "odd one"],
)
def test_lying_clocks_blame_no_node_that_agrees_with_this_machine(
    offsets: dict[str, float], named: list[tuple[str, ...]]
) -> None:
    found = machine.clocks({host: login_probe.Clock(offset, 0.01) for host, offset in offsets.items()})
    assert [one.hosts for one in found] == named


# --- names ---


def resolving(name: str, *addresses: str) -> Change:
    def change(record: Record) -> None:
        entry = next(entry for entry in record["names"] if entry["name"] == name)
        entry.update(addresses=list(addresses), problem="" if addresses else "Name or service not known")

    return change


@pytest.mark.parametrize(
    ("kind", "severity", "words"),
    [
        ("rejected", "error", "at which node4 does not answer"),
        ("timeout", "error", "at which node4 does not answer"),
        ("wrong_node", "error", "at which node4 does not answer"),
        ("ok", "warning", "which is not an address of node4"),
        ("wrong_source", "warning", "which is not an address of node4"),
        ("error", "warning", "which is not an address of node4"),
        (None, "warning", "which is not an address of node4"),
    ],
)
def test_a_name_that_leads_to_a_dead_address_is_an_error(
    kind: fabric.PairKind | None, severity: str, words: str
) -> None:
    view = seen(node2=resolving("node4", "10.9.9.9"))
    assert logins.elsewhere(view) == [("node2", "node4", "10.9.9.9")]
    tried = () if kind is None else (fabric.PairResult(fabric.NAMES, "node2", "node4", "", kind),)
    view = dataclasses.replace(view, pairs=(*view.pairs, *tried))
    (found,) = registry.diagnose(view)
    assert (found.check, found.severity, found.hosts) == ("names", severity, ("node2",))
    assert found.cause == f"the name node4 leads it to 10.9.9.9, {words}"
    assert list(logins.dead(view)) == ([found] if severity == "error" else [])


def test_an_own_name_that_leads_elsewhere_is_an_error() -> None:
    (found,) = registry.diagnose(seen(node2=resolving("node2", "10.9.9.9")))
    assert (found.check, found.severity, found.hosts) == ("names", "error", ("node2",))
    assert found.cause == "its own name leads to 10.9.9.9, which is not an address of its own"


def test_two_names_of_one_machine() -> None:
    def change(record: Record) -> None:
        record.update({key: record_of("node2")[key] for key in ("hostname", "interfaces", "ssh", "names")})

    found = registry.diagnose(seen(node3=change))
    assert ("node2", "node3") in {one.hosts for one in found if "one and the same machine" in one.cause}


def test_machines_that_call_themselves_the_same() -> None:
    def calling(name: str) -> Callable[[Record], None]:
        return lambda record: record.update(hostname=name, names=[])

    (found,) = registry.diagnose(seen(node2=calling("ubuntu"), node3=calling("Ubuntu")))
    assert (found.check, found.hosts) == ("names", ("node2", "node3"))
    assert found.cause.startswith("all call themselves ubuntu")


def test_a_node_that_takes_the_name_of_another_is_named_alone() -> None:
    taken = record_of("node2")["hostname"]
    (found,) = registry.diagnose(seen(node3=lambda record: record.update(hostname=taken, names=[])))
    assert (found.check, found.hosts) == ("names", ("node3",))
    assert found.cause == f"it calls itself {taken} as node2 does, and mpirun takes them for one node"


def test_a_refused_login_between_two_names_both() -> None:
    assert told(failing(seen(), ("node1", "node2", "refused"))) == [("ssh", "error", ("node1", "node2"))]


# --- ssh ---


def test_nodes_without_a_key_are_known_not_to_log_in() -> None:
    said = {"mesh": False, "passed": 0, "failures": [], "untried": 3, "stopped_early": False, "keyless": True}
    view = dataclasses.replace(seen(), logins=dict.fromkeys(NODES, login_probe.read(said, None)))
    assert told(view) == [("ssh", "error", NODES)]
    assert registry.notes(view) == ("Logins from node[1-4]: not tried, since they have no key to log in with.",)


def test_a_changed_key_is_the_one_s_who_shows_it_or_the_one_s_who_remembers_it_wrongly() -> None:
    shown = failing(seen(), *((source, "node4", "key_changed") for source in NODES[:3]))
    (found,) = registry.diagnose(shown)
    assert (found.check, found.hosts) == ("host_key", ("node4",))
    assert found.cause == "it shows a host key that is not the one that node[1-3] know"
    (found,) = registry.diagnose(failing(seen(), ("node2", "node3", "key_changed")))
    assert (found.hosts, found.cause) == (
        ("node2",),
        "its known_hosts has another host key for node3 than is shown there",
    )


def test_a_setting_that_wins_over_the_mesh_is_named_on_its_nodes_also_where_the_trial_passes() -> None:
    said = {"mesh": True, "passed": 1, "failures": [], "untried": 0, "stopped_early": False, "keyless": False}
    one = {"target": "node1", "value": "force", "where": "/root/.ssh/config line 3"}
    wins = [{**one, "setting": "requesttty"}, {**one, "setting": "remotecommand", "value": "tmux"}]
    report = login_probe.read({**said, "overruled": wins}, None, ["node1"])
    view = seen()
    view = dataclasses.replace(view, logins={**view.logins, "node2": report, "node3": report})
    assert told(view) == [("ssh", "error", ("node2", "node3")), ("ssh", "warning", ("node2", "node3"))]
    assert "RequestTTY force in /root/.ssh/config line 3 wins" in registry.diagnose(view)[1].cause


def test_a_login_without_an_end_is_its_node_s() -> None:
    (found,) = registry.diagnose(failing(seen(), ("node2", "node3", "settings")))
    assert (found.hosts, found.cure) == (
        ("node2",),
        "limit the setting to other machines with a Host line, or remove it",
    )


def test_settings_of_the_only_node_that_logged_in_are_its_own() -> None:
    """A validation has the launch node alone log in; its proxy was blamed on all nodes."""
    view = failing(seen(), *(("node1", target, "settings") for target in NODES[1:]))
    view = dataclasses.replace(view, logins={"node1": dataclasses.replace(view.logins["node1"], passed=0)})
    (found,) = registry.diagnose(view)
    assert (found.hosts, found.cause.startswith("logins from it to node[2-4] fail")) == (("node1",), True)


def test_logins_to_a_node_that_is_down_say_nothing_new() -> None:
    view = failing(seen(), *((source, "node4", "timeout") for source in NODES[:3]))
    down = ProbeFailure("node4", "unreachable", "node4 (10.0.0.4 port 22) does not answer; see that it is up.")
    nodes = {name: node for name, node in view.nodes.items() if name != "node4"}
    reports = {name: one for name, one in view.logins.items() if name != "node4"}
    view = dataclasses.replace(view, nodes=nodes, logins=reports, failures={"node4": down})
    (found,) = registry.diagnose(view)
    assert (found.check, found.hosts) == ("reachable", ("node4",))
    assert (found.cause, found.cure) == ("node4 (10.0.0.4 port 22) does not answer", "see that it is up")


def test_a_sample_of_the_logins_names_a_node_and_says_that_it_is_a_sample() -> None:
    view = seen()
    near = {name: (NODES[(at + 1) % 4], NODES[(at + 2) % 4]) for at, name in enumerate(NODES)}
    reports = {name: dataclasses.replace(one, passed=2, targets=near[name]) for name, one in view.logins.items()}
    others = tuple(Host(f"node{number}", f"10.0.0.{number}") for number in range(5, 9))  # more hosts than were tried
    view = dataclasses.replace(view, logins=reports, hosts=(*view.hosts, *others))
    view = failing(view, *((name, "node4", "refused") for name in NODES[1:3]))
    (found,) = registry.diagnose(view)
    assert found.hosts == ("node4",)
    assert registry.notes(view) == (
        "Logins between nodes: each of 4 nodes was asked to try 2 others; a fault of one pair alone may be missed.",
    )


# --- evidence ---


def test_one_that_fails_with_most_is_to_blame_and_a_pair_blames_nobody() -> None:
    everybody = [("node1", "node4"), ("node2", "node4"), ("node3", "node4")]
    assert blame(everybody, 4) == ((Blame("node4", "target", ("node1", "node2", "node3")),), ())
    turned = [(target, source) for source, target in everybody]
    assert blame(turned, 4) == ((Blame("node4", "source", ("node1", "node2", "node3")),), ())
    assert blame([("node1", "node2"), ("node2", "node1")], 4) == ((), (("node1", "node2"), ("node2", "node1")))
    assert blame([*everybody, ("node2", "node3")], 4)[1] == (("node2", "node3"),)
    assert blame([("node1", "node2"), ("node2", "node1")], 2)[0] == ()


def test_of_a_sample_the_node_is_named_at_which_most_of_what_was_tried_fails() -> None:
    names = [f"node{number}" for number in range(1, 501)]
    sample = fabric.pairs(names, seed=3)
    closed = [pair for pair in sample if pair[1] == "node7"]
    assert 1 < len(closed) < 30
    (found,), rest = blame(closed, len(names), sample)
    assert (found.host, found.role, len(found.others), rest) == ("node7", "target", len(closed), ())
    assert blame([pair for pair in sample if pair[0] == "node7"], len(names), sample)[0][0].role == "source"
    assert blame(closed[:1], len(names), sample) == ((), tuple(closed[:1]))


@pytest.mark.parametrize(
    ("change", "check", "severity", "words"),
    [
        (
            lambda record: record["interfaces"][0].update(mtu=9000),
            "network",
            "warning",
            "the MTU of the interface in 10",
        ),
        (
            lambda record: record["interfaces"][0].update(speed_mbps=1000),
            "network",
            "warning",
            "the speed of the interface in 10.0.0.0/24 is 1000 Mb/s, and 10000 Mb/s on most nodes",
        ),
        (damaged, "artifacts", "error", "openmpi is not as it was installed: 1 of 9 files"),
        (
            lambda record: record["environment"].update(PATH="/usr/bin:/bin"),
            "session",
            "error",
            "PATH of a session without a terminal lacks /usr/local/openmpi/bin",
        ),
        (
            leftover,
            "leftovers",
            "error",
            "a rank is left over from jobs whose launcher is gone (7 of user, 2 h old: py",
        ),
        (
            limited(nofile=64),
            "open files",
            "warning",
            "a session may open 64 files, and a job of 8 ranks needs about 72",
        ),
        (lambda record: record.update(shm_bytes=64 << 20), "shared memory", "warning", f"{launchable.SHM} has 64 MiB"),
        (
            lambda record: record["disk"][0].update(free_bytes=GIB // 2),
            "disk",
            "warning",
            "less than 1 GiB is free in /usr/local",
        ),
        (lambda record: record["disk"][0].update(free_bytes=0), "disk", "error", "less than 100 MiB is free in /usr/"),
        (
            lambda record: record.update(swap_used_bytes=9 * GIB, memory_bytes=64 * GIB),
            "swap",
            "warning",
            "more than a tenth of its memory is in swap",
        ),
        (
            lambda record: record["artifacts"][0].update(linked=False),
            "artifacts",
            "error",
            "/usr/local/openmpi is a folder, and clusterctl installs a link there",
        ),
        (
            lambda record: record.update(cpu_quota={"group": "/g", "cores": 0.5}),
            "cores",
            "warning",
            "it has 2 slots, and its control group a CPU quota of 0.5 cores",
        ),
        (
            foreign_mpirun,
            "session",
            "error",
            "mpirun of a session is /opt/foreign/bin/mpirun, and not the installed /usr/local/openmpi/bin/mpirun",
        ),
        (
            lambda record: record.update(known_hosts={"has_mesh": True, "own_names": ["another"]}),
            "host_key",
            "warning",
            "its known_hosts has no line of the node itself",
        ),
        (lambda record: record.update(threads=1, cores=1), "cores", "warning", "it has 2 slots and 1 hardware threads"),
        (resolving("node3", "127.0.1.1"), "names", "error", "its own name leads to 127.0.1.1"),
        (resolving("node3"), "names", "error", "it cannot resolve its own name, node3 (Name or service not known)"),
        (resolving("node2"), "names", "error", "it cannot resolve the name of node2"),
        (
            resolving("node2", "10.0.0.4"),
            "names",
            "error",
            "the names node2 and node4 lead it to one address, 10.0.0.4",
        ),
        (resolving("node2", "127.0.0.1"), "names", "error", "the name node2 leads it to 127.0.0.1, which is itself"),
        (resolving("node2", "192.0.2.7"), "names", "warning", "the name node2 leads it to 192.0.2.7, which is not "),
    ],
)
def test_a_node_is_named_with_what_is_wrong(change: Change, check: str, severity: str, words: str) -> None:
    (found,) = registry.diagnose(seen(node3=change))
    assert (found.check, found.severity, found.hosts) == (check, severity, ("node3",))
    assert found.cause.startswith(words)
    assert found.cure
