"""Which cluster an inventory names: moved, copied, partial and re-made ones, and the state of an older release."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from clusterctl.inventory.ansible_inventory import Cluster, refuse_missing
from clusterctl.model.hosts import AnyInventory, Host, InventoryOptions, InventorySources
from clusterctl.model.snapshot import HostSnapshot, Snapshot
from clusterctl.state import clusters, files, locks, paths, runs, snapshots
from clusterctl.state import history as run_history
from clusterctl.support.errors import ConfigError, LockedError
from past_runs import record, run

EIGHT = tuple(f"node{number}" for number in range(1, 9))


def key_of(machine: str) -> str:
    """Return the host key of a machine."""
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + hashlib.sha256(machine.encode()).digest()
    return f"ssh-ed25519 {base64.b64encode(blob).decode()}"


class Lab:
    """A controller with its state folder, and the files of its user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known_hosts = folder / "known_hosts"

    def inventory(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        return path

    def hosts(self, names: Iterable[str], site: str = "192.0.2", key: str = "{name}") -> list[Host]:
        """Return hosts whose keys the known_hosts file has; an empty key is none."""
        found = []
        lines = []
        for number, name in enumerate(names, 1):
            found.append(Host(name, f"{site}.{number}", ssh_args=("-o", f"UserKnownHostsFile={self.known_hosts}")))
            lines += [f"{site}.{number} {key_of(key.format(name=name))}\n"] if key else []
        self.known_hosts.write_text("".join(lines), encoding="utf-8")
        return found

    def settle(self, inventory: Path, hosts: list[Host]) -> str:
        clusters.settle(InventorySources.of(inventory), hosts)
        return paths.cluster_id(inventory)

    def past(self, inventory: Path, hosts: list[Host]) -> str:
        """Let an inventory have a run."""
        cluster = self.settle(inventory, hosts)
        a_run(inventory)
        return cluster


def a_run(inventory: AnyInventory) -> None:
    runs.start("provision", inventory, ["clusterctl"], {}).close()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Lab(tmp_path)


@pytest.mark.parametrize("key", ["{name}", ""], ids=["by their keys", "by their addresses"])
def test_a_moved_and_renamed_inventory_keeps_its_past(lab: Lab, key: str) -> None:
    old = lab.inventory("inventory.ini")
    hosts = lab.hosts(EIGHT, key=key)
    cluster = lab.past(old, hosts)
    new = lab.folder / "elsewhere" / "nodes.ini"
    new.parent.mkdir()
    old.rename(new)
    assert lab.settle(new, hosts) == cluster
    assert paths.cluster_id(new) == cluster, "also for commands that read no inventory"
    assert [one.cluster_id for one in runs.read_runs(new)] == [cluster]
    with pytest.raises(ConfigError, match=rf"{old} does not exist; its cluster has the inventory {new} now\."):
        refuse_missing(InventorySources.of(old))


def test_a_moved_inventory_that_was_edited_meanwhile_keeps_its_past(lab: Lab) -> None:
    old = lab.inventory("old.ini")
    cluster = lab.past(old, lab.hosts(EIGHT))
    old.unlink()
    edited = [*EIGHT[2:], "node9", "node10"]
    assert lab.settle(lab.inventory("new.ini"), lab.hosts(edited, site="198.51.100")) == cluster


def test_a_file_of_some_of_the_nodes_has_a_past_of_its_own(lab: Lab) -> None:
    whole, half = lab.inventory("whole.ini"), lab.inventory("half.ini")
    cluster = lab.past(whole, lab.hosts(EIGHT))
    assert lab.past(half, lab.hosts(EIGHT[:4])) != cluster
    assert lab.settle(whole, lab.hosts(EIGHT)) == cluster


def test_a_limit_does_not_change_whose_past_it_is(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(lab.folder))
    text = "[nodes]\n" + "".join(f"{name} ansible_host=192.0.2.{n}\n" for n, name in enumerate(EIGHT, 1))
    old, new = lab.inventory("old.ini"), lab.folder / "new.ini"
    old.write_text(text, encoding="utf-8")
    cluster = Cluster(InventorySources.of(old))
    assert len(cluster.inventory.hosts) == len(EIGHT)
    a_run(old)
    old.rename(new)
    limited = Cluster(InventorySources.of(new), InventoryOptions(limit="node1"))
    assert limited.inventory.selected == ("node1",)
    assert limited.id == cluster.id


def test_two_files_with_the_same_nodes_have_one_past_and_one_lock(lab: Lab) -> None:
    hosts = lab.hosts(EIGHT)
    cluster = lab.past(lab.inventory("a.ini"), hosts)
    assert lab.settle(lab.inventory("b.ini"), hosts) == cluster
    with locks.HostLock(hosts, "of a.ini"), pytest.raises(LockedError, match=r"of a\.ini"):
        locks.HostLock(lab.hosts(EIGHT), "of b.ini").__enter__()


@pytest.mark.parametrize("key", ["{name}", ""], ids=["by their keys", "by their addresses"])
@pytest.mark.parametrize("fate", ["stays", "is new", "moved"])
def test_a_copy_that_is_edited_leaves_the_past_to_the_first_file(lab: Lab, key: str, fate: str) -> None:
    first, copy, eight = lab.inventory("z.ini"), lab.inventory("a.ini"), lab.hosts(EIGHT, key=key)
    if fate == "is new":  # the first file has a second past
        lab.past(first, lab.hosts(["node9"], site="198.51.100"))
        eight = lab.hosts(EIGHT, key=key)
    cluster = lab.past(first, eight[:4])
    if fate == "moved":
        first = first.rename(lab.folder / "zz.ini")
        assert lab.settle(first, eight[:4]) == cluster
    assert lab.settle(copy, eight[:4]) == cluster
    own = paths.new_cluster_id(copy)
    assert lab.settle(copy, [eight[0], *eight[4:7]]) == own
    assert lab.settle(first, eight[:5]) == cluster, "it may still grow"
    assert lab.settle(copy, eight[4:7]) == own, "it has a past of its own"
    assert lab.settle(lab.inventory("b.ini"), eight[:5]) == cluster


def test_a_second_file_stays_with_machines_that_are_reinstalled(lab: Lab) -> None:
    first, second = lab.inventory("z.ini"), lab.inventory("a.ini")
    cluster = lab.past(first, lab.hosts(EIGHT))
    assert lab.settle(second, lab.hosts(EIGHT)) == cluster
    again = lab.hosts([*EIGHT[:7], "node8 again"])
    again[7] = dataclasses.replace(again[7], name="node8")
    assert lab.settle(second, again) == lab.settle(first, again) == cluster


def test_another_controller_has_a_past_of_its_own(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    inventory, hosts = lab.inventory("a.ini"), lab.hosts(EIGHT)
    lab.past(inventory, hosts)
    monkeypatch.setenv("XDG_STATE_HOME", str(lab.folder / "second"))
    lab.settle(inventory, hosts)
    assert list(runs.read_runs(inventory)) == []


@pytest.mark.parametrize("is_moved", [False, True], ids=["copied", "moved"])
def test_the_same_names_at_other_addresses_are_another_cluster(lab: Lab, is_moved: bool) -> None:
    first = lab.inventory("first.ini")
    cluster = lab.past(first, lab.hosts(EIGHT))
    if is_moved:
        first.unlink()
    for key in ("other {name}", ""):
        assert (
            lab.settle(lab.inventory(f"second{key[:1]}.ini"), lab.hosts(EIGHT, site="198.51.100", key=key)) != cluster
        )


def test_new_machines_at_the_old_addresses_begin_anew(lab: Lab) -> None:
    inventory = lab.inventory("inventory.ini")
    cluster = lab.past(inventory, lab.hosts(EIGHT))
    snapshots.write_identity(cluster, "0" * 32)
    again = lab.hosts(EIGHT, key="new {name}")
    fresh = lab.past(inventory, again)
    assert fresh != cluster
    assert snapshots.read_identity(fresh) == "", "the nodes get an id of their own"
    assert lab.settle(inventory, again) == fresh
    assert clusters.other_pasts(inventory) == [cluster]
    assert clusters.choose(InventorySources.of(inventory), again, cluster) == cluster
    assert lab.settle(inventory, again) == cluster, "the user says that they are the same machines"


def test_one_node_after_the_other_may_be_reinstalled(lab: Lab) -> None:
    inventory = lab.inventory("inventory.ini")
    cluster = lab.past(inventory, lab.hosts(EIGHT))
    for count in range(1, len(EIGHT) + 1):
        hosts = lab.hosts(EIGHT)
        lines = [f"192.0.2.{n} {key_of(f'{name} {n <= count}')}\n" for n, name in enumerate(EIGHT, 1)]
        lab.known_hosts.write_text("".join(lines if count > 1 else [lines[0], *_lines(lab)[1:]]), encoding="utf-8")
        assert lab.settle(inventory, hosts) == cluster


def _lines(lab: Lab) -> list[str]:
    return lab.known_hosts.read_text(encoding="utf-8").splitlines(keepends=True)


def test_without_a_known_key_the_path_decides(lab: Lab) -> None:
    inventory = lab.inventory("inventory.ini")
    cluster = lab.past(inventory, lab.hosts(EIGHT, key=""))
    assert lab.settle(inventory, lab.hosts(EIGHT, site="198.51.100")) == cluster, "addresses are written otherwise"


def test_a_key_that_is_not_known_any_more_is_nobodys(lab: Lab) -> None:
    """Sandboxes that are gone had the same addresses; nobody can log in before the key is known."""
    inventory = lab.inventory("a.ini")
    cluster = lab.past(inventory, lab.hosts(EIGHT))
    inventory.unlink()
    assert lab.settle(lab.inventory("b.ini"), lab.hosts(EIGHT, key="")) != cluster


def test_a_key_that_became_known_during_the_first_run_is_no_other_machines(lab: Lab) -> None:
    inventory = lab.inventory("a.ini")
    cluster = lab.past(inventory, lab.hosts(EIGHT, key=""))
    inventory.unlink()
    assert lab.settle(lab.inventory("b.ini"), lab.hosts(EIGHT)) == cluster


def test_the_key_of_an_image_that_all_nodes_have_says_nothing(lab: Lab) -> None:
    cluster = lab.past(lab.inventory("a.ini"), lab.hosts(EIGHT, key="image"))
    assert lab.settle(lab.inventory("b.ini"), lab.hosts(EIGHT, site="198.51.100", key="image")) != cluster
    assert lab.settle(lab.inventory("c.ini"), lab.hosts(EIGHT, key="image")) == cluster


@pytest.mark.parametrize(
    "by", ["-o ProxyJump={}", "-oProxyJump={}", "-J {}", "-J{}", "-o ProxyCommand='ssh -W %h:%p {}'"]
)
def test_the_same_addresses_behind_another_jump_host_are_other_machines(lab: Lab, by: str) -> None:
    behind = [
        [dataclasses.replace(host, ssh_args=tuple(shlex.split(by.format(jump)))) for host in lab.hosts(EIGHT, key="")]
        for jump in ("b1", "b2")
    ]
    one, two = lab.inventory("one.ini"), lab.inventory("two.ini")
    cluster = lab.past(one, behind[0])
    assert lab.settle(two, behind[1]) != cluster
    assert lab.settle(lab.inventory("three.ini"), behind[0]) == cluster


def test_several_pasts_are_a_question(lab: Lab) -> None:
    made = [lab.inventory(f"{name}.ini") for name in "ab"]
    for inventory in made:  # an older release made a folder for each
        a_run(inventory)
        snapshots.write(paths.cluster_id(inventory), snapshot(EIGHT))
        inventory.unlink()
    found = [paths.new_cluster_id(inventory) for inventory in made]
    third, hosts = lab.inventory("c.ini"), lab.hosts(EIGHT)
    with pytest.raises(ConfigError, match="have 2 pasts") as caught:
        lab.settle(third, hosts)
    for words in (*found, *map(str, made), f"'clusterctl history --past NAME {third}'", "'new'"):
        assert words in str(caught.value)
    with pytest.raises(ConfigError, match=r"no past '\.\./a'"):
        clusters.choose(InventorySources.of(third), hosts, "../a")
    clusters.choose(InventorySources.of(third), hosts, found[1])
    assert lab.settle(third, hosts) == found[1]
    clusters.choose(InventorySources.of(third), hosts, clusters.NEW)
    fresh = lab.settle(third, hosts)
    assert fresh not in found
    third.rename(lab.folder / "d.ini")
    assert lab.settle(lab.folder / "d.ini", hosts) == fresh, "the answer holds"


# --- the state of an older release, whose folders are named by paths --------------------------------------------------


def snapshot(names: Iterable[str]) -> Snapshot:
    hosts = {
        name: HostSnapshot(
            run_id="r",
            inputs={},
            members="",
            platform="",
            host_keys=(f"{key_of(name)} root@{name}",),
            user="",
            watch=(),
        )
        for name in names
    }
    return Snapshot(members=tuple({"name": name, "address": "10.0.0.1"} for name in names), hosts=hosts)


def older(inventory: AnyInventory) -> str:
    """Return a folder as an older release left it."""
    a_run(inventory)
    cluster = paths.cluster_id(inventory)
    snapshots.write(cluster, snapshot(EIGHT))
    assert not paths.inventories_file().exists()
    return cluster


def test_older_state_is_taken_over_where_it_is(lab: Lab) -> None:
    inventory = lab.inventory("inventory.ini")
    cluster = older(inventory)
    assert lab.settle(inventory, lab.hosts(EIGHT)) == cluster
    assert [path.name for path in paths.clusters_dir().iterdir()] == [cluster]


def test_older_state_of_a_moved_inventory_is_found(lab: Lab) -> None:
    inventory = lab.inventory("inventory.ini")
    cluster = older(inventory)
    assert lab.settle(lab.inventory("copy.ini"), lab.hosts(EIGHT[:6])) != cluster, "it is still there"
    inventory.unlink()
    assert lab.settle(lab.inventory("moved.ini"), lab.hosts(EIGHT[:6])) == cluster


def test_older_state_of_two_sources_that_are_still_there_is_not_taken(lab: Lab) -> None:
    both = InventorySources((str(lab.inventory("a.ini")), str(lab.inventory("b and c.ini"))))
    cluster = older(both)
    assert lab.settle(lab.inventory("copy.ini"), lab.hosts(EIGHT[:6])) != cluster
    snapshots.write_identity(cluster, "0" * 32)
    assert clusters.left_behind("0" * 32) == []


def test_older_state_of_other_machines_is_left_alone(lab: Lab) -> None:
    inventory = lab.inventory("inventory.ini")
    cluster = older(inventory)
    assert lab.past(inventory, lab.hosts(EIGHT, key="new {name}")) != cluster
    assert snapshots.read(cluster) == snapshot(EIGHT)


@pytest.mark.parametrize("place", ["os.fsync", "Path.replace"])
def test_a_takeover_that_was_killed_leaves_all_as_it_was(lab: Lab, place: str) -> None:
    inventory = lab.inventory("inventory.ini")
    cluster = older(inventory)
    inventory.unlink()
    moved, hosts = lab.inventory("moved.ini"), lab.hosts(EIGHT)
    before = sorted(path for path in paths.clusters_dir().rglob("*"))
    child = os.fork()
    if child == 0:

        def die(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(os if place == "os.fsync" else Path, place.partition(".")[2], die)
        lab.settle(moved, hosts)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not paths.inventories_file().exists()
    assert sorted(path for path in paths.clusters_dir().rglob("*")) == before
    assert lab.settle(moved, hosts) == cluster
    assert [path.name for path in paths.state_dir().value.glob(".inventories*")] == []


# --- the file of the index --------------------------------------------------------------------------------------------


def test_the_index_is_the_users_alone_and_a_damaged_one_counts_as_empty(lab: Lab) -> None:
    inventory, hosts = lab.inventory("inventory.ini"), lab.hosts(EIGHT)
    cluster = lab.past(inventory, hosts)
    for path in (paths.inventories_file(), paths.inventories_lock()):
        assert path.stat().st_mode & 0o777 == 0o600
    whole = paths.inventories_file().read_text(encoding="utf-8")
    outside = json.dumps({"inventories": {str(inventory): "../../etc"}, "machines": {"..": {}}})
    for text in ("", "[]", "[" * 100_000, '{"inventories": {"a": 1}, "machines": []}', outside, whole[:-9]):
        paths.inventories_file().write_text(text, encoding="utf-8")
        assert paths.cluster_id(inventory) == cluster
        assert lab.settle(inventory, hosts) == cluster
        assert paths.inventories_file().read_text(encoding="utf-8") == whole


def test_the_newest_inventory_of_a_cluster_is_the_one_that_is_named(lab: Lab) -> None:
    hosts, gone = lab.hosts(EIGHT), lab.inventory("gone.ini")
    lab.past(gone, hosts)
    for name in ("z.ini", "a.ini", "z.ini"):
        lab.settle(lab.inventory(name), hosts)
    gone.unlink()
    assert clusters.new_place(gone) == str(lab.folder / "a.ini")


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), PermissionError(13, "Permission denied")])
def test_an_index_that_cannot_be_read_is_not_replaced(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    inventory, hosts = lab.inventory("inventory.ini"), lab.hosts(EIGHT)
    lab.past(inventory, hosts)
    whole = paths.inventories_file().read_bytes()
    read = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path == paths.inventories_file():
            raise error
        return read(path)

    other = lab.inventory("other.ini")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", read_bytes)
        assert lab.settle(other, lab.hosts(["node9"])) == paths.new_cluster_id(other)
        with pytest.raises(ConfigError, match=str(error.strerror)):
            clusters.choose(InventorySources.of(other), lab.hosts(["node9"]), clusters.NEW)
    assert paths.inventories_file().read_bytes() == whole


def test_an_index_of_a_newer_release_is_not_replaced(lab: Lab) -> None:
    inventory, hosts = lab.inventory("inventory.ini"), lab.hosts(EIGHT)
    cluster = lab.past(inventory, hosts)
    newer = paths.inventories_file().read_text(encoding="utf-8").replace('"schema_version": 1', '"schema_version": 2')
    paths.inventories_file().write_text(newer, encoding="utf-8")
    with pytest.raises(ConfigError, match="newer clusterctl"):
        lab.settle(inventory, hosts[:5])
    with pytest.raises(ConfigError, match="newer clusterctl"):
        clusters.forget(lab.known_hosts.read_text(encoding="utf-8"))
    assert paths.cluster_id(inventory) == cluster
    assert paths.inventories_file().read_text(encoding="utf-8") == newer


@pytest.mark.parametrize("part", ["inventories_lock", "inventories_file"])
def test_a_choice_that_cannot_be_kept_ends_in_a_sentence(lab: Lab, part: str) -> None:
    place = paths.state_dir().value / getattr(paths, part)().name
    (place / "a folder").mkdir(parents=True)
    sources = InventorySources.of(lab.inventory("a.ini"))
    with pytest.raises(ConfigError, match=rf"{place}.*\."):
        clusters.choose(sources, lab.hosts(EIGHT), clusters.NEW)


def test_entries_of_files_that_never_had_a_run_go_with_the_file(lab: Lab) -> None:
    for name in ("a.ini", "b.ini"):
        lab.settle(lab.inventory(name), lab.hosts([name[0]]))
        lab.inventory(name).unlink()
    inventory = lab.inventory("c.ini")
    lab.settle(inventory, lab.hosts(["c"]))
    assert list(paths.known_inventories()) == [str(inventory)]


def test_a_state_folder_that_cannot_be_written_hinders_no_command_that_only_reads(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_atomically", full)
    inventory = lab.inventory("inventory.ini")
    assert lab.settle(inventory, lab.hosts(EIGHT)) == paths.new_cluster_id(inventory)


WRITER = """
import sys
from pathlib import Path
from clusterctl.model.hosts import Host, InventorySources
from clusterctl.state import clusters
for number in range(5):
    path = Path(sys.argv[1], f"{sys.argv[2]}-{number}.ini")
    path.touch()
    clusters.settle(InventorySources.of(path), [Host("n", f"{sys.argv[2]}-{number}")])
"""


def test_writers_at_the_same_time_lose_no_entry(lab: Lab) -> None:
    started = [subprocess.Popen([sys.executable, "-c", WRITER, str(lab.folder), name]) for name in "abc"]
    assert [process.wait() for process in started] == [0, 0, 0]
    assert len(paths.known_inventories()) == 15


# --- what is kept of machines that are gone ---------------------------------------------------------------------------


def test_all_that_is_kept_of_machines_that_are_gone_goes(lab: Lab) -> None:
    gone, stays = lab.inventory("gone.ini"), lab.inventory("stays.ini")
    kept = lab.past(stays, lab.hosts([*EIGHT, "node9"]))
    cluster = lab.past(gone, lab.hosts(EIGHT))
    for name in (cluster, kept):
        run_history.remember(name, record(1))
    clusters.forget(lab.known_hosts.read_text(encoding="utf-8"))
    assert [path.name for path in paths.clusters_dir().iterdir()] == [kept]
    with run_history.open() as opened:
        assert opened.clusters() == [kept]
    assert paths.known_inventories() == {str(stays): kept}
    clusters.forget(lab.known_hosts.read_text(encoding="utf-8"))  # again


def test_machines_without_a_known_key_are_not_taken_for_gone(lab: Lab) -> None:
    cluster = lab.past(lab.inventory("a.ini"), lab.hosts(EIGHT, key=""))
    clusters.forget("")
    clusters.forget(f"192.0.2.1 {key_of('node1')}\n")
    assert paths.cluster_dir(cluster).is_dir()


# --- the commands that reach no node ----------------------------------------------------------------------------------


def test_history_and_report_follow_a_moved_inventory(lab: Lab) -> None:
    old, new = lab.inventory("old.ini"), lab.folder / "new.ini"
    old.write_text("[nodes]\nnode1 ansible_host=192.0.2.1\nnode2 ansible_host=192.0.2.2\n", encoding="utf-8")
    cluster = Cluster(InventorySources.of(old))
    assert cluster.inventory.hosts
    run_history.remember(cluster.id, record(1))
    paths.private_folder(paths.cluster_dir(cluster.id))
    old.rename(new)
    run_id = record(1).run_id
    for words, *command in (
        (run_id, "history", new),
        (record(1).verdict.value, "report", "last", "-i", new),
        (run_id, "baseline", "accept", new),
    ):
        done = run(*command)
        assert done.returncode == 0, done.stderr
        assert words in done.stdout + done.stderr
    done = run("history", "--past", "nobody", str(new))
    assert (done.returncode, "There is no past 'nobody'" in done.stderr) == (1, True)
    done = run("history", "--past", "new", str(new))
    assert (done.returncode, "begins anew" in done.stderr) == (0, True), done.stderr
    done = run("history", str(new))
    assert (done.returncode, "is empty" in done.stderr) == (1, True)
    done = run("history", "--past", cluster.id, str(new))
    assert done.returncode == 0
    assert run_id in done.stdout + done.stderr
