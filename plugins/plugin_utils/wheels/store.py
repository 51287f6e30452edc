# SPDX-License-Identifier: Apache-2.0
"""The cache of wheels, source archives and locks on the controller."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils import disk_files
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import canonical, sha256_of
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import partial_file
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.source import disk_full

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from packaging.requirements import Requirement

from . import indexes
from .packages import (
    NoAnswerError,
    NothingFitsError,
    OtherFileError,
    PackedSdist,
    PipFailedError,
    PlacedSdist,
    PlacedWheel,
    Sdist,
    Target,
    Wheel,
    WheelError,
    beside,
    place_of,
)
from .pip import away, explain, lacking, none_fits, not_an_index, options_for, other_file, refuse_more_indexes, run_pip
from .requirements import (
    NO_CHOICE,
    Choice,
    applies,
    bare,
    canonicalize_name,
    closure,
    parse_requirements,
    read_metadata,
)
from .shipped import Answer, answers, hashes, shipped_locks, texts, wheels_in

LOCK_SCHEMA = 1

_ROUNDS = 8

_NAMED = 5


class WheelStore:
    """Wheels, source archives and locks below one cache folder; safe for several runs at the same time."""

    def __init__(
        self,
        cache_dir: Path,
        wheel_dir: str = "",
        shipped: Sequence[Mapping[str, Any]] | None = None,
        note: Callable[[str], None] = disk_files.on_stderr,
        project: Path | None = None,
    ) -> None:
        """Use ``cache_dir``.

        Args:
            cache_dir: the controller's cache; folders below it are made on demand.
            wheel_dir: a folder of the user to look into instead of an index; empty to ask the index.
            shipped: locks to use in place of the collection's own.
            note: takes a line of life while another run chooses the same wheels.
            project: the folder of the user's lock, whose settings of uv count.

        Raises:
            WheelError: ``wheel_dir`` is not a folder.
        """
        self._cache = cache_dir.expanduser()
        self._shipped = shipped_locks() if shipped is None else shipped
        self._note, self._project = note, project
        self.notes: list[str] = []  # warnings for the user
        self.wheels = self._cache / "wheels"
        self.locks = self._cache / "locks"
        self.sources = self._cache / "sources"
        self.own = Path(wheel_dir).expanduser() if wheel_dir else None
        if self.own and not self.own.is_dir():
            raise WheelError(f"The wheel folder {self.own} is not on this controller; make it or correct its name.")

    def lock(
        self,
        name: str,
        target: Target,
        requirements: Sequence[Requirement],
        variable: str,
        choice: Choice = NO_CHOICE,
    ) -> list[Wheel]:
        """Return the wheels that satisfy ``requirements`` on the target, the same ones each time.

        The locks of the collection come first. What they do not have, the index chooses once; later calls read the
        lock in the cache. What the index chose in place of a lock of the collection is told in :attr:`notes`.

        Args:
            name: what the wheels are for; part of the lock's name.
            target: the target that the wheels must fit.
            requirements: the requirements.
            variable: the user's variable that names them, for messages.
            choice: alternatives, of which the best available one is added. An index that does not answer is an
                error, and does not lead to a worse alternative.

        Raises:
            WheelError: a package has no fitting wheel, the index does not answer, or its file is not the pinned one.
        """
        asked: dict[str, Any] = {
            "requirements": texts(requirements),
            "python": target.python,
            "machine": target.machine,
            "glibc": target.glibc,
        }
        if choice.alternatives:
            asked["first_of"] = [texts(alternative) for alternative in choice.alternatives]
        digest = hashlib.sha256(canonical(asked)).hexdigest()[:16]
        path = self.locks / f"{name}-{digest}.json"
        question = _Question(
            asked, target, list(requirements), variable, choice, self._shipped_for(requirements, target, choice)
        )
        known = _read_lock(path, question)
        if known is not None and known.final:
            return known.wheels
        with self._full_disk_named("wheels"), self.alone(path):
            known = _read_lock(path, question)
            if known is not None and known.final:
                return known.wheels
            try:
                wheels = self._settle(question, known.wheels if known else None, path)
            except NoAnswerError as error:
                if known is None:
                    raise
                self.notes.append(f"The wheels of an older lock are used, {path}: {error}")
                return known.wheels
            document = {"schema": LOCK_SCHEMA, "asked": asked, "wheels": [asdict(wheel) for wheel in wheels]}
            document |= {"instead_of": question.shipped_digest} if question.shipped else {}
            self.keep(path, document)
            return wheels

    @staticmethod
    def keep(path: Path, document: Mapping[str, Any]) -> None:
        """Write a lock into the cache."""
        WheelStore.keep_text(path, json.dumps(document, indent=1, sort_keys=True) + "\n")

    @staticmethod
    def keep_text(path: Path, text: str) -> None:
        """Write a text into the cache."""
        _replace_by(path, lambda partial: partial.write_text(text, encoding="utf-8"))

    def files(self, wheels: Sequence[Wheel], target: Target, variable: str) -> list[Path]:
        """Return the files of locked wheels; missing and changed files are fetched again.

        Raises:
            WheelError: no file has the sha256 of the lock.
        """
        with self._full_disk_named("wheels"):
            lost = [wheel for wheel in wheels if not self._has(wheel)]
            if lost:
                self._fetch(lost, ["--no-deps", "--require-hashes", *options_for(target)], target, variable)
            still = [wheel for wheel in lost if not self._has(wheel)]
        if still:
            raise WheelError(f"{still[0].filename} could not be fetched again with the sha256 that its lock names.")
        return [self.wheels / wheel.filename for wheel in wheels]

    def sdist(self, sdist: Sdist, variable: str) -> Path:
        """Return the verified source archive of a package.

        Raises:
            WheelError: no archive has this sha256.
        """
        target = self.sources / sdist.cached_as
        if target.is_file() and sha256_of(target) == sdist.sha256:
            return target
        if isinstance(sdist, PackedSdist):
            raise WheelError(f"The packed source of {sdist.name} is gone from {self.sources}; run again.")
        with self._full_disk_named("a source archive"):
            self.sources.mkdir(parents=True, exist_ok=True)
            own = self.own / f"{sdist.name}-{sdist.version}.tar.gz" if self.own else None
            if own and own.is_file() and sha256_of(own) == sdist.sha256:
                _replace_by(target, lambda partial: shutil.copyfile(own, partial))
                return target
            # pip checks the hash; neither the archive nor what builds it is run here
            options = ["--no-deps", "--require-hashes", f"--no-binary={sdist.name}"]
            for path in self._fetch([sdist], options, None, variable):
                if sha256_of(path) == sdist.sha256:
                    path.replace(target)
                    return target
        raise WheelError(f"{sdist.name} {sdist.version} could not be fetched with the sha256 {sdist.sha256}.")

    def chosen(self, pins: Sequence[str], options: Sequence[str], target: Target | None, variable: str) -> list[Path]:
        """Return the files that the index chooses for packages with an exact version and several hashes.

        Args:
            pins: lines of a requirements.txt with hashes.
            options: of ``pip download``, such as ``--no-binary``.
            target: the target of wheels; None for source archives.
            variable: the user's variable that names the packages, for messages.

        Raises:
            WheelError: the index does not have them.
        """
        with self._full_disk_named("packages"):
            return self._download(["--no-deps", "--require-hashes", *options], pins, target, variable)

    def _fetch(
        self, pinned: Sequence[Wheel | Sdist], options: Sequence[str], target: Target | None, variable: str
    ) -> list[Path]:
        """Fetch pinned files from the index; those that it lacks come from where a user's lock found them."""
        direct: set[str] = set()
        while True:
            try:
                return self._download(options, [_pin(one, direct) for one in pinned], target, variable)
            except (NothingFitsError, OtherFileError) as error:
                more = beside(pinned, error.package) - direct
                if self.own or not more:
                    raise
                direct |= more

    def _shipped_for(self, requirements: Sequence[Requirement], target: Target, choice: Choice) -> list[Answer]:
        found = answers(self._shipped, target, requirements, choice)
        return found if any(answer.wheels is not None for answer in found) else []

    def _settle(self, question: _Question, known: list[Wheel] | None, path: Path) -> list[Wheel]:
        """Return the wheels of the collection, else those of the lock in the cache, else those of the index."""
        wheels = self._from_collection(question, known)
        if wheels is None:
            wheels = known or self._choose(question.target, question.requirements, question.variable, question.choice)
        if question.shipped and not self.own:
            self._tell(question, wheels, path)
        return wheels

    def _from_collection(self, question: _Question, known: list[Wheel] | None) -> list[Wheel] | None:
        """Return the wheels of the first alternative whose files are there, None without one."""
        gone: set[Wheel] = set()
        for place, answer in enumerate(question.shipped):
            if answer.wheels is None:
                if known is not None and question.choice.taken(known) == place:
                    return known
                found = self._unlocked(question, answer)
                if found is not None:
                    return found
            elif gone.isdisjoint(answer.wheels):
                lost = self._lost(answer.wheels, question)
                if lost is None:
                    return list(answer.wheels)
                gone.add(lost)
        return None

    def _lost(self, wheels: Sequence[Wheel], question: _Question) -> Wheel | None:
        """Bring the files of a lock of the collection into the cache; return one that the index lacks.

        Raises:
            OtherFileError: the index has a file of the same name with another sha256.
            WheelError: the index does not answer.
        """
        if self.own:
            own = self.own
            lost = (wheel for wheel in wheels if not self._has(wheel) and not _is(own / wheel.filename, wheel))
            return next(lost, None)
        try:
            self.files(wheels, question.target, question.variable)
        except NothingFitsError as error:
            if not error.certain:
                raise NoAnswerError(str(error)) from error
            return _named(wheels, error.package)
        except OtherFileError as error:
            if error.filename in {wheel.filename for wheel in wheels}:
                raise _not_ours(error.package, error.filename, question.variable) from error
            return _named(wheels, error.package)
        return None

    def _unlocked(self, question: _Question, answer: Answer) -> list[Wheel] | None:
        """Return the index's wheels for an alternative without a lock; None if the index lacks it.

        Where the collection pins another alternative, the packages that both need get the same versions.
        """
        names = {str(canonicalize_name(requirement.name)) for requirement in answer.alternative}
        blame = dict.fromkeys(names, question.choice.variable)
        pinned = next((other.wheels for other in reversed(question.shipped) if other.wheels is not None), ())
        limits = [f"{wheel.name}=={wheel.version}" for wheel in pinned if wheel.name not in names]
        wanted = [*question.requirements, *answer.alternative]
        for constraints in [limits, []] if limits and not self.own else [[]]:
            try:
                return self._resolve(question.target, wanted, question.variable, blame, constraints)
            except NothingFitsError as error:
                if not error.certain:
                    raise NoAnswerError(str(error)) from error
                if error.package in names:
                    return None
                if not constraints:
                    raise
            except (NoAnswerError, OtherFileError):
                raise
            except WheelError:
                if not constraints:
                    raise
        return None

    def _tell(self, question: _Question, wheels: Sequence[Wheel], path: Path) -> None:
        """Note what the collection does not pin."""
        pinned = {wheel for answer in question.shipped for wheel in answer.wheels or ()}
        free = [f"{wheel.name} {wheel.version}" for wheel in wheels if wheel not in pinned]
        if free:
            more = f" and {len(free) - _NAMED} more" if len(free) > _NAMED else ""
            self.notes.append(
                f"The collection does not pin {', '.join(free[:_NAMED])}{more} for {question.target}, or the index"
                f" lacks the pinned files; the index chose. {path} pins these files from now on."
            )

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
        self,
        target: Target,
        requirements: Sequence[Requirement],
        variable: str,
        blame: Mapping[str, str],
        constraints: Sequence[str] = (),
    ) -> list[Wheel]:
        """Return the wheels that the index or the user's folder chooses.

        Args:
            target: the target that the wheels must fit.
            requirements: the requirements.
            variable: the user's variable that names them, for messages.
            blame: the variables that ask for single packages, for messages.
            constraints: versions of packages that may be needed.
        """
        environment = target.environment()
        asked = [bare(requirement) for requirement in requirements if applies(requirement, environment)]
        if not asked:
            return []
        if not self.own:
            refuse_more_indexes(variable)
        for _unused in range(_ROUNDS):
            # pip may have ignored the node's markers; a package that it left out is asked for by name
            found = [
                (path, read_metadata(path))
                for path in self._download(options_for(target), asked, target, variable, blame, constraints)
            ]
            files = {metadata.name: path for path, metadata in found}
            have = {metadata.name: metadata for _unused, metadata in found}
            needed, missing = closure(requirements, have, environment)
            if not missing:
                wheels = [
                    Wheel(name, have[name].version, files[name].name, sha256_of(files[name])) for name in sorted(needed)
                ]
                self._refuse_other_files(wheels, variable)
                return wheels
            asked += missing
        raise WheelError(
            f"{variable}: no set of wheels for {target} satisfies {', '.join(missing)} as well; pin versions that do."
        )

    def _refuse_other_files(self, wheels: Sequence[Wheel], variable: str) -> None:
        """Refuse files of an index whose name the collection knows with another sha256."""
        pinned = {} if self.own else hashes(self._shipped)
        for wheel in wheels:
            if pinned.get(wheel.filename, wheel.sha256) != wheel.sha256:
                (self.wheels / wheel.filename).unlink(missing_ok=True)
                raise _not_ours(wheel.name, wheel.filename, variable)

    def _download(
        self,
        options: Sequence[str],
        requirements: Sequence[str],
        target: Target | None,
        variable: str,
        blame: Mapping[str, str] | None = None,
        constraints: Sequence[str] = (),
    ) -> list[Path]:
        """Fetch these requirements with pip, and return the files in the cache's folder of wheels."""
        self.wheels.mkdir(parents=True, exist_ok=True)
        with partial_file.staged_folder(self.wheels) as folder:
            wanted, files = folder / "requirements.txt", folder / "files"
            wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
            argv = ["download", f"--dest={files}", *options, f"--requirement={wanted}"]
            if constraints:
                limits = folder / "constraints.txt"
                limits.write_text("\n".join(constraints) + "\n", encoding="utf-8")
                argv.append(f"--constraint={limits}")
            try:
                self._ask(argv, target.environment() if target else {}, str(folder))
            except PipFailedError as error:
                package = lacking(error.output)
                sentence = explain(error.output, target, (blame or {}).get(package, variable))
                other, filename = other_file(error.output)
                if filename:
                    raise OtherFileError(sentence, other, filename) from error
                if not package:
                    raise (NoAnswerError if away(error.output) else WheelError)(sentence) from error
                raise NothingFitsError(sentence, package, certain=not away(error.output)) from error
            kept = []
            for path in sorted(files.iterdir()):
                path.chmod(0o644)
                kept.append(path.replace(self.wheels / path.name))
            return kept

    def _ask(self, argv: Sequence[str], markers: Mapping[str, str], scratch: str) -> None:
        if self.own:
            run_pip([*argv, "--no-index", f"--find-links={self.own}"], markers, scratch)
            return
        told = indexes.for_pip(self._project, pinned="--require-hashes" in argv)
        try:
            run_pip(argv, markers, scratch, told)
        except PipFailedError as error:
            said = PipFailedError(error.output + self._stranger(argv, markers, scratch, error.output, told))
            if not away(said.output):
                raise said from None
            try:  # the cache may hold all that is needed
                run_pip([*argv, "--no-index", f"--find-links={self.wheels}"], markers, scratch)
            except PipFailedError:
                raise said from None

    @staticmethod
    def _stranger(
        argv: Sequence[str], markers: Mapping[str, str], scratch: str, output: str, told: Mapping[str, str]
    ) -> str:
        """Ask once more in many words, where the index seems to have no version at all of a package."""
        if away(output) or not none_fits(output):
            return ""
        try:
            run_pip([*argv, "-vv"], markers, scratch, told)
        except PipFailedError as error:
            return not_an_index(error.output)
        return ""

    def _has(self, wheel: Wheel) -> bool:
        return _is(self.wheels / wheel.filename, wheel)

    @contextmanager
    def alone(self, path: Path) -> Iterator[None]:
        """Hold the right to write a lock; a second run waits and then reads it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk_files.held(
            path.parent / f".{path.name}.flock", "waiting for another run that chooses wheels", self._note
        ):
            yield

    @contextmanager
    def _full_disk_named(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in disk_files.FULL:
                raise disk_full(_existing(self._cache), what, error.errno) from error
            raise WheelError(f"The cache folder {self._cache} cannot be used: {error}.") from error


def bring(
    item: Mapping[str, Any],
    cache_dir: Path,
    warn: Callable[[str], object] = lambda _text: None,
    note: Callable[[str], None] = disk_files.on_stderr,
) -> list[tuple[Path, str]]:
    """Return the files of an entry ``{wheels: …, dest}`` or ``{sdist: …, dest}`` of a build.

    Args:
        item: ``wheels`` holds name, platform, variable, wheel_dir, and either requirements or pinned: wheels of
            :meth:`WheelStore.lock`. ``sdist`` holds name, version, sha256, variable and wheel_dir.
            ``dest`` is a folder, and for an sdist the file (or the folder to unpack into).
        cache_dir: the controller's cache.
        warn: takes warnings for the user.
        note: takes a line of life.

    Returns:
        Each file on the controller with its place in the build's work folder.

    Raises:
        WheelError: a file is not available.
    """
    dest = str(item["dest"])
    if "sdist" in item:
        wanted: Mapping[str, Any] = item["sdist"]
        variable = str(wanted.get("variable") or f"{wanted['name']}_sha256")
        store = WheelStore(cache_dir, str(wanted.get("wheel_dir") or ""))
        kind = PackedSdist if "subdirectory" in wanted else PlacedSdist if "url" in wanted else Sdist
        return [(store.sdist(kind.of(wanted, variable), variable), dest)]
    wanted = item["wheels"]
    variable = str(wanted.get("variable") or f"{wanted['name']}_requirements")
    target = Target.of(str(wanted["platform"]))
    store = WheelStore(cache_dir, str(wanted.get("wheel_dir") or ""), note=note)
    if "pinned" in wanted:
        wheels = [(PlacedWheel if "url" in entry else Wheel).of(entry) for entry in wanted["pinned"]]
    else:
        requirements = parse_requirements(wanted["requirements"], variable)
        wheels = store.lock(str(wanted["name"]), target, requirements, variable)
        for text in store.notes:
            warn(text)
    paths = store.files(wheels, target, variable)
    return [(path, dest if item.get("unpack") else f"{dest}/{path.name}") for path in paths]


def _pin(one: Wheel | Sdist, direct: Container[str]) -> str:
    """Return the line of a requirements.txt for a pinned file; ``direct`` has the names of those with an address."""
    place = f" @ {place_of(one)}" if one.name in direct else f"=={one.version}"
    return f"{one.name}{place} --hash=sha256:{one.sha256}"


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def _is(path: Path, wheel: Wheel) -> bool:
    return path.is_file() and sha256_of(path) == wheel.sha256


def _named(wheels: Sequence[Wheel], package: str) -> Wheel:
    return next((wheel for wheel in wheels if wheel.name == package), wheels[0])


def _not_ours(package: str, filename: str, variable: str) -> OtherFileError:
    return OtherFileError(
        f"The index's {filename} is not the file that this collection pins (its sha256 differs), so it is not used. Ask"
        f" the index's administrator why it was replaced; to use your own build of {package}, give it a version of its"
        f" own and name that in {variable}.",
        package,
        filename,
    )


@dataclass(frozen=True)
class _Question:
    """One question to the store, with what the collection's locks answer (empty without a lock)."""

    asked: dict[str, Any]
    target: Target
    requirements: list[Requirement]
    variable: str
    choice: Choice
    shipped: list[Answer]

    @property
    def shipped_digest(self) -> str:
        """Return a digest of the collection's answers."""
        known = [[asdict(wheel) for wheel in answer.wheels or ()] for answer in self.shipped]
        return hashlib.sha256(canonical(known)).hexdigest()


@dataclass(frozen=True)
class _Known:
    """The lock in the cache; it is final if the collection's locks are the ones that it was made with."""

    wheels: list[Wheel]
    final: bool


def _read_lock(path: Path, question: _Question) -> _Known | None:
    """Return the lock in the cache; None if it is missing, or answers another question."""
    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != LOCK_SCHEMA or document["asked"] != question.asked:
            return None
        wheels = list(wheels_in(document))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    ours = any(answer.wheels == tuple(wheels) for answer in question.shipped)
    final = ours or not question.shipped or document.get("instead_of") == question.shipped_digest
    return _Known(wheels, final)


def _replace_by(target: Path, fill: Callable[[Path], object]) -> None:
    with partial_file.staged(target.parent) as partial:
        fill(partial)
        partial.chmod(0o644)
        partial.replace(target)
