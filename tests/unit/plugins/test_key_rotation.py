"""Rotations of keys on a node: repeated at any point, they end with one sound key."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.action import ssh_mesh_plan
from ansible_collections.clusterctl.hpc.plugins.module_utils import job_account, mesh_rules
from ansible_collections.clusterctl.hpc.plugins.modules import host_key

pytestmark = pytest.mark.programs

NAME, COMMENT = "id_mesh", "clusterctl:node1"
ADDRESS = ("10.0.0.1", 22, 0)


def rotated(home: Path, rotation: str, *, check: bool = False) -> dict[str, Any]:
    return job_account.rotated(str(home), NAME, COMMENT, rotation, check=check)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_next_mesh_key_waits_until_it_is_switched_to(tmp_path: Path) -> None:
    old = rotated(tmp_path, "")["public_key"]
    staged = rotated(tmp_path, "stage")
    assert staged["public_key"] == old
    assert staged["successor_key"] not in {"", old}
    assert not any(f"{NAME}-next" in str(entry["path"]) for entry in staged["watch"]), "it is gone after the rotation"
    assert rotated(tmp_path, "stage")["successor_key"] == staged["successor_key"], "a repeated stage makes no other"
    switched = rotated(tmp_path, "switch")
    assert switched["public_key"] == staged["successor_key"]
    assert names(tmp_path / ".ssh") == {NAME, f"{NAME}.pub"}
    assert (tmp_path / ".ssh" / f"{NAME}.pub").read_text(encoding="utf-8").startswith(switched["public_key"])
    assert rotated(tmp_path, "switch")["changes"] == [], "there is no next key to switch to"


def test_nodes_that_share_a_home_have_one_key_and_leave_each_other_s_files_alone(tmp_path: Path) -> None:
    first = job_account.ensure_key(str(tmp_path), NAME, COMMENT, check=False)
    second = job_account.ensure_key(str(tmp_path), NAME, "clusterctl:node2", check=False)
    again = job_account.ensure_key(str(tmp_path), NAME, COMMENT, check=False)
    assert first["changes"]
    assert (second["changes"], again["changes"]) == ([], [])
    assert {found["public_key"] for found in (second, again)} == {first["public_key"]}
    assert first["watch"] == second["watch"] == again["watch"], "no node sees drift"


def test_two_nodes_that_make_the_key_of_a_shared_home_at_once_end_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other node makes folder and key between this one's look and its work."""
    mkdir, other = Path.mkdir, "clusterctl:node2"

    def both(folder: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        mkdir(folder, mode)
        monkeypatch.setattr(Path, "mkdir", mkdir)
        job_account.ensure_key(str(tmp_path), NAME, other, check=False)
        mkdir(folder, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", both)
    mine = job_account.ensure_key(str(tmp_path), NAME, COMMENT, check=False)
    assert mine["public_key"] == job_account.ensure_key(str(tmp_path), NAME, other, check=False)["public_key"]
    assert (tmp_path / ".ssh" / f"{NAME}.pub").read_text(encoding="utf-8") == f"{mine['public_key']} {other}\n"
    assert names(tmp_path / ".ssh") == {NAME, f"{NAME}.pub"}


def test_a_public_half_of_another_key_is_written_anew(tmp_path: Path) -> None:
    half = rotated(tmp_path, "")["public_key"]
    public = tmp_path / ".ssh" / f"{NAME}.pub"
    for damaged in ("", f"{half}", f"ssh-ed25519 AAAA {COMMENT}\n", f"{half}\n{half}\n"):
        public.write_text(damaged, encoding="utf-8")
        assert rotated(tmp_path, "")["changes"] == [f"wrote {public} anew"]
        assert public.read_text(encoding="utf-8") == f"{half} {COMMENT}\n"


def test_a_check_makes_and_switches_nothing(tmp_path: Path) -> None:
    rotated(tmp_path, "")
    assert "created" in rotated(tmp_path, "stage", check=True)["changes"][0]
    assert names(tmp_path / ".ssh") == {NAME, f"{NAME}.pub"}


MEMBERS = [
    {"name": "node1", "address": "10.0.0.1", "host_keys": ["ssh-ed25519 AAAAone"]},
    {"name": "node2", "address": "10.0.0.2", "host_keys": ["ssh-ed25519 AAAAtwo"]},
]


def look(key: str, successor: str = "") -> dict[str, Any]:
    return {
        "user": "mpi",
        "public_key": key,
        "successor_key": successor,
        "remembered": [],
        "obstacles": [],
        "reaches_root": "",
    }


def test_both_keys_are_accepted_during_a_rotation() -> None:
    looks = {"node1": look("ssh-ed25519 AAAAold", "ssh-ed25519 AAAAnew"), "node2": look("ssh-ed25519 AAAAelse")}
    plan = ssh_mesh_plan.plan(MEMBERS, looks, {"node1": [], "node2": []}, mesh_rules.Options())
    lines = plan["authorized_keys"].splitlines()
    assert [(line.split()[2], line.split()[3]) for line in lines] == [
        ("AAAAold", "clusterctl:node1"),
        ("AAAAelse", "clusterctl:node2"),
        ("AAAAnew", "clusterctl:node1"),
    ]
    assert lines[0].split()[0] == lines[2].split()[0], "the next key is restricted as the present one"


def test_both_host_keys_are_known_during_a_rotation() -> None:
    staged = {"node1": {"staged": {"host_keys": ["ssh-ed25519 AAAAone", "ssh-ed25519 AAAAnew"]}}}
    member = ssh_mesh_plan.with_more_keys(MEMBERS[0], "staged", {"hostvars": staged})
    assert member["host_keys"] == ["ssh-ed25519 AAAAone", "ssh-ed25519 AAAAnew"]
    assert ssh_mesh_plan.with_more_keys(MEMBERS[1], "staged", {"hostvars": staged}) == MEMBERS[1]
    assert ssh_mesh_plan.with_more_keys(MEMBERS[0], "", {"hostvars": staged}) == MEMBERS[0]


@pytest.mark.parametrize("said", [{}, {"host_keys": 7}, {"host_keys": "ssh-ed25519 AAAA"}, {"host_keys": ["k"] * 65}])
def test_next_host_keys_of_another_form_are_refused_by_the_name_of_their_node(said: dict[str, Any]) -> None:
    """Every node would have to take each of them into its known hosts."""
    staged = {"node1": {"staged": {"changed": False, **said}}}
    with pytest.raises(mesh_rules.MeshError, match=r"^node1: its answer") as refused:
        ssh_mesh_plan.with_more_keys(MEMBERS[0], "staged", {"hostvars": staged})
    assert refused.value.hosts == ("node1",)


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Callable[[], str]]:
    """A host key, and the key that an sshd shows which has read it; a reload makes it read the file again."""
    path = tmp_path / "ssh_host_ed25519_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    shown = [host_key.half_of(path)]
    monkeypatch.setattr(host_key, "shown_key", lambda *_: shown[0])
    monkeypatch.setattr(host_key.sshd, "reload", lambda: shown.__setitem__(0, host_key.half_of(path)))
    return path, lambda: shown[0]


def test_sshd_shows_the_next_host_key_after_the_switch(sshd: tuple[Path, Callable[[], str]]) -> None:
    path, shown = sshd
    old = shown()
    fresh, made = host_key.stage(path, check=False)
    assert made
    assert (shown(), host_key.half_of(path)) == (old, old)
    assert host_key.stage(path, check=False) == (fresh, []), "a repeated stage makes no other"
    assert host_key.switch(path, *ADDRESS, check=False)[0] == fresh
    assert shown() == fresh
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.with_name(f"{path.name}.pub").read_text(encoding="utf-8").startswith(fresh)
    assert names(path.parent) == {path.name, f"{path.name}.pub"}
    assert host_key.switch(path, *ADDRESS, check=False) == (fresh, [])


def test_a_switch_that_was_interrupted_is_mended(sshd: tuple[Path, Callable[[], str]]) -> None:
    path, shown = sshd
    fresh, _ = host_key.stage(path, check=False)
    host_key.next_file(path).replace(path)  # killed before the public half was written and sshd was reloaded
    assert shown() != fresh
    assert len(host_key.mend(path, *ADDRESS)) == 2
    assert shown() == fresh
    assert path.with_name(f"{path.name}.pub").read_text(encoding="utf-8").startswith(fresh)
    assert host_key.mend(path, *ADDRESS) == []


def test_an_sshd_that_keeps_its_old_key_is_a_failure(
    sshd: tuple[Path, Callable[[], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = sshd
    host_key.stage(path, check=False)
    monkeypatch.setattr(host_key.sshd, "reload", lambda: None)
    with pytest.raises(host_key.NoHostKeyError, match="another host key than its file"):
        host_key.switch(path, *ADDRESS, check=False)


def test_sshds_own_settings_name_the_file() -> None:
    assert host_key.key_file(["/etc/ssh/ssh_host_rsa_key", "/srv/keys/ed25519"]) == Path("/srv/keys/ed25519")
    assert host_key.key_file([]) == Path("/etc/ssh/ssh_host_ed25519_key")
    with pytest.raises(host_key.NoHostKeyError, match="no ed25519 host key"):
        host_key.key_file(["/etc/ssh/ssh_host_rsa_key"])
