"""clusterctl and Ansible's inventory programs in forks of one process that has imported them, which takes little time.

A fork has the arguments, environment, folder and streams of the process that it stands for, and ends as it would.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from clusterctl.cli.commands import COMMANDS

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        *("ansible.cli.inventory", "ansible.inventory.manager", "ansible.template", "clusterctl.cli.app"),
        *{f"clusterctl.cli.{command.module}" for command in COMMANDS.values()},
    ]
)


def clusterctl(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with further variables of the environment."""
    return run([CLUSTERCTL, *map(str, words)], env={**os.environ, **variables})


def run(command: Sequence[str], *, env: Mapping[str, str], **given: Any) -> subprocess.CompletedProcess[str]:
    """Do what ``subprocess.run`` does for one of the programs; for any other, and with pipes to it, start a process."""
    return _run(_in_a_fork_of_the_server, command, env, given)


def _run(start: Any, command: Sequence[str], env: Mapping[str, str], given: dict[str, Any]) -> Any:
    if given.get("pass_fds") or not _is_forked(command, env):
        given = {"capture_output": True, "text": True, "check": False, **given}
        return subprocess.run(list(command), env=env, **given)  # noqa: PLW1510 - it stands in the line above
    with tempfile.TemporaryDirectory() as name:
        texts = {stream: Path(name, stream) for stream in ("stdin", "stdout", "stderr")}
        texts["stdin"].write_text(given.get("input", ""), encoding="utf-8")
        code = start(list(command), dict(env), str(Path.cwd()), texts)
        said = [texts[stream].read_text(encoding="utf-8") for stream in ("stdout", "stderr")]
        return subprocess.CompletedProcess(list(command), code, *said)


def _is_forked(command: Sequence[str], env: Mapping[str, str]) -> bool:
    if env.get("PYTHONPATH") != os.environ.get("PYTHONPATH"):  # what was imported may be another
        return False
    program = Path(command[0])
    return program.exists() and ("-m" in command or program.name in {"ansible-inventory", "clusterctl"})


def _in_a_fork_of_the_server(*given: Any) -> int:
    fork = _FORKS.Process(target=_start, args=given)
    fork.start()
    fork.join()
    return fork.exitcode or 0


def _in_a_fork_of_this(*given: Any) -> int:
    """Start one program of another: the fork has what the server has imported."""
    pid = os.fork()
    if pid == 0:
        _start(*given)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _run_from_a_fork(command: Sequence[str], *, env: Mapping[str, str], **given: Any) -> Any:
    return _run(_in_a_fork_of_this, command, env, given)


def _start(command: list[str], env: dict[str, str], folder: str, texts: dict[str, Path]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # so that TMPDIR counts
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(os.open(texts[stream], os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
    # By number, which outlives the streams of the program that this one was forked from.
    sys.stdin, sys.stdout, sys.stderr = (open(number, "rww"[number], closefd=False) for number in range(3))  # noqa: SIM115
    try:
        _end(_main(command))
    except SystemExit as end:
        _end(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        _end(1)


def _main(command: list[str]) -> int:
    # What is imported here was imported before the fork.
    if Path(command[0]).name == "clusterctl":
        from clusterctl.cli import main  # noqa: PLC0415
        from clusterctl.inventory import ansible_call  # noqa: PLC0415

        ansible_call.subprocess = SimpleNamespace(run=_run_from_a_fork)  # type: ignore[assignment]
        sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment] - see tests/conftest.py
        sys.argv = command
        return main.main(command[1:])
    if "-m" in command:
        sys.argv = command[2:]
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
        return 0
    from ansible.cli import inventory  # noqa: PLC0415

    sys.argv = command
    inventory.main(command)
    return 0


def _end(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
