# SPDX-License-Identifier: Apache-2.0
"""Decide what each path of a node is to be after ``uninstall``: its first content, edited back, or gone."""

# Without permission, pathlib's questions raise an error; those of os.path answer no.
# ruff: noqa: PTH112, PTH115, PTH120

from __future__ import annotations

import base64
import os
import pwd
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import brought, file_transaction, origins, text_edit
from .node_look import path_state
from .user_identity import acting_as, read_regular

# --- text ------------------------------------------------------------------------------------------------------------

_BEGIN = re.compile(r"^\s*# BEGIN clusterctl ([A-Za-z0-9][A-Za-z0-9_.-]{0,63})\s*$", re.MULTILINE)
_DISPLACED = re.compile(r"^# clusterctl ([A-Za-z0-9][A-Za-z0-9_.-]{0,63}) took names from: ", re.MULTILINE)
_NOTE = re.compile(r"^# clusterctl: (?:added|created|set|replaced) ", re.MULTILINE)


def without_ours(text: str) -> str:
    """Return the text without blocks of clusterctl, with displaced lines of a hosts file and old variables back.

    Raises:
        EditError: the markers of a block are doubled or unbalanced.
    """
    for marker in dict.fromkeys(_DISPLACED.findall(text)):
        text = text_edit.set_hosts(text, marker, "")
    for marker in dict.fromkeys(_BEGIN.findall(text)):
        text = text_edit.set_block(text, marker, "")
    if _NOTE.search(text):
        text = text_edit.set_environment(text, text_edit.Environment({}, {}, {}))
    return text


# --- paths -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Present:
    """What is at a path now; ``content`` is that of a file or the target of a link."""

    kind: str  # absent, file, directory, link, other
    content: bytes = b""


@dataclass(frozen=True)
class Wanted:
    """What a path is to be: '' (as it is), absent, file, link, attributes or folder (goes once it is empty)."""

    state: str
    content: bytes = b""


NOTHING = Wanted("")


def wanted_of(path: str, origin: Optional[Mapping[str, Any]], present: Present) -> Wanted:
    """Return what a path is to be.

    Args:
        path: of the file.
        origin: what the record tells of it; None where it tells nothing.
        present: what is there now.

    Raises:
        EditError: the markers of a block are doubled or unbalanced.
    """
    if origin is None:
        return _without_record(path, present)
    return {"absent": _new, "file": _file, "link": _link, "directory": _directory}[origin["kind"]](origin, present)


def _without_record(path: str, present: Present) -> Wanted:
    if present.kind != "file":
        return NOTHING
    if path in brought.FILES or "clusterctl" in Path(path).name:
        return Wanted("absent")
    return _edited_back(present, may_go=path not in brought.ALWAYS_THERE)


def _edited_back(present: Present, *, may_go: bool) -> Wanted:
    text = present.content.decode("utf-8", "surrogateescape")
    back = without_ours(text)
    if back == text:
        return NOTHING
    if may_go and not back.strip():
        return Wanted("absent")
    return Wanted("file", back.encode("utf-8", "surrogateescape"))


def _is_as_left(origin: Mapping[str, Any], present: Present) -> bool:
    return origin.get("left") == origins.digest(present.content) and not origin.get("shared")


def _new(origin: Mapping[str, Any], present: Present) -> Wanted:
    """Return what a path is to be that clusterctl made."""
    if present.kind == "directory":
        return Wanted("folder")
    if present.kind == "link":
        is_left = "left" not in origin or _is_as_left(origin, present)
        return Wanted("absent") if is_left else NOTHING
    if present.kind != "file":
        return NOTHING
    if origin.get("edited") and not _is_as_left(origin, present):
        return _edited_back(present, may_go=True)
    return Wanted("absent")


def _file(origin: Mapping[str, Any], present: Present) -> Wanted:
    """Return what a path is to be that was a file."""
    kept = origin.get("content")
    if kept is None:
        return Wanted("attributes") if present.kind == "file" else NOTHING
    first = base64.b64decode(kept)
    if present.kind == "absent":
        return NOTHING if "left" in origin else Wanted("file", first)
    if present.kind != "file":
        return NOTHING
    if origin.get("edited") and not _is_as_left(origin, present):
        back = _edited_back(present, may_go=False)
        return back if back.state else Wanted("attributes")
    return Wanted("attributes") if present.content == first else Wanted("file", first)


def _link(origin: Mapping[str, Any], present: Present) -> Wanted:
    target = os.fsencode(origin["target"])
    if present.kind == "directory" or (present.kind, present.content) == ("link", target):
        return NOTHING
    return Wanted("link", target)


def _directory(_origin: Mapping[str, Any], present: Present) -> Wanted:
    return Wanted("attributes") if present.kind == "directory" else NOTHING


# --- the node --------------------------------------------------------------------------------------------------------


