"""Which host reads the InfiniBand fabric for all of them."""

from __future__ import annotations

from clusterctl.diagnosis.hardware import fabric_reader
from clusterctl.model.hardware import Hardware, HardwareLooks, HardwareReading
from clusterctl.model.hosts import Host


def looks(layer: str, state: str, *, as_root: bool = False) -> HardwareLooks:
    readings = tuple(
        HardwareReading("rdma_port", "mlx5_0/1", name, value)
        for name, value in (("link_layer", layer), ("state", state))
    )
    return HardwareLooks(Hardware(schema_version=1, time=0, as_root=as_root, readings=readings))


def reader(**seen: HardwareLooks) -> Host | None:
    return fabric_reader([Host(name, "10.0.0.1", become=True) for name in seen], seen)


def test_the_fabric_is_read_by_a_host_with_an_active_port_and_as_root_where_that_is_allowed() -> None:
    usual = looks("InfiniBand", "ACTIVE")
    chosen = reader(
        node1=looks("Ethernet", "ACTIVE", as_root=True), node2=usual, node3=looks("InfiniBand", "ACTIVE", as_root=True)
    )
    assert chosen is not None
    assert (chosen.name, chosen.become) == ("node3", True)
    chosen = reader(node1=looks("InfiniBand", "DOWN", as_root=True), node2=usual)
    assert chosen is not None
    assert (chosen.name, chosen.become) == ("node2", False)


def test_without_an_active_port_of_infiniband_nobody_reads_it() -> None:
    assert reader(node1=looks("Ethernet", "ACTIVE"), node2=looks("InfiniBand", "INIT")) is None
