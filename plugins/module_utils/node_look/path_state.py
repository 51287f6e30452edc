# SPDX-License-Identifier: Apache-2.0
"""State of a path (file, folder, link, artifact), so that a later run sees whether it changed."""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import stat

from .artifacts import MARKER, MOST_MARKER, Verifier
from .reading import ActingAs, Json, group_name, sha256, user_name

_MOST_HASHED = 256 << 20  # bytes; a user could make a sparse file of any size
_MOST_OF_BLOCKS = 16 << 20  # bytes of a file with a block; its lines are kept in memory
_MOST_LINKS = 40  # as many as Linux follows in one path
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def link_of_another(path: str) -> str:
    """Return the first link on the way to a path that another user than root could have set; '' without one.

    Root asks before it opens a path. A link in a folder that only root can write is root's, whoever owns the link.
    """
    if os.geteuid() != 0:
        return ""
    place = "/"
    rest = path.split("/")[::-1]
    followed = 0
    while rest:
        part = rest.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            place = os.path.dirname(place)
            continue
        folder, place = place, os.path.join(place, part)
        try:
            status = os.lstat(place)
            if not stat.S_ISLNK(status.st_mode):
                continue
            around = os.lstat(folder)
            target = os.readlink(place)
        except OSError:
            return ""
        followed += 1
        if followed > _MOST_LINKS or (status.st_uid != 0 and (around.st_uid != 0 or around.st_mode & _OTHERS_WRITE)):
            return place
        rest += target.split("/")[::-1]
        place = "/" if target.startswith("/") else folder
    return ""


def watch_state(path: str, kind: str = "", marker: str = "", verifier: Verifier | None = None) -> Json:
    """Return the present state of a path in the form of a ``watch`` entry.

    The answer tells what is there: a link comes back as a link even if a file was expected. So a caller compares the
    old and the new entry for equality.

    Args:
        path: absolute path.
        kind: ``artifact`` verifies an installed artifact (a folder, or a link to one). ``library`` asks whether the
            path leads to a file. ``loader`` asks whether the loader's cache names the path, and where that leads.
            Any other word looks at the path itself.
        marker: with the kind ``block``, the block of clusterctl whose lines count; all other lines are the user's.
        verifier: of artifacts; None compares no content.

    Returns:
        ``path`` and ``kind`` (file, block, dir, link, absent, artifact, library, loader or other). A file or block adds
        mode, owner, group and sha256, a block also marker. A dir adds mode, owner and group. A link or loader adds
        target. An artifact adds marker_sha256 and files. A path that root would reach only through another user's
        link is a link to the path of that link.
    """
    if kind == "artifact":
        return _artifact_state(path, verifier or Verifier())
    if kind == "library":
        return {"path": path, "kind": kind if os.path.isfile(path) else "absent"}
    if kind == "loader":
        return _loader_state(path)
    passed = link_of_another(os.path.dirname(path))
    if passed:
        return {"path": path, "kind": "link", "target": passed}
    try:
        return _state_at(path, kind, marker)
    except PermissionError:
        owner = _owner_of_what_refuses(path)
        if owner is None:
            raise
        with ActingAs(owner):
            return _state_at(path, kind, marker)


def _state_at(path: str, kind: str, marker: str) -> Json:
    """Return the state of the path itself, with the identity that the process has.

    Raises:
        OSError: it cannot be looked at.
    """
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return {"path": path, "kind": "link", "target": os.readlink(path)}
        block = marker if kind == "block" else ""
        digest = _own_digest(path, block) if stat.S_ISREG(status.st_mode) else ""
    except (FileNotFoundError, NotADirectoryError):
        return {"path": path, "kind": "absent"}
    state: Json = {
        "path": path,
        "kind": "other",
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "owner": user_name(status.st_uid),
        "group": group_name(status.st_gid),
    }
    if stat.S_ISDIR(status.st_mode):
        state["kind"] = "dir"
    elif stat.S_ISREG(status.st_mode):
        state.update({"kind": "block", "marker": block} if block else {"kind": "file"}, sha256=digest)
    return state


def _owner_of_what_refuses(path: str) -> pwd.struct_passwd | None:
    """Return the user on whose home root is refused, as on a server that squashes root; None where that is not so."""
    if os.geteuid() != 0:
        return None
    while path != "/":
        try:
            uid = os.lstat(path).st_uid
            return pwd.getpwuid(uid) if uid else None
        except OSError:
            path = os.path.dirname(path)
        except KeyError:
            return None
    return None


def _own_digest(path: str, marker: str) -> str:
    """Return the sha256 of a regular file, or of one block of it.

    It is '' for a link that took its place since the look, and for a file that is larger than any of clusterctl's.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return ""
    try:
        if os.fstat(handle).st_size > (_MOST_OF_BLOCKS if marker else _MOST_HASHED):
            return ""
        opened = f"/proc/self/fd/{handle}"
        return hashlib.sha256(_block(opened, marker)).hexdigest() if marker else sha256(opened, _MOST_HASHED)
    finally:
        os.close(handle)


def watch_states(
    entries: list[Json], verifier: Verifier | None = None, silent: frozenset[str] | set[str] = frozenset()
) -> list[Json]:
    """Return the present state of every entry, of which ``path``, ``kind`` and ``marker`` are read.

    An entry in one of the ``silent`` folders, whose file systems do not answer, gets the kind ``silent``.
    """
    return [
        {**{name: str(entry[name]) for name in ("path", "marker") if name in entry}, "kind": "silent"}
        if os.path.dirname(str(entry["path"])) in silent
        else watch_state(str(entry["path"]), str(entry.get("kind", "")), str(entry.get("marker", "")), verifier)
        for entry in entries
    ]


def _artifact_state(path: str, verifier: Verifier) -> Json:
    marker, count, problem = verifier.verify(path)
    if not marker:
        return {"path": path, "kind": "absent"}
    digest = sha256(f"{os.path.realpath(path)}/{MARKER}", MOST_MARKER)
    return {"path": path, "kind": "artifact", "marker_sha256": digest, "files": problem or count}


def _block(path: str, marker: str) -> bytes:
    """Return the lines of a block with the lines that open and close it; b'' without a block."""
    begin, end = f"# BEGIN clusterctl {marker}".encode(), f"# END clusterctl {marker}".encode()
    kept: list[bytes] = []
    inside = False
    with open(path, "rb") as stream:
        for line in stream.read(_MOST_OF_BLOCKS).split(b"\n"):
            words = line.strip()
            inside = inside or words == begin
            if inside:
                kept.append(words)
            inside = inside and words != end
    return b"\n".join(kept)


def _loader_state(path: str) -> Json:
    from . import libraries  # noqa: PLC0415 - most modules that look at a path compile it for nothing

    try:
        if path in libraries.read_library_cache(libraries.content(), os.path.basename(path)) and os.path.lexists(path):
            target = os.readlink(path) if os.path.islink(path) else path
            return {"path": path, "kind": "loader", "target": target}
    except OSError:
        pass
    return {"path": path, "kind": "absent"}
