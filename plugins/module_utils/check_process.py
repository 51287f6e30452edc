# SPDX-License-Identifier: Apache-2.0
"""Run a command that proves an artifact, with a deadline after which all its processes are killed."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import Dict, List, Optional

from ansible_collections.clusterctl.hpc.plugins.module_utils import build_user, command


def run_check(
    argv: List[str], environment: Dict[str, str], timeout_s: int, given: str = "", user: Optional[int] = None
) -> "tuple[int, str]":
    """Return a command's exit code and output; after the timeout it and its children are killed, with code 124."""
    process = subprocess.Popen(
        argv,
        env=environment,
        preexec_fn=build_user.becoming(user, "/"),  # noqa: PLW1509 - the module has one thread
        stdin=subprocess.PIPE if given else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _unused = process.communicate(given.encode() or None, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _unused = process.communicate()
        return command.TIMED_OUT, output.decode(errors="replace")
    return process.returncode, output.decode(errors="replace")
