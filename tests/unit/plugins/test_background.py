"""A build in the background, its result, and its end with the playbook."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import role_plays
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import background, preloaded
from clusterctl.support import content


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The file for the result; at the end the work's process is reaped, as Ansible's worker leaves it to init."""
    before = children()
    yield tmp_path / "artifacts" / ".demo-1.0-0123456789abcdef.early-1"
    for child in children() - before:
        os.waitpid(child, 0)


def children() -> set[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return {int(number) for number in listed.split()}


def taken(place: Path) -> tuple[dict[str, Any] | None, list[str]]:
    notes: list[str] = []
    return background.result(place, "waiting for demo", notes.append), notes


def test_the_task_that_needs_it_takes_the_result_once(place: Path) -> None:
    background.begin(place, os.getpid(), lambda: {"changed": True, "by": os.getpid()})
    result, _unused = taken(place)
    assert result["by"] != os.getpid()
    assert not list(place.parent.iterdir())
    assert taken(place) == (None, [])


def test_it_waits_and_says_so(place: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"

    def work() -> dict[str, Any]:
        while not go.exists():
            time.sleep(0.05)
        return {"changed": True}

    background.begin(place, os.getpid(), work)
    threading.Timer(0.5, go.touch).start()
    result, (words,) = taken(place)
    assert result == {"changed": True}
    assert re.fullmatch(r"waiting for demo \(process \d+\)", words)


def test_work_that_breaks_has_no_result(place: Path) -> None:
    def work() -> dict[str, Any]:
        raise ConnectionError("the host is gone")

    background.begin(place, os.getpid(), work)
    assert taken(place)[0] is None


def test_the_work_ends_with_the_playbook_and_cleans_up(place: Path, tmp_path: Path) -> None:
    playbook = subprocess.Popen(["sleep", "600"])
    busy, clean = tmp_path / "busy", tmp_path / "clean"

    def work() -> dict[str, Any]:
        try:
            ssh = subprocess.Popen(["sleep", "600"])
            busy.write_text(str(ssh.pid), encoding="utf-8")
            time.sleep(600)
        finally:
            clean.touch()
        return {}

    background.begin(place, playbook.pid, work)
    while not busy.exists() or not busy.read_text(encoding="utf-8"):
        time.sleep(0.05)
    playbook.kill()
    playbook.wait()
    assert taken(place)[0] is None
    assert clean.exists()
    ssh = Path("/proc", busy.read_text(encoding="utf-8"), "status")
    while ssh.exists() and "zombie" not in ssh.read_text(encoding="utf-8"):
        time.sleep(0.05)


# --- tasks that are skipped without a worker: the results stay the same, and a user's own tasks go their usual wa ---


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
        preloaded.wait_for_one(workers)
    assert [worker.is_alive() for worker in workers] == [True, False, True]


def test_it_does_not_wait_where_a_worker_is_free(workers: list[BaseProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preloaded.connection, "wait", lambda *_unused: pytest.fail("it waited"))
    preloaded.wait_for_one([*workers, None])
    preloaded.wait_for_one([])
    workers[0].terminate()
    workers[0].join()
    preloaded.wait_for_one(workers)
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
