"""What a node says of its network stays within its own words of the files that all nodes get."""

from __future__ import annotations

import re
import sys
from typing import Any

from clusterctl.support import content
from hostile import NASTY, TEXT
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(content.collections_path()))

from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    fabric_rules,
    ip_address,
    mesh_ca,
    mesh_rules,
    preflight_rules,
    text_edit,
)

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIwwYGMGDwWPrygxQ4O3kv+UcH3baMHTl4kBu/CfhWR4"
EVIL = ('x"\nssh-ed25519 AAAA evil', "eth0\nprte_launch_agent = /tmp/evil.sh", '",cert-authority,permitopen="*', *NASTY)
GOOD = ("10.0.0.1", "10.0.0.3", "10.7.0.3", "fd00::3", "fe80::1", "127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.2")
ADDRESSES = st.sampled_from(GOOD) | st.tuples(st.sampled_from(GOOD), st.sampled_from(EVIL) | TEXT).map("%".join) | TEXT
NAMES = st.sampled_from(("eth0", *EVIL)) | TEXT
LINE = {
    "authorized_keys": re.compile(r'restrict,pty,from="[0-9a-f.:,]+" ssh-ed25519 [A-Za-z0-9+/=]+ clusterctl:node[123]'),
    "known_hosts": re.compile(r"node[123],[0-9.]+ ssh-ed25519 [A-Za-z0-9+/=]+"),
    "openmpi": re.compile(r"(?:btl|oob)_tcp_if_include = [0-9./,]+"),
    "prrte": re.compile(r"prte_if_include = [A-Za-z0-9_.+~@,-]+|odls_base_max_threads = 0"),
    "nccl": re.compile(r"NCCL_SOCKET_IFNAME==[A-Za-z0-9_.+~@-]+"),
}


def held(text: str, kind: str, lines: int) -> None:
    found = text.split("\n")
    assert found.pop() == ""
    assert len(found) == lines
    assert all(LINE[kind].fullmatch(line) for line in found), text


def node(number: int, name: str = "eth0", *more: str) -> dict[str, Any]:
    said = [{"address": one, "prefix": 24, "family": 4, "scope": "global"} for one in (f"10.0.0.{number}", *more)]
    link = {"name": name, "kind": "physical", "up": True, "carrier": True, "addresses": said}
    return {"interfaces": [link], "hostname": f"node{number}", "ssh": {"host_keys": [KEY]}}


@given(st.lists(ADDRESSES, max_size=4), NAMES)
def test_no_address_and_no_name_of_a_node_writes_another_line_of_ssh(addresses: list[str], name: str) -> None:
    members = []
    for number, its in enumerate((node(1), node(2), node(3, name, *addresses)), start=1):
        settings = preflight_rules.Settings(f"node{number}", f"10.0.0.{number}", [f"10.0.0.{number}"])
        member, problems = preflight_rules.member(settings, its)
        assert problems == []
        members.append({**member, "user_key": KEY})
    mesh_rules.check_members(members)
    held(mesh_rules.authorized_keys(members, mesh_rules.Options()), "authorized_keys", 3)
    held(mesh_rules.known_hosts(members), "known_hosts", 3)
    assert mesh_ca.certificates.patterns(members, []) == ["10.0.0.*", "node*"]
    for one in mesh_rules.source_addresses(members)["node3"]:
        assert one == ip_address.canonical(one)
        assert ip_address.is_source(ip_address.parsed(one))
        assert one not in {"10.0.0.1", "10.0.0.2"}


@given(NAMES, st.lists(ADDRESSES, max_size=2))
def test_no_interface_of_a_node_writes_another_line_for_open_mpi_and_nccl(name: str, addresses: list[str]) -> None:
    nodes = {f"node{number}": node(number) for number in (1, 2)} | {"node3": node(3, name, *addresses)}
    for network in fabric_rules.candidates(nodes).networks:
        for host in nodes:
            texts = fabric_rules.files(network, host, {})
            for kind, lines in (("openmpi", 2), ("prrte", 2), ("nccl", 1)):
                held(texts[kind], kind, lines)


@given(st.text(max_size=40) | st.lists(TEXT, max_size=3).map("\n".join))
def test_a_block_has_the_lines_of_its_content_or_is_refused(lines: str) -> None:
    text = ""
    try:
        text = text_edit.set_block("before\n", "m", lines)
    except text_edit.EditError as error:
        refusal = str(error)
    if not text:
        assert refusal.isprintable()
        return
    wanted = [line.removesuffix("\r") for line in lines.split("\n")]
    block = [text_edit.begin_of("m"), *(wanted[:-1] if not wanted[-1] else wanted), text_edit.end_of("m")]
    assert text.splitlines() == (["before", *block] if lines else ["before"])
    assert text_edit.set_block(text, "m", "") == "before\n"
