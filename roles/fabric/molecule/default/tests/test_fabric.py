"""Both nodes agree on a network, and what the other one reads there is what it has."""

from __future__ import annotations

import json
from typing import Any


def record(host: Any) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(host.file("/etc/clusterctl/fabric.json").content_string)
    return read


def test_the_record_names_what_this_node_has(host: Any) -> None:
    said = record(host)
    shown = json.loads(host.check_output("ip -json -4 address show dev %s", said["interface"]))
    assert said["address"] in {entry["local"] for entry in shown[0]["addr_info"]}


def test_every_reader_gets_it_in_its_own_words(host: Any) -> None:
    said = record(host)
    openmpi = host.file("/usr/local/etc/openmpi/openmpi-mca-params.conf").content_string
    assert f"\nbtl_tcp_if_include = {said['cidrs'][0]}\n" in openmpi
    assert f"\noob_tcp_if_include = {said['cidrs'][0]}\n" in openmpi
    prrte = host.file("/usr/local/etc/openmpi/prte-mca-params.conf").content_string
    assert f"\nprte_if_include = {said['interface']}\n" in prrte
    nccl = host.file("/etc/nccl.conf").content_string
    assert f"\nNCCL_SOCKET_IFNAME=={said['interface']}\n" in nccl


def test_no_listener_is_left(host: Any) -> None:
    listening = host.check_output("cat /proc/net/tcp").splitlines()[1:]
    states = [line.split() for line in listening if line.split()[3] == "0A"]
    assert {int(fields[1].rpartition(":")[2], 16) for fields in states} == {22}
