# SPDX-License-Identifier: Apache-2.0
"""Log in to many nodes by ssh as a job does: several at a time, each with a deadline, without this session's agent."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from typing import Any, Dict, List, Mapping, Sequence, Tuple

_AT_ONCE = 8


def login_argv(name: str, timeout_s: int) -> List[str]:
    """Return the command that a launcher would use, with ``true`` instead of its daemon."""
    return ["ssh", "-n", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={timeout_s}", "--", name, "true"]


def login_all(user: str, targets: Sequence[Mapping[str, Any]], timeout_s: int) -> List[Tuple[Mapping[str, Any], str]]:
    """Try all targets and return the failed ones, each with what ssh wrote."""
    failed: List[Tuple[Mapping[str, Any], str]] = []
    for start in range(0, len(targets), _AT_ONCE):
        running = [
            (target, _start(user, str(target["name"]), timeout_s)) for target in targets[start : start + _AT_ONCE]
        ]
        deadline = time.monotonic() + timeout_s
        for target, process in running:
            try:
                _unused, said = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                failed.append((target, f"ssh timed out after {timeout_s} s"))
                continue
            if process.returncode != 0:
                failed.append((target, said or f"ssh ended with status {process.returncode}"))
    return failed


def _start(user: str, name: str, timeout_s: int) -> "subprocess.Popen[str]":
    entry = pwd.getpwnam(user)
    become: Dict[str, Any] = {}
    if os.geteuid() != entry.pw_uid:
        become = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": os.getgrouplist(user, entry.pw_gid)}
    # Without the agent and variables of this session: the login has to work for a job that has neither.
    environment = {
        "HOME": entry.pw_dir,
        "USER": user,
        "LOGNAME": user,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LC_ALL": "C",
    }
    return subprocess.Popen(
        login_argv(name, timeout_s),
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        **become,
    )
