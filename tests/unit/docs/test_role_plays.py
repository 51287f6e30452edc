"""The README of every role shows a short play that runs by itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from role_plays import alone, play, roles, shown

_LINES = 9
# environment counts the other nodes where it knows them; the action fabric_plan itself refuses a node without facts.
REFUSES_OTHERWISE = {"environment", "fabric"}
# Roles that a play has before a role: what it is built against, or the facts of the nodes.
BEFORE = ([], ["preflight"], ["openmpi", "python_env"])


@pytest.mark.parametrize("role", roles(), ids=lambda role: role.name)
def test_the_play_is_short_and_its_variables_are_the_roles(role: Path) -> None:
    (text,) = shown(role)
    assert len(text.splitlines()) <= _LINES
    (play,) = yaml.safe_load(text)
    *others, last = play["roles"]
    assert last["role"] == f"clusterctl.hpc.{role.name}"
    assert [other["role"] for other in others] in [[f"clusterctl.hpc.{name}" for name in names] for names in BEFORE]
    specs = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))["argument_specs"]
    assert set(last) - {"role"} <= set(specs["main"]["options"])


@pytest.mark.parametrize("role", roles(), ids=lambda role: role.name)
def test_a_role_that_needs_the_facts_of_nodes_gathers_them_or_refuses(role: Path) -> None:
    """The default of a variable takes the facts of preflight, and the first task is there for a play without it."""
    defaults = (role / "defaults" / "main.yml").read_text(encoding="utf-8")
    needed = re.findall(rf"^({role.name}_(?:node|members)): .*preflight_", defaults, re.MULTILINE)
    if not needed or role.name in REFUSES_OTHERWISE:
        return
    tasks = role / "tasks"
    first: dict[str, Any] = yaml.safe_load((tasks / "main.yml").read_text(encoding="utf-8"))[0]
    if "ansible.builtin.import_tasks" in first:
        imported = tasks / first["ansible.builtin.import_tasks"]
        first = yaml.safe_load(imported.read_text(encoding="utf-8"))[0]
    if "ansible.builtin.assert" in first:
        asked = first["ansible.builtin.assert"]
        assert asked["that"] == f"{role.name}_members | length > 0"
        assert "put the role clusterctl.hpc.preflight before" in asked["fail_msg"]
        return
    assert first["ansible.builtin.include_role"] == {"name": "clusterctl.hpc.preflight"}
    assert first["when"] == f"{role.name}_node | length == 0"


@pytest.mark.parametrize("role", roles(), ids=lambda role: role.name)
def test_the_scenario_plays_what_the_readme_shows(role: Path) -> None:
    """What the README has before the role for a fresh node, a scenario may have in its preparation instead."""
    converge = yaml.safe_load((role / "molecule" / "default" / "converge.yml").read_text(encoding="utf-8"))[0]
    (play_shown,) = yaml.safe_load(shown(role)[0])
    played = [one["role"] for one in converge["roles"]]
    in_readme = [one["role"] for one in play_shown["roles"]]
    assert played == in_readme[-len(played) :]
    prepared = role / "molecule" / "default" / "prepare.yml"
    before = prepared.read_text(encoding="utf-8") if prepared.is_file() else ""
    assert [one for one in in_readme[: -len(played)] if one not in before] == []


@pytest.mark.programs
def test_ansible_accepts_every_play(tmp_path: Path) -> None:
    done = play("".join(text for role in roles() for text in shown(role)), tmp_path, "--syntax-check", "-i", "node1,")
    assert done.returncode == 0, done.stderr


@pytest.mark.programs
@pytest.mark.parametrize("name", ["horovod", "validation"])
def test_the_play_looks_at_the_nodes_first(name: str, tmp_path: Path) -> None:
    """The others begin by the same task, which a test above holds.

    Nothing listens at the port of this host, so preflight must refuse it, and no later task may need its facts.
    """
    (tmp_path / "hosts.ini").write_text("node1 ansible_host=127.0.0.1 ansible_port=1 ansible_connection=ssh\n")
    done = play(alone(name), tmp_path, "-i", str(tmp_path / "hosts.ini"))
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, said
    # ssh may end before Ansible has written to it; its own reason is lost then.
    assert re.search(
        r"1 problem on 1 of 1 host; nothing has been changed\. node1: its? (does not answer|refuses|connection ended)",
        said,
    )
    assert "kind: unreachable" in said


@pytest.mark.programs
def test_a_role_that_cannot_look_refuses(tmp_path: Path) -> None:
    done = play(alone("ssh_mesh"), tmp_path, "-i", "node1,")
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, said
    assert "ssh_mesh_members is empty" in said
    assert "put the role clusterctl.hpc.preflight before" in said
