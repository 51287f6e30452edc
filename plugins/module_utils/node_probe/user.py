# SPDX-License-Identifier: Apache-2.0
"""The login user: name, home, and whether sudo works without a password."""

from __future__ import annotations

import os
import pwd

from .reading import Json, find_program


def user(check_sudo: bool) -> Json:
    """Return the login user, also behind sudo; ``sudo`` is None if it was not checked."""
    entry = _entry()
    can: bool | None = True if os.geteuid() == 0 else None
    if can is None and check_sudo:
        can = _sudo_works()
    return {"user": {"name": entry.pw_name, "uid": entry.pw_uid, "home": entry.pw_dir, "sudo": can}}


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
