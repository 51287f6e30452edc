# SPDX-License-Identifier: Apache-2.0
"""The record on a node of what each path was before clusterctl changed it, so that ``uninstall`` can put it back.

The modules that lay out files write it as they work. It also names the packages that came with an installation, and
the account that was made for jobs. Only root writes it, because only root's changes are for the whole node.
"""

# Modules run on every node in every run; os starts faster than pathlib and serves as well.
# ruff: noqa: PTH115, PTH120

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import stat
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional

from ansible_collections.clusterctl.hpc.plugins.module_utils import disk_files
from ansible_collections.clusterctl.hpc.plugins.module_utils.user_identity import acting_as, read_regular

if TYPE_CHECKING:
    import pwd

SCHEMA = 1
_LARGEST = 4 << 20  # of a file whose content is kept; the files that clusterctl edits are text


def place() -> str:
    """Return the path of the record; tests name another one."""
    return os.environ.get("CLUSTERCTL_ORIGINS", "/var/lib/clusterctl/origins.json")


def load() -> Dict[str, Any]:
    """Return the record; an unreadable one counts as missing."""
    empty: Dict[str, Any] = {"schema": SCHEMA, "paths": {}, "packages": [], "accounts": {}}
    try:
        with open(place(), "rb") as stream:  # noqa: PTH123 - os starts faster
            found = json.loads(stream.read())
        return {**empty, **found} if found["schema"] == SCHEMA else empty
    except (OSError, ValueError, KeyError, TypeError):
        return empty


def save(record: Mapping[str, Any]) -> None:
    """Replace the record; it survives a power cut, because what it tells is nowhere else.

    Raises:
        OSError: it cannot be written.
    """
    path = place()
    folder = os.path.dirname(path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o755)  # noqa: PTH102 - os starts faster
    disk_files.write(path, json.dumps(record, indent=1, sort_keys=True), mode=0o600)


def digest(content: bytes) -> str:
    """Return the sha256 (hex) of a content."""
    return hashlib.sha256(content).hexdigest()


def origin_of(before: Optional[os.stat_result], content: Optional[bytes], target: str, user: str) -> Dict[str, Any]:
    """Return what the record keeps of a path.

    Args:
        before: the path's own state; None where it is missing.
        content: of a regular file; None where it is not kept.
        target: of a link.
        user: with whose identity the path is read and written; '' for root's.
    """
    if before is None:
        return {"kind": "absent", "user": user}
    found = {
        "mode": f"{stat.S_IMODE(before.st_mode):04o}",
        "uid": before.st_uid,
        "gid": before.st_gid,
        "user": user,
    }
    if stat.S_ISDIR(before.st_mode):
        return {**found, "kind": "directory"}
    if stat.S_ISLNK(before.st_mode):
        return {**found, "kind": "link", "target": target}
    kept = content is not None and len(content) <= _LARGEST
    return {**found, "kind": "file", "content": base64.b64encode(content or b"").decode() if kept else None}


def is_ours(path: str, content: bytes) -> bool:
    """Tell whether an earlier clusterctl wrote a file, which the record therefore cannot tell the origin of."""
    return "clusterctl" in path or b"# clusterctl" in content or b"# BEGIN clusterctl " in content


def may_write() -> bool:
    """Tell whether this process keeps the record: root's does."""
    return os.geteuid() == 0


def note(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep the origins of paths that the record lacks; the first one stays.

    Raises:
        OSError: the record cannot be written, so nothing may be changed.
    """
    record = load()
    new = {path: dict(origin) for path, origin in found.items() if path not in record["paths"]}
    if new and may_write():
        save({**record, "paths": {**record["paths"], **new}})


def note_path(path: str, user: Optional[pwd.struct_passwd] = None, *, content: bool = True) -> None:
    """Keep the origin of one path before it is changed, with the identity of its user.

    Raises:
        OSError: the path cannot be looked at, or the record cannot be written.
    """
    if not may_write() or path in load()["paths"]:
        return
    with acting_as(user):
        try:
            before: Optional[os.stat_result] = os.lstat(path)
        except FileNotFoundError:
            before = None
        is_link = before is not None and stat.S_ISLNK(before.st_mode)
        target = os.readlink(path) if is_link else ""
        present = read_regular(path) if content and before is not None and stat.S_ISREG(before.st_mode) else None
    note({path: origin_of(before, present, target, user.pw_name if user else "")})


def note_left(written: Mapping[str, bytes], changed_by_others: Iterable[str]) -> None:
    """Keep the digests of what was written, and the files that others changed since they were written last.

    A file that is as clusterctl left it gets its first content back, byte for byte. From one that others changed too,
    only the changes of clusterctl are taken.
    """
    if not written or not may_write():
        return
    record = load()
    paths = record["paths"]
    for path, content in written.items():
        if path in paths:
            paths[path] = {**paths[path], "left": digest(content)}
    for path in changed_by_others:
        if path in paths:
            paths[path] = {**paths[path], "shared": True}
    save(record)


def note_packages(names: Iterable[str]) -> None:
    """Keep the names of packages that an installation brought.

    Raises:
        OSError: the record cannot be written.
    """
    record = load()
    packages = sorted({*record["packages"], *names})
    if packages != record["packages"] and may_write():
        save({**record, "packages": packages})


def note_installation(present: Optional[List[str]]) -> None:
    """Keep the packages that are present while an installation runs; None is its end.

    Raises:
        OSError: the record cannot be written.
    """
    record = load()
    if present != record.get("installing") and may_write():
        rest = {key: value for key, value in record.items() if key != "installing"}
        save(rest if present is None else {**rest, "installing": present})


def cut_off_installation() -> List[str]:
    """Return the packages that were present before an installation that a kill cut off; empty without one."""
    return [str(name) for name in load().get("installing") or ()]


def note_account(name: str) -> None:
    """Keep the name of an account that is about to be made.

    Raises:
        OSError: the record cannot be written.
    """
    record = load()
    if name not in record["accounts"] and may_write():
        save({**record, "accounts": {**record["accounts"], name: {}}})


def forget_account(name: str) -> None:
    """Drop the name of an account that was not made after all."""
    record = load()
    if name in record["accounts"] and may_write():
        save({**record, "accounts": {key: value for key, value in record["accounts"].items() if key != name}})
