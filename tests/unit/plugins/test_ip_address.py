"""Addresses, networks and names of interfaces that somebody said: one spelling, and no text beside it."""

from __future__ import annotations

import ipaddress
import re

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import ip_address
from clusterctl.support import content

EVIL_SCOPES = ['x"\nssh-ed25519 AAAA evil', 'x",cert-authority,permitopen="*', "eth0\n", "a b", "x" * 16, "", "%"]


@pytest.mark.parametrize("scope", EVIL_SCOPES)
def test_text_behind_a_percent_sign_is_no_scope(scope: str) -> None:
    for text in (f"fe80::1%{scope}", f"fd00::1%{scope}"):
        assert not ip_address.is_address(text)
        for may_have_scope in (False, True):
            with pytest.raises(ValueError, match="address"):
                ip_address.parsed(text, may_have_scope=may_have_scope)
    with pytest.raises(ValueError, match="network"):
        ip_address.network(f"fd00::%{scope}/64", strict=False)


def test_a_scope_is_taken_where_one_is_meant_and_never_kept() -> None:
    assert str(ip_address.parsed("fe80::1%eth0.100", may_have_scope=True)) == "fe80::1"
    with pytest.raises(ValueError, match="address"):
        ip_address.parsed("fe80::1%eth0")
    with pytest.raises(ValueError, match="address"):
        ip_address.parsed("10.0.0.1%eth0", may_have_scope=True)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("FD00:0:0::0001", "fd00::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),  # sshd sees such a connection as one of IPv4
        ("::FFFF:0a00:0001", "10.0.0.1"),
    ],
)
def test_an_address_has_one_spelling(text: str, canonical: str) -> None:
    assert ip_address.canonical(text) == canonical


@pytest.mark.parametrize(
    "given", ["", " 10.0.0.1", "10.0.0.1\n", "10.0.0.1/24", "010.0.0.1x", "node1", 167772161, None, b"\n\0\0\1"]
)
def test_what_is_no_text_of_an_address_is_refused(given: object) -> None:
    assert not ip_address.is_address(given)


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "169.254.3.4", "fe80::1"),  # noqa: S104 - nothing is bound
        *("224.0.0.1", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.3.4", "::ffff:0.0.0.0", "::ffff:224.0.0.1"),
    ],
)
def test_no_connection_of_another_node_comes_from_such_an_address(text: str) -> None:
    assert not ip_address.is_source(ip_address.parsed(text))


@pytest.mark.parametrize("text", ["10.0.0.1", "192.0.2.7", "fd00::1", "2001:db8::1", "::ffff:10.0.0.1"])
def test_a_connection_of_another_node_may_come_from_such_an_address(text: str) -> None:
    assert ip_address.is_source(ip_address.parsed(text))


@pytest.mark.parametrize("name", ["eth0", "enp1s0f0np0", "bond0.100", "br-0a1b2c3d4e5f", "ib0", "cali12ab", "wg_home"])
def test_names_of_interfaces(name: str) -> None:
    assert ip_address.is_interface(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "e" * 16, ".", "..", "-x", "a b", "a\nb", "a\x1bb", 'a"b', "a'b", "a\\b", "a/b", "a:b", "a%b", "a,b"),
        *("a=b", "^a", "a#b", "a;b", "$(x)", "{{x}}", None),
    ],
)
def test_what_is_no_name_of_an_interface_is_refused(name: object) -> None:
    assert not ip_address.is_interface(name)


def test_networks() -> None:
    assert ip_address.network("10.0.0.0/24") == ipaddress.ip_network("10.0.0.0/24")
    assert str(ip_address.network("10.0.0.7/24", strict=False)) == "10.0.0.0/24"
    for given in ("10.0.0.7/24", "x", 7, None):
        with pytest.raises(ValueError, match="network"):
            ip_address.network(given)


# Programs that travel to a node alone, and compare what its kernel says; nothing is written from it.
ALONE = {
    "plugins/module_utils/ip_address.py",
    "plugins/module_utils/fabric_probe.py",
    "plugins/module_utils/firewall_rules.py",
    "roles/validation/files/rank_look.py",
}


def test_addresses_are_parsed_in_one_place() -> None:
    asking = re.compile(
        r"\bip_(?:address|interface|network)\(|\bIPv[46](?:Address|Interface|Network)\(|from ipaddress import"
    )
    root = content.root()
    found = {
        str(path.relative_to(root))
        for folder in ("plugins", "python", "roles")
        for path in (root / folder).rglob("*.py")
        if "molecule" not in path.parts and asking.search(path.read_text(encoding="utf-8"))
    }
    assert found - {"python/clusterctl/sandbox/model.py", "python/clusterctl/sandbox/container_engine.py"} == ALONE
