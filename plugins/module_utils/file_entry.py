# SPDX-License-Identifier: Apache-2.0
"""The wanted state of one path: kind, content, owner, mode and validator, each checked when it is read."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence, Tuple

from ansible_collections.clusterctl.hpc.plugins.module_utils import config_line


class StageError(Exception):
    """The files cannot be laid out and nothing was changed; the message is one sentence that names the path."""


@dataclass(frozen=True)
class Entry:
    """The wanted state of one path.

    ``edit`` turns the present text into the wanted one (state ``edit``); ``content`` is the whole of a ``file``.
    ``mode``, ``uid`` and ``gid`` of None leave an existing path's own. ``user`` is the identity with which the path is
    read and written, for what lies below a home; None is the identity of the process.
    """

    path: str
    state: str  # file, edit, directory, link, absent
    content: bytes = b""
    edit: Optional[Callable[[str], str]] = None
    what: str = ""  # for an edit: the phrase before the path, for example block 'hosts'
    target: str = ""
    mode: Optional[int] = None
    uid: Optional[int] = None
    gid: Optional[int] = None
    validate: Tuple[str, ...] = ()
    backup: bool = False
    sensitive: bool = False
    user: Optional[pwd.struct_passwd] = None
    is_watched: bool = True  # whether a later change of the path is drift
    watched_block: str = ""  # marker of the block that alone is watched; '' for the whole path


def one_line(path: str, field: str, value: str, *, refused: str = "") -> str:
    """Return a value that goes into a line of a file.

    Raises:
        StageError: it has a control character, or one of the refused characters.
    """
    try:
        return config_line.checked(value, f"{path}: {field}", refused=refused)
    except config_line.LineError as error:
        raise StageError(f"{error}.") from None


def parse_mode(path: str, given: Any) -> Optional[int]:
    """Return a mode's number from "0644", or from the number that YAML made of an unquoted 0644.

    Raises:
        StageError: it is neither.
    """
    if given is None:
        return None
    try:
        mode = given if isinstance(given, int) else int(str(given), 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o7777:  # noqa: PLR2004 - all bits of a mode
        raise StageError(f"The mode of {path} is {given!r}; write four octal digits in quotes, for example '0644'.")
    return mode


def user_entry(path: str, name: Optional[str]) -> Optional[pwd.struct_passwd]:
    """Return the entry of a user's name, None for None.

    Raises:
        StageError: the node has no such user.
    """
    if name is None:
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise StageError(f"The user of {path} should be '{name}', but this node has no such user.") from None


def owner_id(path: str, name: Optional[str]) -> Optional[int]:
    """Return the uid of a user's name or number, None for None.

    Raises:
        StageError: the node has no such user.
    """
    if name is None:
        return None
    try:
        return int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise StageError(f"The owner of {path} should be '{name}', but this node has no such user.") from None


def group_id(path: str, name: Optional[str]) -> Optional[int]:
    """Return the gid of a group's name or number, None for None.

    Raises:
        StageError: the node has no such group.
    """
    if name is None:
        return None
    try:
        return int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise StageError(f"The group of {path} should be '{name}', but this node has no such group.") from None


def check_paths(paths: Sequence[str]) -> None:
    """Refuse paths that are not absolute and normalized, and repeated paths.

    Raises:
        StageError: a path is relative, not in its simplest form, the root itself, or a repetition.
    """
    seen = set()
    for path in paths:
        if not path.startswith("/") or "\0" in path or "\n" in path:
            raise StageError(f"The path {path!r} is not absolute; give it from the root, for example '/etc/hosts'.")
        if os.path.normpath(path) != path or path == "/":
            raise StageError(f"The path {path!r} is not in its simplest form; write {os.path.normpath(path)!r}.")
        if path in seen:
            raise StageError(f"The path {path} is named twice; name each path once.")
        seen.add(path)


def check_validator(path: str, argv: Sequence[str]) -> None:
    """Refuse a validator that does not get the new file.

    Raises:
        StageError: no token holds ``%s``.
    """
    if argv and not any("%s" in token for token in argv):
        raise StageError(f"The validator of {path} names no '%s', so it would not read the new file; add '%s'.")


def by_whom(entry: Entry) -> str:
    """Return the words that name an entry's user after a verb in the passive; '' for the process's own user."""
    return f" by user {entry.user.pw_name}" if entry.user else ""
