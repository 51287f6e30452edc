from __future__ import annotations

import json
from typing import Any

import pytest
from clusterctl.cli.hostfile import HostfileFormat
from clusterctl.cli.main import main
from clusterctl.launch import hostfile_formats
from factory import provisioned
from launching import Site


def test_the_formats_are_those_of_the_table() -> None:
    assert [one.value for one in HostfileFormat] == list(hostfile_formats.FORMATS)


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("openmpi", "node1 slots=2\nnode2 slots=2\n"),
        ("mpich", "node1:2\nnode2:2\n"),
        ("deepspeed", "node1 slots=2\nnode2 slots=2\n"),
        ("pdsh", "node1\nnode2\n"),
        (
            "torchrun",
            (
                "node1 --nnodes=2 --nproc-per-node=2 --node-rank=0 --master-addr=10.0.0.1 --master-port=29500\n"
                "node2 --nnodes=2 --nproc-per-node=2 --node-rank=1 --master-addr=10.0.0.1 --master-port=29500\n"
            ),
        ),
    ],
)
def test_each_format_names_all_nodes_and_their_slots(form: str, wanted: str, monkeypatch: Any, capsys: Any) -> None:
    Site(monkeypatch, ("node1", "node2"), slots=2)
    assert main(["hostfile", "inventory.ini", "--format", form]) == 0
    assert capsys.readouterr().out == wanted


def test_json_has_the_addresses_too_and_a_limit_leaves_nodes_out(monkeypatch: Any, capsys: Any) -> None:
    Site(monkeypatch, ("node1", "node2", "node3"), slots=2)
    assert main(["hostfile", "inventory.ini", "--format", "json", "--limit", "node1,node3"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "hosts": [
            {"name": "node1", "address": "10.0.0.1", "slots": 2},
            {"name": "node3", "address": "10.0.0.3", "slots": 2},
        ]
    }


def test_a_node_that_calls_itself_otherwise_has_the_name_that_others_know(monkeypatch: Any, capsys: Any) -> None:
    site = Site(monkeypatch, ("node1", "node2"), slots=2)
    site.nodes["node2"] = provisioned("node2", 2, hostname="pypi")
    assert main(["hostfile", "inventory.ini"]) == 0
    assert capsys.readouterr().out == "node1 slots=2\nnode2 slots=2\n"


def test_nodes_that_were_never_provisioned_are_named(monkeypatch: Any, capsys: Any) -> None:
    site = Site(monkeypatch, ("node1", "node2"))
    site.nodes["node2"] = provisioned("node2", artifacts=[])
    assert main(["hostfile", "inventory.ini"]) == 1
    said = capsys.readouterr()
    assert "Open MPI of clusterctl is missing on node2" in said.err
    assert not said.out
