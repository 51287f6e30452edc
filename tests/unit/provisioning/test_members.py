"""Which hosts may leave a cluster, and which snapshots stay true when they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.host_keys import HostKey
from clusterctl.model.hosts import InventorySources
from clusterctl.model.snapshot import HostSnapshot, NodeState, Snapshot
from clusterctl.provisioning import members, plan
from clusterctl.provisioning.members import Left, Removal
from clusterctl.remote import host_key
from clusterctl.remote.host_key import KnownPlace
from clusterctl.support.errors import ConfigError

HOSTS = ("node1", "node2", "node3", "node4")
LAB = InventorySources(("lab.ini",))
STATES = {name: NodeState("debian-12", (f"ssh-ed25519 {name}",), "me") for name in HOSTS}


def snapshot(*names: str, **changed: Any) -> Snapshot:
    known = [{"name": name, "address": "10.0.0.1"} for name in names]
    digest = plan.members_digest(STATES, {}, names)
    host = HostSnapshot(
        run_id="r1",
        inputs={"the inventory": "with", "an option": "o"},
        members=digest,
        platform="debian-12",
        host_keys=(),
        user="me",
        watch=(
            {"path": "/etc/hosts", "kind": "block", "marker": "hosts", "sha256": "old"},
            {"path": "/etc/hosts", "kind": "block", "marker": "others", "sha256": "kept"},
        ),
    )
    hosts = {name: host.model_copy(update={"host_keys": STATES[name].host_keys}) for name in names}
    return Snapshot(members=tuple(known), hosts=hosts).model_copy(update=changed)


def removal(*asked: str, hosts: tuple[str, ...] = HOSTS, before: Snapshot | None = None, **options: bool) -> Removal:
    known = snapshot(*HOSTS) if before is None else before
    return members.removal(asked, hosts, known, LAB, **{"launch_node_too": False, **options})


def test_names_and_lists_of_names_leave_once() -> None:
    found = removal("node[3-4]", "node3")
    assert found == Removal(names=("node3", "node4"), remaining=("node1", "node2"), outsiders=())
    assert found.listed(HOSTS) == ("node3", "node4")


def test_a_node_that_the_inventory_names_no_more_is_known_by_the_last_run() -> None:
    found = removal("node3", hosts=("node1", "node2", "node4"))
    assert found.names == ("node3",)
    assert found.listed(("node1", "node2", "node4")) == ()


def test_hosts_that_are_no_members_are_left_alone() -> None:
    before = snapshot("node1", "node2", "node3", removed=("node4",))
    found = removal("node3", hosts=(*HOSTS, "new"), before=before)
    assert (found.remaining, found.outsiders) == (("node1", "node2"), ("node4", "new"))


def test_a_removal_can_be_repeated() -> None:
    before = snapshot("node1", "node2", removed=("node3",))
    assert removal("node3", hosts=("node1", "node2", "node3"), before=before).names == ("node3",)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["node9"], ["lab.ini", "'node9'", "node1, node2"]),
        (["node[8-9]"], ["'node8'"]),
        (["node[1-4]"], ["node[1-4]", "at least one"]),
        (["node1"], ["node1 is the launch node", "node2 would become it", "--launch-node-too"]),
    ],
)
def test_what_cannot_be_removed_is_refused(asked: list[str], says: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        removal(*asked)
    assert all(words in str(refused.value) for words in says)


def test_the_launch_node_leaves_where_that_is_asked_for() -> None:
    assert removal("node1", launch_node_too=True).remaining == ("node2", "node3", "node4")


def test_the_last_member_stays_although_the_inventory_names_more() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        removal("node1", before=snapshot("node1"), launch_node_too=True)


def left(**changed: Any) -> Left:
    watch = ({"path": "/etc/hosts", "kind": "block", "marker": "hosts", "sha256": "new"},)
    given: dict[str, Any] = {
        "run_id": "r2",
        "members": ({"name": "node1"}, {"name": "node2"}),
        "states": STATES,
        "watch": {"node1": watch, "node2": watch},
        "digests": {"with": "without"},
    }
    return Left(**{**given, **changed})


def test_a_host_that_was_as_it_should_be_stays_so() -> None:
    before = snapshot("node1", "node2", "node3")
    after = members.snapshot_after(before, removal("node3", hosts=HOSTS[:3], before=before), left())
    assert set(after.hosts) == {"node1", "node2"}
    assert after.removed == ("node3",)
    assert after.members == ({"name": "node1"}, {"name": "node2"})
    host = after.hosts["node1"]
    assert host.inputs == {"the inventory": "without", "an option": "o"}
    assert host.members == plan.members_digest(STATES, {}, ["node1", "node2"])
    assert {str(entry["marker"]): entry["sha256"] for entry in host.watch} == {"hosts": "new", "others": "kept"}


@pytest.mark.parametrize("listed", [True, False], ids=["listed in the last run", "added since"])
def test_a_host_that_was_never_provisioned_leaves_with_a_member(listed: bool) -> None:
    """The hosts that remain are as they should be, so the next provision leaves them alone."""
    before = snapshot("node1", "node2", "node3")
    known = {name: STATES[name] for name in HOSTS[:3]}  # as provision counts: node4 is no member yet
    digest = plan.members_digest(known, {}, HOSTS if listed else HOSTS[:3])
    hosts = {name: host.model_copy(update={"members": digest}) for name, host in before.hosts.items()}
    before = before.model_copy(update={"hosts": hosts})
    after = members.snapshot_after(before, removal("node3", "node4", before=before), left())
    assert after.hosts["node1"].members == plan.members_digest(known, {}, ["node1", "node2"])


def test_a_host_that_was_never_provisioned_is_no_member_to_a_replacement_or_a_rotation() -> None:
    before = snapshot("node1", "node2", "node3")
    known = {name: STATES[name] for name in HOSTS[:3]}
    digest = plan.members_digest(known, {}, HOSTS)
    hosts = {name: host.model_copy(update={"members": digest}) for name, host in before.hosts.items()}
    before = before.model_copy(update={"hosts": hosts})
    new = {**STATES, "node3": NodeState("debian-12", ("ssh-ed25519 another",), "me")}
    after = members.snapshot_after_replacing(before, "node3", HOSTS, left(states=new), {})
    assert after.hosts["node1"].members == plan.members_digest({**known, "node3": new["node3"]}, {}, HOSTS)
    rotated = members.snapshot_after_rotation(before, HOSTS, STATES, left(states=new))
    assert rotated.hosts["node1"].members == plan.members_digest({**known, "node3": new["node3"]}, {}, HOSTS)


def test_other_changes_are_still_seen_by_the_next_provision() -> None:
    before = snapshot("node1", "node2", "node3")
    removed = removal("node3", hosts=HOSTS[:3], before=before)
    edited = members.snapshot_after(before, removed, left(digests={"edited": "edited without"}))
    assert edited.hosts["node1"].inputs["the inventory"] == "with"
    states = {**STATES, "node2": NodeState("debian-12", ("ssh-ed25519 other",), "me")}
    another = members.snapshot_after(before, removed, left(states=states))
    assert another.hosts["node1"].members == before.hosts["node1"].members


def test_the_user_learns_what_is_left_to_do() -> None:
    removed = removal("node3")
    sentences = members.messages(removed, HOSTS, ["node3"], LAB)
    assert "node[1-2,4] refuse its keys" in sentences[0]
    assert "did not answer" in sentences[1]
    assert "still has its private key" in sentences[2]
    assert sentences[3].startswith("Delete node3 from lab.ini")
    gone = members.messages(removed, ("node1", "node2", "node4"), [], LAB)
    assert len(gone) == 2, "the inventory names it no more, and it answered"


# --- the controller's known_hosts: no name and no key makes a line of another host ---


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
