"""NCCL_IB_GID_INDEX is held against the GID table of each port that NCCL takes, by the setting that counts."""

from __future__ import annotations

import doctor_view
import pytest
from clusterctl.diagnosis.rules import parameters

V1, V2 = "IB/RoCE v1", "RoCE v2"


def gid(index: int, version: str = V2, address: str = "0000:0000:0000:0000:0000:ffff:0a00:0001") -> doctor_view.Record:
    return {"index": index, "gid": address, "type": version}


def causes(
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
    assert causes([gid(1, V1), gid(3)], index(value)) == []


def test_a_wrong_entry_is_named_also_where_clusterctl_wrote_it() -> None:
    (told,) = causes([gid(1, V1), gid(3)], own="1")
    assert told.startswith("NCCL_IB_GID_INDEX = 1 (/etc/nccl.conf) names an entry of type IB/RoCE v1")


def test_the_environment_counts_before_files() -> None:
    files = index("1", "/etc/nccl.conf"), index("2", "/home/me/.nccl.conf")
    assert causes([gid(3)], *files, index("3")) == []
    assert "(/home/me/.nccl.conf)" in causes([gid(3)], *files)[0]


def test_only_ports_that_nccl_takes_count() -> None:
    for cards, found in (("=mlx5_1", 0), ("^mlx5_0", 0), ("mlx5", 1), ("=mlx5_0:1", 1), ("mlx5_0:2", 0)):
        assert len(causes([gid(3)], index("7"), ("NCCL_IB_HCA", cards, "environment"))) == found, cards
    assert causes([gid(3)], index("7"), layer="InfiniBand") == []


def test_an_address_of_ipv6_alone_is_what_an_ipv6_cluster_has() -> None:
    assert causes([gid(3, address="fd00:feed:0002:0000:0000:0000:0000:0001")], index("3")) == []


def test_what_cannot_be_read_is_no_finding() -> None:
    assert causes([], index("3")) == []
    assert causes([gid(3, version="")], index("7")) == []
    assert causes([gid(3, address="garbage")], index("3")) == []
