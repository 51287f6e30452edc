"""Settings that clusterctl did not write: which of them stop jobs, and which are only worth a note."""

from __future__ import annotations

import dataclasses
from typing import Any

import doctor_view
import pytest
from clusterctl.diagnosis.rules import parameters, registry
from doctor_view import NODES, Change, Record, rdma_port, seen

SITE = "/usr/local/etc/openmpi"
LO = {"family": 4, "address": "127.0.0.1", "prefix": 8, "scope": "host"}
FABRIC = (
    ("/etc/clusterctl/fabric.json", {}),
    (f"{SITE}/openmpi-mca-params.conf", {"btl_tcp_if_include": "10.0.0.0/24", "oob_tcp_if_include": "x"}),
    (f"{SITE}/prte-mca-params.conf", {"prte_if_include": "eth0"}),
    ("/etc/nccl.conf", {"NCCL_SOCKET_IFNAME": "=eth0"}),
)


def files(*without: str) -> list[Record]:
    return [
        {"path": path, "exists": path not in without, "own": {} if path in without else own} for path, own in FABRIC
    ]


def setting(name: str, value: str, source: str = "environment", **changed: Any) -> Change:
    def change(record: Record) -> None:
        record["parameters"] = [{"name": name, "value": value, "source": source}]
        record["parameter_files"] = files()
        record.update(changed)

    return change


def rdma(record: Record) -> None:
    record["rdma"] = [{"name": "mlx5_0", "ports": [{"number": 1, "state": "ACTIVE", "link_layer": "InfiniBand"}]}]
    record["limits"]["memlock"] = {"soft": None, "hard": None}


def with_rdma(change: Change) -> Change:
    def both(record: Record) -> None:
        rdma(record)
        change(record)

    return both


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OMPI_MCA_btl", "self", "leaves out tcp"),
        ("OMPI_MCA_btl", "self,sm", "leaves out tcp"),
        ("OMPI_MCA_btl", "^tcp", "leaves out tcp"),
        ("OMPI_MCA_btl", "tcp", "leaves out self"),
        ("OMPI_MCA_pml", "ucx", "asks for UCX"),
        ("OMPI_MCA_pml", "cm", "asks for a network with RDMA"),
        ("PRTE_MCA_oob", "^tcp", "leaves the launcher without TCP"),
        ("PRTE_MCA_plm", "isolated", "forbids mpirun to start ranks on other nodes"),
        ("OMPI_MCA_btl_tcp_if_include", "eth9", "names networks that this node does not have"),
        ("OMPI_MCA_btl_tcp_if_include", "192.0.2.0/24,eth9", "names networks that this node does not have"),
        ("OMPI_MCA_btl_tcp_if_exclude", "lo", "contradicts btl_tcp_if_include of the role fabric"),
        ("PRTE_MCA_prte_if_exclude", "lo", "contradicts prte_if_include of the role fabric"),
        ("NCCL_SOCKET_IFNAME", "=eth", "names interfaces that this node does not have"),
        ("NCCL_NET", "IB", "asks for RDMA"),
        ("OPAL_PREFIX", "/opt/openmpi", "look for its own files elsewhere"),
    ],
)
def test_what_stops_jobs_is_an_error_with_its_source(name: str, value: str, words: str) -> None:
    (found,) = registry.diagnose(seen(node3=setting(name, value)))
    assert (found.check, found.severity, found.hosts) == ("parameters", "error", ("node3",))
    assert found.cause.startswith(f"{name} = {value} (the environment) ")
    assert words in found.cause
    assert "/etc/environment" in found.cure


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMPI_MCA_btl_tcp_if_include", "lo"), ("PRTE_MCA_prte_if_include", "127.0.0.0/8"), ("NCCL_SOCKET_IFNAME", "lo")],
)
def test_a_setting_that_leaves_loopback_alone_stops_jobs_of_several_nodes(name: str, value: str) -> None:
    def change(record: Record) -> None:
        setting(name, value)(record)
        loopback = {"name": "lo", "kind": "loopback", "up": True, "addresses": [LO]}
        record["interfaces"].append(loopback)

    (found,) = registry.diagnose(seen(node3=change))
    assert (found.check, found.hosts) == ("parameters", ("node3",))
    assert (
        found.cause == f"{name} = {value} (the environment) names loopback alone, over which no other node is reached"
    )
    alone = seen(node3=change)
    alone = dataclasses.replace(alone, hosts=alone.hosts[2:3], nodes={"node3": alone.nodes["node3"]})
    assert not [one for one in parameters.findings(alone) if "loopback" in one.cause]


