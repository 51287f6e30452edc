"""What a proof, or a library that is asked for its needs, leaves or prints holds no run and fills no memory."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import build_user, command, library_closure, pod_runner
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_check, mesh_login

_ENVIRONMENT = {"PATH": os.environ["PATH"]}
_ENDLESS = ["sh", "-c", "exec yes 0123456789012345678901234567890123456789"]
_LEFT = ["sh", "-c", "setsid sleep 20 & echo here"]


@pytest.mark.parametrize("argv", [_LEFT, ["sh", "-c", "setsid sleep 20 & sleep 20"]], ids=["ended", "late"])
def test_a_process_that_leaves_its_session_holds_no_proof(argv: Sequence[str]) -> None:
    began = time.monotonic()
    build_user.run_check(list(argv), _ENVIRONMENT, 1)
    assert time.monotonic() - began < 10


def test_a_proof_that_prints_without_end_is_ended() -> None:
    began = time.monotonic()
    done = build_user.run_check(_ENDLESS, _ENVIRONMENT, 60)
    assert not done.ok
    assert len(done.output) < 32 << 20
    assert done.errors == "sh printed more than 16 MiB."
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("redirected", ["", " >&2"], ids=["output", "errors"])
def test_a_program_that_prints_without_end_is_ended(redirected: str) -> None:
    tracemalloc.start()
    done = command.run(["sh", "-c", f"head -c 300000000 /dev/zero{redirected}; echo last >&2; exit 3"], 30)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not done.ok
    assert peak < 100 << 20
    assert done.errors.endswith("last\n" if redirected else "sh printed more than 16 MiB.")


def test_a_program_that_is_late_is_ended() -> None:
    began = time.monotonic()
    assert command.run(["sh", "-c", "setsid sleep 20 & sleep 20"], 1).status == command.TIMED_OUT
    assert time.monotonic() - began < 10


def test_with_a_late_program_ends_all_that_it_has_started(tmp_path: Path) -> None:
    late = ["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/child; wait"]
    assert command.run(late, 1, whole=True).status == command.TIMED_OUT
    child, end = Path("/proc", (tmp_path / "child").read_text().strip(), "stat"), time.monotonic() + 10
    while time.monotonic() < end and child.exists() and ") Z " not in child.read_text():
        time.sleep(0.05)
    assert not child.exists() or ") Z " in child.read_text()


@pytest.mark.parametrize(
    ("ssh", "said"),
    [
        ("head -c 300000000 /dev/zero >&2; echo denied >&2; exit 255", "denied"),
        ("exec sleep 20", "ssh timed out after 2 s"),
        ("exit 5", "ssh ended with status 5"),
        ("exit 0", ""),
    ],
    ids=["prints", "late", "silent", "in"],
)
def test_a_login_of_a_job_says_in_little_memory_why_it_failed(
    ssh: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = {"name": "node2"}
    monkeypatch.setattr(mesh_login, "login_argv", lambda _name, _timeout_s: ["sh", "-c", ssh])
    tracemalloc.start()
    failed = mesh_login.login_all(getpass.getuser(), [target], 2 if "sleep" in ssh else 30)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(one, words.strip()[-len(said) :]) for one, words in failed] == ([(target, said)] if said else [])
    assert peak < 100 << 20


def test_what_is_given_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    assert build_user.run_check(["cat"], _ENVIRONMENT, 10, "text" * 100_000) == (0, "text" * 100_000, "")


def test_a_program_is_not_missing_where_its_input_finds_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    with pytest.raises(FileNotFoundError, match="/no/such/folder"):
        command.run(["cat"], 10, given="text")
    assert command.run(["/no/such/program"], 10).errors == "/no/such/program is not on this node."


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["/no/such/program"], "'/no/such/program' failed. /no/such/program is not on this node."),
        (["sh", "-c", "exit 3"], "'sh -c exit 3' failed. It ended with 3."),
        (["sh", "-c", "echo a; exit 3"], "'sh -c echo a; exit 3' failed. It ended with 3; its last lines are:\na"),
        (["true"], "'true' did not write 'x'."),
    ],
)
def test_a_proof_without_output_has_no_last_lines(argv: Sequence[str], words: str) -> None:
    check = {"argv": argv, "stdin": "", "expect": ["x"]}
    asked = {"name": "demo", "link": "/", "environment": {}, "timeout_s": 20, "checks": [check]}
    with pytest.raises(artifact_check.CheckFailedError) as raised:
        artifact_check._run_as(None, asked, {})  # noqa: SLF001 - as one user
    assert str(raised.value) == f"demo: {words}"


def test_a_node_without_ldd_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_closure, "elf_files", lambda _tree: ["x.so"])
    monkeypatch.setattr(library_closure, "_ENVIRONMENT", {"PATH": str(tmp_path)})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ArtifactError, match=r"cannot be told: ldd is not on this node\.$"):
        library_closure._ask_loader_as(None, str(tmp_path), [], [], within=False)  # noqa: SLF001 - as one user


_SILENT = ["sh", "-c", "exec >&- 2>&-; exec sleep 20"]


@pytest.mark.parametrize("argv", [_ENDLESS, _LEFT, _SILENT], ids=["prints", "left", "silent"])
def test_a_loader_that_does_not_end_is_a_sentence(
    argv: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "ldd"
    program.write_text(f"#!/bin/sh\n{argv[2]}\n")
    program.chmod(0o755)
    library = tmp_path / "tree" / "x.so"
    library.parent.mkdir()
    library.write_bytes(b"\x7fELF")
    monkeypatch.setattr(library_closure, "_LOADER_S", 2.0)
    monkeypatch.setattr(library_closure, "_ENVIRONMENT", {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(library_closure, "elf_files", lambda _tree: [str(library)])
    began = time.monotonic()
    with pytest.raises(ArtifactError, match="loader"):
        library_closure._ask_loader_as(None, str(library.parent), [], [], within=False)  # noqa: SLF001 - as one user
    assert time.monotonic() - began < 15


def test_a_command_of_a_pod_that_prints_without_an_end_is_cut_off() -> None:
    code, said = pod_runner.asked(["head", "-c", "300000000", "/dev/zero"], 60)
    assert code != 0
    assert len(said) < 32 << 20
    assert pod_runner.asked(["sh", "-c", "echo 1; exit 3"], 60) == (3, "1\n")


def test_a_proof_that_cannot_be_killed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system whose server never answers holds it; here it is never killed."""
    groups: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _number: groups.append(group))
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _process: None)
    monkeypatch.setattr(command, "_END_S", 0.2)
    began = time.monotonic()
    assert build_user.run_check(["sleep", "20"], _ENVIRONMENT, 1).status == command.TIMED_OUT
    assert time.monotonic() - began < 10
    monkeypatch.undo()
    os.killpg(groups[0], signal.SIGKILL)


def test_a_child_that_is_to_end_a_builds_processes_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The build's own user may stop it before it kills."""
    for name in ("setgroups", "setresgid", "setresuid"):
        monkeypatch.setattr(os, name, lambda *_ids: None)
    tester, plain = os.getpid(), os.kill
    monkeypatch.setattr(
        os,
        "kill",
        lambda pid, number: plain(pid, number) if os.getpid() == tester else plain(os.getpid(), signal.SIGSTOP),
    )
    monkeypatch.setattr(build_user, "processes_of", lambda _uid: [])
    monkeypatch.setattr(command, "_END_S", 0.2)
    signal.alarm(20)  # ends the test where it is
    try:
        build_user.end_all(60578)
    finally:
        signal.alarm(0)
