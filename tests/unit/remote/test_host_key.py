"""Where ssh itself keeps the key of a host."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from clusterctl.model.hosts import Host
from clusterctl.remote import host_key
from clusterctl.support.errors import UnreachableError

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


@pytest.mark.parametrize("where", ["", ">&2"])
def test_a_server_that_prints_without_end_fills_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\nexec head -c 3000000000 /dev/zero {where}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(host_key, "_TIMEOUT_S", 3.0)
    tracemalloc.start()
    with pytest.raises(UnreachableError):
        host_key.shown_key(Host(name="node3", address="10.0.0.3"), ())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20