def test_a_copied_exclusion_in_a_file_is_named_with_the_file() -> None:
    place = "/home/cluster/.openmpi/mca-params.conf"
    (found,) = registry.diagnose(seen(node3=setting("btl_tcp_if_exclude", "lo,docker0", place)))
    assert (found.severity, found.hosts) == ("error", ("node3",))
    assert found.cause.startswith(f"btl_tcp_if_exclude = lo,docker0 ({place}) contradicts btl_tcp_if_include")
    assert place in found.cure


@pytest.mark.parametrize(("version", "count"), [("4.1.4", 1), ("5.0.7", 0)])
def test_an_exclusion_of_the_runtime_stops_the_series_that_reads_it(version: str, count: int) -> None:
    def change(record: Record) -> None:
        setting("OMPI_MCA_oob_tcp_if_exclude", "lo")(record)
        next(one for one in record["artifacts"] if one["name"] == "openmpi")["version"] = version

    stops = [one for one in registry.diagnose(seen(**dict.fromkeys(NODES, change))) if one.check == "parameters"]
    assert [one.hosts for one in stops] == [NODES] * count
    assert all("contradicts oob_tcp_if_include of the role fabric" in one.cause for one in stops)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMPI_MCA_btl", "self,tcp"),
        ("OMPI_MCA_btl", "^openib"),
        ("OMPI_MCA_pml", "ob1"),
        ("PRTE_MCA_oob", "tcp"),
        ("OMPI_MCA_btl_tcp_if_include", "10.0.0.0/8"),
        ("PRTE_MCA_prte_if_include", "eth0,eth9"),
        ("OPAL_PREFIX", "/usr/local/openmpi/"),
        ("UCX_TLS", "tcp"),
        ("LD_PRELOAD", "/opt/lib.so"),
    ],
)
def test_other_settings_are_a_note_on_all_nodes_that_have_them(name: str, value: str) -> None:
    view = seen(**dict.fromkeys(NODES, setting(name, value)))
    assert registry.diagnose(view) == ()
    assert registry.notes(view) == (
        f"A setting that clusterctl did not write, on node[1-4]: {name} = {value} (the environment).",
    )


def test_with_rdma_another_transport_may_carry_messages() -> None:
    view = seen(node3=with_rdma(setting("OMPI_MCA_btl", "^tcp")))
    assert [one.severity for one in registry.diagnose(view)] == []
    (found,) = registry.diagnose(seen(node3=with_rdma(setting("NCCL_IB_DISABLE", "1")), **others("NCCL_IB_DISABLE")))
    assert (found.severity, found.hosts) == ("warning", ("node3",))
    assert "leave the RDMA ports" in found.cause


def others(name: str) -> dict[str, Change]:
    return {host: setting(name, "1") for host in NODES if host != "node3"}


def test_settings_of_nccl_have_to_agree() -> None:
    (found,) = registry.diagnose(seen(node3=setting("NCCL_ALGO", "Ring")))
    assert (found.severity, found.hosts, found.cause) == (
        "warning",
        ("node3",),
        "NCCL_ALGO is Ring, and not set on most nodes",
    )


@pytest.mark.parametrize("path", [path for path, _ in FABRIC])
def test_a_file_of_the_fabric_that_is_gone_is_named(path: str) -> None:
    def gone(record: Record) -> None:
        record["parameter_files"] = files(path)

    def healthy(record: Record) -> None:
        record["parameter_files"] = files()

    (found,) = registry.diagnose(seen(node1=healthy, node2=healthy, node3=gone, node4=healthy))
    assert (found.check, found.severity, found.hosts) == ("parameters", "error", ("node3",))
    assert found.cause.startswith(f"{path} is missing")


def test_a_node_that_lost_all_files_of_the_fabric_is_named_by_the_others() -> None:
    def gone(record: Record) -> None:
        record["parameter_files"] = files(*(path for path, _ in FABRIC))

    found = registry.diagnose(seen(node1=setting("NCCL_DEBUG", "INFO"), node3=gone))
    assert {one.hosts for one in found if one.severity == "error"} == {("node3",)}
    assert len([one for one in found if one.severity == "error"]) == len(FABRIC)


