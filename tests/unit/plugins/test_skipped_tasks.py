"""Tasks that are skipped without a worker: the results stay the same, and a user's own tasks go their usual way."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import role_plays
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import preloaded

if TYPE_CHECKING:
    from pathlib import Path

# The first task loads what looks at conditions. The role's tasks have conditions of the collection.
PLAYS = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars:
    ssh_mesh_trust: keys
  tasks:
    - clusterctl.hpc.preflight_look:
      register: look
    - &early
      ansible.builtin.import_role: {name: clusterctl.hpc.ssh_mesh, tasks_from: preflight, rolespec_validate: false}
    - ansible.builtin.import_role: {name: clusterctl.hpc.horovod, tasks_from: verify, rolespec_validate: false}
      vars: {__horovod_wanted: false}
    - *early
    - ansible.builtin.debug: {msg: never}
      when: look is undefined
    - ansible.builtin.debug: {msg: "{{ look.node is mapping }}"}
"""


def played(folder: Path, monkeypatch: pytest.MonkeyPatch, *, early: bool) -> tuple[str, int]:
    """Return what Ansible printed for a user, and how many workers it forked."""
    monkeypatch.setenv("ANSIBLE_DEBUG", "1")
    monkeypatch.setenv(preloaded.SKIP_VARIABLE, "1" if early else "")
    done = role_plays.play(PLAYS, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.compile("PLAY|TASK|ok:|skipping:|fatal:|localhost |    msg:")
    lines = [line for line in done.stdout.splitlines() if told.match(line)]
    return "\n".join(lines), len(re.findall(r"worker is \d+ \(out of", done.stdout))


@pytest.mark.programs
def test_a_skipped_task_costs_no_worker_and_is_told_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, workers = played(tmp_path, monkeypatch, early=False)
    early, fewer = played(tmp_path, monkeypatch, early=True)
    skipped = plain.count("skipping: [localhost]")
    assert skipped > 1
    assert early == plain
    assert workers - fewer == skipped - 1, "all but the user's own"


OURS = f"{preloaded.COLLECTION}/roles/one/tasks/main.yml"


@pytest.mark.parametrize(
    ("changed", "path", "looked_at"),
    [
        ({}, OURS, True),
        ({"when": []}, OURS, False),
        ({"when": [True]}, "", True),
        ({}, "/home/user/site.yml", False),
        ({}, "", False),
        ({"loop": ["a"]}, OURS, False),
        ({"loop_with": "items"}, OURS, False),
        ({"delegate_to": "other"}, OURS, False),
        ({"no_log": True}, OURS, False),
        ({"no_log": "{{ hidden }}"}, OURS, False),
    ],
)
def test_only_plain_tasks_with_conditions_of_the_collection_are_looked_at(
    changed: dict[str, Any], path: str, looked_at: bool
) -> None:
    task = SimpleNamespace(when=["wanted"], loop=None, loop_with=None, delegate_to=None, no_log=None)
    assert preloaded.may_be_looked_at(SimpleNamespace(**{**vars(task), **changed}), lambda _text: path) is looked_at
