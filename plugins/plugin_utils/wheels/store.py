# SPDX-License-Identifier: Apache-2.0
"""The cache of wheels, source archives and locks on the controller."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import canonical, sha256_of
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.source import disk_full
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from packaging.requirements import Requirement

    from .target import Target

from .errors import NothingFitsError, PipFailedError, WheelError
from .packages import WHEEL_FIELDS, Sdist, Wheel
from .pip import NO_ANSWER, explain, lacking, options_for, run_pip
from .requirements import NO_CHOICE, Choice, applies, bare, closure, read_metadata

LOCK_SCHEMA = 1

_ROUNDS = 8


class WheelStore:
    """Wheels, source archives and locks below one cache folder; safe for several runs at the same time."""

    def __init__(self, cache_dir: Path, wheel_dir: str = "") -> None:
        """Use ``cache_dir``.

        Args:
            cache_dir: the controller's cache; folders below it are made on demand.
            wheel_dir: a folder of the user to look into instead of an index; empty to ask the index.

        Raises:
            WheelError: ``wheel_dir`` is not a folder.
        """
        self._cache = cache_dir.expanduser()
        self.wheels = self._cache / "wheels"
        self._locks = self._cache / "locks"
        self._sources = self._cache / "sources"
        self._own = Path(wheel_dir).expanduser() if wheel_dir else None
        if self._own and not self._own.is_dir():
            raise WheelError(f"The wheel folder {self._own} is not on this controller; make it or correct its name.")

    def lock(
        self,
        name: str,
        target: Target,
        requirements: Sequence[Requirement],
        variable: str,
        choice: Choice = NO_CHOICE,
    ) -> list[Wheel]:
        """Return the wheels that satisfy ``requirements`` on the target, the same ones each time.

        The index is asked once; later calls read the lock in the cache.

        Args:
            name: what the wheels are for; part of the lock's name.
            target: the target that the wheels must fit.
            requirements: the requirements.
            variable: the user's variable that names them, for messages.
            choice: alternatives, of which the best available one is added. An index that does not answer is an
                error, and does not lead to a worse alternative.

        Raises:
            WheelError: a package has no fitting wheel, or the index does not answer.
        """
        asked: dict[str, Any] = {
            "requirements": sorted(str(requirement) for requirement in requirements),
            "python": target.python,
            "machine": target.machine,
            "glibc": target.glibc,
        }
        if choice.alternatives:
            asked["first_of"] = [sorted(map(str, alternative)) for alternative in choice.alternatives]
        digest = hashlib.sha256(canonical(asked)).hexdigest()[:16]
        path = self._locks / f"{name}-{digest}.json"
        known = _read_lock(path, asked)
        if known is not None:
            return known
        with self._full_disk_named("wheels"), self._alone(path):
            known = _read_lock(path, asked)
            if known is not None:
                return known
            wheels = self._choose(target, requirements, variable, choice)
            document = {"schema": LOCK_SCHEMA, "asked": asked, "wheels": [asdict(wheel) for wheel in wheels]}
            text = json.dumps(document, indent=1, sort_keys=True) + "\n"
            _replace_by(path, lambda partial: partial.write_text(text, encoding="utf-8"))
            return wheels

    def files(self, wheels: Sequence[Wheel], target: Target, variable: str) -> list[Path]:
        """Return the files of locked wheels; missing and changed files are fetched again.

        Raises:
            WheelError: no file has the sha256 of the lock.
        """
        with self._full_disk_named("wheels"):
            lost = [wheel for wheel in wheels if not self._has(wheel)]
            if lost:
                pins = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in lost]
                options = ["--no-deps", "--require-hashes", *options_for(target)]
                self._download(options, pins, target, variable)
            still = [wheel for wheel in lost if not self._has(wheel)]
        if still:
            raise WheelError(f"{still[0].filename} could not be fetched again with the sha256 that its lock names.")
        return [self.wheels / wheel.filename for wheel in wheels]

    def sdist(self, sdist: Sdist, variable: str) -> Path:
        """Return the verified source archive of a package.

        Raises:
            WheelError: no archive has this sha256.
        """
        target = self._sources / f"{sdist.name}-{sdist.version}-{sdist.sha256[:16]}.tar.gz"
        if target.is_file() and sha256_of(target) == sdist.sha256:
            return target
        with self._full_disk_named("a source archive"):
            self._sources.mkdir(parents=True, exist_ok=True)
            own = self._own / f"{sdist.name}-{sdist.version}.tar.gz" if self._own else None
            if own and own.is_file() and sha256_of(own) == sdist.sha256:
                _replace_by(target, lambda partial: shutil.copyfile(own, partial))
                return target
            # pip checks the hash before it runs code of the archive
            options = ["--no-deps", "--require-hashes", f"--no-binary={sdist.name}"]
            pins = [f"{sdist.name}=={sdist.version} --hash=sha256:{sdist.sha256}"]
            for path in self._download(options, pins, None, variable):
                if sha256_of(path) == sdist.sha256:
                    path.replace(target)
                    return target
        raise WheelError(f"{sdist.name} {sdist.version} could not be fetched with the sha256 {sdist.sha256}.")

    def _choose(
        self, target: Target, requirements: Sequence[Requirement], variable: str, choice: Choice
    ) -> list[Wheel]:
        blame = {
            str(canonicalize_name(requirement.name)): choice.variable
            for alternative in choice.alternatives
            for requirement in alternative
        }
        *better, last = choice.alternatives or ((),)
        for alternative in better:
            try:
                return self._resolve(target, [*requirements, *alternative], variable, blame)
            except NothingFitsError as error:
                names = {canonicalize_name(requirement.name) for requirement in alternative}
                if not error.certain or error.package not in names:
                    raise
        return self._resolve(target, [*requirements, *last], variable, blame)

    def _resolve(
        self, target: Target, requirements: Sequence[Requirement], variable: str, blame: Mapping[str, str]
    ) -> list[Wheel]:
        """Return the wheels; ``blame`` holds the variables that ask for single packages, for messages."""
        environment = target.environment()
        asked = [bare(requirement) for requirement in requirements if applies(requirement, environment)]
        if not asked:
            return []
        for _ in range(_ROUNDS):
            # pip may have ignored the node's markers; a package that it left out is asked for by name
            found = [
                (path, read_metadata(path))
                for path in self._download(options_for(target), asked, target, variable, blame)
            ]
            files = {metadata.name: path for path, metadata in found}
            have = {metadata.name: metadata for _, metadata in found}
            needed, missing = closure(requirements, have, environment)
            if not missing:
                return [
                    Wheel(name, have[name].version, files[name].name, sha256_of(files[name])) for name in sorted(needed)
                ]
            asked += missing
        raise WheelError(
            f"{variable}: no set of wheels for {target} satisfies {', '.join(missing)} as well; pin versions that do."
        )

    def _download(
        self,
        options: Sequence[str],
        requirements: Sequence[str],
        target: Target | None,
        variable: str,
        blame: Mapping[str, str] | None = None,
    ) -> list[Path]:
        """Fetch these requirements with pip, and return the files in the cache's folder of wheels."""
        self.wheels.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=self.wheels) as name:
            folder = Path(name)
            wanted, files = folder / "requirements.txt", folder / "files"
            wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
            argv = ["download", f"--dest={files}", *options, f"--requirement={wanted}"]
            try:
                self._ask(argv, target.environment() if target else {})
            except PipFailedError as error:
                package = lacking(error.output)
                sentence = explain(error.output, target, (blame or {}).get(package, variable))
                if not package:
                    raise WheelError(sentence) from error
                raise NothingFitsError(sentence, package, certain=not NO_ANSWER.search(error.output)) from error
            kept = []
            for path in sorted(files.iterdir()):
                path.chmod(0o644)
                kept.append(path.replace(self.wheels / path.name))
            return kept

    def _ask(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        if self._own:
            run_pip([*argv, "--no-index", f"--find-links={self._own}"], environment)
            return
        try:
            run_pip(argv, environment)
        except PipFailedError as error:
            if not NO_ANSWER.search(error.output):
                raise
            try:  # the cache may hold all that is needed
                run_pip([*argv, "--no-index", f"--find-links={self.wheels}"], environment)
            except PipFailedError:
                raise error from None

    def _has(self, wheel: Wheel) -> bool:
        path = self.wheels / wheel.filename
        return path.is_file() and sha256_of(path) == wheel.sha256

    @contextmanager
    def _alone(self, path: Path) -> Iterator[None]:
        """Hold the right to write a lock; a second run waits and then reads it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with (path.parent / f".{path.name}.flock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _full_disk_named(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise disk_full(_existing(self._cache), what) from error
            raise WheelError(f"The cache folder {self._cache} cannot be used: {error}.") from error


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def _read_lock(path: Path, asked: Mapping[str, Any]) -> list[Wheel] | None:
    """Return the wheels of a lock; None if the lock is missing, or answers another question."""
    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != LOCK_SCHEMA or document["asked"] != asked:
            return None
        return [Wheel(**{field: str(entry[field]) for field in WHEEL_FIELDS}) for entry in document["wheels"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _replace_by(target: Path, fill: Callable[[Path], object]) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".partial-")
    os.close(handle)
    try:
        fill(Path(name))
        Path(name).chmod(0o644)
        Path(name).replace(target)
    finally:
        Path(name).unlink(missing_ok=True)
