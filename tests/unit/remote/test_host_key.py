"""Where ssh itself keeps the key of a host."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusterctl.model.hosts import Host
from clusterctl.remote import host_key

pytestmark = pytest.mark.programs


@pytest.mark.parametrize(
    ("arguments", "port", "names"),
    [
        ((), 22, ("10.0.0.3", "node3")),
        ((), 2222, ("[10.0.0.3]:2222", "[node3]:2222")),
        (("-o", "HostKeyAlias=three"), 2222, ("three", "[10.0.0.3]:2222", "[node3]:2222")),
        (("-o", "HostName=10.9.9.9"), 22, ("10.9.9.9", "10.0.0.3", "node3")),
    ],
)
def test_the_inventorys_arguments_decide(arguments: tuple[str, ...], port: int, names: tuple[str, ...]) -> None:
    file = ("-o", "UserKnownHostsFile=/somewhere/hosts /elsewhere")
    host = Host(name="node3", address="10.0.0.3", port=port, ssh_args=(*file, *arguments))
    assert host_key.known_place(host) == host_key.KnownPlace(Path("/somewhere/hosts"), names)


def test_there_may_be_no_place() -> None:
    host = Host(name="node3", address="10.0.0.3", ssh_args=("-o", "UserKnownHostsFile=/dev/null"))
    assert host_key.known_place(host) is None
