"""Whose a node is: foreign or not, adopted, locked by another run, and two names of one machine."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import factory
import pytest
from agreeing import Agreeing
from clusterctl.inventory.ansible_inventory import Cluster
from clusterctl.model.hosts import Host, Inventory, InventorySources
from clusterctl.model.probe import Probe
from clusterctl.provisioning import node_ownership, playbook
from clusterctl.provisioning.node_ownership import ClaimAnswer, NodeClaims, Wanted
from clusterctl.provisioning.run import ProvisionRequest, provision
from clusterctl.remote import facts
from clusterctl.state import paths, runs, snapshots

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Claims  # type: ignore[attr-defined]

MARK = {
    "cluster": "theirs",
    "name": "lab",
    "controller": "first@desk",
    "inventory": "/home/first/lab.ini",
    "since": "2026-03-01T00:00:00Z",
    "members": {"node1": "192.0.2.1", "node9": "192.0.2.9"},
}
LOCK = {
    "run": "20260301T000000Z-provision-7",
    "host": "node1",
    "user": "first",
    "controller": "desk",
    "machine": "m",
    "pid": 7,
    "command": "clusterctl provision lab.ini",
    "since": "2026-03-01T10:00:00+01:00",
}
HOSTS = (Host("node1", "192.0.2.1"), Host("node2", "192.0.2.2", port=2222))
OWNER = node_ownership.Owner("mine", "second@here", "/home/second/mine.ini")


def answer(**data: Any) -> ClaimAnswer:
    return ClaimAnswer.model_validate(data)


def test_a_foreign_node_names_its_cluster_who_would_be_lost_and_the_cure() -> None:
    (found,) = node_ownership.claim_problems({"node1": answer(mark=MARK, lost=["node9"])}, "run", adopt=False)
    for word in ("/home/first/lab.ini", "first@desk", "2026-03-01T00:00:00Z", "would lose node9"):
        assert word in found.problem
    assert "--adopt" in found.cure
    assert (found.host, found.kind) == ("node1", "configuration")
    assert (
        node_ownership.claim_problems({"node1": answer(mark=MARK, lost=["node9"], taken=True)}, "run", adopt=True) == []
    )


def test_a_held_node_names_who_from_where_what_and_since_when() -> None:
    (found,) = node_ownership.claim_problems({"node1": answer(holder=LOCK)}, "run", adopt=False)
    for word in ("first's", "'clusterctl provision lab.ini'", "process 7 on desk", "2026-03-01T10:00:00+01:00"):
        assert word in found.problem
    assert "--take-lock" in found.cure


def test_two_names_of_one_machine_are_both_named() -> None:
    (found,) = node_ownership.claim_problems({"alias": answer(holder={**LOCK, "run": "run"})}, "run", adopt=False)
    assert found.problem == "node1 and alias are one machine"
    assert node_ownership.holders({"alias": answer(holder={**LOCK, "run": "run"})}, "run") == {}


@pytest.mark.parametrize(
    ("own", "marks", "chosen"),
    [
        ("ours", ["theirs"], "ours"),
        ("", [], "fresh"),
        ("", ["theirs", "theirs"], "theirs"),
        ("", ["theirs", "others"], "fresh"),
    ],
)
def test_a_controller_without_an_id_takes_that_of_the_nodes_it_adopts(own: str, marks: list[str], chosen: str) -> None:
    answers = [answer(mark={**MARK, "cluster": mark}, lost=["node9"]) for mark in marks]
    assert node_ownership.cluster_id(own, [*answers, answer()], "fresh") == chosen


def test_one_node_decides_no_id_against_the_marks_of_others() -> None:
    liar = answer(mark={**MARK, "cluster": "chosen-by-node3"}, lost=["node9"])
    others = [answer(mark={**MARK, "cluster": "theirs"}) for _ in range(2)]
    assert node_ownership.cluster_id("", [*others, liar], "fresh") == "fresh"


@pytest.mark.parametrize("identity", ["", "a b", "{{ 1 }}", "x" * 65, "x\n", "../x", 5])
def test_an_id_of_another_form_is_no_answer(identity: Any) -> None:
    with pytest.raises(ValueError, match="cluster"):
        answer(mark={**MARK, "cluster": identity})


@pytest.mark.parametrize("field", ["name", "controller", "inventory", "since"])
def test_a_mark_shows_no_control_character(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        answer(mark={**MARK, field: "lab\x1b[2J"})


def test_the_command_in_a_lock_is_one_line_and_obeyed_by_no_terminal() -> None:
    held = answer(holder={**LOCK, "command": "sh -c 'a\nb\x1b[2J'"})

    (found,) = node_ownership.claim_problems({"node1": held}, "run", adopt=False)

    assert r"'sh -c 'a\nb\x1b[2J''" in found.problem


def test_the_nodes_whose_marks_give_the_id_are_named() -> None:
    free, other = answer(), answer(mark={**MARK, "cluster": "others"})
    foreign = answer(mark=MARK, lost=["node9"])
    (words,) = node_ownership.id_words("", {"node1": foreign, "node2": free})
    assert words == "This cluster gets the id theirs, which the mark on node1 names."
    (words,) = node_ownership.id_words("", {"node1": foreign, "node2": other, "node3": free})
    assert "node1 has theirs" in words
    assert "node2 has others" in words
    assert node_ownership.id_words("ours", {"node1": foreign}) == node_ownership.id_words("", {"node1": free}) == ()


def test_a_node_is_marked_where_its_mark_says_something_else() -> None:
    members = node_ownership.members_of(HOSTS, ())
    assert members == {"node1": "192.0.2.1", "node2": "192.0.2.2:2222"}
    same = {"cluster": "c", "name": "mine", "controller": "second@here", "inventory": "/home/second/mine.ini"}
    answers = {
        "node1": answer(mark={**same, "members": members, "since": "before"}),
        "node2": answer(mark={**same, "members": {"node1": "192.0.2.1"}}),
        "node3": answer(),
    }
    assert node_ownership.to_mark(answers, "c", OWNER, members) == ["node2", "node3"]


@pytest.fixture
def claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeClaims:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = runs.start("provision", InventorySources(("node1,node2,",)), ["clusterctl", "provision"], {})
    run.close()
    return NodeClaims(run.record, OWNER, "word")


def wanted(**more: Any) -> Wanted:
    hosts = Inventory(InventorySources(()), HOSTS, (), "").hosts
    return Wanted(hosts, node_ownership.members_of(HOSTS, ()), "-i a.ini -i 'b c.ini'", **more)


def test_free_nodes_are_locked_marked_and_released(claim: NodeClaims, claims: Claims) -> None:
    assert claim.take(HOSTS, wanted()).problems == ()
    look, mark = claims.asked
    assert look["node2"]["names"] == ["node1", "node2"]
    assert (look["node1"]["lock"]["host"], look["node2"]["lock"]["host"]) == ("node1", "node2")
    own = snapshots.read_identity(claim._record.cluster_id)  # noqa: SLF001 - the run's own
    assert mark["node1"]["mark"]["cluster"] == own
    began = claim._record.started.strftime("%Y-%m-%dT%H:%M:%SZ")  # noqa: SLF001 - as above
    assert {one["mark"]["since"] for one in mark.values()} == {began}, "refused nodes are one line only with one time"
    assert len({one["lock"]["since"] for one in look.values()}) == 1
    claim.release()
    claim.release()
    assert claims.released == ["node1", "node2"], "once"


def test_the_steps_of_a_run_share_one_connection_to_a_node(
    lab: Path, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[tuple[str, Path | None]] = []

    def gather(_hosts: object, *, control_dir: Path | None, **_: Any) -> Probe:
        used.append(("look", control_dir))
        return Probe(facts={name: factory.node(name) for name in ("node1", "node2")})

    def run(play: playbook.Play, *words: Any) -> playbook.End:
        used.append((play.playbook.stem, words[-1]))
        for name in ("node1", "node2"):
            words[2](factory.host_result(name, "ok", stage="validation"))
        return playbook.End("successful", 0)

    monkeypatch.setattr(facts, "gather", gather)
    monkeypatch.setattr(playbook, "run", run)
    assert provision(ProvisionRequest(lab), Agreeing()).exit_code == 0
    (own,) = claims.connections
    assert own is not None
    assert not own.exists(), "the connections are closed"
    assert claims.released == ["node1", "node2"]
    assert used == [("look", own), ("provision", own), ("look", None)], "new sessions are seen by a new connection"


@pytest.mark.usefixtures("claims")
def test_a_run_on_other_machines_under_an_old_path_says_that_history_begins_anew(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Probe(facts={name: factory.node(name) for name in ("node1", "node2")})

    def run(_play: playbook.Play, *words: Any) -> playbook.End:
        for name in ("node1", "node2"):
            words[2](factory.host_result(name, "ok", stage="validation"))
        return playbook.End("successful", 0)

    monkeypatch.setattr(facts, "gather", lambda *_, **__: found)
    monkeypatch.setattr(playbook, "run", run)
    monkeypatch.setenv("HOME", str(lab.parent))
    times = (datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=n) for n in itertools.count())
    monkeypatch.setattr(runs, "_in_order", lambda *_: next(times))  # a process has one run a second
    known = lab.parent / ".ssh" / "known_hosts"
    known.parent.mkdir()
    told = []
    for key in ("AAAAOld", "AAAANew", "AAAANew"):
        known.write_text(f"node1 ssh-ed25519 {key}1\nnode2 ssh-ed25519 {key}2\n", encoding="utf-8")
        assert Cluster(InventorySources.of(lab)).inventory.hosts
        for verb, outcome, code in (("validate", "done", 0), ("provision", "failed", 4)):
            before = runs.start(verb, lab, ["clusterctl", verb], {})
            before.update(outcome=outcome, exit_code=code)
            before.close()
        record = provision(ProvisionRequest(lab), Agreeing())
        told.append([words for words in record.told if "begins anew" in words])
    old = paths.new_cluster_id(lab)
    assert told[0] == told[2] == []
    assert f"'clusterctl history --past {old} {lab}'" in told[1][0]
    assert record.cluster_id != old


def test_a_foreign_node_among_free_ones_stops_all_before_a_mark_and_frees_the_others(
    claim: NodeClaims, claims: Claims
) -> None:
    claims.answers = {"node1": {"mark": MARK, "lost": ["node9"]}}
    found = claim.take(HOSTS, wanted())
    assert [problem.host for problem in found.problems] == ["node1"]
    assert not any("mark" in request for asked in claims.asked for request in asked.values())
    claim.release()
    assert claims.released == ["node2"]
    assert snapshots.read_identity(claim._record.cluster_id) == ""  # noqa: SLF001 - as above


def test_adoption_takes_the_id_of_the_nodes_and_is_told(claim: NodeClaims, claims: Claims) -> None:
    claims.answers = {"node1": {"mark": MARK, "lost": ["node9"], "taken": True}}
    found = claim.take(HOSTS, wanted(adopt=True))
    assert found.problems == ()
    assert "/home/first/lab.ini" in found.adopted["node1"]
    assert {request["mark"]["cluster"] for request in claims.asked[-1].values()} == {"theirs"}
    assert snapshots.read_identity(claim._record.cluster_id) == "theirs"  # noqa: SLF001 - as above


def test_nodes_that_bear_the_id_of_a_past_whose_inventory_is_gone_are_a_question(
    claim: NodeClaims, claims: Claims, tmp_path: Path
) -> None:
    inventory = tmp_path / "gone.ini"
    runs.start("provision", inventory, ["clusterctl"], {}).close()
    past = paths.cluster_id(inventory)
    snapshots.write_identity(past, "theirs")
    claims.answers = {name: {"mark": MARK, "taken": True} for name in ("node1", "node2")}
    (found,) = claim.take(HOSTS, wanted()).problems
    assert found.kind == "configuration"
    assert (past in found.problem, "node[1-2]" in found.problem) == (True, True)
    assert f"'clusterctl history --past {past} -i a.ini -i 'b c.ini''" in found.cure
    assert not any("mark" in request for asked in claims.asked for request in asked.values())
    assert claim.take(HOSTS, wanted(adopt=True)).problems == ()


def test_nodes_of_an_inventory_that_is_still_there_are_no_question(
    claim: NodeClaims, claims: Claims, tmp_path: Path
) -> None:
    inventory = tmp_path / "there.ini"
    inventory.touch()
    runs.start("provision", inventory, ["clusterctl"], {}).close()
    snapshots.write_identity(paths.cluster_id(inventory), "theirs")
    claims.answers = {"node1": {"mark": MARK, "taken": True}}
    assert claim.take(HOSTS, wanted()).problems == ()


def test_the_audit_line_names_the_cluster_that_lost_the_node(claim: NodeClaims, claims: Claims) -> None:
    claims.answers = {"node1": {"mark": MARK, "lost": ["node9"], "taken": True}}
    claim.take(HOSTS, wanted(adopt=True))
    marks = claims.asked[-1]
    (change,) = marks["node1"]["audit"]["changes"]
    for word in ("the cluster theirs of /home/first/lab.ini", "first@desk", "loses node9"):
        assert word in change
    assert marks["node1"]["audit"]["run"] == claim._record.run_id  # noqa: SLF001 - the run's own
    assert "audit" not in marks["node2"], "it had no cluster"


def test_the_audit_line_names_the_run_that_lost_its_lock(claim: NodeClaims, claims: Claims) -> None:
    claims.answers = {"node1": {"holder": LOCK}}
    claim.take(HOSTS, wanted(take_lock=True))
    (again,) = [asked for asked in claims.asked if any("instead" in request for request in asked.values())]
    (change,) = again["node1"]["audit"]["changes"]
    for word in ("process 7 on desk", "--take-lock"):
        assert word in change


def test_hosts_that_only_ansible_reaches_are_told_to_be_unlocked() -> None:
    hosts = (HOSTS[0], Host("node3", "a", connection="local"), Host("node4", "a", connection="local"))
    (said,) = node_ownership.unlocked(hosts)
    for word in ("node[3-4]", "ansible_connection is 'local'", "lock", "mark"):
        assert word in said
    assert node_ownership.unlocked(HOSTS) == ()


def test_a_look_takes_and_marks_nothing(claim: NodeClaims, claims: Claims) -> None:
    claim.take(HOSTS, wanted(look_only=True))
    assert [set(request) & {"lock", "mark"} for asked in claims.asked for request in asked.values()] == [set(), set()]


def test_the_lock_of_an_ended_run_of_this_machine_is_taken_over(
    claim: NodeClaims, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = node_ownership._this_process()  # noqa: SLF001 - its form on the node
    ended = {
        **LOCK,
        "controller": here.host,
        "machine": here.machine_id or "m",
        "boot": here.boot_id,
        "namespace": here.pid_namespace,
        "pid": 2**22 + 1,
    }
    monkeypatch.setattr(
        node_ownership, "_this_process", lambda: here.model_copy(update={"machine_id": here.machine_id or "m"})
    )
    claims.answers = {"node1": {"holder": ended}}
    claim.take(HOSTS, wanted())
    assert [asked["node1"].get("instead") for asked in claims.asked[:2]] == [None, LOCK["run"]]


@pytest.mark.parametrize(
    ("machine", "take_lock", "taken"), [("other", False, False), ("", False, False), ("other", True, True)]
)
def test_the_lock_of_another_controller_is_taken_over_only_where_the_user_says_so(
    claim: NodeClaims, claims: Claims, machine: str, take_lock: bool, taken: bool
) -> None:
    claims.answers = {"node1": {"holder": {**LOCK, "machine": machine}}}
    found = claim.take(HOSTS, wanted(take_lock=take_lock))
    assert any("instead" in asked.get("node1", {}) for asked in claims.asked) is taken
    assert found.problems, "the node still says that the other has it"
