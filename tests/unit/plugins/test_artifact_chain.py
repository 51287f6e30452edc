"""The controller's part of a chain of nodes: when it is made, with whom, and what it believes of the first host."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import role_templates
import yaml
from ansible_collections.clusterctl.hpc.plugins.action import software_stage
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_spread
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import artifact_action, artifact_chain, artifact_staging
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_cache import CachedArtifact
from clusterctl.support import content

if TYPE_CHECKING:
    from conftest import RunModule

HOSTS = ["a", "b", "c", "d"]


@pytest.fixture
def artifact(tmp_path: Path) -> CachedArtifact:
    pack = tmp_path / "demo-1.0-0123456789abcdef.tar.zst"
    pack.write_bytes(b"x" * 600_000)
    return CachedArtifact(pack, "5", 600_000, {})


def variables(**changed: Any) -> dict[str, Any]:
    members = [{"name": name, "platform": "other" if name == "d" else "same"} for name in HOSTS]
    return {"preflight_members": members, "ansible_play_hosts": HOSTS, "hostvars": {}, **changed}


KNOWN: dict[str, Any] = {"brought": {}, "tried": [], "heads": 0, "pack": {}}


def test_the_defaults_are_those_that_the_role_documents() -> None:
    documented = yaml.safe_load((content.root() / "roles/preflight/defaults/main.yml").read_text(encoding="utf-8"))
    names = ("preflight_chain_min_hosts", "preflight_chain_min_bytes", "preflight_chain_bytes_per_s")
    defaults = artifact_chain.Settings.of({}, lambda value: value)
    assert [documented[name] for name in names] == [defaults.min_hosts, defaults.min_bytes, defaults.bytes_per_s]


def test_a_chain_needs_enough_hosts_and_bytes(artifact: CachedArtifact) -> None:
    settings = artifact_chain.Settings(3, 600_000, 0)
    assert settings.suffice(artifact.path, HOSTS)
    assert not settings.suffice(artifact.path, HOSTS[:2])
    assert not artifact_chain.Settings(3, 600_001, 0).suffice(artifact.path, HOSTS)
    assert not settings.suffice(artifact.path.with_suffix(".none"), HOSTS)


def test_the_chain_has_the_hosts_of_the_platform_that_take_part(artifact: CachedArtifact) -> None:
    def names(given: dict[str, Any], **known: Any) -> list[str]:
        return [node.name for node in artifact_chain.nodes_of("a", given, {**KNOWN, **known}, artifact)]

    assert names(variables()) == ["b", "c"]
    assert names(variables(ansible_play_hosts=["a", "c", "d"])) == ["c"]
    assert names(variables(), tried=["b"], brought={"c": "/x"}) == []
    assert names(variables(preflight_members=[])) == []


def test_every_host_has_a_name_of_its_own_for_its_copy(artifact: CachedArtifact) -> None:
    given = variables(hostvars={"b": {"ansible_python_interpreter": "/opt/python"}, "c": {}})
    nodes = artifact_chain.nodes_of("a", given, KNOWN, artifact)
    assert len({node.file for node in nodes}) == 2
    assert all(node.file.endswith(f"-{artifact.path.name}") for node in nodes)
    assert [node.python for node in nodes] == ["/opt/python", "python3"]


def test_the_sums_are_of_the_pieces(artifact: CachedArtifact) -> None:
    piece, sums = artifact_chain.sums_of(artifact)
    data = artifact.path.read_bytes()
    expected = [hashlib.sha256(data[at : at + piece]).digest() for at in range(0, len(data), piece)]
    assert base64.b64decode(sums) == b"".join(expected)
    assert len(expected) == 3


@pytest.mark.parametrize(
    ("given", "user"),
    [
        ({}, "login"),
        ({"ansible_user": "admin"}, "admin"),
        ({"ansible_user": "admin", "ansible_ssh_user": "older"}, "older"),
        ({"ansible_ssh_user": "older"}, "older"),
        ({"ansible_user": "admin", "cluster_user": "mpi"}, "mpi"),
        ({"cluster_user": "mpi", "__ssh_mesh_key": {"user": "jobs"}}, "jobs"),
    ],
)
def test_the_user_is_that_of_the_mesh(given: dict[str, Any], user: str) -> None:
    assert artifact_chain.mesh_user(given, "login") == user
    if "__ssh_mesh_key" not in given:
        for role in ("ssh_mesh", "environment"):
            variables = role_templates.variables_of(role, ["defaults/main.yml"])
            chosen = role_templates.rendered(f"{role}_user", {**variables, **given}, ())
            assert (chosen or "login") == user


def test_a_host_can_not_choose_a_path_or_another_host() -> None:
    nodes = [artifact_chain.Node(name, "python3", f"file-{name}") for name in ("b", "c")]
    said = {
        "delivered": {"b": 1, "c": "/etc/shadow", "z": 0, "../x": 0},
        "reasons": {"c": "two\nlines", "z": "stranger"},
        "slow": ["z", "b"],
        "seconds": "long",
    }
    told = artifact_chain.told(said, nodes, ["/one", "/two"])
    assert told.brought == {"b": "/two/file-b"}
    assert (told.left_out, told.failed, told.slow, told.seconds) == (["c"], {"c": "two lines"}, ["b"], 0.0)
    assert artifact_chain.told({"delivered": [1], "reasons": 3}, nodes, ["/one"]).left_out == ["b", "c"]


def test_one_worker_at_a_time_holds_the_meeting(tmp_path: Path) -> None:
    order: list[str] = []

    def work(name: str) -> None:
        with artifact_chain.Meeting(tmp_path, "demo").held(print, 60.0) as known:
            order.append(f"{name} in")
            known["tried"].append(name)
            order.append(f"{name} out")

    threads = [threading.Thread(target=work, args=(name,)) for name in HOSTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line.split()[1] for line in order] == ["in", "out"] * len(HOSTS)
    (path,) = tmp_path.iterdir()
    assert sorted(json.loads(path.read_text())["tried"]) == HOSTS


def test_a_copy_that_failed_is_raised_where_its_path_is_asked_for() -> None:
    def fail() -> str:
        raise OSError("the disk is full")

    assert artifact_chain.Copying(lambda: "/path").path() == "/path"
    with pytest.raises(OSError, match="the disk is full"):
        artifact_chain.Copying(fail).path()


@pytest.mark.parametrize("copied", ["missing", "changed", "link"])
def test_a_copy_of_another_node_that_is_not_whole_installs_nothing_and_is_told_apart(
    tmp_path: Path, run_module: RunModule, copied: str
) -> None:
    pack, root = tmp_path / "clusterctl-push-1", tmp_path / "root"
    root.mkdir()
    if copied == "changed":
        pack.write_bytes(b"half of a pack")
    elif copied == "link":
        pack.symlink_to("/etc/passwd")
    described = {"sha256": "0" * 64, "size": 14, "compression": "gz", "manifest_sha256": "0", "inputs": {}}
    asked = {"name": "demo", "version": "1", "key": "0123456789abcdef", "root": str(root)}
    asked["pack"] = {"path": str(pack), **described}
    result = run_module("artifact_install", artifacts=[asked], phase="apply", host="n1")["artifacts"]["demo"]
    assert result["failed"]
    assert result["not_whole"]
    assert list(root.iterdir()) == []
    assert Path("/etc/passwd").exists()


def test_one_host_leads_the_chain_and_the_others_take_what_it_brought(
    artifact: CachedArtifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"manifest_sha256": "m", "inputs": {"a": 1}}
    cached = CachedArtifact(artifact.path, artifact.sha256, artifact.size, record)
    monkeypatch.setattr(artifact_staging, "DEFAULT_LOCAL_TMP", str(tmp_path))
    monkeypatch.setattr(artifact_staging.ArtifactCache, "pack_path", lambda *_: artifact.path)
    asked: list[Any] = []

    def call(name: str, given: dict[str, Any], _variables: Any) -> dict[str, Any]:
        asked.append((name, given["name"], [node["name"] for node in given["nodes"]], given["marker"]))
        return {"delivered": {"b": 1}, "reasons": {"c": "no room"}, "slow": [], "seconds": 1.5}

    def pack_of(host: str) -> tuple[dict[str, Any] | None, list[str]]:
        made: Any = software_stage.ActionModule.__new__(software_stage.ActionModule)
        made._templar = SimpleNamespace(template=lambda value: value)  # noqa: SLF001
        made._play_context = SimpleNamespace(remote_user="login")  # noqa: SLF001
        made._connection = object()  # noqa: SLF001
        notes = contextlib.nullcontext
        for name, stand_in in {
            "_cached": lambda *_: cached,
            "_call": call,
            "_note": lambda *_: None,
            "_notes_from": lambda *_: notes(),
            "_push_as": lambda _connection, _local, paths: paths[0],
        }.items():
            monkeypatch.setattr(made, name, stand_in)
        one = {"name": "demo", "version": "1.0", "key": "0123456789abcdef", "cache_dir": "/c", "push_dir": "/push"}
        pushed: list[str] = []
        limits = {"preflight_chain_min_hosts": 2, "preflight_chain_min_bytes": 1}
        given = variables(inventory_hostname=host, **limits)
        return made._brought({**one, "root": "/root"}, {"needs_pack": True, "zstd": True}, pushed, given), pushed  # noqa: SLF001

    described = {"sha256": "5", "size": 600_000, "compression": "zst", "manifest_sha256": "m", "inputs": {"a": 1}}
    led, pushed = pack_of("a")
    assert led == {"path": pushed[0], **described}
    assert pushed[0].startswith("/push/clusterctl-push-")
    assert asked == [("artifact_spread", "a", ["b", "c"], "/root/demo-1.0-0123456789abcdef/.clusterctl.json")]
    brought, pushed = pack_of("b")
    assert brought == {"path": pushed[0], **described}
    assert pushed[0].startswith(f"{artifact_action.SHARED}/clusterctl-push-"), (
        "the second of its folders, as the first host said"
    )
    assert pack_of("c") == (None, []), "the chain did not reach it"
    assert pack_of("d") == (None, []), "no other host of its platform"
    assert len(asked) == 1


def test_what_a_host_says_of_a_chain_is_one_printable_line() -> None:
    nodes = [artifact_chain.Node("n2", "python3", "file"), artifact_chain.Node("n3", "python3", "file")]
    said = {"reasons": {"n2": "why\x1b]0;x\x07\n{uuid}" + "y" * 9000}, "delivered": {"n3": True}, "seconds": 1e300}
    told = artifact_chain.told(said, nodes, ["/a", "/b"])
    assert told.failed["n2"].isprintable()
    assert len(told.failed["n2"]) <= 300
    assert (told.brought, told.seconds) == ({}, 0.0)


@pytest.mark.parametrize("planted", ["link", "pipe", "file"])
def test_the_file_for_the_progress_is_made_anew(tmp_path: Path, planted: str) -> None:
    path, victim = tmp_path / "log" / "x.progress", tmp_path / "victim"
    path.parent.mkdir()
    victim.write_text("theirs")
    {"link": lambda: path.symlink_to(victim), "pipe": lambda: os.mkfifo(path), "file": lambda: path.write_text("old")}[
        planted
    ]()
    handle = artifact_spread.progress_file(str(path))
    os.write(handle, b"line")
    os.close(handle)
    assert path.read_bytes() == b"line"
    assert path.is_file()
    assert not path.is_symlink()
    assert victim.read_text() == "theirs"


def test_the_progress_of_a_chain_lies_where_only_root_writes(artifact: CachedArtifact) -> None:
    given = {"root": "/usr/local", "tree": "demo-1-key", "folders": ["/push"], "paths": ["/push/x"]}
    settings = artifact_chain.Settings(1, 1, 0.0)
    asked = artifact_chain.request("n1", "mpi", artifact, settings, [], given)
    assert asked["progress"] == "/var/log/clusterctl/demo-1-key.chain.progress"


def test_a_note_of_a_host_is_read_within_bounds_and_shown_as_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = software_stage.ActionModule.__new__(software_stage.ActionModule)
    notes: list[str] = []
    commands: list[str] = []

    class Connection:
        def exec_command(self, command: str, **_options: Any) -> tuple[int, bytes, bytes]:
            commands.append(command)
            return 0, b"2 of 3\x1b[2J\nforged" + b"x" * 1_000_000, b""

    made._connection = Connection()  # noqa: SLF001 - all that following uses
    monkeypatch.setattr(artifact_action, "_NOTE_PERIOD_S", 0.01)
    monkeypatch.setattr(artifact_action.run_events, "note", lambda _host, text: notes.append(text))
    with made._notes_from("n1", "/var/log/x"):  # noqa: SLF001
        time.sleep(0.2)
    assert commands[0] == "head -c 4096 -- /var/log/x"
    assert len(notes) == 1
    assert notes[0].isprintable()
    assert len(notes[0]) <= 1000
