"""Causes of a failed job: whom they blame, what is said of them, and when a look at the nodes can tell more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.job_outcome import JobOutcome, Sweep
from clusterctl.model.results import CheckResult, RankReport, Verdict, WrongAnswer
from clusterctl.validation.checks import causes, mpirun_output
from clusterctl.validation.checks.causes import Cause

FULL = Cause(("node3",), "its /tmp is full (0 of 1 MiB are free)", "free space in /tmp")
WAY = Cause(("node3", "node5"), "connections time out", "let the firewall pass TCP", "one_way")


def found(state: str = "waiting", wrong: str = "", **changed: object) -> CheckResult:
    problems = (WrongAnswer(what="sum", expected=wrong, got="x"),) if wrong else ()
    ranks = [RankReport(rank=n, host=f"node{n + 1}", state=state, problems=problems) for n in range(4)]  # type: ignore[arg-type]
    given = {"check": "hello", "verdict": "FAIL", "reason": "no answer", "evidence": ("a line",), "ranks": ranks}
    return CheckResult.model_validate({**given, **changed})


def test_the_named_node_comes_first_with_its_cause_and_the_cure_last() -> None:
    told = causes.explained(found(hosts=("node2",)), [FULL])
    assert told.reason == "node3: its /tmp is full (0 of 1 MiB are free); no answer; free space in /tmp"
    assert told.hosts == ("node3",)
    assert told.evidence == ("node3: its /tmp is full (0 of 1 MiB are free)", "a line")
    assert [(one.kind, one.nodes, one.cure) for one in told.culprits] == [("node", ("node3",), "free space in /tmp")]


def test_one_way_names_both_ends_and_the_direction() -> None:
    told = causes.explained(found(), [WAY])
    assert told.reason.startswith("from node3 to node5: connections time out")
    assert [(one.kind, one.nodes) for one in told.culprits] == [("one_way", ("node3", "node5"))]


TMP_FULL = Cause(("node3",), "its /tmp is full", "free space in /tmp", subject="temporary files")


@pytest.mark.parametrize(
    "told",
    [
        Cause(("node3",), "PMIx has no room for its files in /tmp", "free space in /tmp", subject="temporary files"),
        Cause(("node3",), "x: No space left on device", "see whether the disk is full", subject="files"),
        Cause(("node3",), "mpirun lost the daemon", "look at the kernel log", is_consequence=True),
        Cause((), "x: No space left on device", "see whether the disk is full", subject="files"),
    ],
    ids=["same-cure", "some-file-system", "lost-daemon", "unknown-node"],
)
def test_what_the_launcher_and_the_look_both_say_of_a_node_is_said_once(told: Cause) -> None:
    reason = causes.reason([told], "mpirun ended") if told.hosts else f"mpirun ended: {told.cause}"
    before = found(reason=reason, hosts=told.hosts, culprits=causes.culprits([] if told.is_consequence else [told]))
    after = causes.explained(before, [TMP_FULL], [told])
    assert after.reason == "node3: its /tmp is full; mpirun ended; free space in /tmp"
    assert [(one.nodes, one.words, one.cure) for one in after.culprits] == [
        (("node3",), "node3: its /tmp is full", "free space in /tmp")
    ]


def test_a_login_that_the_launch_node_s_own_settings_break_is_not_laid_to_the_other_end() -> None:
    """ssh says that the other end has closed the connection, and its own proxy did."""
    told = Cause(("node2",), "its sshd ends the connection before the login", "look at the log of sshd", subject="ssh")
    own = Cause(("node1",), "logins from it to node[2-4] fail", "remove the proxy", subject="ssh")
    before = found(reason=causes.reason([told], "mpirun ended"), hosts=told.hosts, culprits=causes.culprits([told]))
    after = causes.explained(before, [own], [told])
    assert after.reason == "node1: logins from it to node[2-4] fail; mpirun ended; remove the proxy"
    assert [one.nodes for one in after.culprits] == [("node1",)]


def test_another_cause_of_the_node_and_the_same_cause_of_another_node_are_kept() -> None:
    files = Cause(("node3",), "its limit of open files is reached", "raise nofile", subject="open files")
    other = TMP_FULL.at("node5")
    before = found(
        reason=causes.reason([files, other], "mpirun ended"),
        hosts=("node3", "node5"),
        culprits=causes.culprits([files, other]),
    )
    after = causes.explained(before, [TMP_FULL], [files, other])
    assert after.reason.startswith("node3: its /tmp is full; node3: its limit of open files is reached; node5: ")
    assert after.reason.endswith("; raise nofile; free space in /tmp")
    assert {one.nodes: one.words.count(";") for one in after.culprits} == {("node3",): 1, ("node5",): 0}


def test_without_a_cause_the_result_stays_as_it_was() -> None:
    assert causes.explained(found(), []) == found()


def test_several_causes_of_a_node_are_one_culprit() -> None:
    (culprit,) = causes.culprits([FULL, Cause(("node3",), "its /dev/shm is full", "free space in /dev/shm")])
    assert "its /tmp is full" in culprit.words
    assert "its /dev/shm is full" in culprit.words


@pytest.mark.parametrize(
    ("hosts", "failed", "kind"),
    [
        (("node1",), {("node2", "node1")}, "node"),
        (("node1", "node2"), {("node1", "node2")}, "one_way"),
        (("node1", "node2"), {("node1", "node2"), ("node2", "node1")}, "pair"),
        (("node1", "node2", "node3"), {("node1", "node2"), ("node2", "node3")}, "together"),
        (("node1", "node2", "node3"), set(), "node"),
    ],
)
def test_what_a_finding_blames(hosts: tuple[str, ...], failed: set[tuple[str, str]], kind: str) -> None:
    assert causes.kind_of(hosts, failed) == kind


HUNG, CRASHED = JobOutcome("deadline", 21.0, 20.0), JobOutcome("exited", 2.0, rc=1)


@pytest.mark.parametrize(
    ("result", "outcome", "is_open"),
    [
        (found(), HUNG, True),
        (found(), CRASHED, True),
        (found("absent", verdict="ERROR"), CRASHED, True),
        (found("answered"), HUNG, True),
        (found(), JobOutcome("exited", 2.0, rc=0), True),  # PRRTE lost a daemon and ended with 0
        (found("answered", wrong="an answer"), CRASHED, True),
        (found("answered", wrong="108"), CRASHED, False),
        (found("answered"), JobOutcome("exited", 2.0, rc=0), False),  # other libraries, ranks at wrong places
        (found(), JobOutcome("stopped", 2.0), False),
        (found(), JobOutcome("deadline", 21.0, 20.0, sweeps=(Sweep("node2", problem="no answer"),)), False),
        (found(next_step="give it more time"), HUNG, False),
        (found("answered", verdict="PASS"), JobOutcome("exited", 2.0, rc=0), False),
    ],
    ids=[
        "hung", "crashed", "not-up", "did-not-end", "daemon-lost", "died", "wrong-answer", "other-fault", "stopped",
        "node-gone", "overcommitted", "passed",
    ],
)  # fmt: skip
def test_when_a_look_at_the_nodes_can_tell_more(result: CheckResult, outcome: JobOutcome, is_open: bool) -> None:
    assert causes.is_open(result, outcome) is is_open


def test_a_name_that_may_follow_from_the_fault_of_another_node_is_not_certain() -> None:
    told = causes.explained(found(), [FULL])
    assert causes.is_certain(told, CRASHED)
    assert causes.is_certain(found(hosts=("node3",)), HUNG)  # it alone fell silent
    assert not causes.is_certain(found(hosts=("node3",)), CRASHED)
    assert not causes.is_certain(found(hosts=("node3", "node4")), HUNG)
    assert told.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("load", "cpus", "times"), [(0.5, 2.0, 1.0), (4.0, 2.0, 2.0), (16.0, 2.0, 4.0), (16.0, 64.0, 1.0)]
)
def test_busy_machines_get_more_time_for_a_connection(load: float, cpus: float, times: float) -> None:
    figures = {"load_processes": load, "load_cpus": cpus}
    ranks = tuple(rank.model_copy(update={"figures": figures}) for rank in found().ranks)
    assert causes.slowdown(found().model_copy(update={"ranks": ranks})) == times
    assert causes.slowdown(found()) == 1.0


# --- captured words of mpirun and ssh after planted faults; the first line of each file says where it is from ---


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
    "4.1/shell-tcsh": ("node", (), "does not understand the command"),
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
    "5.0/shell-tcsh": ("node", ("node3",), "does not understand the command"),
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
EXAMPLES = json.loads((DATA.parent / "error_meanings.json").read_text(encoding="utf-8"))
TOLD = [one for one in EXAMPLES if "hosts" in one]
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


@pytest.mark.parametrize("example", TOLD, ids=lambda one: f"{one['source'][:40]}: {one['means']}")
def test_a_published_message_names_both_ends_and_nobody_who_only_saw_it(example: dict[str, Any]) -> None:
    names = example["names"] or dict.fromkeys(example["hosts"])
    said = [*example["said"].splitlines(), *example.get("then", "").splitlines()]
    found = mpirun_output.read(said, {key: value or key for key, value in names.items()}, "x")
    assert (found[0].kind, list(found[0].hosts)) == (example["ends"], example["hosts"])
    assert example["means"] in found[0].cause
    assert {host for cause in found for host in cause.hosts} == set(example["hosts"])


def test_who_lost_a_connection_is_no_cause_beside_the_node_that_is_lost() -> None:
    for kind in ("recv(36) failed: Connection reset by peer (104)", "remote peer unexpectedly closed connection"):
        seen = f"[node2][[11356,1],45][btl_tcp.c:559:mca_btl_tcp_recv_blocking] {kind}"
        found = mpirun_output.read([seen, *lines("5.0/daemon-killed")], NAMES, "node1")
        assert [cause.hosts for cause in found] == [("node5",)]
        (alone,) = mpirun_output.read([seen], NAMES, "node1")
        assert (alone.hosts, alone.is_consequence, alone.subject) == ((), True, mpirun_output.PEER)
        assert "a connection of node2" in alone.cause


def test_nodes_have_the_names_that_the_inventory_gives_them() -> None:
    said = lines("5.0/tmp-full")
    (cause,) = mpirun_output.read(said, {"Node3.example.org": "rack1-c"}, "rack1-a")
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
