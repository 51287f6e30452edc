"""When a machine may take the place of another: which host keys are accepted, and that nothing changes before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from agreeing import Agreeing
from clusterctl.model.host_keys import HostKey
from clusterctl.model.snapshot import Snapshot
from clusterctl.provisioning import replace
from clusterctl.provisioning.replace import ReplaceRequest
from clusterctl.remote import host_key
from clusterctl.remote.host_key import KnownPlace
from clusterctl.state import paths, snapshots
from clusterctl.support.errors import ConfigError

OLD = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIGmGtmFjGgEr0E5gG7n9PzAvjZ6C6DfG2vJZ6BBxGk1A")
NEW = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIBn2m5Hq0k2lE8p8QwVf3mR0n0qzQ0n7b2cYl8oK1rZq")


@dataclass
class User(Agreeing):
    """An observer whose user answers one question, or is not there."""

    answer: bool | None = None
    asked: list[str] = field(default_factory=list)

    def accepts(self, lines: Sequence[str]) -> bool | None:
        self.asked += lines
        return self.answer


class StartedError(Exception):
    """The key was accepted, and the run began."""


@dataclass
class Lab:
    """Two provisioned nodes, of which node2 shows another key than the known one."""

    inventory: Path
    known: Path

    def replace(self, node: str = "node2", user: User | None = None, **options: object) -> None:
        before = self.known.read_bytes()
        try:
            replace.replace(ReplaceRequest(self.inventory, node=node, **options), user or User())  # type: ignore[arg-type]
        finally:
            assert self.known.read_bytes() == before


@pytest.fixture
def known(lab: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    found = Lab(lab, lab.with_name("known_hosts"))
    found.known.write_text(f"node1 {OLD}\nnode2 {OLD}\n", encoding="utf-8")
    members = tuple({"name": name, "address": "10.0.0.1"} for name in ("node1", "node2"))
    snapshots.write(paths.cluster_id(found.inventory), Snapshot(members=members))
    monkeypatch.setattr(host_key, "known_place", lambda host: KnownPlace(found.known, (host.name,)))
    monkeypatch.setattr(host_key, "shown_key", lambda *_: NEW)

    def start(*_: object) -> None:
        raise StartedError

    monkeypatch.setattr(replace.runs, "start", start)
    return found


def test_a_key_that_nobody_confirms_is_refused_with_both_fingerprints(known: Lab) -> None:
    with pytest.raises(ConfigError) as refused:
        known.replace()
    assert OLD.fingerprint in str(refused.value)
    assert f"--host-key {NEW.fingerprint}" in str(refused.value)


def test_the_user_sees_both_keys_and_decides(known: Lab) -> None:
    user = User(answer=False)
    with pytest.raises(ConfigError, match="not accepted; nothing was changed"):
        known.replace(user=user)
    assert [OLD.fingerprint in line for line in user.asked] == [False, True, False, False]
    assert [NEW.fingerprint in line for line in user.asked] == [False, False, True, False]
    with pytest.raises(StartedError):
        known.replace(user=User(answer=True))


def test_a_given_key_decides_without_a_question(known: Lab) -> None:
    user = User(answer=False)
    with pytest.raises(StartedError):
        known.replace(user=user, expected=frozenset({NEW.fingerprint, OLD.fingerprint}))
    with pytest.raises(ConfigError) as refused:
        known.replace(user=user, expected=frozenset({OLD.fingerprint}))
    assert f"{NEW.fingerprint}, not {OLD.fingerprint}" in str(refused.value)
    assert user.asked == []


def test_a_known_key_needs_no_question(known: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_key, "shown_key", lambda *_: OLD)
    with pytest.raises(StartedError):
        known.replace()


def test_an_unknown_node_and_a_cluster_without_a_place_are_refused(known: Lab) -> None:
    with pytest.raises(ConfigError, match="no host 'node9'"):
        known.replace("node9")
    snapshots.write(paths.cluster_id(known.inventory), Snapshot())
    with pytest.raises(ConfigError, match="No run has provisioned"):
        known.replace()


def test_a_host_whose_key_ssh_keeps_nowhere_has_none_to_replace(known: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_key, "known_place", lambda _: None)
    with pytest.raises(ConfigError, match="UserKnownHostsFile none"):
        known.replace()


@pytest.mark.parametrize(
    ("given", "now", "named"),
    [
        (
            ["clusterctl", "provision", "lab.ini", "-e", "nccl_install=…"],
            ["clusterctl", "replace"],
            "-e nccl_install=…",
        ),
        (["-enccl_install=…", "--extra-vars=a=…"], ["-e", "a=…"], "-e nccl_install=…"),
        (["-e", "b=…", "-e", "a=…"], [], "-e a=… and -e b=…"),
        (["-e", "a=…", "-e", "@more.yml", "-e", "…"], ["-e", "a=…"], ""),
    ],
)
def test_extra_variables_of_the_last_provision_that_this_run_lacks_are_named(
    given: list[str], now: list[str], named: str
) -> None:
    told = replace.forgotten(given, now)
    assert (named in told) if named else told == ""
