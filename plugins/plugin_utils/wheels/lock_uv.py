# SPDX-License-Identifier: Apache-2.0
"""Have uv turn a uv.lock into a pylock.toml: a transformation of texts, without a network and without a Python."""

from __future__ import annotations

import re
import subprocess
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

from .lock import MOST_BYTES, Asked, LockError

_LONGEST_S = 300
# --frozen takes the lock as it is; members of the workspace are the user's own project, which is not installed.
_ARGUMENTS = (
    *("export", "--frozen", "--offline", "--no-config", "--no-cache", "--quiet", "--color=never"),
    *("--format=pylock.toml", "--no-emit-workspace"),
)


def export(path: Path, asked: Asked, uv: Path) -> str:
    """Return the text of a ``pylock.toml`` that says what a ``uv.lock`` says.

    Args:
        path: the lock, beside the ``pyproject.toml`` of its project.
        asked: extras and groups; the project's default groups come as well.
        uv: the program.

    Raises:
        LockError: the file is not such a lock, or does not define an extra or a group.
    """
    if not (path.parent / "pyproject.toml").is_file():
        raise LockError(
            f"{path} has no pyproject.toml beside it, which says what the lock is for; put it there, or export the lock"
            " ('uv export --format pylock.toml -o pylock.toml') and name that file."
        )
    wanted = [f"--extra={name}" for name in asked.extras] + [f"--group={name}" for name in asked.groups]
    with tempfile.TemporaryDirectory() as home:
        # neither the user's settings nor logins of their environment reach uv
        surroundings = {"PATH": home, "HOME": home, "TMPDIR": home, "LC_ALL": "C", "UV_PYTHON_DOWNLOADS": "never"}
        try:
            done = subprocess.run(
                [str(uv), *_ARGUMENTS, *wanted],
                cwd=path.parent,
                env=surroundings,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LONGEST_S,
            )
        except subprocess.TimeoutExpired as error:
            raise LockError(f"{path}: uv did not end within {_LONGEST_S} s; export the lock by hand.") from error
    if done.returncode:
        raise LockError(f"{path}: uv cannot use this lock: {_reason(done.stderr)}; run 'uv lock' in its folder.")
    if len(done.stdout) > MOST_BYTES:
        raise LockError(f"{path} has more than {MOST_BYTES >> 20} MiB, so it is not a lock.")
    return done.stdout.decode("utf-8", "replace")


def _reason(said: bytes) -> str:
    """Return what uv says is wrong, in one line without logins."""
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    text = " ".join(lines[:2]).removeprefix("error: ")
    return re.sub(r"://[^/@\s]*@", "://", re.sub(r"[^ -~]", " ", text))[:300].rstrip(". ") or "it says no reason"
