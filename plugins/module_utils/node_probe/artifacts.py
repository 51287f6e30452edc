# SPDX-License-Identifier: Apache-2.0
"""Verify installed artifacts by their marker and their manifest."""

from __future__ import annotations

import hashlib
import json
import os
import stat

from .reading import Json, list_folder, read_text

MARKER = ".clusterctl.json"
MANIFEST = ".clusterctl.files.json"
ARTIFACT_ROOT = "/usr/local"


def verify_artifact(path: str) -> tuple[Json, int, str]:
    """Read an artifact's marker and compare its files with its manifest.

    Kinds, sizes and link targets are compared. Contents are not, because this check must take milliseconds.

    Args:
        path: the artifact's folder, or a link to it.

    Returns:
        The marker ({} if it is missing), the number of manifest entries, and a sentence that says what is wrong (''
        if the artifact is whole).
    """
    folder = os.path.realpath(path)
    try:
        marker = json.loads(read_text(f"{folder}/{MARKER}"))
    except FileNotFoundError:
        return {}, 0, f"{path} has no {MARKER}, so its installation was never finished"
    except (OSError, ValueError) as error:
        return {}, 0, f"{folder}/{MARKER} cannot be read: {error}"
    if not isinstance(marker, dict):
        return {}, 0, f"{folder}/{MARKER} is not a marker: it must hold a JSON object"
    return (marker, *_compare_with_manifest(folder, str(marker.get("manifest_sha256", ""))))


def _compare_with_manifest(folder: str, digest: str) -> tuple[int, str]:
    """Return the number of manifest entries, and a sentence that says how the folder differs ('' if it does not)."""
    try:
        with open(f"{folder}/{MANIFEST}", "rb") as stream:
            raw = stream.read()
        if digest and hashlib.sha256(raw).hexdigest() != digest:
            return 0, f"{folder}/{MANIFEST} is not the one that the marker names"
        files = json.loads(raw)["files"]
        wrong = [str(entry[0]) for entry in files if _differs(folder, entry)]
    except FileNotFoundError:
        return 0, f"{folder}/{MANIFEST} is missing"
    except (OSError, ValueError, TypeError, LookupError) as error:
        return 0, f"{folder}/{MANIFEST} cannot be read: {error}"
    problem = f"{len(wrong)} of {len(files)} files are missing or changed, first {wrong[0]}" if wrong else ""
    return len(files), problem


def _differs(folder: str, entry: list) -> bool:
    """Tell whether a file differs from its manifest entry (path, kind, size, sha256 or target)."""
    name, kind, size, content = entry[:4]
    path = f"{folder}/{name}"
    try:
        status = os.lstat(path)
    except OSError:
        return True
    if kind == "l":
        return not stat.S_ISLNK(status.st_mode) or os.readlink(path) != content
    if kind == "d":
        return not stat.S_ISDIR(status.st_mode)
    return not stat.S_ISREG(status.st_mode) or status.st_size != size


def artifacts(asked: list[Json] | None) -> Json:
    """Verify the artifacts asked for; None stands for every artifact directly below /usr/local."""
    if asked is None:
        folders = [f"{ARTIFACT_ROOT}/{name}" for name in list_folder(ARTIFACT_ROOT)]
        asked = [
            {"name": "", "link": folder}
            for folder in folders
            if not os.path.islink(folder) and os.path.isfile(f"{folder}/{MARKER}")
        ]
    return {
        "artifacts": [
            _artifact(str(entry.get("name", "")), str(entry["link"]), entry.get("inputs") or []) for entry in asked
        ]
    }


def _artifact(name: str, link: str, inputs: list[str]) -> Json:
    if not os.path.isdir(link):
        problem = f"{link} does not exist" if not os.path.lexists(link) else f"{link} leads nowhere"
        return {
            "name": name,
            "link": link,
            "target": "",
            "version": "",
            "key": "",
            "linked": os.path.islink(link),
            "ok": False,
            "problem": problem,
            "inputs": {},
        }
    marker, _, problem = verify_artifact(link)
    linked = os.path.islink(link) or not name
    found = str(marker.get("name", name))
    if not name:  # found in /usr/local: tell whether the public link leads here
        public = f"{ARTIFACT_ROOT}/{found}"
        switched = os.path.realpath(public) == os.path.realpath(link)
        target, link = os.path.realpath(link), public if switched else ""
    else:
        target = os.path.realpath(link)
    return {
        "name": found,
        "link": link,
        "target": target,
        "version": str(marker.get("version", "")),
        "key": str(marker.get("key", "")),
        "linked": linked,
        "ok": not problem,
        "problem": problem,
        "inputs": {key: value for key, value in (marker.get("inputs") or {}).items() if key in inputs},
    }
