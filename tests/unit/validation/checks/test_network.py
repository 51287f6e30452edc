"""The check ``network``: verdicts over what ranks print, and the node's program on trees like the kernel's."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import node_programs
import pytest
from clusterctl.analysis.carriers import FabricPath
from clusterctl.model.facts import NodeFacts
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import Verdict
from clusterctl.validation.checks import base
from clusterctl.validation.checks.network import NetworkCheck, path
from factory import captured_outcome

ROOT = Path(__file__).parents[4]
MPI = "/usr/local/openmpi-5.0.7-ccfb70564932dd67"
FIRST, SECOND = "10.90.7.0/24", "10.213.7.0/24"
MIB = 2**20
ETH0 = FabricPath(("eth0",), (FIRST,))
ETH1 = FabricPath(("eth1",), (SECOND,))


def site(fabric: FabricPath | None, nodes: tuple[str, ...] = ("node1", "node2"), slots: int = 1) -> base.Site:
    return base.Site(
        version="5.0.7",
        slots=dict.fromkeys(nodes, slots),
        names={node: node for node in nodes},
        libraries=dict.fromkeys(nodes, MPI),
        fabric={} if fabric is None else dict.fromkeys(nodes, fabric),
    )


def captured(name: str, fabric: FabricPath | None) -> base.Judgement:
    where = site(fabric, ("node1", "node2", "node3", "node4"), 2)
    return NetworkCheck().judge(where, captured_outcome(f"network-{name}-5.0.7"))


def said(counted: Mapping[str, float], pml: str = "ob1", **facts: str) -> dict[str, Any]:
    """What a node's first rank says when its carriers counted so many MiB, the same in both directions."""
    figures = {f"{name}{way}": mib * MIB for name, mib in counted.items() for way in ("_rx_bytes", "_tx_bytes")}
    return {
        "facts": {"pml": pml, "rdma": "", **facts},
        "figures": {"sent_bytes": 64 * MIB, "received_bytes": 64 * MIB, **figures},
    }


def judged(fabric: FabricPath | None, *nodes: dict[str, Any], where: base.Site | None = None) -> base.Judgement:
    names = tuple(f"node{number}" for number in range(1, len(nodes) + 1))
    lines = []
    for rank, (host, words) in enumerate(zip(names, nodes, strict=True)):
        head = {"clusterctl": 1, "event": "result", "check": "network", "rank": rank, "host": host, "ok": True}
        more = {"compared": 9, "wrong": 0, "library_path": f"{MPI}/lib/libmpi.so.40.40.7"}
        lines.append(OutputLine("stdout", 1.0, json.dumps({**head, **more, **words})))
    return NetworkCheck().judge(where or site(fabric, names), JobOutcome("exited", 2.0, rc=0, lines=tuple(lines)))


def test_what_carried_a_job_is_told_where_no_fabric_is_recorded() -> None:
    assert captured("second", None).reason.endswith(" values right: 64 MiB from each node went over eth1")
    both = captured("both", None)
    assert both.verdict is Verdict.PASS
    assert both.reason.endswith("64 MiB from each node went over eth0 and eth1")


def test_the_fabric_s_interface_passes_with_the_share_that_it_carried() -> None:
    judgement = captured("second", ETH1)
    assert judgement.verdict is Verdict.PASS
    assert judgement.reason.endswith("values right: 64 MiB from each node went over eth1, the fabric")
    assert {figure.name: figure.value for figure in judgement.measurements}["carried"] == pytest.approx(1, abs=0.02)


def test_another_interface_than_the_fabric_s_is_named_with_the_figures() -> None:
    judgement = captured("second", ETH0)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node1", "node2", "node3", "node4"))
    assert judgement.reason.startswith(
        "node[1-4]: not all of what was sent went over the fabric, eth0 (10.90.7.0/24): "
    )
    assert judgement.reason.endswith("by eth0 0.0 and 0.0, by eth1 64.6 and 64.4 on node1")
    assert judgement.evidence[3].startswith("node4: of 64 MiB out and 64 MiB in ")


