"""Ansible's inventory programs in forks of one process that has imported them: many calls take little time."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["ansible.cli.inventory", "ansible.inventory.manager", "ansible.template"])


def run(command: Sequence[str], *, env: Mapping[str, str], **given: Any) -> subprocess.CompletedProcess[str]:
    """Do what ``subprocess.run`` does for one of the programs; for any other, and with pipes to it, start a process."""
    program = Path(command[0])
    if given.get("pass_fds") or not program.exists() or not ("-m" in command or program.name == "ansible-inventory"):
        return subprocess.run(list(command), env=env, **given)  # noqa: PLW1510 - the caller says it
    with tempfile.TemporaryDirectory() as name:
        texts = {stream: Path(name, stream) for stream in ("stdin", "stdout", "stderr")}
        texts["stdin"].write_text(given.get("input", ""), encoding="utf-8")
        fork = _FORKS.Process(target=_start, args=(list(command), dict(env), str(Path.cwd()), texts))
        fork.start()
        fork.join()
        said = [texts[stream].read_text(encoding="utf-8") for stream in ("stdout", "stderr")]
        return subprocess.CompletedProcess(list(command), fork.exitcode or 0, *said)


def _start(command: list[str], env: dict[str, str], folder: str, texts: dict[str, Path]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(os.open(texts[stream], os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 - by number
    try:
        if "-m" in command:
            sys.argv = command[2:]
            runpy.run_module(command[2], run_name="__main__", alter_sys=True)
        else:
            from ansible.cli import inventory  # noqa: PLC0415 - it is imported before the fork

            sys.argv = command
            inventory.main(command)
    except SystemExit as end:
        os._exit(_code(end))
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        os._exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _code(end: SystemExit) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    return end.code if isinstance(end.code, int) else int(end.code is not None)
