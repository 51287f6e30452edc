# SPDX-License-Identifier: Apache-2.0
"""Let links of artifacts lead to other folders while a host builds, and back afterwards, also after a killed build."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator, Mapping

from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact_link, atomic_file, jobs_at_work

RECORD = "/var/lib/clusterctl/borrowed-links.json"  # by link, the folder to which it led before the build
_POLL_S = 0.2


@contextmanager
def borrowed(links: Mapping[str, str], host: str, *, while_busy: bool) -> Iterator[None]:
    """Let links lead to other folders for the time of a build, and then to their former ones.

    A file on this host names the former folders meanwhile, so that :func:`give_back` puts a killed build right. Another
    build that borrows links on this host waits until this one has ended.

    Args:
        links: by link, the folder for the build.
        host: name of the host, for messages.
        while_busy: whether jobs on this host are no obstacle.

    Raises:
        jobs_at_work.JobsError: jobs run here.
        OSError: a link could not be switched; all lead where they led before.
    """
    if not links:
        give_back()
        yield
        return
    with _alone(None):
        _put_back()
        if not while_busy:
            jobs_at_work.refuse(links, host)
        now = {link: artifact_link.tree_of(link) for link in links}
        before = {link: now[link] for link, tree in links.items() if now[link] != tree}
        if before:
            atomic_file.write(RECORD, json.dumps(before))
        try:
            for link in before:
                artifact_link.switch(link, links[link])
            yield
        finally:
            if before:
                _put_back()


def give_back(patience_s: float = 0.0) -> bool:
    """Let the links that a killed build has borrowed lead to their former folders again.

    Args:
        patience_s: how long to wait for a build that goes on. After that, the links stay with it.

    Returns:
        Whether no link is borrowed now.

    Raises:
        OSError: a link could not be switched; the next call tries again.
    """
    if not Path(RECORD).exists():
        return True
    with suppress(BlockingIOError), _alone(patience_s):
        _put_back()
        return True
    return False


@contextmanager
def _alone(patience_s: float | None) -> Iterator[None]:
    """Hold the right to borrow links on this host; it goes with the process.

    Args:
        patience_s: how long to wait for another process; None waits for as long as it takes.

    Raises:
        BlockingIOError: another process has it.
    """
    Path(RECORD).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle = _opened_lock(f"{RECORD}.lock")
    try:
        until = None if patience_s is None else time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if until is not None and time.monotonic() >= until:
                    raise
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)


def _opened_lock(path: str) -> int:
    """Open the file of the lock, which root alone may open: whoever may open it may hold it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(path, flags, 0o600)
    if not stat.S_IMODE(os.fstat(handle).st_mode) & 0o077:
        return handle
    os.close(handle)  # of an earlier release, so a user may hold it
    Path(path).unlink()
    return os.open(path, flags | os.O_EXCL, 0o600)


def _put_back() -> None:
    try:
        before = json.loads(Path(RECORD).read_bytes())
    except (OSError, ValueError):
        return
    for link, tree in before.items():
        if tree and artifact_link.tree_of(link) != tree:
            artifact_link.switch(link, tree)
        elif not tree and Path(link).is_symlink():
            Path(link).unlink()
    with suppress(FileNotFoundError):
        Path(RECORD).unlink()