def test_half_over_another_network_is_not_over_the_fabric() -> None:
    judgement = captured("both", ETH1)
    assert judgement.verdict is Verdict.FAIL
    assert "by eth1 32.1 and 32.1, by eth0 32.1 and 32.1 on node1" in judgement.reason


def test_only_the_node_that_is_wrong_is_named() -> None:
    judgement = judged(ETH0, said({"eth0": 64.2}), said({"eth0": 0.1, "eth1": 64.2}), said({"eth0": 64.3}))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node2",))
    assert judgement.reason.startswith("node2: not all of what was sent went over the fabric, eth0 (10.90.7.0/24)")


@pytest.mark.parametrize(
    ("name", "value", "guilty"),
    [
        ("OMPI_MCA_btl_tcp_if_include", "eth1", True),
        ("btl_tcp_if_include", SECOND, True),
        ("btl_tcp_if_include", f"eth0, {FIRST}", False),
        ("btl_tcp_if_exclude", "lo,eth0", True),
        ("btl_tcp_if_exclude", "lo,docker0", False),
    ],
)
def test_the_node_whose_setting_chose_the_network_is_named_with_it(name: str, value: str, guilty: bool) -> None:
    lines = said({"eth0": 0.1, "eth1": 64.2})
    where = replace(site(ETH0), mpi_networks={"node2": {name: (value, "/etc/environment")}})
    judgement = judged(ETH0, lines, lines, where=where)
    assert judgement.hosts == (("node2",) if guilty else ("node1", "node2"))
    told = f"by eth1 64.2 and 64.2, by {name}={value} of /etc/environment; take that setting away"
    assert judgement.reason.endswith(told) is guilty


def test_counters_that_show_nothing_are_a_fault_of_the_fabric_and_else_no_proof() -> None:
    assert judged(ETH0, said({"eth0": 64}), said({})).hosts == ("node2",)
    nothing = judged(None, said({"eth0": 64}), said({}))
    assert (nothing.verdict, " of node2 counted " in nothing.reason) == (Verdict.SKIP, True)


@pytest.mark.parametrize(
    ("interface", "counted", "relations"),
    [
        ("bond0", {"bond0": 64.1, "eth1": 32, "eth2": 32.1}, {"bond0": "over eth1 eth2"}),
        ("br0", {"br0": 64.1, "eth0": 64.3}, {"br0": "over eth0"}),
        ("bond0.7", {"bond0.7": 64.1, "bond0": 64.2, "eth1": 64.3}, {"bond0.7": "over bond0", "bond0": "over eth1"}),
        ("ib0", {"ib0": 64.1, "mlx5_0/1": 64.4}, {"mlx5_0/1": "InfiniBand ib0"}),
    ],
    ids=["bond", "bridge", "vlan on a bond", "IP over InfiniBand"],
)
def test_a_byte_that_is_counted_below_as_well_is_not_wrong(
    interface: str, counted: dict[str, float], relations: dict[str, str]
) -> None:
    fabric = FabricPath((interface,), (FIRST,))
    judgement = judged(fabric, *[said(counted, **relations)] * 2)
    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert judgement.reason.endswith(f"went over {interface}, the fabric")
    assert judged(None, *[said(counted, **relations)] * 2).reason.endswith(f"went over {interface}")


def test_what_went_through_a_vlan_or_a_tunnel_did_not_go_over_what_lies_below_it() -> None:
    vlan = judged(ETH0, *[said({"eth0.9": 64.1, "eth0": 64.3}, **{"eth0.9": "over eth0"})] * 2)
    assert vlan.verdict is Verdict.FAIL
    assert "by eth0 0.2 and 0.2, by eth0.9 64.1 and 64.1" in vlan.reason
    tunnel = judged(ETH0, *[said({"wg0": 64.1, "eth0": 67})] * 2)
    assert tunnel.verdict is Verdict.FAIL
    assert "went through another network as well" in tunnel.reason


