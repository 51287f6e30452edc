"""Which hosts ask which others, and what --gateways means."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest
from clusterctl.model.gateways import DIRECT_UP_TO, GatewayWish, plan, wish_of
from clusterctl.model.hosts import Host, SlurmStep
from clusterctl.support.errors import ConfigError


def hosts(count: int, wish: GatewayWish | None, **more: object) -> list[Host]:
    return [Host(f"node{number}", f"10.0.0.{number}", gateways=wish, **more) for number in range(1, count + 1)]  # type: ignore[arg-type]


def named(found: dict[Host, tuple[Host, ...]]) -> dict[str, list[str]]:
    return {gateway.name: [host.name for host in its] for gateway, its in found.items()}


def test_up_to_128_hosts_are_asked_directly_and_more_through_one_gateway_in_32() -> None:
    assert plan(hosts(DIRECT_UP_TO, GatewayWish())) == {}
    found = plan(hosts(256, GatewayWish()))
    assert [gateway.name for gateway in found] == [f"node{number}" for number in range(1, 256, 32)]
    assert {len(its) for its in found.values()} == {31}
    asked = {host.name for gateway, its in found.items() for host in (gateway, *its)}
    assert len(asked) == 256


def test_hosts_without_a_known_mesh_are_asked_directly() -> None:
    assert plan(hosts(256, None)) == {}
    fresh = hosts(200, None)
    known = [replace(host, gateways=GatewayWish()) for host in fresh[:64]]
    found = plan([*known, *fresh[64:]])
    assert named(found).keys() == {"node1", "node33"}
    assert all(host.gateways is not None for its in found.values() for host in its)


def test_a_number_and_names_hold_for_few_hosts_too() -> None:
    assert named(plan(hosts(5, GatewayWish(count=2)))) == {"node1": ["node2"], "node3": ["node4", "node5"]}
    assert named(plan(hosts(5, GatewayWish(names=("node2", "node5"))))) == {
        "node2": ["node1"],
        "node5": ["node3", "node4"],
    }
    assert plan(hosts(3, GatewayWish(count=9))) == {}, "each is a gateway of none"
    assert plan(hosts(3, GatewayWish(names=("elsewhere",)))) == {}


def test_a_host_with_a_password_another_user_or_a_step_of_a_job_stays_on_the_direct_way() -> None:
    wish = GatewayWish(count=1)
    plain = hosts(3, wish, user="mpi")
    others = [
        replace(plain[2], name="secret", become=True).with_sudo_password(secrets.token_hex(8)),
        replace(plain[2], name="other", user="admin"),
        replace(plain[2], name="step", step=SlurmStep(1, "n1")),
        replace(plain[2], name="account", variables={"cluster_user": "jobs"}),
    ]
    assert named(plan([*plain, *others])) == {"node1": ["node2", "node3"]}
    account = [replace(host, user="jobs", variables={"cluster_user": "jobs"}) for host in plain]
    assert named(plan(account)) == {"node1": ["node2", "node3"]}, "a job logs in as the mesh's user"


def test_the_option_is_a_number_or_hosts_of_the_inventory() -> None:
    names = ["node1", "node2", "node3"]
    assert wish_of("0", names) is None
    assert wish_of("2", names) == GatewayWish(count=2)
    assert wish_of("node[1-2]", names) == GatewayWish(names=("node1", "node2"))
    for text, words in (("node9", "names 'node9'"), ("", "is ''"), ("-1", "'-1'"), ("a b[", "'a b['")):
        with pytest.raises(ConfigError, match="--gateways") as raised:
            wish_of(text, names)
        assert words in str(raised.value)
    assert wish_of("9" * 5000, names) == GatewayWish(count=3)
