"""Hosts: what a typed password changes."""

from __future__ import annotations

from clusterctl.model.hosts import Host


def test_a_typed_password_stands_below_one_of_the_inventory() -> None:
    plain, own = Host("node1", "a"), Host("node2", "b", sudo_password="kept")  # noqa: S106 - of a test
    assert plain.with_sudo_password("hush").sudo_password == "hush"  # noqa: S105 - of a test
    assert own.with_sudo_password("hush") is own
    assert plain.with_sudo_password(None) is plain
