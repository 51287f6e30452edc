"""Which set of links a rollback goes back to, and what stands in its way."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import factory
import pytest
from clusterctl.inventory.ansible_inventory import Cluster
from clusterctl.model.facts import NodeFacts
from clusterctl.model.hosts import InventorySources
from clusterctl.model.snapshot import Hold, HostDifference, HostSoftware, Snapshot, SoftwareSet
from clusterctl.provisioning import rollback, software
from clusterctl.provisioning.software import SoftwareHold
from clusterctl.state import paths, runs
from clusterctl.state import snapshots as kept
from clusterctl.support.errors import ConfigError, ExitCode

WHEN = datetime(2026, 3, 1, tzinfo=timezone.utc)
PLATFORM = "debian-12-x86_64"
A = {"/usr/local/openmpi": "/usr/local/openmpi-4.1.4-aaaaaaaaaaaaaaaa"}
B = {"/usr/local/openmpi": "/usr/local/openmpi-5.0.7-bbbbbbbbbbbbbbbb"}
BOTH = ("node1", "node2")


def having(*links: dict[str, str], platform: str = PLATFORM) -> dict[str, HostSoftware]:
    """Return hosts node1, node2 and so on with these links."""
    return {f"node{n}": HostSoftware(platform=platform, links=given) for n, given in enumerate(links, 1)}


def left(run_id: str, *links: dict[str, str], verb: str = "provision") -> SoftwareSet:
    return SoftwareSet(run_id=run_id, verb=verb, left=WHEN, hosts=having(*links))


def facts(links: dict[str, str], trees: tuple[str, ...] = (), **changed: Any) -> NodeFacts:
    """Return a node with these links, and with further folders that no link uses."""
    found = [
        {"name": "openmpi", "link": link, "target": tree, "version": "", "key": "", "ok": True}
        for link, tree in [*links.items(), *(("", tree) for tree in trees)]
    ]
    return factory.node(artifacts=found, **changed)


# --- what a run left ---


def test_a_set_is_what_was_there_and_what_the_run_switched() -> None:
    (tree,) = B.values()
    watch = [
        {"path": tree, "kind": "artifact", "marker_sha256": "x", "files": 3},
        {"path": "/usr/local/openmpi", "kind": "link", "target": tree.rpartition("/")[2]},
        {"path": "/usr/include/nccl.h", "kind": "link", "target": "/usr/local/nccl/include/nccl.h"},
    ]
    before = facts({**A, "/usr/local/horovod": "/usr/local/horovod-1-h"})
    found = software.left_by("run", "provision", WHEN, {"node1": before, "node2": facts(A)}, {"node1": watch})
    assert found.hosts["node1"].links == {**B, "/usr/local/horovod": "/usr/local/horovod-1-h"}
    assert found.hosts["node2"].links == A, "a host outside the limit keeps its links"


def test_two_versions_of_one_platform_are_named_with_the_way_on() -> None:
    hosts = {"node1": B, "node2": A, "node3": A}
    (said,) = software.mixed(SoftwareSet(run_id="r", verb="provision", left=WHEN, hosts=having(*hosts.values())))
    assert said.startswith(
        "node1 with openmpi-5.0.7-bbbbbbbbbbbbbbbb and node[2-3] with openmpi-4.1.4-aaaaaaaaaaaaaaaa:"
    )
    assert "without --limit" in said


def test_other_platforms_and_nodes_without_software_are_no_mixture() -> None:
    other = {"other": HostSoftware(platform="rocky-9", links=A), "bare": HostSoftware(platform=PLATFORM, links={})}
    found = SoftwareSet(run_id="r", verb="provision", left=WHEN, hosts={**having(B, B), **other})
    assert software.mixed(found) == ()


# --- the run to go back to ---


def test_the_newest_other_set_before_the_one_in_force() -> None:
    sets = [left("3", B, B), left("2", B, B), left("1", A, A)]
    found = software.earlier(sets, having(B, B), None)
    assert found is not None
    assert found.run_id == "1"


def test_after_a_rollback_there_is_nothing_before_the_oldest_run() -> None:
    sets = [left("3", A, A, verb="rollback"), left("2", B, B), left("1", A, A)]
    hold = Hold(software=left("1", A, A), since=WHEN, finished=True)
    assert software.earlier(sets, having(A, A), hold) is None


def test_a_half_finished_upgrade_goes_back_to_the_last_set() -> None:
    found = software.earlier(
        [left("2", B, B), left("1", A, A)], having({"/usr/local/openmpi": "/usr/local/new"}, B), None
    )
    assert found is not None
    assert found.run_id == "2"


@pytest.mark.parametrize(("now", "finished"), [((A, B), False), ((A, A), False), ((A, B), True)])
def test_a_rollback_that_died_is_finished(now: tuple[dict[str, str], dict[str, str]], finished: object) -> None:
    hold = Hold(software=left("1", A, A), since=WHEN, finished=bool(finished))
    found = software.earlier([left("2", B, B), left("1", A, A)], having(*now), hold)
    assert found is not None
    assert found.run_id == "1"


def test_a_host_that_the_run_did_not_know_gets_what_its_platform_has() -> None:
    known = left("1", A, A)
    assert known.links_for("node9", PLATFORM) == A
    assert known.links_for("node9", "rocky-9-x86_64") is None
    assert left("1", A, B).links_for("node9", PLATFORM) is None, "the others differ"


@pytest.mark.parametrize(
    "links",
    [
        {"/bin": A["/usr/local/openmpi"]},
        {"/etc/resolv.conf": A["/usr/local/openmpi"]},
        {"/usr/local/nccl": A["/usr/local/openmpi"]},
        {"/usr/local/openmpi": "openmpi-4.1.4-aaaaaaaaaaaaaaaa"},
        {"/usr/local/openmpi": "/home/mpi/openmpi-4.1.4-aaaaaaaaaaaaaaaa"},
        {"/usr/local/openmpi": "/usr/local/openmpi-4.1.4-aaaaaaaaaaaaaaaa/.."},
        {"/usr/local/../../bin": "/usr/local/../../bin-1-a"},
        {"openmpi": "openmpi-4.1.4-aaaaaaaaaaaaaaaa"},
        {"/usr/local/openmpi": ""},
    ],
)
def test_a_node_says_of_no_other_node_where_another_link_leads(links: dict[str, str]) -> None:
    """A set holds what each node said of itself; a new node of its platform would get a link of its choice."""
    assert left("1", {**A, **links}).links_for("node9", PLATFORM) is None


# --- what is switched ---


def test_a_link_that_the_set_lacks_goes() -> None:
    more = {**B, "/usr/local/horovod": "/usr/local/horovod-1-h"}
    wanted = software.wanted_links(left("1", A, A), BOTH, having(more, A))
    assert wanted["node1"] == {**A, "/usr/local/horovod": ""}
    links = {name: given for name, given in wanted.items() if given is not None}
    assert software.differing(links, having(more, A)) == {"node1": ("/usr/local/openmpi", "/usr/local/horovod")}


# --- what stands in the way ---


def test_a_folder_that_is_gone_or_damaged_is_named_with_its_cure() -> None:
    target = left("20260301-provision-1", A, A)
    hosts = having(B, B)
    (tree,) = A.values()
    damaged = facts(B, (tree,))
    broken = damaged.artifacts[1].model_copy(update={"ok": False, "problem": "lib/libmpi.so is missing"})
    known = {"node1": facts(B), "node2": damaged.model_copy(update={"artifacts": (damaged.artifacts[0], broken)})}
    gone, harmed = software.missing(target, software.wanted_links(target, BOTH, hosts), known, "install {tree}")
    assert (gone.host, harmed.host) == BOTH
    assert f"{tree} is gone" in gone.problem
    assert "20260301-provision-1" in gone.problem
    assert gone.cure == "install openmpi 4.1.4"
    assert harmed.problem == f"{tree} is damaged: lib/libmpi.so is missing"
    assert gone.kind == harmed.kind == "host"


def test_a_host_of_another_platform_is_named() -> None:
    target = left("1", A)
    wanted = software.wanted_links(target, ["node9"], {"node9": HostSoftware(platform="rocky-9", links={})})
    (found,) = software.missing(target, wanted, {}, "install {tree}")
    assert found.host == "node9"
    assert "another node of its platform" in found.problem


@pytest.mark.parametrize(
    ("process", "counts"),
    [
        ({"rank": True}, True),
        ({"rank": False, "trees": tuple(B.values())}, True),
        ({"rank": False, "trees": ("/usr/local/python_env-1-p",)}, False),
    ],
)
def test_a_node_at_work_is_named(process: dict[str, Any], counts: object) -> None:
    busy = [{"pid": 7, "user": "user1", "command": "python train.py", **process}]
    found = software.at_work({"node1": tuple(B)}, {"node1": facts(B, busy=busy), "node2": facts(B)})
    assert [problem.host for problem in found] == (["node1"] if counts else [])
    if counts:
        assert "7 of user1: python train.py" in found[0].problem
        assert "--while-busy" in found[0].cure


def test_a_node_whose_links_stay_may_be_at_work() -> None:
    busy = [{"pid": 7, "user": "user1", "command": "train", "rank": True}]
    assert software.at_work({}, {"node1": facts(B, busy=busy)}) == []


# --- the snapshot afterwards ---


def test_the_snapshot_follows_the_links_and_keeps_the_rest() -> None:
    (old,), (new,) = B.values(), A.values()
    before = (
        {"path": "/etc/hosts", "kind": "file", "sha256": "1"},
        {"path": old, "kind": "artifact", "files": 2},
        {"path": "/usr/local/openmpi", "kind": "link", "target": "old"},
        {"path": "/usr/local/horovod", "kind": "link", "target": "gone"},
    )
    said = (
        {"path": new, "kind": "artifact", "files": 2},
        {"path": "/usr/local/openmpi", "kind": "link", "target": "new"},
    )
    after = software.watch_after(before, said, ["/usr/local/openmpi", "/usr/local/horovod"])
    assert [entry["path"] for entry in after] == ["/etc/hosts", new, "/usr/local/openmpi"]


# --- the run that a rollback names, the hold, and each kind of bad input ---


LINKS = {"/usr/local/openmpi": "/usr/local/openmpi-5.0.7-bbbbbbbbbbbbbbbb"}


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def inventory(tmp_path: Path) -> InventorySources:
    place = tmp_path / "lab.ini"
    place.write_text("node1 ansible_connection=local\n", encoding="utf-8")
    return InventorySources.of(place)


def past(inventory: InventorySources, run_id: str, verb: str = "provision", *, left: bool = True) -> Path:
    """Put a run into the state."""
    run = runs.start(verb, inventory, ["clusterctl", verb], {})
    run.update(outcome="done" if left else "nothing to do", exit_code=0)
    run.close()
    folder = run.folder.rename(run.folder.parent / run_id)
    if left:
        kept.write_set(folder, one(run_id, verb))
    return folder


def one(run_id: str, verb: str = "provision") -> SoftwareSet:
    hosts = {"node1": HostSoftware(platform="p", links=LINKS)}
    return SoftwareSet(run_id=run_id, verb=verb, left=WHEN, hosts=hosts)


def name(word: str, inventory: InventorySources) -> str:
    return rollback.named(word, paths.cluster_id(inventory), inventory).run_id


def test_a_run_is_named_as_everywhere(inventory: InventorySources) -> None:
    first, second = "20260301T000000Z-provision-1", "20260302T000000Z-rollback-2"
    past(inventory, first)
    folder = past(inventory, second, "rollback")
    past(inventory, "20260303T000000Z-validate-3", "validate", left=False)
    assert name("last", inventory) == second
    assert name("last-1", inventory) == first
    assert name("20260301", inventory) == first
    assert name(str(folder), inventory) == second
    assert name(str(paths.run_record(folder)), inventory) == second


def test_a_run_with_nothing_to_do_means_the_set_that_it_found(inventory: InventorySources) -> None:
    past(inventory, "20260301T000000Z-provision-1")
    past(inventory, "20260302T000000Z-provision-2", left=False)
    past(inventory, "20260303T000000Z-provision-3")
    assert name("20260302", inventory) == "20260301T000000Z-provision-1"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("last-9", "is not in the runs of"),
        ("2025", "The run '2025' is unknown. Runs to go back to: 20260301T000000Z-provision-1"),
        ("", "The run '' is unknown"),
        ("20260302", "left no set of links"),
        ("20260309", "is of another inventory"),
        ("/nowhere/run.json", "is not the folder of a run"),
    ],
)
def test_a_wrong_run_is_one_sentence(inventory: InventorySources, tmp_path: Path, word: str, says: str) -> None:
    past(inventory, "20260301T000000Z-provision-1")
    past(inventory, "20260302T000000Z-validate-2", "validate", left=False)
    other = tmp_path / "other.ini"
    other.write_text("node2\n", encoding="utf-8")
    foreign = past(InventorySources.of(other), "20260309T000000Z-provision-9")
    with pytest.raises(ConfigError) as error:
        name(word, inventory)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="is of another inventory"):
        name(str(foreign), inventory)


def test_an_ambiguous_beginning_is_refused(inventory: InventorySources) -> None:
    past(inventory, "20260301T000000Z-provision-1")
    past(inventory, "20260301T000001Z-provision-2")
    with pytest.raises(ConfigError, match="beginning of 2 runs"):
        name("20260301", inventory)


def test_without_any_set_there_is_nothing_to_go_back_to(inventory: InventorySources) -> None:
    with pytest.raises(ConfigError, match="There is nothing to go back to"):
        name("last", inventory)


def test_the_hold_is_released_once(inventory: InventorySources) -> None:
    cluster = paths.cluster_id(inventory)
    kept.write_hold(cluster, Hold(software=one("r"), since=WHEN))
    found = kept.hold(cluster)
    assert found is not None
    assert found.software.run_id == "r"
    assert rollback.release(inventory)
    assert not rollback.release(inventory)
    assert kept.hold(cluster) is None


def test_the_hold_of_a_moved_inventory_that_no_command_has_read_is_released(inventory: InventorySources) -> None:
    cluster = Cluster(inventory)
    assert cluster.inventory.hosts
    kept.write_hold(cluster.id, Hold(software=one("r"), since=WHEN))
    moved = inventory.paths[0].rename(inventory.paths[0].with_name("moved.ini"))
    assert rollback.release(moved)
    assert kept.hold(cluster.id) is None


def test_a_missing_inventory_is_not_released(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        rollback.release(tmp_path / "none.ini")


def test_a_damaged_hold_is_told_and_can_be_released(inventory: InventorySources) -> None:
    cluster = paths.cluster_id(inventory)
    kept.write_hold(cluster, Hold(software=one("r"), since=WHEN))
    paths.hold_file(cluster).write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="--release") as error:
        kept.hold(cluster)
    assert error.value.exit_code == ExitCode.BAD_CONFIG
    assert rollback.release(inventory)


def test_the_runs_to_go_back_to_outlive_many_validations(
    inventory: InventorySources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "KEPT_RUNS", 3)
    old = past(inventory, "20200101T000000Z-provision-1")
    for number in range(6):
        past(inventory, f"20200102T00000{number}Z-validate-1", "validate", left=False)
    assert old.is_dir()
    assert len(list(old.parent.glob("*-validate-*"))) <= 3


def test_a_hold_speaks_and_refuses_tags_of_software(inventory: InventorySources) -> None:
    held = SoftwareHold(Hold(software=one("20260301T000000Z-provision-1"), since=WHEN), inventory)
    assert held
    (told,) = held.messages
    assert told.startswith("Held at 20260301T000000Z-provision-1 by a rollback of 2026-0")
    assert f"'clusterctl rollback --release {inventory.shown}' ends it" in told
    held.refuse(["hosts", "fabric"])
    with pytest.raises(ConfigError, match=r"--tags mpi4py asks for software that is held.*--release"):
        held.refuse(["hosts", "mpi4py"])
    free = SoftwareHold(None, inventory)
    free.refuse(["mpi4py"])
    assert (bool(free), free.messages, free.skip_tags, free.problems(["node1"], {}, Snapshot())) == (False, (), (), [])


def test_a_new_node_without_the_held_folders_is_named(inventory: InventorySources) -> None:
    held = SoftwareHold(Hold(software=one("20260301T000000Z-provision-1"), since=WHEN), inventory)
    other = {"name": "mpi4py", "link": "", "target": "/usr/local/mpi4py-4-c", "version": "4", "key": "c", "ok": True}
    node = factory.node("new", platform="p", artifacts=[other])
    (problem,) = held.problems(["new"], {"new": node}, Snapshot())
    assert problem.host == "new"
    assert f"{LINKS['/usr/local/openmpi']} is gone" in problem.problem
    assert "rollback --release" in problem.cure
    assert "openmpi 5.0.7" in problem.cure


def test_a_bare_machine_is_one_problem_with_the_way_on(inventory: InventorySources) -> None:
    held = SoftwareHold(Hold(software=one("20260301T000000Z-provision-1"), since=WHEN), inventory)
    (problem,) = held.problems(["node1"], {"node1": factory.node("node1", platform="p", artifacts=[])}, Snapshot())
    assert (problem.host, problem.subject) == ("node1", "software")
    assert "a new machine has none of the software that is held at 20260301T000000Z-provision-1" in problem.problem
    assert f"'clusterctl rollback --release {inventory.shown}'" in problem.cure
    assert "then provision" in problem.cure


def test_jobs_stop_a_hold_only_where_a_link_leads_elsewhere(inventory: InventorySources) -> None:
    held = SoftwareHold(Hold(software=one("20260301T000000Z-provision-1"), since=WHEN), inventory)
    job = {"busy": [{"pid": 7, "user": "user1", "command": "train", "rank": True}]}
    link, tree = next(iter(LINKS.items()))
    there = {"name": "openmpi", "link": link, "target": tree, "version": "5.0.7", "key": "b", "ok": True}
    elsewhere = {**there, "target": "/usr/local/openmpi-5.0.8-cccccccccccccccc"}
    right = factory.node("node1", platform="p", artifacts=[there], **job)
    wrong = factory.node("node1", platform="p", artifacts=[elsewhere], **job)
    assert held.jobs(["node1"], {"node1": right}) == []
    assert [problem.subject for problem in held.jobs(["node1"], {"node1": wrong})] == ["jobs"]
    assert SoftwareHold(None, inventory).jobs(["node1"], {"node1": wrong}) == []


def test_a_held_folder_with_damaged_content_is_named(inventory: InventorySources) -> None:
    held = SoftwareHold(Hold(software=one("20260301T000000Z-provision-1"), since=WHEN), inventory)
    damage = HostDifference(subject="/usr/local/openmpi-5", words="lib/libmpi.so (content)")
    host = factory.host_snapshot(damaged=(damage,))
    (problem,) = held.problems(["node1"], {}, Snapshot(hosts={"node1": host, "node2": host}))
    assert (problem.host, problem.problem) == ("node1", "/usr/local/openmpi-5 differs: lib/libmpi.so (content)")
    assert "rollback --release" in problem.cure


def test_a_set_is_plain_json(inventory: InventorySources) -> None:
    folder = past(inventory, "20260301T000000Z-provision-1")
    data = json.loads(paths.software_file(folder).read_text(encoding="utf-8"))
    assert data["hosts"]["node1"]["links"] == LINKS
