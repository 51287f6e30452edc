"""The README of every role shows a short play that runs by itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusterctl.support import content

_YAML = re.compile(r"^```yaml\n(- name: .*?)^```$", re.MULTILINE | re.DOTALL)
_LINES = 9
# environment counts the other nodes where it knows them; the action fabric_plan itself refuses a node without facts.
REFUSES_OTHERWISE = {"environment", "fabric"}


def shown(role: Path) -> list[str]:
    found = [text for text in _YAML.findall((role / "README.md").read_text(encoding="utf-8")) if "\n  roles:\n" in text]
    return [text for text in found if f"clusterctl.hpc.{role.name}" in text]


def roles() -> list[Path]:
    return sorted(path.parent for path in (content.root() / "roles").glob("*/README.md"))


@pytest.mark.parametrize("role", roles(), ids=lambda role: role.name)
def test_the_play_is_short_and_its_variables_are_the_roles(role: Path) -> None:
    (text,) = shown(role)
    assert len(text.splitlines()) <= _LINES
    (play,) = yaml.safe_load(text)
    *others, last = play["roles"]
    assert last["role"] == f"clusterctl.hpc.{role.name}"
    assert [other["role"] for other in others] in ([], ["clusterctl.hpc.preflight"])
    specs = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))["argument_specs"]
    assert set(last) - {"role"} <= set(specs["main"]["options"])


@pytest.mark.parametrize("role", roles(), ids=lambda role: role.name)
def test_a_role_that_needs_the_facts_of_nodes_gathers_them_or_refuses(role: Path) -> None:
    """The default of a variable takes the facts of preflight, and the first task is there for a play without it."""
    defaults = (role / "defaults" / "main.yml").read_text(encoding="utf-8")
    needed = re.findall(rf"^({role.name}_(?:node|members)): .*preflight_", defaults, re.MULTILINE)
    if not needed or role.name in REFUSES_OTHERWISE:
        return
    first: dict[str, Any] = yaml.safe_load((role / "tasks" / "main.yml").read_text(encoding="utf-8"))[0]
    if "ansible.builtin.assert" in first:
        asked = first["ansible.builtin.assert"]
        assert asked["that"] == f"{role.name}_members | length > 0"
        assert "put the role clusterctl.hpc.preflight before" in asked["fail_msg"]
        return
    assert first["ansible.builtin.include_role"] == {"name": "clusterctl.hpc.preflight"}
    assert first["when"] == f"{role.name}_node | length == 0"


def play(plays: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "plays.yml").write_text(f"---\n{plays}")
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    return subprocess.run(
        [program, *options, str(folder / "plays.yml")],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(content.root() / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(content.collections_path()),
            "ANSIBLE_NOCOLOR": "1",
        },
    )


@pytest.mark.programs
def test_ansible_accepts_every_play(tmp_path: Path) -> None:
    done = play("".join(text for role in roles() for text in shown(role)), tmp_path, "--syntax-check", "-i", "node1,")
    assert done.returncode == 0, done.stderr


@pytest.mark.programs
@pytest.mark.parametrize("name", ["horovod", "mpi4py", "nccl", "openmpi", "python_env"])
def test_the_play_looks_at_the_nodes_first(name: str, tmp_path: Path) -> None:
    """Nothing listens at the port of this host, so preflight must refuse it, and no later task may need its facts."""
    (tmp_path / "hosts.ini").write_text("node1 ansible_host=127.0.0.1 ansible_port=1 ansible_connection=ssh\n")
    done = play(shown(content.root() / "roles" / name)[0], tmp_path, "-i", str(tmp_path / "hosts.ini"))
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, said
    assert "1 problem on 1 of 1 host; nothing has been changed. node1: it does not answer" in said


@pytest.mark.programs
@pytest.mark.parametrize("name", ["hosts", "ssh_mesh"])
def test_a_role_that_cannot_look_refuses(name: str, tmp_path: Path) -> None:
    plays = f"- hosts: all\n  gather_facts: false\n  roles:\n    - role: clusterctl.hpc.{name}\n"
    done = play(plays, tmp_path, "-i", "node1,")
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, said
    assert f"{name}_members is empty" in said
    assert "put the role clusterctl.hpc.preflight before" in said