ROCE = {"mlx5_0/1": "Ethernet eth1", "mlx5_1/1": "Ethernet eth2"}


def test_rdma_counts_as_the_fabric_whose_port_it_is() -> None:
    over = said({"eth1": 0.1, "mlx5_0/1": 65, "mlx5_1/1": 0}, pml="ucx", **{**ROCE, "rdma": "mlx5_0/1 mlx5_1/1"})
    right = judged(ETH1, over, over)
    assert right.verdict is Verdict.PASS
    assert right.reason.endswith("went over mlx5_0/1, the fabric, by UCX")
    wrong = judged(ETH0, over, over)
    assert wrong.verdict is Verdict.FAIL
    assert "by eth0 0.0 and 0.0, by mlx5_0/1 65.0 and 65.0" in wrong.reason


def test_ucx_that_passes_rdma_by_is_named_even_on_the_right_interface() -> None:
    sockets = said({"eth1": 64.3, "mlx5_0/1": 0}, pml="ucx", **{"mlx5_0/1": ROCE["mlx5_0/1"], "rdma": "mlx5_0/1"})
    for fabric in (ETH1, None):
        judgement = judged(fabric, sockets, sockets)
        assert judgement.verdict is Verdict.FAIL
        assert "UCX was chosen, and not all of what was sent went over RDMA, mlx5_0/1: of 64 MiB" in judgement.reason
        assert "by mlx5_0/1 0.0 and 0.0, by eth1 64.3 and 64.3" in judgement.reason
    on_purpose = said({"eth1": 64.3, "mlx5_0/1": 0}, **{"mlx5_0/1": ROCE["mlx5_0/1"], "rdma": "mlx5_0/1"})
    assert judged(ETH1, on_purpose, on_purpose).verdict is Verdict.PASS
    ports_down = said({"eth1": 64.3, "mlx5_0/1": 0}, pml="ucx", **{"mlx5_0/1": ROCE["mlx5_0/1"]})
    assert judged(ETH1, ports_down, ports_down).verdict is Verdict.PASS


def test_ip_over_infiniband_is_no_rdma() -> None:
    words = {"mlx5_0/1": "InfiniBand ib0", "rdma": "mlx5_0/1"}
    judgement = judged(None, *[said({"ib0": 64.1, "mlx5_0/1": 64.6}, pml="ucx", **words)] * 2)
    assert judgement.verdict is Verdict.FAIL
    assert "by mlx5_0/1 0.5 and 0.5, by ib0 64.1 and 64.1" in judgement.reason


def test_one_node_alone_has_no_network_to_look_at() -> None:
    judgement = judged(ETH0, {"facts": {}, "figures": {}})
    assert (judgement.verdict, judgement.reason) == (
        Verdict.SKIP,
        "one node alone has no network to check",
    )


def test_a_node_that_read_no_counters_is_named() -> None:
    judgement = judged(ETH0, said({"eth0": 64}), {"facts": {}, "figures": {}})
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node2",))
    assert judgement.reason == "no counters came from node2"


def test_a_record_means_every_interface_in_its_networks() -> None:
    node = json.loads((ROOT / "tests" / "data" / "stack" / "node.json").read_text(encoding="utf-8"))
    address = {"family": 4, "address": "10.7.0.5", "prefix": 24, "scope": "global"}
    other = {"family": 4, "address": "10.8.0.5", "prefix": 24, "scope": "global"}
    node["interfaces"] = [
        {"name": "eth0", "kind": "physical", "addresses": [other]},
        {"name": "eth1", "kind": "physical", "addresses": [address]},
        {"name": "eth2", "kind": "physical", "addresses": [{**address, "address": "10.9.0.5"}]},
    ]
    assert path(NodeFacts.model_validate(node)) is None
    node["fabric"] = {"cidrs": ["10.7.0.0/24", "10.9.0.0/24"], "interface": "eth2", "address": "10.9.0.5"}
    assert path(NodeFacts.model_validate(node)) == FabricPath(("eth2", "eth1"), ("10.7.0.0/24", "10.9.0.0/24"))


