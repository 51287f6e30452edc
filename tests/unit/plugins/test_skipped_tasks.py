"""Tasks that are skipped without a worker: the results stay the same, and a user's own tasks go their usual way."""

from __future__ import annotations

import json
import multiprocessing
import re
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import role_plays
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import free_worker, kept_folder, skipped_tasks
from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess
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
    monkeypatch.setenv(skipped_tasks.VARIABLE, "1" if early else "")
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


OURS = f"{kept_folder.COLLECTION}/roles/one/tasks/main.yml"


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
    assert skipped_tasks.may_be_looked_at(SimpleNamespace(**{**vars(task), **changed}), lambda _text: path) is looked_at


# --- ansible's main process waits for a free worker ---


@pytest.fixture
def workers() -> Iterator[list[BaseProcess]]:
    started = [multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)) for _unused in range(3)]
    for worker in started:
        worker.start()
    yield started
    for worker in started:
        worker.kill()
        worker.join()


def test_it_waits_for_the_first_that_ends(workers: list[BaseProcess]) -> None:
    workers[1].terminate()
    while all(worker.is_alive() for worker in workers):
        free_worker.wait_for_one(workers)
    assert [worker.is_alive() for worker in workers] == [True, False, True]


def test_it_does_not_wait_where_a_worker_is_free(workers: list[BaseProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_worker.connection, "wait", lambda *_unused: pytest.fail("it waited"))
    free_worker.wait_for_one([*workers, None])
    free_worker.wait_for_one([])
    workers[0].terminate()
    workers[0].join()
    free_worker.wait_for_one(workers)
    workers.pop(0).close()


# --- what Ansible's main process has loaded before it forks a worker for each host ---


# As the strategy does for each task, in Ansible's main process.
PROGRAM = """
import json, sys
from ansible.plugins.loader import action_loader, init_plugin_loader
init_plugin_loader(sys.argv[1:])
assert action_loader.get("clusterctl.hpc.preflight_look", class_only=True)
print(json.dumps([name for name in sys.modules if ".plugins.filter." in name or ".plugins.test." in name]))
"""


def test_the_first_action_loads_the_filters_for_all_workers() -> None:
    asked = [sys.executable, "-c", PROGRAM, str(content.collections_path())]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    ours = {f"ansible_collections.clusterctl.hpc.plugins.filter.{name}" for name in ("artifact", "stack")}
    assert ours <= set(loaded)
    assert any(name.startswith("ansible.plugins.test.") for name in loaded)
