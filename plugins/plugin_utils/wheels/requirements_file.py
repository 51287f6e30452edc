# SPDX-License-Identifier: Apache-2.0
"""Read a requirements.txt as a lock: with a sha256 for each package, or with none at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .lock import MOST_PACKAGES, Lock, LockedPackage, LockError, SourceTree, from_tree, git_tree, package
from .lock_formats import toml
from .requirements import parse_requirements

_MOST_BYTES = 1 << 20
_HASH = re.compile(r"\s--hash[= ](?P<algorithm>\w+):(?P<digest>\w+)")
_COMMENT = re.compile(r"(^|\s)#.*$")
_INDEX = re.compile(r"-i\b|--(index-url|extra-index-url|find-links|no-index|trusted-host)\b|-f\b")
_EDITABLE = re.compile(r"(-e|--editable)[= ]\s*")
_EXTRAS = r"(?P<extras>\[[A-Za-z0-9._, -]*\])?"
_MARKER = r"(\s*;\s*(?P<marker>.+))?"
# a folder by its path, and a package at an address
_FOLDER = re.compile(rf"(?P<path>(\.|/|file:///)[^;\[\]]*?){_EXTRAS}\s*{_MARKER}")
_DIRECT = re.compile(rf"(?P<name>[A-Za-z0-9._-]+)\s*{_EXTRAS}\s*@\s*(?P<url>(git\+|file:)\S+){_MARKER}")


@dataclass(frozen=True)
class _Line:
    """A line that names a commit or a folder."""

    name: str
    extras: str
    url: str
    marker: str

    @property
    def folder(self) -> Path | None:
        """The folder; None for a repository."""
        parts = urlsplit(self.url)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    @property
    def has_commit(self) -> bool:
        """Whether it stays the same: a repository with a commit, or a folder."""
        return self.folder is not None or bool(re.search(r"@[0-9a-fA-F]{40}(#|$)", self.url))

    def __str__(self) -> str:
        """Return it as uv reads it."""
        return f"{self.name}{self.extras} @ {self.url}{f' ; {self.marker}' if self.marker else ''}"

    def package(self, file: str) -> LockedPackage:
        """Return the package.

        Raises:
            LockError: it cannot be used.
        """
        if self.folder is not None:
            found = from_tree(file, self.name, None, SourceTree(folder=str(self.folder)))
        else:
            address, _unused, fragment = self.url.partition("#")
            place, _unused, commit = address.rpartition("@")
            inner = re.search(r"(^|&)subdirectory=([^&]*)", fragment)
            tree = git_tree(file, self.name, place, commit, unquote(inner[2]) if inner else "")
            found = from_tree(file, self.name, None, tree)
        return replace(found, marker=self.marker)


def read_requirements(text: str, file: str, *, chosen: bool = False) -> Lock:
    """Return the lock in the text of a ``requirements.txt``.

    Args:
        text: the content.
        file: its path, for messages; folders begin beside it. The project there is not installed.
        chosen: whether uv wrote the text; then it has all that its packages need.

    Raises:
        LockError: a line cannot be followed, or only some packages have a sha256.
        WheelError: a line is not a requirement.
    """
    pinned: list[LockedPackage] = []
    loose: list[str] = []
    direct: list[_Line] = []
    for line in _lines(text):
        if one := _direct(line, file):
            direct.append(one)
            continue
        _refuse_option(line, file)
        found = _pinned(line, file)
        if found is None:
            loose += map(str, parse_requirements([line], file))
        else:
            pinned.append(found)
    if len(pinned) + len(loose) + len(direct) > MOST_PACKAGES:
        raise LockError(f"{file} has more than {MOST_PACKAGES} packages, so it is not a lock.")
    without = [*loose, *(one.name for one in direct if not one.has_commit)]
    if pinned and without:
        raise LockError(
            f"{file}: {without[0]} has no hash, and others have one; make the file again with 'uv pip compile"
            " --generate-hashes'."
        )
    if not pinned and not chosen:
        if not loose and not direct:
            raise LockError(f"{file} names no package, so it is not a requirements.txt; name the packages in it.")
        return Lock(file, requirements=tuple(sorted([*loose, *map(str, direct)])))
    own = Path(file).absolute().parent.resolve()
    trees = [one.package(file) for one in direct if one.folder != own]
    return Lock(file, packages=(*pinned, *trees))


def _pinned(line: str, file: str) -> LockedPackage | None:
    """Return the package of a line with hashes; None without one.

    Raises:
        LockError: it has no sha256, or no exact version.
    """
    hashes = [(found["algorithm"], found["digest"]) for found in _HASH.finditer(line)]
    if not hashes:
        return None
    (requirement,) = parse_requirements([_HASH.sub("", line).strip()], file)
    versions = [one.version for one in requirement.specifier if one.operator in ("==", "===")]
    if len(versions) != 1 or len(requirement.specifier) != 1:
        raise LockError(f"{file}: {requirement.name} has a hash and no exact version; write {requirement.name}==….")
    digests = tuple(sorted(digest for algorithm, digest in hashes if algorithm == "sha256"))
    if not digests or not all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests):
        raise LockError(
            f"{file}: {requirement.name} has no sha256; make the file again with 'uv pip compile --generate-hashes'."
        )
    return package(file, requirement.name, versions[0], marker=str(requirement.marker or ""), hashes=digests)


def _lines(text: str) -> Iterator[str]:
    """Yield the lines without comments; a backslash at the end joins a line with the next one."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        bare = _COMMENT.sub("", line).strip()
        if bare:
            yield bare


def _direct(line: str, file: str) -> _Line | None:
    """Return a line that names a commit or a folder; None for another one.

    Raises:
        LockError: the folder has no name of a package.
    """
    bare = _HASH.sub("", _EDITABLE.sub("", line, count=1)).strip()
    if found := _DIRECT.fullmatch(bare):
        if found["url"].startswith("git+") or Path(unquote(urlsplit(found["url"]).path)).is_dir():
            return _Line(found["name"], found["extras"] or "", found["url"], found["marker"] or "")
        return None
    found = _FOLDER.fullmatch(bare)
    if found is None:
        return None
    path = unquote(urlsplit(found["path"]).path) if found["path"].startswith("file:") else found["path"]
    folder = (Path(file).absolute().parent / path).resolve()
    if not folder.is_dir():
        raise LockError(f"{file}: {found['path'][:200]} is not a folder on this controller; correct the line.")
    return _Line(_name_in(folder, file), found["extras"] or "", folder.as_uri(), found["marker"] or "")


def _name_in(folder: Path, file: str) -> str:
    """Return the name of the package in a folder.

    Raises:
        LockError: it does not state one.
    """
    path = folder / "pyproject.toml"
    text = ""
    if path.is_file() and path.stat().st_size <= _MOST_BYTES:
        text = path.read_text(encoding="utf-8", errors="replace")
    project = toml(text, str(path)).get("project")
    name = project.get("name") if isinstance(project, dict) else None
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise LockError(f"{file}: {folder} has no pyproject.toml with the name of its package; write it there.")
    return name


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
        cure = "name the index in uv's or pip's configuration on this controller and remove the line"
    elif word in ("-e", "--editable"):
        cure = "name a folder or a commit ('-e ./package'), or remove the line"
    else:
        cure = "put all packages into one file ('uv pip compile' does it) and remove the line"
    raise LockError(f"{file}: the line that begins with {word} is an option of pip, which is not followed; {cure}.")