# --- the node's program -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return node_programs.load("mpi_checks")


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="ascii")
    return root


def test_counters_and_relations_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    program = node_programs.load("measure")

    def interface(name: str, received: int, sent: int, kind: int = 1) -> dict[str, str]:
        statistics = f"net/{name}/statistics"
        return {
            f"net/{name}/type": str(kind),
            f"{statistics}/rx_bytes": str(received),
            f"{statistics}/tx_bytes": str(sent),
        }

    def port(name: str, received: int, sent: int, layer: str, state: str = "4: ACTIVE") -> dict[str, str]:
        folder = f"infiniband/{name.replace('/', '/ports/')}"
        return {
            f"{folder}/counters/port_rcv_data": str(received),
            f"{folder}/counters/port_xmit_data": str(sent),
            f"{folder}/link_layer": layer,
            f"{folder}/state": state,
        }

    root = tree(
        tmp_path,
        {
            **interface("lo", 5, 5, 772),
            **interface("bond0", 10, 20),
            **interface("eth1", 4, 8),
            **interface("eth2", 6, 12),
            **interface("ib0", 1, 2, 32),
            **port("mlx5_0/1", 100, 200, "Ethernet"),
            **port("mlx5_1/1", 7, 8, "InfiniBand"),
            **port("mlx5_2/1", 0, 0, "InfiniBand", "1: DOWN"),
            "infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0": "bond0",
            "infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1": "bond0",
            "infiniband/mlx5_1/device/net/ib0/type": "32",
            "infiniband/mlx5_3/ports/1/state": "4: ACTIVE",  # a driver without these counters
        },
    )
    for member in ("eth1", "eth2"):
        (root / "net" / "bond0" / f"lower_{member}").symlink_to(root / "net" / member)
    assert program.counters(root) == {
        "bond0": (10, 20),
        "eth1": (4, 8),
        "eth2": (6, 12),
        "ib0": (1, 2),
        "mlx5_0/1": (400, 800),
        "mlx5_1/1": (28, 32),
        "mlx5_2/1": (0, 0),
    }
    related = {name: words for name, words in program.relations(root).items() if words}
    assert related.pop("mlx5_3/1", "").strip() == ""
    assert related == {
        "bond0": "over eth1 eth2",
        "mlx5_0/1": "Ethernet bond0",
        "mlx5_1/1": "InfiniBand ib0",
        "mlx5_2/1": "InfiniBand",
    }
    assert program.active_ports(root) == ["mlx5_0/1", "mlx5_1/1", "mlx5_3/1"]


@pytest.mark.parametrize("nodes", [[[0, 1], [2, 3]], [[0], [1, 2, 3], [4, 5]], [[0, 3], [1, 4, 5], [2]]])
def test_every_node_sends_and_gets_about_as_much_whatever_its_slots(
    program: ModuleType, nodes: list[list[int]]
) -> None:
    routes = program.routes_of(nodes)
    whose = {rank: number for number, ranks in enumerate(nodes) for rank in ranks}
    assert sorted(source for source, _, _ in routes) == sorted(whose)
    assert all(whose[target] == (whose[source] + 1) % len(nodes) for source, target, _ in routes)
    for number in range(len(nodes)):
        pieces = sum(pieces for source, _, pieces in routes if whose[source] == number)
        assert program.PIECES - len(nodes[number]) < pieces <= program.PIECES


