from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from clusterctl.inventory import ansible_inventory
from clusterctl.model.events import Event, Finished, HostResult, Note, StageStarted
from clusterctl.provisioning import playbook as runner
from clusterctl.provisioning.playbook import Cancel, Play

DATA = Path(__file__).resolve().parents[2] / "data" / "runner" / "events.jsonl"


def raw_events() -> list[dict[str, object]]:
    return [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


def results(*, keep_diff: bool = False) -> list[HostResult]:
    events = (runner.translate(raw, keep_diff=keep_diff) for raw in raw_events())
    return [event for event in events if isinstance(event, HostResult)]


def test_outcomes_of_a_captured_run() -> None:
    found = {(result.host, result.task): result.outcome for result in results()}
    assert found["h1", "Change a thing"] == "changed"
    assert found["h1", "Say something"] == "ok"
    assert found["h1", "Loop and fail on one"] == "ok", "ignored errors are none"
    assert found["h1", "Skipped"] == "skipped"
    assert found["h2", "Fail on h2"] == "failed"
    assert found["h3", "Reach it"] == "unreachable"


def test_messages_name_the_cause() -> None:
    messages = {result.task: result.message for result in results() if result.outcome in {"failed", "unreachable"}}
    assert "Connection refused" in messages["Reach it"]
    assert messages["Fail on h2"] == "non-zero return code"


def test_diffs_are_kept_only_when_asked_for() -> None:
    assert not any(result.diff for result in results())
    assert "+new" in next(result.diff for result in results(keep_diff=True) if result.task == "Change a thing")


def test_a_rescued_failure_fails_no_host() -> None:
    heard: list[Event] = []
    translator = runner._Translator(heard.append, keep_diff=False)  # noqa: SLF001 - the count is its own
    for raw in raw_events():
        assert translator.handle(raw) is True, "anything else loses ansible-runner's own events"
    assert (translator.failed, translator.unreachable) == ({"h2"}, {"h3"})
    assert sum(isinstance(event, StageStarted) for event in heard) == 8


def test_seams_of_our_modules() -> None:
    raw = {
        "event": "runner_on_ok",
        "created": "2026-01-01T00:00:00+00:00",
        "event_data": {
            "host": "node1",
            "role": "clusterctl.hpc.hosts",
            "task": "Write",
            "duration": 1.5,
            "res": {
                "changed": True,
                "changes": ["/etc/hosts"],
                "watch": [{"path": "/etc/hosts", "kind": "file"}],
                "invocation": {"module_args": {"password": "hunter2"}},
                "stdout": "hunter2",
            },
        },
    }
    event = runner.translate(raw)
    assert isinstance(event, HostResult)
    assert (event.stage, event.outcome, event.changes, event.seconds) == ("hosts", "changed", ("/etc/hosts",), 1.5)
    assert event.watch == ({"path": "/etc/hosts", "kind": "file"},)
    assert "hunter2" not in repr(event), "arguments and output have no place in the record"


def test_what_a_delegated_task_saw_is_not_this_hosts() -> None:
    data = {"host": "n", "res": {"watch": [{"path": "/x"}], "_ansible_delegated_vars": {"ansible_host": "localhost"}}}
    event = runner.translate({"event": "runner_on_ok", "event_data": data})
    assert isinstance(event, HostResult)
    assert event.watch == ()


def test_notes() -> None:
    note = runner.translate({"event": "verbose", "stdout": "clusterctl-note|node1|make: 412 files, now a|b"})
    assert isinstance(note, Note)
    assert (note.host, note.text) == ("node1", "make: 412 files, now a|b")
    assert runner.translate({"event": "verbose", "stdout": "PLAY [x]"}) is None


def test_arguments() -> None:
    play = Play(
        playbook=Path("/p.yml"),
        inventory=Path("/my inventory/i.ini"),
        limit="-weird",
        tags=("a", "b"),
        extra_vars=("x=$(reboot) 'y'", "@f"),
        check=True,
        verbosity=2,
        forks=5,
        become_password="secret",  # noqa: S106 - it must not show
        private_key="k",
    )
    assert runner.arguments(play) == [
        "--inventory=/my inventory/i.ini",
        "--forks=5",
        "--limit=-weird",
        "--tags=a,b",
        "--extra-vars=x=$(reboot) 'y'",
        "--extra-vars=@f",
        "--check",
        "--ask-become-pass",
        "-vv",
        "--private-key=k",
    ]
    assert "secret" not in repr(play)


def run(folder: Path, playbook: str, cancel: Cancel | None = None, **options: object) -> tuple[runner.End, list[Event]]:
    (folder / "play.yml").write_text(playbook, encoding="utf-8")
    (folder / "i.ini").write_text("h1 ansible_connection=local\nh2 ansible_connection=local\n", encoding="utf-8")
    play = Play(folder / "play.yml", folder / "i.ini", **options)  # type: ignore[arg-type]
    private = folder / "private"
    private.mkdir(mode=0o700)
    heard: list[Event] = []
    end = runner.run(play, private, folder / "log", heard.append, cancel or Cancel())
    assert not private.exists(), "nothing of ansible-runner's own is kept"
    return end, heard


def test_a_real_run(tmp_path: Path) -> None:
    end, heard = run(
        tmp_path,
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - ansible.builtin.debug: {var: preflight_known_members}\n"
        "    - ansible.builtin.fail: {msg: sorry}\n      when: inventory_hostname == 'h2'\n",
        variables={"preflight_known_members": [{"name": "from the file"}]},
    )
    assert (end.status, end.failed, end.unreachable) == ("failed", {"h2"}, frozenset())
    assert isinstance(heard[-1], Finished)
    assert "from the file" in (tmp_path / "log").read_text(encoding="utf-8")
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_typed_vault_password_reaches_ansible(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("right", encoding="utf-8")
    program = ansible_inventory.ansible_program("ansible-vault")
    secret = subprocess.run(
        [program, "encrypt_string", "--vault-id", f"prod@{tmp_path}/password", "opened", "--name", "secret"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text(secret, encoding="utf-8")
    end, _ = run(
        tmp_path,
        "- hosts: h1\n  gather_facts: false\n  tasks:\n    - ansible.builtin.debug: {var: secret}\n",
        vault_ids=("prod@prompt",),
        vault_passwords={"prod": "right"},
    )
    assert end.status == "successful", (tmp_path / "log").read_text(encoding="utf-8")
    assert "opened" in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_broken_playbook_is_a_complaint_and_no_hosts_fault(tmp_path: Path) -> None:
    end, _ = run(tmp_path, "- hosts: all\n  tasks: [")
    assert end.status == "failed"
    assert not end.failed
    assert end.complaints
    assert "Traceback" not in end.complaints[0]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_cancel_ends_everything(tmp_path: Path) -> None:
    """The sleeping task is a worker's child in a session of its own; a kill of the process group leaves it alive."""
    cancel = Cancel()
    pid_file = tmp_path / "pid"

    def press_ctrl_c() -> None:
        deadline = time.monotonic() + 20
        while not (pid_file.exists() and pid_file.read_text(encoding="utf-8").strip()):
            assert time.monotonic() < deadline, "the task never began"
            time.sleep(0.05)
        cancel.request()

    pressing = threading.Thread(target=press_ctrl_c)
    pressing.start()
    began = time.monotonic()
    end, _ = run(
        tmp_path,
        "- hosts: h1\n  gather_facts: false\n  tasks:\n    - ansible.builtin.command:\n        argv:\n"
        f"          - /bin/sh\n          - -c\n          - 'echo $$ > {pid_file}; exec sleep 600'\n",
        cancel,
    )
    pressing.join()
    assert end.status == "canceled"
    assert time.monotonic() - began < 25
    assert not is_alive(int(pid_file.read_text(encoding="utf-8"))), "the sleeping command outlived the run"


def test_known_tags(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(
        "- hosts: all\n  tags: [one]\n  tasks:\n    - ansible.builtin.debug:\n      tags: [two]\n", encoding="utf-8"
    )
    assert runner.known_tags(tmp_path / "play.yml") == ("one", "two")


@pytest.mark.parametrize("count", [1, 2])
def test_signals_count(count: int) -> None:
    cancel, told = Cancel(), []
    before = signal.getsignal(signal.SIGTERM)
    with cancel.on_signals(told.append):
        for _ in range(count):
            os.kill(os.getpid(), signal.SIGTERM)
    assert (cancel.requests, told) == (count, list(range(1, count + 1)))
    assert signal.getsignal(signal.SIGTERM) is before