def present_of(path: str) -> Present:
    """Look at a path; the caller has the identity of its user.

    Raises:
        OSError: it is there and cannot be read.
    """
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return Present("absent")
    if stat.S_ISLNK(status.st_mode):
        return Present("link", os.fsencode(os.readlink(path)))
    if stat.S_ISDIR(status.st_mode):
        return Present("directory")
    if stat.S_ISREG(status.st_mode):
        return Present("file", read_regular(path) or b"")
    return Present("other")


def user_of(path: str, origin: Optional[Mapping[str, Any]]) -> Optional[pwd.struct_passwd]:
    """Return with whose identity a path is read and written: that of the record, else of the home that it lies in.

    A directory service may not list its users. A home of such a user is known by its owner.

    Raises:
        KeyError: the user of the record is gone, or the owner of the home has no entry.
    """
    if origin is not None:
        return pwd.getpwnam(origin["user"]) if origin.get("user") else None
    homes = [entry for entry in pwd.getpwall() if entry.pw_uid and entry.pw_dir not in {"", "/"}]
    listed = next((entry for entry in homes if path.startswith(f"{entry.pw_dir}/")), None)
    parts = path.split("/.ssh/")
    if listed is not None or len(parts) == 1:
        return listed
    try:
        owner = os.lstat(parts[0]).st_uid
    except OSError:
        return None
    return pwd.getpwuid(owner) if owner else None


def entry_of(
    path: str, origin: Optional[Mapping[str, Any]], wanted: Wanted, user: Optional[pwd.struct_passwd]
) -> file_transaction.Entry:
    """Return the entry that makes a path what it is to be."""
    given = origin if origin is not None and "mode" in origin and origin["kind"] != "link" else None
    mode = int(given["mode"], 8) if given else None
    uid = given["uid"] if given and (user is None or given["uid"] == user.pw_uid) else None
    gid = given["gid"] if given and (user is None or given["gid"] == user.pw_gid) else None
    if wanted.state == "absent":
        return file_transaction.Entry(path=path, state="absent", user=user)
    if wanted.state == "link":
        return file_transaction.Entry(path=path, state="link", target=os.fsdecode(wanted.content), user=user)
    if wanted.state == "attributes" and given and given["kind"] == "directory":
        return file_transaction.Entry(path=path, state="directory", mode=mode, uid=uid, gid=gid, user=user)
    content = wanted.content
    if wanted.state == "attributes":
        return file_transaction.Entry(
            path=path, state="edit", edit=lambda text: text, what="", mode=mode, uid=uid, gid=gid, user=user
        )
    return file_transaction.Entry(path=path, state="file", content=content, mode=mode, uid=uid, gid=gid, user=user)


def survey(
    record: Mapping[str, Any], further: Sequence[str], roots: Sequence[str] = (brought.ROOT,)
) -> Tuple[List[file_transaction.Entry], List[Tuple[str, Optional[pwd.struct_passwd]]], List[str]]:
    """Look at all paths that may hold something of clusterctl.

    Args:
        record: of origins.
        further: paths that the controller knows of.
        roots: the prefixes of the software.

    Returns:
        The entries that put the files back; the folders that go once they are empty, each with its user; and the
        paths that stay, as sentences.

    Raises:
        StageError: a block cannot be taken out, or a file cannot be read.
    """
    entries, folders, kept = [], [], []
    known: Dict[str, Any] = record["paths"]
    for path in sorted({*known, *brought.texts(roots), *brought.FILES, *brought.HEADERS, *further}):
        if any(f"{path}/".startswith(f"{folder}/") for folder in (*brought.folders(roots), brought.STATE)):
            continue  # goes with its folder
        origin = known.get(path)
        try:
            user = user_of(path, origin)
        except KeyError:
            if os.path.lexists(path):
                kept.append(f"{path} stays, because its user {origin['user'] if origin else ''} is gone.")
            continue
        foreign = path_state.link_of_another(os.path.dirname(path)) if user is None else ""
        if foreign:
            raise file_transaction.StageError(
                f"{path} is reached through the link {foreign}, which a user other than root could have set; remove "
                f"the link with 'rm {foreign}'."
            )
        try:
            with acting_as(user):
                present = present_of(path)
            wanted = wanted_of(path, origin, present)
        except (OSError, text_edit.EditError) as error:
            raise file_transaction.StageError(f"{path}: {error}.") from error
        ours = tuple(os.fsencode(f"{root}/nccl/") for root in roots)
        if origin is None and path in brought.HEADERS and present.content.startswith(ours):
            wanted = Wanted("absent")
        if wanted.state == "folder":
            folders.append((path, user))
        elif wanted.state and (wanted.state == "absent" or os.path.isdir(os.path.dirname(path))):
            entries.append(entry_of(path, origin, wanted, user))
    return entries, folders, kept