def test_what_counted_nothing_and_touches_nothing_is_not_told(program: ModuleType) -> None:
    risen = {"eth0": (9, 9), "eth1": (0, 0), "bond0": (0, 0), **{f"veth{number}": (1, 1) for number in range(40)}}
    told = program.worth_telling(risen, {"bond0": "over eth1"})
    assert told[:2] == ["bond0", "eth0"]
    assert "eth1" not in told
    assert len(told) <= 2 * program.MOST_CARRIERS


def test_tcp_where_every_node_has_rdma_is_no_pass() -> None:
    """The launcher took TCP, because Open MPI was built without UCX; the counters of the ports confirm it."""
    over = said({"eth1": 64.2, "mlx5_0/1": 0}, pml="ob1", **{**ROCE, "rdma": "mlx5_0/1"})
    unused = "MPI goes over TCP on eth1, although mlx5_0 is there: Open MPI on node[1-2] was built without UCX"
    meant = judged(ETH1, over, over)
    assert meant.verdict is Verdict.PASS, "--network tcp asks for it"
    judgement = judged(ETH1, over, over, where=replace(site(ETH1), unused_rdma=unused))
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node1", "node2"))
    assert judgement.reason == (
        f"{unused}: 64 MiB from each node went over eth1; set openmpi_ucx to auto and run 'clusterctl provision' again,"
        " or use --network tcp where TCP is meant"
    )
    assert judgement.evidence[0].startswith("node1: of 64 MiB out and 64 MiB in were counted by mlx5_0/1 0.0 and 0.0")
    assert "eth1 64.2 and 64.2" in judgement.evidence[0]


LOGS = [
    (  # captured of UCX 1.13.1
        (
            "[1795859381.47] [node2:1023 :0]  ucp_worker.c:1763 UCX  INFO    ep_cfg[0]: tag(self/memory0 tcp/eth0)\n"
            "[1795859381.47] [node2:1023 :0]  ucp_worker.c:1763 UCX  INFO    ep_cfg[1]: tag(tcp/eth0)\n"
        ),
        ["self/memory0", "tcp/eth0"],
    ),
    (  # parthenon-hpc-lab/parthenon issue 1260, with two of its four devices
        (
            "[1750940428.18] [jpbo-007-31:2814548:0]  ucp_worker.c:1903 UCX  INFO    ucp_context_0 inter-node cfg#8"
            " tag(rc_mlx5/mlx5_0:1 rc_mlx5/mlx5_1:1 rc_mlx5/mlx5_0:1)\n"
        ),
        ["rc_mlx5/mlx5_0:1", "rc_mlx5/mlx5_1:1"],
    ),
    ("[1795:node1:7:0] parser.c:1911 UCX  INFO  UCX_* env variables: UCX_TLS=tcp,sm,self\n", []),
]


@pytest.mark.parametrize(("log", "transports"), LOGS)
def test_ucx_itself_tells_the_transports_that_it_took(log: str, transports: list[str]) -> None:
    program = node_programs.load("mpi_checks")
    assert program.ucx_transports(log) == transports


def test_a_pass_names_what_the_log_of_ucx_says() -> None:
    over = said({"eth1": 64.2}, pml="ucx", ucx="self/memory0 tcp/eth1")
    judgement = judged(ETH1, over, over)
    assert judgement.verdict is Verdict.PASS
    assert judgement.reason.endswith("went over eth1, the fabric, by UCX over self/memory0, tcp/eth1")
    silent = said({"eth1": 64.2}, pml="ucx")
    assert judged(ETH1, silent, silent).reason.endswith("went over eth1, the fabric, by UCX")
    assert judged(ETH1, over, said({"eth1": 64.2})).reason.endswith("went over eth1, the fabric")


