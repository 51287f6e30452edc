# SPDX-License-Identifier: Apache-2.0
"""Log in to many nodes by ssh as a job does: several at a time, each with a deadline, without this session's agent."""

from __future__ import annotations

import pwd
from concurrent.futures import ThreadPoolExecutor
from typing import Any, List, Mapping, Sequence, Tuple

from ansible_collections.clusterctl.hpc.plugins.module_utils import command

_AT_ONCE = 8
_MOST_SAID = 4096  # characters


def login_argv(name: str, timeout_s: int) -> List[str]:
    """Return the command that a launcher would use, with ``true`` instead of its daemon."""
    return ["ssh", "-n", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={timeout_s}", "--", name, "true"]


def login_all(user: str, targets: Sequence[Mapping[str, Any]], timeout_s: int) -> List[Tuple[Mapping[str, Any], str]]:
    """Try all targets and return the failed ones, each with the end of what ssh wrote.

    Raises:
        KeyError: there is no such user.
    """
    become = command.account(user)
    # Without the agent and variables of this session: the login has to work for a job that has neither.
    environment = {
        "HOME": pwd.getpwnam(user).pw_dir,
        "USER": user,
        "LOGNAME": user,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LC_ALL": "C",
    }

    def tried(target: Mapping[str, Any]) -> Tuple[Mapping[str, Any], str]:
        done = command.run(login_argv(str(target["name"]), timeout_s), timeout_s, environment, become=become)
        if done.status == command.TIMED_OUT:
            return target, f"ssh timed out after {timeout_s} s"
        return target, "" if done.ok else done.errors[-_MOST_SAID:] or f"ssh ended with status {done.status}"

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [(target, said) for target, said in pool.map(tried, targets) if said]
