"""Captured words of mpirun and ssh after planted faults; the first line of each file says where it is from."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusterctl.validation.checks import mpirun_output

DATA = Path(__file__).parents[3] / "data" / "launcher"
NODES = tuple(f"node{number}" for number in range(1, 7))
NAMES = {name: name for name in NODES} | {f"10.90.0.1{number}": name for number, name in enumerate(NODES, start=1)}

# By file: the kind of the first cause, its nodes, and words of it. Where a file is missing here, no message may be
# taken for a cause.
NOT_RUN, NO_FILES = "not executable", "open files"
EXPECTED = {
    "4.1/daemon-not-executable": ("node", (), NOT_RUN),  # ORTE names no node here, and an innocent one elsewhere
    "4.1/daemon-killed": ("node", ("node5",), "lost the daemon"),
    "4.1/daemon-library-missing": ("node", (), "does not find libopen-rte.so.40"),
    "4.1/daemon-missing": ("node", (), "orted is missing"),
    "4.1/name-unknown-dns": ("one_way", ("node1", "node3"), "does not know the name"),
    "4.1/node-killed": ("node", ("node6",), "lost the daemon"),
    "4.1/node-killed-busy": ("node", ("node6",), "lost the daemon"),
    "4.1/nofile": ("node", (), "exec request failed"),
    "4.1/nproc": ("node", (), "exec request failed"),
    "4.1/program-missing": ("node", ("node3",), "/usr/local/python_env/bin/python cannot be executed"),
    "4.1/shell-false": ("node", (), "a daemon did not start"),
    "4.1/shell-nologin": ("node", (), "not available"),
    "4.1/shm-full-allreduce": ("node", ("node3",), "shared memory"),
    "4.1/ssh-denied": ("node", ("node3",), "refuses the login"),
    "4.1/nofile-launch-node": ("node", ("node1",), NO_FILES),
    "4.1/shm-full": ("node", ("node3",), "shared memory"),
    "4.1/ssh-host-key": ("one_way", ("node1", "node2"), "host key"),
    "4.1/ssh-refused": ("node", ("node3",), "refuses connections at port 22"),
    "4.1/tmp-full": ("node", ("node3",), "no room for its files in /tmp"),
    "4.1/tmp-read-only": ("node", ("node3",), "Read-only file system"),
    "5.0/daemon-killed": ("node", ("node5",), "lost the daemon"),
    "5.0/daemon-library-missing": ("node", ("node4",), "does not find libprrte.so.3"),
    "5.0/daemon-missing": ("node", ("node4",), "prted is missing"),
    "5.0/daemon-not-executable": ("node", ("node4",), NOT_RUN),
    "5.0/name-unknown-dns": ("one_way", ("node1", "node3"), "does not know the name"),
    "5.0/node-killed": ("node", ("node6",), "closed"),
    "5.0/node-killed-busy": ("node", ("node6",), "closed"),
    "5.0/nofile": ("node", ("node3",), "exec request failed"),
    "5.0/nofile-launch-node": ("node", ("node1",), NO_FILES),
    "5.0/nproc": ("node", ("node3",), "exec request failed"),
    "5.0/program-missing": ("node", ("node3",), "/usr/local/python_env/bin/python cannot be executed"),
    "5.0/shell-false": ("node", ("node2",), "lost the daemon"),
    "5.0/shell-nologin": ("node", ("node2",), "not available"),
    "5.0/shm-full": ("node", ("node3",), "shared memory"),
    "5.0/shm-full-allreduce": ("node", ("node3",), "shared memory"),
    "5.0/ssh-denied": ("node", ("node3",), "refuses the login"),
    "5.0/ssh-host-key": ("one_way", ("node1", "node5"), "host key"),
    "5.0/ssh-refused": ("node", ("node3",), "refuses connections at port 22"),
    "5.0/tmp-full": ("node", ("node3",), "lost the daemon"),
    "5.0/tmp-not-writable": ("node", ("node3",), "lost the daemon"),
    "5.0/tmp-read-only": ("node", ("node3",), "lost the daemon"),
}
FILES = sorted(f"{path.parent.name}/{path.stem}" for path in DATA.rglob("*.txt"))


def lines(name: str) -> list[str]:
    return (DATA / f"{name}.txt").read_text(encoding="utf-8").splitlines()[1:]


def test_every_expectation_has_its_capture() -> None:
    assert set(EXPECTED) <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_message_names_its_node_and_its_cause_and_no_other_node(name: str) -> None:
    found = mpirun_output.read(lines(name), NAMES, "node1")
    if name not in EXPECTED:
        assert found == ()
        return
    kind, hosts, words = EXPECTED[name]
    assert (found[0].kind, found[0].hosts) == (kind, hosts)
    assert words in found[0].cause
    assert found[0].cure
    assert found[0].line
    assert {host for cause in found for host in cause.hosts} == set(hosts)


def test_nodes_have_the_names_that_the_inventory_gives_them() -> None:
    said = lines("5.0/tmp-full")
    (cause,) = mpirun_output.read(said, {"node3.example.org": "rack1-c"}, "rack1-a")
    assert cause.hosts == ("rack1-c",)
    (unknown,) = mpirun_output.read(said, {"other": "other"}, "other")
    assert unknown.hosts == ()


def test_a_message_between_the_lines_of_ranks_and_of_other_nodes_is_read() -> None:
    said = lines("5.0/tmp-full")
    mixed = [part for line in said for part in (line, '{"clusterctl": 1, "event": "started", "rank": 3}', "\0")]
    assert mpirun_output.read(mixed, NAMES, "node1") == mpirun_output.read(said, NAMES, "node1")
    cut = ["-" * 74, "the start of another message", "[node2:00000] *** An error occurred", *said]
    assert mpirun_output.read(cut, NAMES, "node1") == mpirun_output.read(said, NAMES, "node1")


def test_of_several_lost_daemons_none_is_blamed_for_a_program_that_cannot_run() -> None:
    other = [line.replace("node4", "node5") for line in lines("5.0/daemon-not-executable")]
    found = mpirun_output.read([*lines("5.0/daemon-not-executable"), *other], NAMES, "node1")
    assert [(cause.hosts, NOT_RUN in cause.cause) for cause in found] == [((), True)]


def test_a_lost_daemon_is_no_cause_beside_a_cause() -> None:
    found = mpirun_output.read(lines("5.0/nofile-launch-node"), NAMES, "node1")
    assert all(cause.hosts == ("node1",) for cause in found)  # mpirun lost node2, since it could open no connection
    assert mpirun_output.read(lines("5.0/tmp-full"), NAMES, "node1")[0].is_consequence
