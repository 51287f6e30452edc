"""What a run keeps of Ansible's work for the next: the results stay the same, and nothing of the user is kept."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import role_plays
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import preloaded

pytestmark = pytest.mark.programs

PLAYS = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars:
    word: "{{ 'a secret of the user' }}"
    horovod_node: {platform: any-1-x86_64-glibc2.36-py3.11, artifacts: []}
    horovod_members: []
    python_env_lock: {wheels: {}}
  tasks:
    - clusterctl.hpc.preflight_look:
      register: look
    - ansible.builtin.import_role: {name: clusterctl.hpc.horovod, tasks_from: preflight, rolespec_validate: false}
      vars: {horovod_install: always}
      ignore_errors: true
    - ansible.builtin.debug:
        msg: "{{ [word, 'a\\\\\\\\b' | regex_replace('a', 'x'), lookup('ansible.builtin.pipe', 'echo {{ word }}')] }}"
      when: word is match('a secret') and look.node is mapping
"""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv(preloaded.KEPT_VARIABLE, str(folder))
    monkeypatch.setenv("CLUSTERCTL_POLL_S", "0.01")
    return folder


def files(folder: Path) -> dict[Path, tuple[int, int]]:
    states = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path: (state.st_ino, state.st_mtime_ns) for path, state in states.items()}


def test_a_run_that_keeps_says_what_one_that_does_not_says(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = role_plays.play(PLAYS, tmp_path)
    known = files(kept)
    again = role_plays.play(PLAYS, tmp_path)
    monkeypatch.delenv(preloaded.KEPT_VARIABLE)
    plain = role_plays.play(PLAYS, tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "a secret of the user" in first.stdout
    assert "horovod_install is always" in first.stdout
    assert (first.stdout, again.stdout) == (plain.stdout, plain.stdout)
    assert files(kept) == known, "the second run finds all that it needs"
    assert {path.relative_to(kept).parts[0] for path in known} == {"modules", "templates"}
    assert any(path.name.startswith("ansible_collections.clusterctl.hpc.") for path in known)


def test_templates_of_the_user_are_not_kept(kept: Path, tmp_path: Path) -> None:
    done = role_plays.play(PLAYS, tmp_path)
    assert done.returncode == 0, done.stdout
    codes = [path.read_bytes() for path in files(kept) if "templates" in path.parts]
    assert any(b"horovod_install" in code for code in codes)
    assert not any(b"secret" in code for code in codes)


@pytest.mark.parametrize("damage", [b"", b"\xff\xff"])
def test_a_damaged_template_is_made_anew(kept: Path, tmp_path: Path, damage: bytes) -> None:
    assert role_plays.play(PLAYS, tmp_path).returncode == 0
    codes = [path for path in files(kept) if "templates" in path.parts]
    for path in codes:
        path.write_bytes(damage)
    assert role_plays.play(PLAYS, tmp_path).returncode == 0
    assert all(path.read_bytes() != damage for path in codes)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o702])
def test_a_folder_that_others_may_enter_is_not_used(kept: Path, mode: int) -> None:
    assert preloaded.kept_folder("templates") is not None
    kept.chmod(mode)
    assert preloaded.kept_folder("templates") is None


@pytest.mark.usefixtures("kept")
def test_another_collection_leads_to_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "hpc" / "plugins" / "modules" / "one.py"
    module.parent.mkdir(parents=True)
    module.write_text("pass\n", encoding="utf-8")
    monkeypatch.setattr(preloaded, "COLLECTION", tmp_path / "hpc")
    before = preloaded.kept_folder("modules", "modules")
    assert preloaded.kept_folder("modules", "modules") == before
    module.write_text("pass  # more\n", encoding="utf-8")
    after = preloaded.kept_folder("modules", "modules")
    assert None is not before != after
    assert before is not None
    os.utime(before, (0, 0))
    assert preloaded.kept_folder("modules", "modules") == after
    assert not before.exists(), "nobody used it for a month"
    assert re.fullmatch("[0-9a-f]{16}", str(after and after.name))


def test_only_modules_of_the_collection_and_of_ansible_are_kept(tmp_path: Path) -> None:
    place, folder = tmp_path / "place", tmp_path / "kept"
    for made in (place, folder):
        made.mkdir()
    names = ["ansible_collections.clusterctl.hpc.plugins.modules.file_set-x", "ansible.modules.command-x"]
    for name in (*names, "ansible_collections.other.one.plugins.modules.y-x", f"{names[0]}.lock"):
        (place / name).write_text(name, encoding="utf-8")
    preloaded.keep(place, folder, os.getpid() + 1)  # what a worker that ends does
    assert not list(folder.iterdir())
    preloaded.keep(place, folder, os.getpid())  # what the run does at its end
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
