"""Differences between a host's snapshot and its present state, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import artifacts
from clusterctl.model.snapshot import SLICES, HostDifference, HostSnapshot, NodeState, Snapshot
from clusterctl.provisioning import plan

FILE = {"path": "/etc/hosts", "kind": "file", "mode": "0644", "owner": "root", "group": "root", "sha256": "aa"}
KEYS = {**FILE, "path": "/home/me/.ssh/authorized_keys", "kind": "block", "marker": "ssh_mesh"}
LINK = {"path": "/usr/local/openmpi", "kind": "link", "target": "openmpi-5"}
TREE = {"path": "/usr/local/openmpi-5", "kind": "artifact", "marker_sha256": "m", "files": 7}
LIBRARY = {"path": "/lib/libz.so.1", "kind": "library"}
LOADER = {"path": "/usr/local/nccl/lib/libnccl.so.2", "kind": "loader"}
WATCH: tuple[dict[str, Any], ...] = (FILE, KEYS, LINK, TREE, LIBRARY, LOADER)
TRAITS = {"host name": "node1", "limit of open files": "1024", "sshd's MaxStartups": "10:30:100"}
STATE = NodeState("debian-12", ("ssh-ed25519 A",), "me", WATCH, addresses=frozenset({"10.0.0.1"}), traits=TRAITS)
SNAPSHOT = HostSnapshot(
    run_id="r",
    inputs={},
    members="m",
    platform="debian-12",
    host_keys=("ssh-ed25519 A",),
    user="me",
    watch=WATCH,
    traits=TRAITS,
    address="10.0.0.1",
)
DAMAGE = "1 of 7 files are missing or changed, first lib/libmpi.so.40 (content)"


def with_entry(old: dict[str, Any], **new: Any) -> NodeState:
    return replace(STATE, watch=tuple({**entry, **new} if entry is old else entry for entry in WATCH))


def words(state: NodeState, snapshot: HostSnapshot = SNAPSHOT) -> list[str]:
    return [str(each) for each in plan.differences(snapshot, state)]


def test_a_host_as_it_was_left_has_no_difference() -> None:
    assert words(STATE) == []


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (with_entry(FILE, mode="0666"), "/etc/hosts differs: mode 0666, was 0644"),
        (with_entry(FILE, owner="you", mode="0600"), "mode 0600, was 0644; owner you:root, was root:root"),
        (with_entry(FILE, sha256="bb"), "/etc/hosts differs: content changed"),
        (with_entry(FILE, kind="link", target="/etc/x"), "a link to /etc/x, was a file"),
        (with_entry(FILE, kind="absent"), "/etc/hosts differs: missing"),
        (with_entry(KEYS, sha256="bb"), "content of the block 'ssh_mesh' changed"),
        (with_entry(LINK, target="openmpi-4"), "it leads to openmpi-4, was openmpi-5"),
        (with_entry(TREE, files=DAMAGE), DAMAGE),
        (with_entry(TREE, marker_sha256="x"), "another installation"),
        (with_entry(LIBRARY, kind="absent"), "/lib/libz.so.1 differs: missing"),
        (with_entry(LOADER, kind="absent"), "libnccl.so.2 differs: missing in the loader's cache"),
        (replace(STATE, addresses=frozenset({"10.0.0.9"})), "10.0.0.1, by which the other nodes know it"),
        (replace(STATE, traits={**TRAITS, "host name": "pypi"}), "host name differs: pypi, was node1"),
        (replace(STATE, traits={**TRAITS, "limit of open files": "24"}), "limit of open files differs: 24, was 1024"),
        (
            replace(STATE, traits={**TRAITS, "sshd's MaxStartups": "1:99:2"}),
            "sshd's MaxStartups differs: 1:99:2, was 10:30:100",
        ),
        (
            replace(STATE, traits={**TRAITS, "sshd's AllowUsers": "root"}),
            "sshd's AllowUsers differs: root, was the default",
        ),
    ],
)
def test_each_difference_is_named(state: NodeState, says: str) -> None:
    (found,) = words(state)
    assert says in found


def test_an_older_snapshot_is_compared_by_what_it_holds() -> None:
    older = SNAPSHOT.model_dump(exclude={"traits", "address", "damaged"})
    older["watch"] = ({"path": "/etc/hosts", "kind": "file", "sha256": "aa"},)
    read = Snapshot.model_validate({"schema_version": 1, "hosts": {"node1": older}}).hosts["node1"]
    assert words(with_entry(FILE, mode="0666"), read) == []
    assert words(with_entry(FILE, sha256="bb"), read) == ["/etc/hosts differs: content changed"]


def test_damage_is_kept_until_a_comparison_of_everything_does_not_find_it() -> None:
    before, damaged = Snapshot(hosts={"node1": SNAPSHOT}), {"node1": with_entry(TREE, files=DAMAGE)}
    found = plan.with_damage(before, damaged, everything=False)
    assert found.hosts["node1"].damaged == (HostDifference(subject="/usr/local/openmpi-5", words=DAMAGE),)
    another_slice = plan.with_damage(found, {"node1": STATE}, everything=False)
    assert another_slice == found
    assert [str(each) for each in plan.known_differences(another_slice.hosts["node1"], STATE, verified=False)] == [
        f"/usr/local/openmpi-5 differs: {DAMAGE}"
    ], "sizes and modes are as they were, so the quick look needs the memory"
    assert plan.with_damage(found, {"node1": STATE}, everything=True) == before
    assert plan.with_damage(before, {"node1": with_entry(FILE, sha256="bb")}, everything=True) == before


def test_damage_of_an_older_snapshot_is_read_and_kept() -> None:
    sentence = f"/usr/local/openmpi-5 differs: {DAMAGE}"
    older = {**SNAPSHOT.model_dump(mode="json"), "damaged": [sentence]}
    read = Snapshot.model_validate({"hosts": {"node1": older}})
    (known,) = plan.known_differences(read.hosts["node1"], STATE, verified=False)
    assert (known.subject, known.words, str(known)) == ("/usr/local/openmpi-5", DAMAGE, sentence)
    assert Snapshot.model_validate_json(read.model_dump_json()) == read
    with pytest.raises(ValueError, match="damaged"):
        Snapshot.model_validate({"hosts": {"node1": {**older, "damaged": 3}}})


def test_equal_differences_are_told_once_by_node_set() -> None:
    one, two = (
        HostDifference(subject="/etc/hosts", words="missing"),
        HostDifference(subject="host name", words="x, was y"),
    )
    hosts = {"node1": (one,), "node2": (one, two), "node3": (one,), "node7": (one,)}
    assert plan.folded(hosts) == [("node[1-3,7]", one), ("node2", two)]
    assert plan.folded_words({"node1": "it is off", "node2": "it is off"}) == [("node[1-2]", "it is off")]


def test_the_controller_and_the_probe_cut_a_week_alike() -> None:
    assert SLICES == artifacts.SLICES
