# SPDX-License-Identifier: Apache-2.0
"""The login user and the user that jobs run as: name, home, and whether sudo works without a password."""

from __future__ import annotations

import os
import pwd
import re

from .reading import Json, find_program

# --- sudo rights -----------------------------------------------------------------------------------------------------

_TIME_LIMIT_S = 10
_RULE = re.compile(r"^\s+\(([^)]*)\)\s*(.*)$")
_TAG = re.compile(r"^([A-Z_]+):\s*")
_NO_PASSWORD = "!authenticate"  # noqa: S105 - a word of sudoers


def is_root_without_password(listing: str) -> bool:
    """Whether the output of ``sudo -l`` allows ``ALL`` as root without a password."""
    before, _unused, rules = listing.partition(" may run the following commands")
    asks_for_none = _NO_PASSWORD in re.split(r"[\s,]+", before)
    for found in filter(None, map(_RULE.match, rules.split("\n"))):
        targets = re.split(r"[\s,]+", found.group(1).split(":")[0].strip())
        if "ALL" in targets or "root" in targets:
            without = asks_for_none
            for command in found.group(2).split(", "):
                word = command.strip()
                while tag := _TAG.match(word):  # a tag holds for the commands behind it
                    without = {"NOPASSWD": True, "PASSWD": False}.get(tag.group(1), without)
                    word = word[tag.end() :]
                if word == "ALL" and without:
                    return True
    return False


def sudo_answer(name: str) -> bool | None:
    """Ask sudo about a user: root may ask about anybody, a user about itself, and about others with all rights.

    Returns:
        None if sudo gives this process no answer. sudo is never asked for a password.
    """
    program = find_program("sudo")
    if not program:
        return False
    import subprocess  # noqa: PLC0415 - seldom needed, and slow to import

    own = os.geteuid() == pwd.getpwnam(name).pw_uid
    done = subprocess.run(
        [program, "-n", "-l", *([] if own else ["-U", name])],
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=_TIME_LIMIT_S,
        check=False,
    )
    if is_root_without_password(done.stdout):
        return True
    return False if done.returncode == 0 or own or os.geteuid() == 0 else None


# --- user ------------------------------------------------------------------------------------------------------------


def user(check_sudo: bool) -> Json:
    """Return the login user, also behind sudo; ``sudo`` is None if it was not checked."""
    entry = _entry()
    can: bool | None = True if os.geteuid() == 0 else None
    if can is None and check_sudo:
        can = _sudo_works()
    return {"user": {"name": entry.pw_name, "uid": entry.pw_uid, "home": entry.pw_dir, "sudo": can}}


def job_user(name: str | None, frozen: frozenset[str] | set[str] = frozenset()) -> Json:
    """Return the account that jobs run as: the named one, '' for the login user; None if it was not asked for.

    ``uid`` is -1 if the account is missing. ``has_home`` tells whether its home is there; an automounter mounts it for
    that question. ``home_answers`` is false where the home is one of the ``frozen`` paths. ``sudo`` tells whether the
    account may do everything as root without a password; None if sudo does not say.
    """
    if name is None:
        return {"job_user": None}
    try:
        entry = pwd.getpwnam(name) if name else _entry()
    except KeyError:
        missing = {"name": name, "uid": -1, "home": "", "shell": "", "has_home": False, "home_answers": True}
        return {"job_user": {**missing, "sudo": False}}
    answers = entry.pw_dir not in frozen
    can = True if entry.pw_uid == 0 else sudo_answer(entry.pw_name)
    return {
        "job_user": {
            "name": entry.pw_name,
            "uid": entry.pw_uid,
            "home": entry.pw_dir,
            "shell": entry.pw_shell,
            "has_home": answers and _is_folder(entry.pw_dir),
            "home_answers": answers,
            "sudo": can,
        }
    }


def _is_folder(path: str) -> bool:
    """Tell whether a path is a folder; an automounter's folder is one only if what belongs there can be mounted."""
    try:
        os.stat(os.path.join(path, "."))
    except PermissionError:  # as on a server that squashes root
        return os.path.isdir(path)
    except OSError:
        return False
    return True


def homes(job_user_name: str | None) -> list[str]:
    """Return the homes of the login user and, if it was asked for, of the account that jobs run as."""
    own = uid_and_home()[1]
    try:
        return [own, pwd.getpwnam(job_user_name).pw_dir] if job_user_name else [own]
    except KeyError:
        return [own]


def login_user() -> pwd.struct_passwd | None:
    """Return the entry of the login user, also behind sudo; None if the user has no entry."""
    try:
        return _entry()
    except KeyError:
        return None


def uid_and_home() -> tuple[int, str]:
    """Return the number and the home of the login user, also behind sudo; a user may lack an entry."""
    try:
        entry = _entry()
    except KeyError:
        return os.geteuid(), os.environ.get("HOME", "")
    return entry.pw_uid, entry.pw_dir


def _entry() -> pwd.struct_passwd:
    name = os.environ.get("SUDO_USER", "") if os.geteuid() == 0 else ""
    return pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())


def _sudo_works() -> bool:
    program = find_program("sudo")
    if not program:
        return False
    import subprocess  # noqa: PLC0415 - seldom needed, and slow to import

    quiet = subprocess.DEVNULL
    return subprocess.call([program, "-n", "true"], stdin=quiet, stdout=quiet, stderr=quiet, timeout=10) == 0