def test_messages_over_cables_are_those_of_the_cables_alone() -> None:
    """Each node sends to one neighbour and hears from the other, so that a cable shows one direction."""
    cables = FabricPath(("eth0", "cx0", "cx1"), (FIRST, SECOND), cables=("cx0", "cx1"))
    one_way = {"cx0_tx_bytes": 64.0 * MIB, "cx0_rx_bytes": 0.0, "cx1_tx_bytes": 0.0, "cx1_rx_bytes": 64.0 * MIB}
    right = said({"eth0": 0.1})
    right["figures"] |= one_way
    judgement = judged(cables, right, right)
    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert judgement.reason.endswith("went over cx0 and cx1, the fabric")
    lan = judged(cables, said({"eth0": 64, "cx0": 0, "cx1": 0}), right)
    assert lan.verdict is Verdict.FAIL
    assert "node1: not all of what was sent went over the fabric, cx0 and cx1" in lan.reason


def test_a_rail_that_carries_nothing_is_named() -> None:
    rails = FabricPath(("eth0", "eth1"), (FIRST, SECOND), rails=("eth0", "eth1"))
    judgement = judged(rails, said({"eth0": 64, "eth1": 0}), said({"eth0": 32, "eth1": 32}))
    assert judgement.verdict is Verdict.FAIL
    assert "node1: eth1 carried nothing, though jobs share their messages between eth0 and eth1" in judgement.reason
    assert judged(rails, *[said({"eth0": 32, "eth1": 32})] * 2).verdict is Verdict.PASS


def with_rails(rates: Mapping[tuple[int, int], float], nodes: int = 3, exchanged: bool = True) -> base.Judgement:
    """Judge nodes with two rails: the second has these rates in GB/s by the ranks of its ends, and else 5 GB/s."""
    rails = FabricPath(("eth0", "eth1"), (FIRST, SECOND), rails=("eth0", "eth1"))
    told = [said({"eth0": 32, "eth1": 32}, rail0=f"eth0 {FIRST}", rail1=f"eth1 {SECOND}") for _unused in range(nodes)]
    for target, one in enumerate(told):
        for source in sorted({(target - distance) % nodes for distance in range(1, min(nodes, 3))}):
            for rail, rate in enumerate((5.0, rates.get((source, target), 5.0))):
                for word in ("", "usual_"):
                    one["figures"][f"rail{rail}_from_{source}_{word}bytes_per_s"] = rate * 1e9
        if not exchanged:
            del one["figures"]["sent_bytes"]
    return judged(rails, *told)


@pytest.mark.parametrize(
    ("slow", "nodes", "culprits"),
    [
        pytest.param([(2, 0), (2, 1), (0, 2), (1, 2)], 3, ("node3",), id="both ways"),
        pytest.param([(2, 0), (2, 1)], 3, ("node3",), id="what it sends"),
        pytest.param([(3, 4), (3, 5), (1, 3), (2, 3), (0, 1), (0, 2), (4, 0), (5, 0)], 6, ("node1", "node4"), id="two"),
        pytest.param([(0, 1)], 2, ("node1", "node2"), id="of two, neither is the odd one"),
        pytest.param([(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)], 3, ("node1", "node2", "node3"), id="the switch"),
        pytest.param([(0, 1)], 3, (), id="one pair alone"),
        pytest.param([], 3, (), id="none"),
    ],
)
def test_a_slow_rail_is_named_with_its_node(slow: list[tuple[int, int]], nodes: int, culprits: tuple[str, ...]) -> None:
    judgement = with_rails(dict.fromkeys(slow, 0.1), nodes)
    assert judgement.verdict is (Verdict.FAIL if culprits else Verdict.PASS), judgement.reason
    assert judgement.hosts == culprits
    if culprits:
        assert f"the rail eth1 {SECOND} is slow: 100 MB/s, and another rail between the same nodes has 5 GB/s" in (
            judgement.reason
        )


def test_a_rail_that_is_too_slow_for_the_exchange_is_named_by_its_ends() -> None:
    judgement = with_rails({(0, 1): 0.001}, nodes=4, exchanged=False)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node1", "node2"))
    assert f"the rail eth1 {SECOND} from node1 to node2 is too slow for the exchange: 1 MB/s; look" in judgement.reason


