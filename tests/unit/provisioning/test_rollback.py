"""The run that a rollback names, the hold, and each kind of bad input."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import factory
import pytest
from clusterctl.model.hosts import InventorySources
from clusterctl.model.snapshot import Hold, HostDifference, HostSnapshot, HostSoftware, Snapshot, SoftwareSet
from clusterctl.provisioning import rollback
from clusterctl.provisioning.software import SoftwareHold
from clusterctl.state import paths, runs
from clusterctl.state import snapshots as kept
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from pathlib import Path

LINKS = {"/usr/local/openmpi": "/usr/local/openmpi-5.0.7-bbbbbbbbbbbbbbbb"}
WHEN = datetime(2026, 3, 1, tzinfo=timezone.utc)


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
    host = HostSnapshot(
        run_id="r",
        inputs={},
        members="",
        platform="p",
        host_keys=(),
        user="me",
        watch=(),
        damaged=(HostDifference(subject="/usr/local/openmpi-5", words="lib/libmpi.so (content)"),),
    )
    (problem,) = held.problems(["node1"], {}, Snapshot(hosts={"node1": host, "node2": host}))
    assert (problem.host, problem.problem) == ("node1", "/usr/local/openmpi-5 differs: lib/libmpi.so (content)")
    assert "rollback --release" in problem.cure


def test_a_set_is_plain_json(inventory: InventorySources) -> None:
    folder = past(inventory, "20260301T000000Z-provision-1")
    data = json.loads(paths.software_file(folder).read_text(encoding="utf-8"))
    assert data["hosts"]["node1"]["links"] == LINKS
