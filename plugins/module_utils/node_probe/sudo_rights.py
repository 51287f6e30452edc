# SPDX-License-Identifier: Apache-2.0
"""Find out whether a user may run every command as root by sudo without a password."""

from __future__ import annotations

import os
import pwd
import re

from .reading import find_program

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


def ask(name: str) -> bool | None:
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
