from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from clusterctl.model.run_record import ProcessIdentity
from clusterctl.state import processes

HERE = ProcessIdentity(host="h", machine_id="m", boot_id="b", pid_namespace="pid:[1]", started_ticks=7)


@pytest.mark.parametrize(
    ("recorded", "started", "ended"),
    [
        ({}, 7, False),
        ({}, None, True),
        ({}, 8, True),  # the number belongs to another process by now
        ({"boot_id": "earlier"}, 7, True),
        ({"host": "other"}, None, False),
        ({"machine_id": "other", "boot_id": "other"}, None, False),  # two machines of one name
        ({"pid_namespace": "pid:[2]"}, None, False),  # a container of this machine
    ],
)
def test_only_what_this_machine_knows_has_ended(recorded: dict[str, str], started: int | None, ended: bool) -> None:
    process = HERE.model_copy(update=recorded)
    assert processes.has_ended(process, HERE, started) is ended


def test_a_process_that_was_killed_has_ended_before_and_after_its_parent_takes_note() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = processes.this_process()
    started = processes.started_ticks(child.pid)
    assert started is not None
    assert started >= here.started_ticks
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # now a zombie
    assert processes.started_ticks(child.pid) is None
    child.communicate()
    assert processes.started_ticks(child.pid) is None
