# SPDX-License-Identifier: Apache-2.0
"""The Python environment that a user's lock describes, for one target: its wheels, and what is built from source.

:func:`locked_environment` is the way in. It reads the lock, has the store fetch each file with its sha256, and keeps
the answer in the cache. A second call with an unchanged lock fetches nothing.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import canonical, sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .store import WheelStore

from .fitting import Wanted, wanted
from .lock import Asked, Lock, LockedPackage, LockError, lock_text
from .lock_formats import export, read_pylock
from .packages import NothingFitsError, PackedSdist, PlacedSdist, PlacedWheel, Sdist, Target, Wheel, WheelError
from .pip import options_for
from .requirements import parse_requirements, read_metadata
from .requirements_file import read_requirements
from .resolving import requirement_name, resolved
from .sdist import build_requirements
from .source_tree import folder_digest, packed

_SCHEMA = 1
_MOST_BUILT = 60  # a build has at most 100 steps


@dataclass(frozen=True)
class Built:
    """A package that is built from its source archive.

    Attributes:
        source: the archive: of the lock, or packed here.
        tools: wheels of what its build needs.
    """

    source: Sdist
    tools: tuple[Wheel, ...]


@dataclass(frozen=True)
class LockedEnvironment:
    """What a lock brings to a target.

    Attributes:
        wheels: those that are installed.
        built: packages that are built first.
        left_out: name and version of packages that the lock has and the environment does not get.
        notes: sentences for the user.
    """

    wheels: tuple[PlacedWheel, ...]
    built: tuple[Built, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_lock(path: Path, asked: Asked, store: WheelStore) -> Lock:
    """Return the lock in a file.

    Args:
        path: a ``uv.lock``, a ``pylock.toml`` (also ``pylock.NAME.toml``), or a requirements file (``.txt``).
        asked: the extras and groups that are wanted.
        store: brings uv, for a ``uv.lock``.

    Raises:
        WheelError: the file cannot be used; the message is one sentence.
    """
    path = path.expanduser()
    text = lock_text(path)
    file = str(path)
    if path.name == "uv.lock":
        with _uv(store) as uv:
            exported = export(path.absolute(), asked, uv)
        # uv has checked extras and groups, and its answer has no marker about them
        return read_pylock(exported, file, path.absolute().parent, Asked())
    if path.suffix == ".toml":
        return read_pylock(text, file, path.absolute().parent, asked)
    if path.suffix != ".txt":
        raise LockError(
            f"python_env_lock: {file} is neither a uv.lock nor a .toml (pylock.toml) nor a .txt (requirements.txt);"
            " export the lock in one of these forms."
        )
    if asked != Asked():
        raise LockError(
            f"python_env_lock_extras and python_env_lock_groups are for uv.lock and pylock.toml; {file} has neither, so"
            " leave them empty."
        )
    return read_requirements(text, file)


def locked_environment(
    store: WheelStore,
    path: Path,
    asked: Asked,
    target: Target,
    python: str,
    left_out: Sequence[str] = (),
) -> LockedEnvironment:
    """Return the environment of a lock on a target; its files are in the cache when it is returned the first time.

    Args:
        store: the cache.
        path: the lock.
        asked: the extras and groups that are wanted.
        target: the nodes' Python, machine and C library.
        python: version of the nodes' Python, with all its numbers.
        left_out: canonical names of packages that come from elsewhere.

    Raises:
        WheelError: the lock cannot be used, or a file of it cannot be had; the message is one sentence.
    """
    lock = read_lock(path, asked, store)
    variable = f"python_env_lock ({path.name})"
    notes: list[str] = []
    asked_for: tuple[str, ...] = ()
    if lock.requirements:
        loose = lock
        with _uv(store) as uv:
            text, chosen, now = resolved(loose, store, target, uv, left_out)
        lock = read_requirements(text, loose.file, chosen=True)
        notes = [_told(lock, chosen)] if now else []
        asked_for = tuple(one for one in left_out if one in map(requirement_name, loose.requirements))
    need = _Need.of(store, lock, wanted(lock, target, python, left_out), target, variable)
    spared = _spared(lock, left_out) or asked_for
    digest = hashlib.sha256(canonical(need.question)).hexdigest()
    kept = store.locks / f"python_env_lock-{digest[:16]}.json"
    found = need.known(kept)
    if found is None:
        with store.alone(kept):
            found = need.known(kept)
            if found is None:
                found = need.answer()
                store.keep(kept, {"schema": _SCHEMA, "asked": need.question, **asdict(found)})
    places = {wheel.filename: wheel.url for one in lock.packages for wheel in one.wheels}
    wheels = tuple(replace(wheel, url=places.get(wheel.filename, wheel.url)) for wheel in found.wheels)
    return replace(found, wheels=wheels, left_out=spared, notes=(*notes, *store.notes))


@contextmanager
def _uv(store: WheelStore) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield uv_program(store, Path(folder))


def uv_program(store: WheelStore, folder: Path) -> Path:
    """Return uv for this controller: the store's pinned one, else the one that is installed.

    Args:
        store: brings its wheel.
        folder: where it is unpacked.

    Raises:
        WheelError: there is none.
    """
    installed = shutil.which("uv")
    library, release = platform.libc_ver()
    if library != "glibc":
        if installed:
            return Path(installed)
        raise LockError(
            "python_env_lock: this controller has no uv, which reads uv.lock; install it, or export the lock"
            " ('uv export --format pylock.toml -o pylock.toml') and name that file."
        )
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        target = Target.of(f"controller-{platform.machine()}-glibc{release}-py{python}")
        (wheel,) = store.lock("uv", target, parse_requirements(["uv"], "python_env_lock"), "python_env_lock")
        (file,) = store.files([wheel], target, "python_env_lock")
    except WheelError:
        if installed:
            return Path(installed)
        raise
    with zipfile.ZipFile(file) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith(".data/scripts/uv")]
        program = folder / "uv"
        with archive.open(member) as source, program.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    program.chmod(0o700)
    return program


def _spared(lock: Lock, left_out: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{one.name} {one.version}" for one in lock.packages if one.name in left_out))


def _told(lock: Lock, kept: Path) -> str:
    return (
        f"{lock.file} has no hashes, so uv chose {len(lock.packages)} packages; {kept} keeps their versions and sha256"
        " from now on. Copy it over the file to keep them with the project."
    )


@dataclass(frozen=True)
class _Need:
    """What a target needs of a lock, and how it comes."""

    store: WheelStore
    lock: Lock
    wanted: Wanted
    target: Target
    variable: str
    trees: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, store: WheelStore, lock: Lock, need: Wanted, target: Target, variable: str) -> _Need:
        """Return the need, with what identifies the source of each package that is a commit or a folder.

        Raises:
            LockError: a folder cannot be read.
        """
        trees = {
            one.name: [
                one.tree.commit or folder_digest(Path(one.tree.folder), f"{lock.file}: {one.name}"),
                one.tree.subdirectory,
                one.version,
            ]
            for one in need.trees
            if one.tree
        }
        return cls(store, lock, need, target, variable, trees)

    def known(self, kept: Path) -> LockedEnvironment | None:
        """Return a kept answer; None without one, or where the cache has lost a source that was packed."""
        found = _read(kept, self.question)
        sources = [one.source for one in found.built if isinstance(one.source, PackedSdist)] if found else []
        return found if all((self.store.sources / one.cached_as).is_file() for one in sources) else None

    @property
    def question(self) -> dict[str, Any]:
        """What the answer depends on: content, and no path or address."""
        need, target = self.wanted, self.target
        return {
            "python": target.python,
            "machine": target.machine,
            "glibc": target.glibc,
            "wheels": {file.filename: file.sha256 for one in need.wheels for file in one.wheels},
            "sdists": {one.sdist.filename: one.sdist.sha256 for one in need.sdists if one.sdist},
            "hashed": {f"{one.name}=={one.version}": list(one.hashes) for one in need.hashed},
            "requirements": [],
            # a lock without one keeps its answer
            **({"trees": self.trees} if self.trees else {}),
        }

    def answer(self) -> LockedEnvironment:
        """Return the answer; all files of it are in the cache then."""
        wheels = [
            PlacedWheel(one.name, one.version, file.filename, file.sha256, file.url)
            for one in self.wanted.wheels
            for file in one.wheels
        ]
        sources: list[Sdist] = [
            PlacedSdist(one.name, one.version, one.sdist.sha256, one.sdist.url)
            for one in self.wanted.sdists
            if one.sdist
        ]
        for one in self._by_hash():
            (wheels if isinstance(one, PlacedWheel) else sources).append(one)  # type: ignore[arg-type]
        sources += [
            packed(one.tree, one.name, one.version, f"{self.lock.file}: {one.name}", self.store.sources)
            for one in self.wanted.trees
            if one.tree
        ]
        if len(sources) > _MOST_BUILT:
            raise LockError(
                f"{self.lock.file} has {len(sources)} packages without a wheel for {self.target}, and at most"
                f" {_MOST_BUILT} are built; build wheels of them and lock those."
            )
        self.store.files(wheels, self.target, self.variable)
        built = tuple(self._built(source) for source in sorted(sources, key=lambda source: source.name))
        return LockedEnvironment(tuple(sorted(wheels, key=lambda wheel: wheel.name)), built)

    def _by_hash(self) -> list[PlacedWheel | PlacedSdist]:
        """Return the files of packages that the lock names by their hashes alone: a wheel where the index has one."""
        left = {one.name: one for one in self.wanted.hashed}
        found: list[PlacedWheel | PlacedSdist] = []
        while left:
            try:
                paths = self.store.chosen(
                    [_line(one) for one in left.values()], options_for(self.target), self.target, self.variable
                )
            except NothingFitsError as error:
                if not error.certain or error.package not in left:
                    raise
                found.append(self._source(left.pop(error.package), error))
                continue
            for path in paths:
                its = read_metadata(path)
                found.append(PlacedWheel(its.name, its.version, path.name, sha256_of(path)))
            break
        return found

    def _source(self, one: LockedPackage, none_fits: NothingFitsError) -> PlacedSdist:
        try:
            (path,) = self.store.chosen([_line(one)], [f"--no-binary={one.name}"], None, self.variable)
        except NothingFitsError:
            raise none_fits from None
        sha256, name = sha256_of(path), path.name
        path.unlink()  # the store keeps source archives elsewhere
        if not name.endswith(".tar.gz"):
            raise LockError(
                f"{self.lock.file}: the source of {one.name} is {name}, and only .tar.gz is read; build its wheel."
            )
        return PlacedSdist(one.name, one.version, sha256)

    def _built(self, source: Sdist) -> Built:
        label = f"{self.lock.file}: {source.name} {source.version}"
        archive = self.store.sdist(source, self.variable)
        subdirectory = source.subdirectory if isinstance(source, PackedSdist) else ""
        requirements = parse_requirements(build_requirements(archive, label, subdirectory), label)
        tools = self.store.lock(
            "python_env_build", self.target, requirements, f"{self.variable}, build of {source.name}"
        )
        self.store.files(tools, self.target, self.variable)
        return Built(source, tuple(tools))


def _line(one: LockedPackage) -> str:
    return f"{one.name}=={one.version}" + "".join(f" --hash=sha256:{digest}" for digest in one.hashes)


def _read(path: Path, question: Mapping[str, Any]) -> LockedEnvironment | None:
    """Return a kept answer; None without one."""
    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != _SCHEMA or document["asked"] != question:
            return None
        return LockedEnvironment(
            tuple(PlacedWheel.of(entry) for entry in document["wheels"]),
            tuple(Built(_source(entry["source"]), tuple(map(Wheel.of, entry["tools"]))) for entry in document["built"]),
            tuple(map(str, document["left_out"])),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _source(entry: Mapping[str, Any]) -> Sdist:
    return (PackedSdist if "subdirectory" in entry else PlacedSdist).of(entry, "python_env_lock")
