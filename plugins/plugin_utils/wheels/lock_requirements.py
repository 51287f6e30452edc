# SPDX-License-Identifier: Apache-2.0
"""Read a requirements.txt as a lock: with a sha256 for each package, or with none at all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

from .lock import MOST_PACKAGES, Lock, LockedPackage, LockError, package
from .requirements import parse_requirements

_HASH = re.compile(r"\s--hash[= ](?P<algorithm>\w+):(?P<digest>\w+)")
_COMMENT = re.compile(r"(^|\s)#.*$")
_INDEX = re.compile(r"-i\b|--(index-url|extra-index-url|find-links|no-index|trusted-host)\b|-f\b")


def read_requirements(text: str, file: str) -> Lock:
    """Return the lock in the text of a ``requirements.txt``.

    Raises:
        LockError: a line cannot be followed, or only some packages have a sha256.
        WheelError: a line is not a requirement.
    """
    pinned: list[LockedPackage] = []
    loose: list[str] = []
    for line in _lines(text):
        _refuse_option(line, file)
        hashes = [(found["algorithm"], found["digest"]) for found in _HASH.finditer(line)]
        (requirement,) = parse_requirements([_HASH.sub("", line).strip()], file)
        if not hashes:
            loose.append(str(requirement))
            continue
        versions = [one.version for one in requirement.specifier if one.operator in ("==", "===")]
        if len(versions) != 1 or len(requirement.specifier) != 1:
            raise LockError(f"{file}: {requirement.name} has a hash and no exact version; write {requirement.name}==….")
        digests = tuple(sorted(digest for algorithm, digest in hashes if algorithm == "sha256"))
        if not digests or not all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests):
            raise LockError(
                f"{file}: {requirement.name} has no sha256; make the file again with 'uv pip compile"
                " --generate-hashes'."
            )
        marker = str(requirement.marker or "")
        pinned.append(package(file, requirement.name, versions[0], marker=marker, hashes=digests))
    if len(pinned) + len(loose) > MOST_PACKAGES:
        raise LockError(f"{file} has more than {MOST_PACKAGES} packages, so it is not a lock.")
    if pinned and loose:
        raise LockError(
            f"{file}: {loose[0]} has no hash, and others have one; make the file again with 'uv pip compile"
            " --generate-hashes'."
        )
    if not pinned and not loose:
        raise LockError(f"{file} names no package, so it is not a requirements.txt; name the packages in it.")
    return Lock(file, packages=tuple(pinned), requirements=tuple(sorted(loose)))


def _lines(text: str) -> Iterator[str]:
    """Yield the lines without comments; a backslash at the end joins a line with the next one."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        bare = _COMMENT.sub("", line).strip()
        if bare:
            yield bare


def _refuse_option(line: str, file: str) -> None:
    """Refuse a line that is an option of pip.

    Raises:
        LockError: it is one.
    """
    if not line.startswith("-"):
        return
    # the line may hold a login, so only its first word is shown
    word = re.split(r"[=\s]", line)[0][:40]
    if _INDEX.match(line):
        cure = "name the index in pip's configuration on this controller and remove the line"
    elif word in ("-e", "--editable"):
        cure = "build the wheel of that project ('uv build --wheel') and name it, or remove the line"
    else:
        cure = "put all packages into one file ('uv pip compile' does it) and remove the line"
    raise LockError(f"{file}: the line that begins with {word} is an option of pip, which is not followed; {cure}.")