def test_where_no_network_was_chosen_no_file_is_missed() -> None:
    def unchosen(record: Record) -> None:
        record["parameter_files"] = [{"path": path, "exists": False, "own": {}} for path, _ in FABRIC]

    assert registry.diagnose(seen(**dict.fromkeys(NODES, unchosen))) == ()


def test_the_ports_of_jobs_are_those_that_open_mpi_is_limited_to() -> None:
    def both(record: Record) -> None:
        setting("btl_tcp_port_min_v4", "50000", f"{SITE}/openmpi-mca-params.conf")(record)
        record["parameters"] += [{"name": "OMPI_MCA_btl_tcp_port_range_v4", "value": "100", "source": "environment"}]

    high = setting("btl_tcp_port_min_v4", "65000")
    nodes = seen(node1=both, node2=high, node3=setting("btl_tcp_port_min_v4", "1024")).nodes
    usual = ((1024, 256), (0, 0))
    limited = {"node1": ((50000, 100),), "node2": ((65000, 536),)}
    assert parameters.tcp_ports(nodes) == {**limited, "node3": usual, "node4": usual}
    assert parameters.tcp_ports(seen(node1=rdma_port()).nodes)["node1"] == ((0, 0),)  # UCX carries the messages


def test_two_sources_of_a_node_that_contradict_each_other_are_named() -> None:
    def change(record: Record) -> None:
        record["parameters"] = [
            {"name": "OMPI_MCA_btl_base_verbose", "value": "1", "source": "environment"},
            {"name": "btl_base_verbose", "value": "0", "source": "/home/cluster/.openmpi/mca-params.conf"},
            {"name": "NCCL_DEBUG", "value": "WARN", "source": "environment"},
            {"name": "NCCL_DEBUG", "value": "WARN", "source": "/etc/nccl.conf"},
        ]

    (found,) = (one for one in registry.diagnose(seen(node2=change)) if " and 1 in " in one.cause)
    assert (found.check, found.severity, found.hosts) == ("parameters", "warning", ("node2",))
    assert found.cause.startswith("btl_base_verbose is 0 in /home/cluster/.openmpi/mca-params.conf and 1 in the env")
    assert found.cause.endswith("jobs over ssh take that of the environment")


def test_what_a_session_does_not_take_is_told_and_stops_nothing() -> None:
    def change(record: Record) -> None:
        record["parameters"] = [
            {"name": "NCCL_SOCKET_IFNAME", "value": "eth9", "source": "/etc/environment", "in_session": False},
            {"name": "NCCL_SOCKET_IFNAME", "value": "eth0", "source": "environment"},
            {"name": "UCX_TLS", "value": "rc", "source": "/etc/profile.d/ucx.sh", "in_session": False},
        ]

    view = seen(node2=change)
    (found,) = registry.diagnose(view)
    assert (found.check, found.severity, found.hosts) == ("parameters", "warning", ("node2",))
    assert found.cause.startswith("NCCL_SOCKET_IFNAME is eth9 in /etc/environment and eth0 in the environment; ")
    assert any("node2: UCX_TLS = rc (/etc/profile.d/ucx.sh), which a session" in note for note in registry.notes(view))


def fresh(change: Change) -> Change:
    """Make a node that was never provisioned."""

    def both(record: Record) -> None:
        change(record)
        record.update(artifacts=[], parameter_files=[])

    return both


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("NCCL_SOCKET_IFNAME", "eth9", "error"),
        ("OMPI_MCA_btl", "^tcp", "error"),
        ("NCCL_NET", "IB", "error"),
        ("NCCL_P2P_DISABLE", "1", "warning"),
    ],
)
def test_a_setting_of_a_node_that_was_never_provisioned_is_judged(name: str, value: str, severity: str) -> None:
    gpus = [{"bus": f"0000:0{number}:00.0", "name": "H100", "uuid": f"GPU-{number}"} for number in range(2)]
    nodes = {node: fresh(setting(name, value, "/etc/environment", gpus=gpus)) for node in NODES}
    found = [one for one in registry.diagnose(seen(**nodes)) if one.check == "parameters"]
    assert {one.severity for one in found} == {severity}
    assert {host for one in found for host in one.hosts} == set(NODES)
    assert all(name in one.cause and "/etc/environment" in one.cure for one in found)


