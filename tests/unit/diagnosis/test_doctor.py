"""What doctor makes of what was seen: each symptom with the right nodes, and silence on a healthy cluster."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from clusterctl.diagnosis import doctor
from clusterctl.diagnosis.rules import machine
from clusterctl.diagnosis.rules import registry as rules
from clusterctl.diagnosis.rules.evidence import Blame, View, blame
from clusterctl.model import fabric
from clusterctl.model.facts import NodeFacts, ProbeFailure
from clusterctl.model.findings import Diagnosis, Finding
from clusterctl.model.hosts import Host
from clusterctl.remote import login_probe
from clusterctl.report import doctor_table as report

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.remote.login_probe import LoginKind

    Record = dict[str, Any]
    Change = Callable[[Record], object]

CAPTURED = Path(__file__).resolve().parents[2] / "data" / "stack" / "node.json"
NODES = ("node1", "node2", "node3", "node4")
GIB = 1 << 30


def address(name: str) -> str:
    return f"10.0.0.{NODES.index(name) + 1}"


def record_of(name: str) -> Record:
    """Make a node of its own of the captured record: names, keys and addresses differ, nothing else does."""
    record: Record = json.loads(CAPTURED.read_text(encoding="utf-8"))
    entry = {"family": 4, "address": address(name), "prefix": 24, "scope": "global"}
    eth0 = {"name": "eth0", "kind": "physical", "mac": f"02:{name[-2:]}", "mtu": 1500, "up": True, "carrier": True}
    record |= {
        "hostname": name,
        "names": [{"name": other, "addresses": [address(other)]} for other in (name, *set(NODES) - {name})],
        "interfaces": [{**eth0, "speed_mbps": 10000, "addresses": [entry]}],
        "routes": [
            {"family": 4, "destination": "10.0.0.0/24", "gateway": None, "interface": "eth0", "metric": 0},
        ],
        "ssh": {"host_keys": [f"ssh-ed25519 {name}"], "port": 22},
    }
    return record


def seen(**changes: Change) -> View:
    nodes = {}
    for name in NODES:
        record = record_of(name)
        changes.get(name, lambda _record: None)(record)
        nodes[name] = NodeFacts.model_validate(record)
    return View(
        hosts=tuple(Host(name, address(name)) for name in NODES),
        nodes=nodes,
        logins={name: login_probe.LoginReport(mesh=True, passed=3) for name in NODES},
        slots=dict.fromkeys(NODES, 2),
        candidates=fabric.candidates(nodes),
    )


def failing(view: View, *failures: tuple[str, str, LoginKind]) -> View:
    reports = dict(view.logins)
    for source, target, kind in failures:
        one = login_probe.LoginFailure(target, kind, "ssh: it failed")
        reports[source] = dataclasses.replace(reports[source], failures=(*reports[source].failures, one))
    return dataclasses.replace(view, logins=reports)


def told(view: View) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.check, one.severity, one.hosts) for one in rules.diagnose(view)]


def test_a_healthy_cluster_has_nothing() -> None:
    assert rules.diagnose(seen()) == ()
    assert rules.notes(seen()) == ()


def resolving(name: str, *addresses: str) -> Change:
    def change(record: Record) -> None:
        entry = next(entry for entry in record["names"] if entry["name"] == name)
        entry.update(addresses=list(addresses), problem="" if addresses else "Name or service not known")

    return change


def rdma_port(**values: Any) -> Change:
    port = {"number": 1, "state": "ACTIVE", "link_layer": "InfiniBand", "rate_gbps": 200.0, **values}

    def change(record: Record) -> None:
        record["rdma"] = [{"name": "mlx5_0", "ports": [port]}]
        record["limits"]["memlock"] = {"soft": None, "hard": None}

    return change


def without_everything(record: Record) -> None:
    for entry in record["artifacts"]:
        entry.update(target="", version="", key="", ok=False, problem=f"{entry['link']} does not exist")
    record["libraries"] = []


def damaged(record: Record) -> None:
    record["artifacts"][0].update(ok=False, problem="1 of 9 files are missing or changed, first bin/mpirun")


def leftover(record: Record) -> None:
    entry = {"pid": 7, "user": "anna", "command": "python train.py", "age_s": 7300, "why": "its launcher is gone"}
    record["leftovers"] = [entry]


def gpus(count: int, name: str = "H100") -> Change:
    return lambda record: record.update(
        gpus=[{"bus": f"0{number}", "name": name, "driver": "nvidia"} for number in range(count)]
    )


def limited(**limits: int) -> Change:
    return lambda record: record["limits"].update({key: {"soft": soft, "hard": None} for key, soft in limits.items()})


@pytest.mark.parametrize(
    ("change", "check", "severity", "words"),
    [
        (resolving("node3", "127.0.1.1"), "names", "error", "its own name leads to 127.0.1.1"),
        (resolving("node3"), "names", "error", "its own name means nothing to it (Name or service not known)"),
        (resolving("node2"), "names", "error", "it cannot resolve the name of node2"),
        (
            resolving("node2", "10.0.0.4"),
            "names",
            "error",
            "the names node2 and node4 lead it to one address, 10.0.0.4",
        ),
        (resolving("node2", "127.0.0.1"), "names", "error", "the name node2 leads it to 127.0.0.1, which is itself"),
        (resolving("node2", "192.0.2.7"), "names", "warning", "the name node2 leads it to 192.0.2.7, which is no "),
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
            "a rank is left over from jobs whose launcher is gone (7 of anna, 2 h old: py",
        ),
        (
            limited(nofile=64),
            "open files",
            "warning",
            "a session may open 64 files, and a job of 8 ranks needs about 72",
        ),
        (lambda record: record.update(shm_bytes=64 << 20), "shared memory", "warning", f"{machine.SHM} has 64 MiB"),
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
        (lambda record: record.update(threads=1, cores=1), "cores", "warning", "it has 2 slots and 1 hardware threads"),
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
    ],
)
def test_a_node_is_named_with_what_is_wrong(change: Change, check: str, severity: str, words: str) -> None:
    (found,) = rules.diagnose(seen(node3=change))
    assert (found.check, found.severity, found.hosts) == (check, severity, ("node3",))
    assert found.cause.startswith(words)
    assert found.cure


def test_rdma_ports_are_compared() -> None:
    alike = dict.fromkeys(NODES, rdma_port())
    assert told(seen(**alike)) == []
    assert told(seen(**dict.fromkeys(NODES, rdma_port(state="DOWN")))) == []  # one that nobody uses
    assert told(seen(**alike | {"node3": rdma_port(state="DOWN")})) == [("rdma", "error", ("node3",))]
    assert told(seen(**alike | {"node3": rdma_port(rate_gbps=100.0)})) == [("rdma", "warning", ("node3",))]


def test_a_roce_port_without_an_ipv4_gid_of_version_2_is_named() -> None:
    mapped = "0000:0000:0000:0000:0000:ffff:0a00:0001"
    right = rdma_port(link_layer="Ethernet", gids=[{"index": 3, "gid": mapped, "type": "RoCE v2"}])
    wrong = rdma_port(link_layer="Ethernet", gids=[{"index": 2, "gid": mapped, "type": "IB/RoCE v1"}])
    assert told(seen(**dict.fromkeys(NODES, right))) == []
    assert told(seen(**dict.fromkeys(NODES, right) | {"node2": wrong})) == [("rdma", "error", ("node2",))]


def test_little_memory_may_be_locked_where_rdma_is_used() -> None:
    def change(record: Record) -> None:
        rdma_port()(record)
        limited(memlock=64 << 10)(record)

    assert told(seen(node3=limited(memlock=64 << 10))) == []
    (found,) = rules.diagnose(seen(node3=change))
    assert (found.check, found.cause.partition(",")[0]) == ("memlock", "a session may lock 64 KiB of memory")


def test_gpus_are_compared_among_those_that_have_some() -> None:
    def found(**counts: Change) -> list[tuple[str, str, tuple[str, ...]]]:
        return [one for one in told(seen(**counts)) if one[0] == "gpus"]

    assert found(node1=gpus(8), node2=gpus(8), node3=gpus(8)) == []
    assert found(node1=gpus(8), node2=gpus(8), node3=gpus(7)) == [("gpus", "error", ("node3",))]
    assert found(node1=gpus(8), node2=gpus(8), node3=gpus(8, "A100")) == [("gpus", "warning", ("node3",))]


def test_an_address_that_several_have_is_named_until_jobs_are_told_another() -> None:
    entry = {"family": 4, "address": "172.17.0.1", "prefix": 16, "scope": "global"}
    docker = {"name": "docker0", "kind": "bridge", "up": True, "carrier": True, "mtu": 1500, "addresses": [entry]}

    def change(record: Record) -> None:
        record["interfaces"].append(docker)

    def told_to(record: Record) -> None:
        change(record)
        record["fabric"] = {"cidrs": ["10.0.0.0/24"], "interface": "eth0", "address": "10.0.0.1"}

    (found,) = rules.diagnose(seen(**dict.fromkeys(NODES, change)))
    assert (found.severity, found.hosts) == ("error", NODES)
    assert found.cause.startswith("docker0 has the address 172.17.0.1 on each of them")
    fine = seen(**dict.fromkeys(NODES, told_to))
    assert rules.diagnose(fine) == ()
    assert "172.17.0.1 on each of node[1-4]; Open MPI and NCCL are told to use 10.0.0.0/24" in rules.notes(fine)[0]


def test_a_network_that_one_lacks_is_told() -> None:
    def joined(number: int) -> Change:
        entry = {"family": 4, "address": f"10.1.0.{number}", "prefix": 24, "scope": "global"}
        link = {"name": "ib0", "kind": "infiniband", "up": True, "carrier": True, "mtu": 4092, "addresses": [entry]}
        return lambda record: record["interfaces"].append(link)

    three = {name: joined(number) for number, name in enumerate(NODES[:3], start=1)}
    (found,) = rules.diagnose(seen(**three))
    assert (found.check, found.severity, found.hosts) == ("network", "warning", ("node4",))
    assert found.cause == "it has no address in 10.1.0.0/24 (ib0), in which node[1-3] have one"
    assert told(seen(node1=joined(1), node2=joined(2))) == []  # half of them may be meant


def test_a_node_in_another_rack_lacks_nothing() -> None:
    def moved(record: Record) -> None:
        record["interfaces"][0]["addresses"][0]["address"] = "10.0.9.4"
        record["routes"] += [
            {"family": 4, "destination": "10.0.0.0/16", "gateway": "10.0.9.254", "interface": "eth0", "metric": 0}
        ]

    assert not [one for one in rules.diagnose(seen(node4=moved)) if one.severity == "warning"]


def test_two_names_of_one_machine() -> None:
    def change(record: Record) -> None:
        record.update({key: record_of("node2")[key] for key in ("hostname", "interfaces", "ssh", "names")})

    found = rules.diagnose(seen(node3=change))
    assert ("node2", "node3") in {one.hosts for one in found if "one and the same machine" in one.cause}


def test_machines_that_call_themselves_the_same() -> None:
    def change(record: Record) -> None:
        record.update(hostname="ubuntu", names=[])

    (found,) = rules.diagnose(seen(node2=change, node3=change))
    assert (found.check, found.hosts) == ("names", ("node2", "node3"))
    assert found.cause.startswith("all call themselves ubuntu")


def test_nodes_that_were_never_provisioned_get_a_few_lines() -> None:
    view = seen(**dict.fromkeys(NODES, without_everything))
    reports = {
        name: login_probe.LoginReport(failures=(login_probe.LoginFailure("x", "refused", ""),) * 2, stopped_early=True)
        for name in NODES
    }
    view = dataclasses.replace(view, logins=reports)
    assert told(view) == [("ssh", "error", NODES)]
    assert rules.notes(view) == (
        "Never provisioned: node[1-4]; of the cluster's software there was nothing to look at.",
        "Logins from node[1-4]: two were tried and refused, and no more.",
    )


def test_nodes_without_a_key_are_known_not_to_log_in() -> None:
    said = {"mesh": False, "passed": 0, "failures": [], "untried": 3, "stopped_early": False, "keyless": True}
    view = dataclasses.replace(seen(), logins=dict.fromkeys(NODES, login_probe.read(said, None)))
    assert told(view) == [("ssh", "error", NODES)]
    assert rules.notes(view) == ("Logins from node[1-4]: none was tried, for there is no key to log in with.",)


# --- between nodes ----------------------------------------------------------------------------------------------------


def test_one_that_fails_with_most_is_to_blame_and_a_pair_blames_nobody() -> None:
    everybody = [("node1", "node4"), ("node2", "node4"), ("node3", "node4")]
    assert blame(everybody, 4) == ((Blame("node4", "target", ("node1", "node2", "node3")),), ())
    turned = [(target, source) for source, target in everybody]
    assert blame(turned, 4) == ((Blame("node4", "source", ("node1", "node2", "node3")),), ())
    assert blame([("node1", "node2"), ("node2", "node1")], 4) == ((), (("node1", "node2"), ("node2", "node1")))
    assert blame([*everybody, ("node2", "node3")], 4)[1] == (("node2", "node3"),)
    assert blame([("node1", "node2"), ("node2", "node1")], 2)[0] == ()


def test_a_changed_key_is_the_one_s_who_shows_it_or_the_one_s_who_remembers_it_wrongly() -> None:
    shown = failing(seen(), *((source, "node4", "key_changed") for source in NODES[:3]))
    (found,) = rules.diagnose(shown)
    assert (found.check, found.hosts) == ("host_key", ("node4",))
    assert found.cause == "it shows a host key that is not the one that node[1-3] know"
    (found,) = rules.diagnose(failing(seen(), ("node2", "node3", "key_changed")))
    assert (found.hosts, found.cause) == (
        ("node2",),
        "its known_hosts has another host key for node3 than is shown there",
    )


def test_logins_to_a_node_that_is_down_say_nothing_new() -> None:
    view = failing(seen(), *((source, "node4", "timeout") for source in NODES[:3]))
    down = ProbeFailure("node4", "unreachable", "node4 (10.0.0.4 port 22) does not answer; see that it is up.")
    nodes = {name: node for name, node in view.nodes.items() if name != "node4"}
    reports = {name: one for name, one in view.logins.items() if name != "node4"}
    view = dataclasses.replace(view, nodes=nodes, logins=reports, failures={"node4": down})
    (found,) = rules.diagnose(view)
    assert (found.check, found.hosts) == ("reachable", ("node4",))
    assert (found.cause, found.cure) == ("node4 (10.0.0.4 port 22) does not answer", "see that it is up")


def test_a_refused_login_between_two_names_both() -> None:
    assert told(failing(seen(), ("node1", "node2", "refused"))) == [("ssh", "error", ("node1", "node2"))]


def connected(view: View, *failures: tuple[str, str, fabric.PairKind]) -> View:
    pairs = {(source, target): "ok" for source in NODES for target in NODES if source != target}
    kinds: dict[tuple[str, str], Any] = pairs | {(source, target): kind for source, target, kind in failures}
    results = tuple(
        fabric.PairResult("10.0.0.0/24", source, target, "" if kind == "ok" else "seen", kind)
        for (source, target), kind in kinds.items()
    )
    return dataclasses.replace(view, pairs=results)


def test_a_firewall_between_two_gets_one_line_for_both_ways() -> None:
    (found,) = rules.diagnose(connected(seen(), ("node1", "node3", "timeout"), ("node3", "node1", "timeout")))
    assert (found.check, found.hosts) == ("ports", ("node1", "node3"))
    assert found.cause == "connections between node1 and node3 in 10.0.0.0/24 time out"


def test_many_pairs_are_one_line() -> None:
    pairs = [("node1", "node2"), ("node2", "node3"), ("node3", "node4"), ("node4", "node1")]
    (found,) = rules.diagnose(connected(seen(), *((*pair, "timeout") for pair in pairs)))
    assert found.hosts == NODES
    assert found.cause.startswith("connections in 10.0.0.0/24 time out: from node1 to node2, from node2 to node3, ")


def test_what_fails_everywhere_is_one_line() -> None:
    pairs = [(source, target) for source in NODES for target in NODES if source != target]
    (found,) = rules.diagnose(connected(seen(), *((*pair, "refused") for pair in pairs)))
    assert (found.hosts, found.cause) == (NODES, "connections between them in 10.0.0.0/24 are refused")
    view = failing(seen(), *((*pair, "refused") for pair in pairs))
    reports = {name: dataclasses.replace(report, passed=0) for name, report in view.logins.items()}
    (found,) = rules.diagnose(dataclasses.replace(view, logins=reports))
    assert (found.check, found.hosts, found.cause) == ("ssh", NODES, "logins between them fail: ssh: it failed")


def test_a_firewall_on_one_node_is_that_node_s() -> None:
    failures = [(source, "node4", "refused") for source in NODES[:3]]
    (found,) = rules.diagnose(connected(seen(), *failures))  # type: ignore[arg-type]
    assert (found.check, found.hosts) == ("ports", ("node4",))
    assert found.cause == "connections from node[1-3] to it in 10.0.0.0/24 are refused"


def test_nodes_without_a_common_network_are_told_why() -> None:
    def change(record: Record) -> None:
        record["interfaces"][0].update(up=False, carrier=False)

    view = dataclasses.replace(seen(node4=change), pairs=())
    found = [one for one in rules.diagnose(view) if (one.check, one.severity) == ("network", "error")]
    assert [one.hosts for one in found] == [NODES]
    assert found[0].cause.startswith("no network is common to them (")


# --- clocks and words -------------------------------------------------------------------------------------------------


def test_the_quickest_exchange_tells_the_time() -> None:
    found = login_probe.clock_of([(0.0, 12.0, 4.0), (10.0, 15.05, 10.1), (20.0, 26.0, 22.0)])
    assert found is not None
    assert (found.offset_s, found.uncertainty_s) == (pytest.approx(5.0), pytest.approx(0.05))


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
    ("said", "kind"),
    [
        ("WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! / Host key verification failed.", "key_changed"),
        (
            "No ED25519 host key is known for node2 and you have requested strict checking. / Host key verif",
            "key_unknown",
        ),
        ("cluster@10.0.0.2: Permission denied (publickey).", "refused"),
        ("ssh: Could not resolve hostname node2: Name or service not known", "name"),
        ("ssh: connect to host 10.0.0.2 port 22: Connection refused", "closed"),
        ("ssh: connect to host 10.0.0.2 port 22: Connection timed out", "timeout"),
        ("ssh timed out after 10 s", "timeout"),
        ("kex_exchange_identification: read: Connection reset by peer", "timeout"),
        ("something else", "error"),
    ],
)
def test_what_ssh_says_has_a_kind(said: str, kind: str) -> None:
    assert login_probe.kind_of(said) == kind


def diagnosis(*findings: Finding, **given: Any) -> Diagnosis:
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return Diagnosis(
        clusterctl_version="0", inventory="i", started=now, finished=now, hosts=NODES, findings=findings, **given
    )


def test_the_ending_says_what_was_found() -> None:
    error, warning = (Finding("disk", severity, NODES[:3], "full", "empty it") for severity in ("error", "warning"))
    assert [doctor.exit_code(diagnosis(*found)) for found in ((), (warning,), (error, warning))] == [0, 10, 10]
    assert doctor.exit_code(diagnosis(error, unreachable=("node1",))) == 4
    assert report.rows(diagnosis(warning))[0].nodes == "node[1-3]"
    assert report.closing(diagnosis()) == ("4 hosts: nothing wrong was found (0.0 s).",)
    assert report.closing(diagnosis(error, warning, warning, unreachable=("node4",), notes=("a.",))) == (
        "Note: a.",
        "4 hosts, 3 of them within reach: 1 error and 2 warnings (0.0 s).",
    )


def test_a_record_comes_back_as_it_was() -> None:
    found = diagnosis(Finding("disk", "error", ("node1",), "full", "empty it"))
    assert Diagnosis.model_validate_json(found.model_dump_json()) == found
