# SPDX-License-Identifier: Apache-2.0
"""Read files, folders and links of /proc, /sys and /etc, with a user's identity where needed; find and run programs."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import select
import signal
import stat
import time
from contextlib import suppress

# --- identity --------------------------------------------------------------------------------------------------------


class ActingAs:
    """Give root's process the identity of a user in every access to a file, within a ``with`` block.

    The process stays root's: the user can neither signal nor trace it. Start no program within the block, because it
    would still have root's real user id.
    """

    def __init__(self, user: pwd.struct_passwd) -> None:
        """Take the user; the identity changes at the begin of the block."""
        self._user = user
        self._groups: list[int] = []
        self._group = 0

    def __enter__(self) -> None:
        """Become the user; where that fails half-way, the process is root again.

        Raises:
            OSError: the process is not root's.
        """
        self._groups, self._group = os.getgroups(), os.getegid()
        try:
            os.setgroups(os.getgrouplist(self._user.pw_name, self._user.pw_gid))
            os.setegid(self._user.pw_gid)
            os.seteuid(self._user.pw_uid)
        except BaseException:
            self._restore()
            raise

    def __exit__(self, *_error: object) -> None:
        """Become root again."""
        self._restore()

    def _restore(self) -> None:
        os.seteuid(0)
        os.setegid(self._group)
        os.setgroups(self._groups)


# --- reading ---------------------------------------------------------------------------------------------------------

Json = dict  # with str keys; typing takes longer to import than a section takes to answer
_SEARCH_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
_READ_BLOCK = 1 << 20
_MOST_PRINTED = 1 << 22  # bytes of a program's output
_MOST_OF_USER = 1 << 22  # characters; a user could make a file of any size
_MOST_OF_PROCESS = 1 << 22  # bytes; prctl(PR_SET_MM_MAP) lets a process show all its memory as its environment


def read_text(path: str, default: str | None = None) -> str:
    """Return a file's text without surrounding blanks, or the default if the file is not readable."""
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as stream:
            return stream.read().strip()
    except OSError:
        if default is None:
            raise
        return default


def read_regular(path: str, most: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it is not readable, or a link.
        ValueError: it is of another kind, or larger than ``most`` bytes.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is not a regular file")
        data = stream.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most} bytes")
    return data


def read_text_of_user(path: str, user: pwd.struct_passwd | None) -> str:
    """Return the begin of a user's own file as text, '' if it is not a regular file that this user can read.

    The user decides what lies below the home. Root therefore reads it with the user's identity: the kernel then refuses
    a link to a file of root's.
    """
    if user is None or os.geteuid() != 0 or user.pw_uid == 0:
        return _regular_text(path)
    with ActingAs(user):
        return _regular_text(path)


def _regular_text(path: str) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # the opening of a pipe could wait for ever
        with open(handle, encoding="utf-8", errors="replace", newline="\n") as stream:
            return stream.read(_MOST_OF_USER).strip() if stat.S_ISREG(os.fstat(handle).st_mode) else ""
    except OSError:
        return ""


def of_process(path: str) -> bytes:
    """Return the begin of a file of /proc/PID, whose process may belong to anybody.

    Raises:
        OSError: it is not readable, or the process has ended.
    """
    with open(path, "rb") as stream:
        return stream.read(_MOST_OF_PROCESS)


def read_number(path: str) -> int | None:
    """Return the integer that a file holds, None if there is none."""
    try:
        return int(read_text(path))
    except (OSError, ValueError):
        return None


def list_folder(path: str) -> list[str]:
    """Return the sorted names in a folder, [] if the folder is not readable."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def link_name(path: str) -> str:
    """Return the last part of a link's target, '' if the path is not a link."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""


def matching_paths(pattern: str) -> list[str]:
    """Return the paths that match an absolute pattern; a part without a wildcard is not checked for existence."""
    import fnmatch  # noqa: PLC0415 - loaded only if a pattern is given

    found = [""]
    for part in pattern.strip("/").split("/"):
        if any(sign in part for sign in "*?["):
            found = [
                f"{at}/{name}" for at in found for name in list_folder(at or "/") if fnmatch.fnmatchcase(name, part)
            ]
        else:
            found = [f"{at}/{part}" for at in found]
    return found


def find_program(name: str) -> str:
    """Return the path of a program in the system folders, '' if it is not installed."""
    for folder in _SEARCH_PATH:
        path = f"{folder}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return ""


def output_of(argv: list[str], limit_s: float, *, errors: bool = False, **how: object) -> tuple[int, bytes]:
    """Return the exit status of a program, and its output.

    Args:
        argv: the program and its arguments.
        limit_s: the time that it has.
        errors: return its errors instead of its output.
        how: more of ``subprocess.Popen``.

    Returns:
        -1 and nothing if it does not start, does not end in time, or prints more than 4 MiB.
    """
    import subprocess  # noqa: PLC0415 - seldom needed, and slow to import

    until = time.monotonic() + limit_s
    kept, other = ("stderr", "stdout") if errors else ("stdout", "stderr")
    how = {"stdin": subprocess.DEVNULL, kept: subprocess.PIPE, other: subprocess.DEVNULL, **how}
    found, block = b"", b"-"
    try:
        process = subprocess.Popen(argv, start_new_session=True, **how)
    except OSError:
        return -1, b""
    with getattr(process, kept) as stream:
        while block and len(found) <= _MOST_PRINTED:
            if not select.select([stream], [], [], max(0.0, until - time.monotonic()))[0]:
                break
            block = os.read(stream.fileno(), _READ_BLOCK)
            found += block
    with suppress(subprocess.TimeoutExpired):
        if not block:
            return process.wait(max(0.0, until - time.monotonic())), found
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    return -1, b""


def reap(child: int) -> None:
    """Kill a child process; one that cannot end within a second, as a file system may hold it, is left to init."""
    os.kill(child, signal.SIGKILL)
    until = time.monotonic() + 1.0
    while not os.waitpid(child, os.WNOHANG)[0] and time.monotonic() < until:
        time.sleep(0.01)


def user_name(uid: int) -> str:
    """Return the name of a user, the number itself if the user has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """Return the name of a group, the number itself if the group has no name."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def sha256(path: str, most: int = 1 << 40) -> str:
    """Return the sha256 of a file's content, as hexadecimal digits; of the first ``most`` bytes if it grows."""
    total = hashlib.sha256()
    with open(path, "rb") as stream:
        while most > 0:
            block = stream.read(min(_READ_BLOCK, most))
            if not block:
                break
            total.update(block)
            most -= len(block)
    return total.hexdigest()


def read_environment_file(text: str) -> dict[str, str]:
    """Return the variables in the text of /etc/environment as pam_env reads them: quotes around a value are dropped.

    A carriage return at the end belongs to the value, and so does the quote before it (Linux-PAM 1.5).
    """
    found: dict[str, str] = {}
    for line in text.split("\n"):
        words = line.strip(" \t")
        if words.startswith("export "):
            words = words[7:].lstrip()
        name, separator, value = words.partition("#")[0].rstrip(" \t").partition("=")
        if not separator or not name:
            continue
        if value[:1] in {'"', "'"}:
            value = value[1:]
            if value[-1:] in {'"', "'"}:
                value = value[:-1]
        found[name] = value
    return found