def with_cables(rates: Mapping[tuple[int, int], float], nodes: int = 3, exchanged: bool = True) -> base.Judgement:
    """Judge nodes with a cable between each two; these rates are in GB/s by the ranks of their ends."""
    names = {pair: f"cx{number}" for number, pair in enumerate(itertools.combinations(range(nodes), 2), 1)}
    told = []
    for target in range(nodes):
        own = {source: names[min(source, target), max(source, target)] for source in range(nodes) if source != target}
        more = {f"cable_from_{source}": f"{name} 10.76.{name[2:]}.0/30" for source, name in own.items()}
        one = said(dict.fromkeys(own.values(), 64 / len(own)), **more)
        for source in own:
            for word in ("", "usual_"):
                rate = rates.get((source, target), 5.0)
                one["figures"][f"cable100000_from_{source}_{word}bytes_per_s"] = rate * 1e9
        if not exchanged:
            del one["figures"]["sent_bytes"]
        told.append(one)
    paths = FabricPath(("eth0",), (FIRST,), cables=tuple(names.values()))
    return judged(paths, *told)


CX3 = "the cable cx3 10.76.3.0/30 is slow: 100 MB/s from"


@pytest.mark.parametrize(
    ("slow", "nodes", "culprits", "words"),
    [
        pytest.param(
            [(1, 2)],
            3,
            ("node2", "node3"),
            (f"node[2-3]: {CX3} node2 to node3, and other cables have 5 GB/s; look",),
            id="one way, in a ring of three",
        ),
        pytest.param(
            [(1, 2), (2, 1)],
            3,
            ("node2", "node3"),
            (f"node[2-3]: {CX3} node3 to node2, and other cables have 5 GB/s; look",),
            id="both ways",
        ),
        pytest.param(
            [(0, 3), (1, 2)],
            4,
            ("node1", "node2", "node3", "node4"),
            (
                "node[2-3]: the cable cx4 10.76.4.0/30 is slow: 100 MB/s from node2 to node3, and other cables",
                f"node[1,4]: {CX3} node1 to node4, and other cables have 5 GB/s; look",
            ),
            id="two of six",
        ),
        pytest.param([(0, 2), (2, 0), (1, 2), (2, 1)], 3, (), (), id="a slow node, and no cable"),
        pytest.param([(0, 1), (1, 0)], 2, (), (), id="the only one"),
        pytest.param([], 4, (), (), id="none"),
    ],
)
def test_a_slow_cable_is_named_by_its_ends(
    slow: list[tuple[int, int]], nodes: int, culprits: tuple[str, ...], words: tuple[str, ...]
) -> None:
    judgement = with_cables(dict.fromkeys(slow, 0.1), nodes)
    assert judgement.verdict is (Verdict.FAIL if culprits else Verdict.PASS), judgement.reason
    assert judgement.hosts == culprits
    assert [one for one in words if one not in judgement.reason] == [], judgement.reason


def test_cables_that_are_too_slow_for_the_exchange_are_named_by_their_ends() -> None:
    pairs = list(itertools.permutations(range(3), 2))
    judgement = with_cables({**dict.fromkeys(pairs, 0.001), (0, 1): 0.0009}, exchanged=False)
    assert (judgement.verdict, judgement.hosts) == (Verdict.FAIL, ("node1", "node2"))
    assert "the cable cx1 10.76.1.0/30 from node1 to node2 is too slow for the exchange" in judgement.reason


