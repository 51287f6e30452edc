"""The controller's known_hosts: no name and no key makes a line of another host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from clusterctl.model.host_keys import HostKey
from clusterctl.remote import host_key
from clusterctl.remote.host_key import KnownPlace
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

KEY = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIIwwYGMGDwWPrygxQ4O3kv+UcH3baMHTl4kBu/CfhWR4")


def test_the_keys_of_a_host_are_kept(tmp_path: Path) -> None:
    place = KnownPlace(tmp_path / "known_hosts", ("[node1]:2222",))
    host_key.keep(place, [KEY])
    assert host_key.keys_in(place) == (KEY,)


@pytest.mark.parametrize("letter", ["\n", "\r", "\0", " ", ",", "\x1b", "\u2028"])
def test_a_name_or_a_key_that_would_leave_its_line_is_refused(tmp_path: Path, letter: str) -> None:
    path = tmp_path / "known_hosts"
    for names, key in (
        ((f"node1{letter}node2",), KEY),
        (("node1",), HostKey("ssh-ed25519", f"AAAA{letter}AAAA")),
        (("node1",), HostKey(f"ssh-ed25519{letter}x", "AAAA")),
    ):
        with pytest.raises(ConfigError, match="that the line cannot hold"):
            host_key.keep(KnownPlace(path, names), [key])
    assert not path.exists()
