from __future__ import annotations

import contextlib
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterctl.model.hosts import Host
from clusterctl.state import locks
from clusterctl.support.errors import LockedError


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "clusterctl"


HOLDER = """
import sys
from clusterctl.state import locks
from clusterctl.model.hosts import Host
with locks.HostLock([Host("other-name", "192.0.2.1"), Host("b", "192.0.2.2")], "clusterctl provision a.ini"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_run_hears_who_holds_the_lock() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        hosts = [Host("free", "192.0.2.9"), Host("mine", "192.0.2.1")]
        with pytest.raises(LockedError, match=r"mine is held by .*'clusterctl provision a\.ini'") as caught:
            locks.HostLock(hosts, "y").__enter__()
        assert str(holder.pid) in str(caught.value)
        with locks.HostLock([Host("free", "192.0.2.9"), Host("port", "192.0.2.1", port=2222)], "z"):
            pass  # another machine, or another sshd; and what the failed attempt took was let go
        holder.kill()
        holder.wait()
    with locks.HostLock(hosts, "y"):
        pass  # a killed holder leaves no lock behind


MANY = """
import resource
from clusterctl.state import locks
from clusterctl.model.hosts import Host
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
with locks.HostLock([Host(f"n{number}", f"192.0.2.{number}") for number in range(100)], "x"):
    print("held")
"""


def test_more_machines_than_a_process_may_usually_open_files() -> None:
    assert subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, check=True).stdout == "held\n"


HELD = """
import sys
from pathlib import Path
from clusterctl.state import locks
with locks.held(Path(sys.argv[1]), "clusterctl sandbox up", shared=sys.argv[2] == "shared"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another_process(path: Path, how: str = "alone") -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", HELD, str(path), how]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_holder_is_named_by_user_command_and_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not locks.is_held(path)
    with another_process(path) as process:
        assert locks.is_held(path)
        with pytest.raises(locks.HeldError) as caught, locks.held(path):
            pass
        for words in ("'clusterctl sandbox up'", f"process {process.pid}"):
            assert words in str(caught.value)
    assert not locks.is_held(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_lock_that_was_just_taken_has_a_holder_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with another_process(path):
        path.write_text("1234", encoding="utf-8")
        with pytest.raises(locks.HeldError, match="another run that is just starting"), locks.held(path):
            pass


def test_a_patient_process_hears_once_for_whom_it_waits(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    heard: list[str] = []
    with another_process(path) as process:

        def hear(holder: str) -> None:
            heard.append(holder)
            process.kill()

        with locks.held(path, "x", patience_s=math.inf, waiting=hear):
            assert locks.is_held(path)
    assert len(heard) == 1
    assert "'clusterctl sandbox up'" in heard[0]


def test_patience_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with another_process(path), pytest.raises(locks.HeldError), locks.held(path, patience_s=0.2):
        pass


def test_shared_holders_keep_only_exclusive_ones_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with another_process(path, "shared"):
        with locks.held(path, shared=True):
            pass
        assert not locks.is_held(path)
        assert path.read_text(encoding="utf-8") == ""
        with pytest.raises(locks.HeldError), locks.held(path):
            pass
