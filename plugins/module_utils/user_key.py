# SPDX-License-Identifier: Apache-2.0
"""Make, mend and rotate the key of a user for the mesh; everything here runs with the user's identity."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, List

from . import atomic_file, command, user_identity
from .node_look import path_state

GROUP_OR_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE = 0o600
_KEYGEN_S = 30


class NoKeyError(user_identity.IdentityError):
    """The node cannot get its key; the message is one sentence."""


class Work:
    """Do things and collect a phrase for each; in check mode only collect the phrases."""

    def __init__(self, *, check: bool) -> None:
        """Begin without changes."""
        self.check = check
        self.changes: List[str] = []

    def do(self, phrase: str, action: Callable[[], Any]) -> None:
        """Do one thing, or only note it in check mode."""
        self.changes.append(phrase)
        if not self.check:
            action()


def ensure_key(home: str, name: str, comment: str, *, check: bool) -> Dict[str, Any]:
    """Make or mend ``~/.ssh`` and the key; returns changes, public_key and watch."""
    work = Work(check=check)
    folder = Path(home, ".ssh")
    private, public = folder / name, folder / f"{name}.pub"
    _ensure_folder(folder, work)
    half = _sound_half(private, work) if private.exists() else ""
    if not half:
        work.do(f"created the key {private}", lambda: _make(folder, name, comment))
        half = "" if check else _public_half(private)
        if not check and not half:
            raise NoKeyError(f"ssh-keygen cannot read {private}, which it has just made; check the file system.")
        if not check:
            _publish(public, f"{half} {comment}\n")
    elif not _is_half(read(public), half):
        work.do(f"wrote {public} anew", lambda: atomic_file.write(public, f"{half} {comment}\n"))
    real = Path(os.path.realpath(folder))  # the folder may be a link of the user's own
    paths = [] if check else [folder, real / name, real / f"{name}.pub"]
    watch = [path_state.watch_state(str(path)) for path in paths]
    return {"changes": work.changes, "public_key": half, "watch": watch}


def successor(name: str) -> str:
    """Return the name of the key that waits beside another one during a rotation."""
    return f"{name}-next"


def rotated(home: str, name: str, comment: str, rotation: str, *, check: bool) -> Dict[str, Any]:
    """Make or mend the key as :func:`ensure_key`; in a rotation also make its successor, or switch to it."""
    work = Work(check=check)
    private, waiting = Path(home, ".ssh", name), Path(home, ".ssh", successor(name))
    if rotation == "switch" and waiting.is_file():  # on a shared home the first node switches for all
        work.do(f"switched to the new key {private}", lambda: _switch(waiting, private))
    made = ensure_key(home, name, comment, check=check)
    after = ensure_key(home, waiting.name, comment, check=check) if rotation == "stage" else {}
    return {
        **made,
        "changes": [*work.changes, *made["changes"], *after.get("changes", [])],
        "successor_key": after.get("public_key", ""),
    }


def _publish(public: Path, line: str) -> None:
    """Write the public half unless another node of a shared home has written it, whose comment then stays."""
    with tempfile.TemporaryDirectory(prefix=".clusterctl-", dir=public.parent) as scratch:
        fresh = Path(scratch, public.name)
        atomic_file.write(fresh, line)
        try:
            os.link(fresh, public)
        except FileExistsError:
            if not _is_half(read(public), line):
                atomic_file.write(public, line)


def _is_half(text: str, half: str) -> bool:
    """Whether a public file is one line with this type and key; each node of a shared home has its own comment."""
    return text.count("\n") == 1 and text.endswith("\n") and text.split()[:2] == half.split()[:2]


def _switch(waiting: Path, private: Path) -> None:
    with suppress(FileNotFoundError):
        private.with_name(f"{private.name}-cert.pub").unlink(missing_ok=True)  # it is of the old key
        waiting.replace(private)
        waiting.with_name(f"{waiting.name}.pub").unlink()


def _ensure_folder(folder: Path, work: Work) -> None:
    if not folder.is_dir():
        work.do(f"created {folder}", lambda: folder.mkdir(mode=0o700, exist_ok=True))
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & GROUP_OR_OTHERS_WRITE:
        work.do(
            f"removed the write permission of others on {folder}", lambda: folder.chmod(mode & ~GROUP_OR_OTHERS_WRITE)
        )


def _sound_half(private: Path, work: Work) -> str:
    """Return the public half of the present key; '' after a damaged key was renamed."""
    if stat.S_IMODE(private.stat().st_mode) != _PRIVATE:
        work.do(f"made {private} readable only by its owner", lambda: private.chmod(_PRIVATE))
        if work.check:  # ssh-keygen refuses to read it as it is
            return " ".join(read(private.with_name(f"{private.name}.pub")).split()[:2])
    half = _public_half(private)
    if not half:
        aside = private.with_name(f"{private.name}.damaged-{int(time.time())}")
        work.do(f"put the damaged {private} aside", lambda: private.rename(aside))
    return half


def _public_half(private: Path) -> str:
    """Return type and key of the private half itself; '' where the file is damaged.

    Raises:
        NoKeyError: a passphrase protects it, so it serves another purpose.
    """
    done = _run(["ssh-keygen", "-y", "-P", "", "-f", str(private)])
    if done.ok:
        return " ".join(done.output.split()[:2])
    if "passphrase" in done.errors:
        raise NoKeyError(
            f"{private} is protected by a passphrase, so jobs cannot use it; set ssh_mesh_key_name to another name."
        )
    return ""


def _make(folder: Path, name: str, comment: str) -> None:
    """Make the key in a temporary folder and link it into place; on a shared home the first node wins."""
    with tempfile.TemporaryDirectory(prefix=".clusterctl-", dir=folder) as scratch:
        done = _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", f"{scratch}/{name}"])
        if not done.ok:
            raise NoKeyError(f"ssh-keygen made no key: {done.said}.")
        try:
            os.link(f"{scratch}/{name}", folder / name)
        except FileExistsError:
            return


def _run(argv: List[str]) -> command.Done:
    done = command.run(argv, _KEYGEN_S)
    if done.status == command.NOT_STARTED:
        raise NoKeyError(f"{done.errors} Install the OpenSSH client.")
    if done.status == command.TIMED_OUT:
        raise NoKeyError(done.errors)
    return done


def read(path: Path) -> str:
    """Return the text of a file; '' where it cannot be read."""
    try:
        return (user_identity.read_regular(str(path)) or b"").decode("utf-8", "surrogateescape")
    except OSError:
        return ""