def test_cables_are_tried_where_each_two_nodes_have_one() -> None:
    program = rail_rates()
    ring = {0: [("a", 25000), ("b", 25000)], 2: [("a", 25000), ("c", 10000)], 4: [("b", 25000), ("c", 25000)]}
    tried = program.rounds([0, 2, 4], {rank: (True, own) for rank, own in ring.items()})
    assert [[tuple(way) for way in ways] for ways in tried] == [
        [(0, 2, 0, 0, 25000, 0), (2, 4, 1, 1, 25000, 2), (4, 0, 0, 1, 25000, 4)],
        [(0, 4, 1, 0, 25000, 0), (2, 0, 0, 0, 25000, 2), (4, 2, 1, 1, 10000, 4)],
    ]
    assert program.rounds([0, 2, 4], {**{rank: (True, own) for rank, own in ring.items()}, 4: (True, [])}) == []
    assert program.rounds([0, 2, 4], {rank: (rank == 0, own) for rank, own in ring.items()}) == [], (
        "not all have cables"
    )
    (first, *_rest) = program.rounds([0, 2, 4], {rank: (False, own) for rank, own in ring.items()})
    assert [tuple(way) for way in first] == [(0, 2, 0, 0, 0, 0), (2, 4, 0, 0, 2, 0), (4, 0, 0, 0, 4, 0)]
    assert program.rounds([0, 2], {0: (False, []), 2: (False, [])}) == []


def test_a_rail_of_less_than_twice_the_time_is_no_fault() -> None:
    assert with_rails(dict.fromkeys([(2, 0), (2, 1), (0, 2), (1, 2)], 2.6)).verdict is Verdict.PASS


def rail_rates() -> ModuleType:
    return node_programs.load("rail_rates")


def test_a_rail_takes_what_its_neighbour_sends_and_nobody_else() -> None:
    program = rail_rates()
    with program.listener("127.0.0.1") as listens:
        port = listens.getsockname()[1]
        for source, fast in (("127.0.0.2", True), ("127.0.0.3", False)):
            arrival = program.Arrival(listens, "127.0.0.2")
            arrival.start()
            program.send(source, "127.0.0.1", port)
            arrival.join()
            assert (arrival.rate > 1e7) is fast
    program.send("127.0.0.2", "127.0.0.1", port)  # nobody listens any more
    program.send("192.0.2.1", "127.0.0.1", port)  # the address is gone


def test_a_rail_is_in_doubt_where_none_of_its_trials_came_near_another_rail() -> None:
    doubtful = rail_rates().doubtful
    assert not doubtful({1: {0: [5.0, 1.0, 5.0], 1: [1.0, 1.0, 2.6]}, 2: {0: [1.0], 1: [1.0]}})
    assert doubtful({1: {0: [1.0], 1: [1.0]}, 2: {0: [1.0, 5.0, 5.0], 1: [1.0, 2.4, 0.0]}})
    assert not doubtful({})


@pytest.mark.parametrize(
    ("record", "carriers"),
    [
        (
            {
                "cidrs": [FIRST],
                "carriers": [
                    {"interface": "eth0", "cidr": FIRST, "address": "10.90.7.1"},
                    {"interface": "eth1", "cidr": SECOND, "address": "10.213.7.1"},
                ],
            },
            (False, [("eth0", FIRST, "10.90.7.1"), ("eth1", SECOND, "10.213.7.1")]),
        ),
        (
            {"cidrs": [FIRST], "carriers": [{"interface": "cx0", "cidr": SECOND, "address": "10.213.7.1"}]},
            (True, [("cx0", SECOND, "10.213.7.1")]),
        ),
        ({"cidrs": [FIRST]}, (False, [])),
        ({"cidrs": None, "carriers": 3}, (False, [])),
        ([], (False, [])),
    ],
)
def test_the_rails_or_cables_of_a_node_are_those_of_its_record(
    tmp_path: Path, record: Any, carriers: tuple[bool, list[tuple[str, ...]]]
) -> None:
    (tmp_path / "fabric.json").write_text(json.dumps(record))
    assert rail_rates().carriers(tmp_path / "fabric.json") == carriers
    assert rail_rates().carriers(tmp_path / "none") == (False, [])