def test_before_the_first_provision_settings_are_notes_and_nothing_of_the_prefix_is_missed() -> None:
    nodes = {node: fresh(setting("UCX_TLS", "rc", "/etc/environment")) for node in NODES}
    view = seen(**nodes)
    assert [one for one in registry.diagnose(view) if one.check == "parameters"] == []
    words = "A setting that clusterctl did not write, on node[1-4]: UCX_TLS = rc (/etc/environment)."
    assert words in registry.notes(view)


def test_what_the_first_provision_brings_is_not_missed_before_it() -> None:
    for name, value in (("OMPI_MCA_pml", "ucx"), ("OPAL_PREFIX", "/opt/openmpi")):
        view = seen(**{node: fresh(setting(name, value)) for node in NODES})
        assert [one for one in registry.diagnose(view) if one.check == "parameters"] == []


def test_a_variable_that_pam_gives_counts_before_a_file() -> None:
    def both(record: Record) -> None:
        places = (("/etc/nccl.conf", "Ring"), ("/etc/security/pam_env.conf", "Tree"))
        record["parameters"] = [{"name": "NCCL_ALGO", "value": value, "source": source} for source, value in places]
        record["parameter_files"] = files()

    (found,) = [one for one in registry.diagnose(seen(**dict.fromkeys(NODES, both))) if "node1" in one.hosts]
    assert found.cause.endswith("; jobs over ssh take that of /etc/security/pam_env.conf")


# --- NCCL_IB_GID_INDEX is held against the GID table of each port that NCCL takes, by the setting that counts ---


V1, V2 = "IB/RoCE v1", "RoCE v2"


def gid(index: int, version: str = V2, address: str = "0000:0000:0000:0000:0000:ffff:0a00:0001") -> doctor_view.Record:
    return {"index": index, "gid": address, "type": version}


def gid_causes(
    gids: list[doctor_view.Record], *settings: tuple[str, str, str], own: str = "", layer: str = "Ethernet"
) -> list[str]:
    def change(record: doctor_view.Record) -> None:
        port = {"number": 1, "state": "ACTIVE", "link_layer": layer, "gids": gids}
        record["rdma"] = [{"name": "mlx5_0", "ports": [port]}, {"name": "mlx5_9", "ports": [{**port, "state": "DOWN"}]}]
        record["parameters"] = [{"name": name, "value": value, "source": source} for name, value, source in settings]
        if own:
            block = {"NCCL_IB_GID_INDEX": own}
            record["parameter_files"] = [{"path": "/etc/nccl.conf", "exists": True, "own": block}]

    return [one.cause for one in parameters.gid_index(doctor_view.seen(node1=change))]


def index(value: str, source: str = "environment") -> tuple[str, str, str]:
    return "NCCL_IB_GID_INDEX", value, source


@pytest.mark.parametrize("value", ["3", "-1", "", "auto", "9" * 40])
def test_the_right_entry_and_what_nccl_chooses_are_no_finding(value: str) -> None:
    assert gid_causes([gid(1, V1), gid(3)], index(value)) == []


def test_a_wrong_entry_is_named_also_where_clusterctl_wrote_it() -> None:
    (told,) = gid_causes([gid(1, V1), gid(3)], own="1")
    assert told.startswith("NCCL_IB_GID_INDEX = 1 (/etc/nccl.conf) names an entry of type IB/RoCE v1")


def test_the_environment_counts_before_files() -> None:
    files = index("1", "/etc/nccl.conf"), index("2", "/home/me/.nccl.conf")
    assert gid_causes([gid(3)], *files, index("3")) == []
    assert "(/home/me/.nccl.conf)" in gid_causes([gid(3)], *files)[0]


def test_only_ports_that_nccl_takes_count() -> None:
    for cards, found in (("=mlx5_1", 0), ("^mlx5_0", 0), ("mlx5", 1), ("=mlx5_0:1", 1), ("mlx5_0:2", 0)):
        assert len(gid_causes([gid(3)], index("7"), ("NCCL_IB_HCA", cards, "environment"))) == found, cards
    assert gid_causes([gid(3)], index("7"), layer="InfiniBand") == []


def test_an_address_of_ipv6_alone_is_what_an_ipv6_cluster_has() -> None:
    assert gid_causes([gid(3, address="fd00:feed:0002:0000:0000:0000:0000:0001")], index("3")) == []


def test_what_cannot_be_read_is_no_finding() -> None:
    assert gid_causes([], index("3")) == []
    assert gid_causes([gid(3, version="")], index("7")) == []
    assert gid_causes([gid(3, address="garbage")], index("3")) == []
