"""A child that cannot be killed, or whose descendants keep its output, is not waited for without an end."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))


from ansible_collections.clusterctl.hpc.plugins.module_utils import chain_relay, login_probe, pod_runner
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import libraries, login, network, reading

_SLEEP_S = 30.0


@pytest.fixture
def immortal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no signal reach a process, as where a file system holds it; all are killed in the end."""
    asked: list[tuple[Any, int]] = []
    kill = os.kill
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, _number: asked.append((kill, pid)))
        patched.setattr(os, "killpg", lambda pid, _number: asked.append((kill, pid)))
        patched.setattr(subprocess.Popen, "kill", lambda process: asked.append((kill, process.pid)))
        began = time.monotonic()
        yield
        took = time.monotonic() - began
    for how, pid in asked:
        with contextlib.suppress(ProcessLookupError):
            how(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    assert took < _SLEEP_S / 2


@pytest.mark.usefixtures("immortal")
def test_a_resolver_that_cannot_be_killed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_addresses_of", lambda _name: time.sleep(_SLEEP_S))
    monkeypatch.setattr(network, "_ANSWER_OF_NAMES_S", 0.3)
    assert all("no answer" in entry["problem"] for entry in network.resolved(["node1"])["names"])


@pytest.mark.usefixtures("immortal")
def test_a_library_that_cannot_be_killed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_tell_nccl_version", lambda _path, _writer: time.sleep(_SLEEP_S))
    monkeypatch.setattr(libraries, "_NCCL_ANSWER_S", 0.3)
    assert libraries.library_version("libnccl.so.2", "/a/libnccl.so.2", "/usr/local") == ""


@pytest.mark.parametrize("said", [b"x", b"-", b"9" * 32, b"\xff"])
def test_what_a_library_writes_in_the_place_of_its_version_is_no_version(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "_tell_nccl_version", lambda _path, writer: os.write(writer, said))
    assert libraries.library_version("libnccl.so.2", "/a/libnccl.so.2", "/usr/local") == ""


@pytest.mark.usefixtures("immortal")
def test_a_check_of_a_pod_that_cannot_be_killed_is_left(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pod_runner, "GRACE_S", 0.2)
    pod_runner.run_check({"name": "mpi", "deadline_s": 0.2}, ["sleep", str(_SLEEP_S)], dict(os.environ))
    assert '"ending": "deadline"' in capfd.readouterr().out


_LEAVES = f"setsid sleep {_SLEEP_S} & echo denied >&2; exit 255"
_FLOODS = "(setsid head -c 300000000 /dev/zero >&2; setsid sleep 30) & echo denied >&2; exit 255"


@pytest.mark.parametrize("ssh", [_LEAVES, _FLOODS], ids=["silent", "flood"])
def test_a_descendant_of_ssh_that_keeps_its_errors_holds_no_logins(ssh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_probe, "login_argv", lambda *_arguments: ["sh", "-c", ssh])
    monkeypatch.setattr(login_probe, "_stdin_ended", lambda wait_s: bool(time.sleep(wait_s)))
    monkeypatch.setattr(login_probe, "MESH", "/dev/null")
    began = time.monotonic()
    found = login_probe.Logins([{"name": "node2", "address": "node2", "port": 22}], 1, 10.0).run()
    assert time.monotonic() - began < _SLEEP_S / 2
    assert [entry["target"] for entry in found["failures"]] == ["node2"]


def test_the_settings_of_ssh_that_do_not_come_are_a_problem(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def late(*_unused: object) -> None:
        raise subprocess.TimeoutExpired(["ssh", "-G"], 10)

    monkeypatch.setattr(login_probe, "Logins", late)
    reading, writing = os.pipe()
    os.write(writing, b'{"targets": [], "timeout_s": 1, "budget_s": 1, "clock": 0}\n')
    os.close(writing)
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert login_probe.main() == 0
    assert "ssh" in capfd.readouterr().out.rpartition("problem")[2]


@pytest.mark.parametrize("ssh", [_LEAVES, _FLOODS], ids=["silent", "flood"])
def test_a_descendant_of_ssh_that_keeps_its_errors_holds_no_chain(ssh: str) -> None:
    request = {"ssh": ["sh", "-c", ssh], "size": 1, "bytes_per_s": 0, "mark": "m"}
    source = chain_relay.Source(request, {"name": "node2", "path": "/p", "python": "python3"}, 0)
    time.sleep(1)
    began = time.monotonic()
    assert source.close().startswith("denied") or ssh is _FLOODS
    assert time.monotonic() - began < _SLEEP_S / 2


_ENDLESS = "head -c 300000000 /dev/zero; exec sleep 20"


@pytest.mark.parametrize("errors", [False, True])
def test_a_program_of_a_look_that_prints_without_end_is_no_answer(errors: bool) -> None:
    stream = "2" if errors else "1"
    assert reading.output_of(["sh", "-c", f"echo x >&{stream}; exit 3"], 10, errors=errors) == (3, b"x\n")
    assert reading.output_of(["sh", "-c", "kill -s SEGV $$"], 10, errors=errors) == (-11, b"")
    began = time.monotonic()
    assert reading.output_of(["sh", "-c", f"{{ {_ENDLESS}; }} >&{stream}"], 15, errors=errors) == (-1, b"")
    assert reading.output_of(["sh", "-c", f"sleep 20 >&{stream} & exit 0"], 1, errors=errors) == (-1, b"")
    assert time.monotonic() - began < 10


def test_what_a_variable_makes_a_program_say_fills_no_memory(tmp_path: Path) -> None:
    (tmp_path / "rc").write_text("head -c 300000000 /dev/zero >&2\n")
    variables = {"PATH": "/usr/bin:/bin", "BASH_ENV": str(tmp_path / "rc")}
    tracemalloc.start()
    try:
        assert login.traps(variables, "", pwd.getpwuid(os.getuid()), []) == []
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
