# SPDX-License-Identifier: Apache-2.0
"""Finds Python wheels for the nodes on the controller, pins them in a lock, and keeps them in the cache.

The nodes' Python and C library decide which wheels fit, not the controller's, and nodes never ask an index. Which
index the controller asks is the business of its user's own pip configuration.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, canonical, sha256_of
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.source import disk_full
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

LOCK_SCHEMA = 1
_PIP_TIMEOUT_S = 1800
_ROUNDS = 8
_PLATFORM = re.compile(r"-(?P<machine>x86_64|aarch64|ppc64le|s390x)-glibc(?P<glibc>2\.\d+)-py(?P<python>3\.\d+)(?:-|$)")
_SHA256 = re.compile(r"^[0-9a-f]{64}$")
_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
_VERSION = re.compile(r"^[0-9][A-Za-z0-9.+!]*$")
# The first minor release of glibc that wheels for a machine can be built against (PEP 600), and the names that
# stood for a release before.
_OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17, "ppc64le": 17, "s390x": 17}
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
# What pip says when the index did not answer; a package that is not there says none of it.
_NO_ANSWER = re.compile(r"Retrying \(Retry|Could not fetch URL|ConnectionError|Max retries exceeded|ReadTimeoutError")
_NOTHING_FITS = re.compile(r"^ERROR: No matching distribution found for (.+?)(?: \(from .*)?$", re.MULTILINE)
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
# pip ends with the process that started it (PR_SET_PDEATHSIG, SIGTERM), so a cancelled run leaves none behind. And it
# judges markers by its own Python whatever --python-version says (pypa/pip #6117), unless it is told another answer.
_RUN_PIP = """
import ctypes, json, runpy, sys
ctypes.CDLL(None).prctl(1, 15)
environment = json.loads(sys.argv.pop(1))
if environment:
    from pip._vendor.packaging import markers
    if callable(getattr(markers, "default_environment", None)):
        markers.default_environment = lambda: dict(environment)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


class WheelError(ArtifactError):
    """A wheel or its source could not be had; the message names it and says what to do."""


class NothingFitsError(WheelError):
    """Nothing is offered of one package that fits.

    ``package`` is its canonical name; ``certain`` is false where an index did not answer and so may have it.
    """

    def __init__(self, message: str, package: str, *, certain: bool) -> None:
        """Keep the facts beside the message."""
        super().__init__(message)
        self.package, self.certain = package, certain


@dataclass(frozen=True)
class Target:
    """The interpreter and C library that wheels must fit."""

    platform: str
    python: str  # major.minor
    machine: str
    glibc: str

    @classmethod
    def of(cls, platform: str) -> Target:
        """Return the target that a platform's id names.

        Raises:
            WheelError: the id names none.
        """
        match = _PLATFORM.search(platform)
        if not match:
            raise WheelError(
                f"The platform '{platform}' names no machine, glibc and Python that wheels exist for;"
                " an id like debian-12-x86_64-glibc2.36-py3.11 is expected."
            )
        return cls(platform, match["python"], match["machine"], match["glibc"])

    def __str__(self) -> str:
        """Return the words for messages."""
        return f"Python {self.python} on {self.machine} with glibc {self.glibc}"

    def tags(self) -> list[str]:
        """Return the platform tags that fit, the newest C library first."""
        tags = []
        for minor in range(int(self.glibc.split(".")[1]), _OLDEST_GLIBC[self.machine] - 1, -1):
            tags.append(f"manylinux_2_{minor}_{self.machine}")
            if minor in _OLD_NAMES:
                tags.append(f"{_OLD_NAMES[minor]}_{self.machine}")
        return [*tags, f"linux_{self.machine}"]

    def environment(self) -> dict[str, str]:
        """Return what PEP 508 markers are judged by on the node."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel."""

    name: str
    version: str
    filename: str
    sha256: str


_WHEEL_FIELDS = tuple(field.name for field in fields(Wheel))


@dataclass(frozen=True)
class Sdist:
    """One pinned source archive of a Python package."""

    name: str
    version: str
    sha256: str

    @classmethod
    def of(cls, entry: Mapping[str, Any], variable: str) -> Sdist:
        """Return the typed form of a mapping.

        Raises:
            WheelError: name, version or sha256 is not one.
        """
        sdist = cls(*(str(entry.get(field) or "") for field in ("name", "version", "sha256")))
        if not _NAME.match(sdist.name) or not _VERSION.match(sdist.version):
            raise WheelError(f"'{sdist.name} {sdist.version}' is no name and version of a Python package.")
        if not _SHA256.match(sdist.sha256):
            raise WheelError(
                f"The source of {sdist.name} {sdist.version} has no known sha256 (64 hex digits); set {variable} to the"
                " one its publisher names, or choose a version that is known."
            )
        return sdist


def parse_requirements(texts: Iterable[Any], variable: str) -> list[Requirement]:
    """Return typed requirements.

    Args:
        texts: requirements as in PEP 508, without addresses.
        variable: the user's variable they stand in, for messages.

    Raises:
        WheelError: a text is not one; nothing that could be an option, a path or an address gets through.
    """
    parsed = []
    for text in texts:
        try:
            requirement = Requirement(str(text))
        except InvalidRequirement as error:
            raise WheelError(
                f"{variable}: {str(text)!r} is no requirement; write a package's name with versions if need be,"
                " like numpy or numpy>=1.26,<3."
            ) from error
        if requirement.url:
            raise WheelError(
                f"{variable}: {str(text)!r} names an address; put the wheel into the wheel folder and name the package."
            )
        parsed.append(requirement)
    return parsed


@dataclass(frozen=True)
class Choice:
    """Sets of requirements in the order of preference; the first that the index has for the target is taken.

    ``variable`` is the user's variable that asks for them. Without alternatives there is nothing to choose.
    """

    alternatives: tuple[tuple[Requirement, ...], ...] = ()
    variable: str = ""

    @classmethod
    def of(cls, alternatives: Iterable[Iterable[Any]], variable: str) -> Choice:
        """Return the typed form of lists of texts.

        Raises:
            WheelError: see :func:`parse_requirements`.
        """
        return cls(tuple(tuple(parse_requirements(texts, variable)) for texts in alternatives), variable)

    def taken(self, wheels: Iterable[Wheel]) -> int:
        """Return which alternative pinned wheels fulfil, counted from 0; -1 for none."""
        have = {wheel.name: wheel.version for wheel in wheels}

        def holds(requirement: Requirement) -> bool:
            version = have.get(str(canonicalize_name(requirement.name)))
            return version is not None and requirement.specifier.contains(version, prereleases=True)

        return next((place for place, wanted in enumerate(self.alternatives) if all(map(holds, wanted))), -1)


NO_CHOICE = Choice()


def _bare(requirement: Requirement) -> str:
    """Return the requirement without its marker, which was judged already."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def _applies(requirement: Requirement, environment: Mapping[str, str], extras: Iterable[str] = ()) -> bool:
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras))


@dataclass(frozen=True)
class Metadata:
    """What a wheel says about itself."""

    name: str
    version: str
    requires: tuple[Requirement, ...]


def read_metadata(wheel: Path) -> Metadata:
    """Return a wheel's own name, version and requirements.

    Raises:
        WheelError: it is no wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
            headers = HeaderParser().parsestr(archive.read(name).decode("utf-8", "replace"))
        requires = tuple(Requirement(text) for text in headers.get_all("Requires-Dist", []))
        return Metadata(str(canonicalize_name(headers["Name"])), str(headers["Version"]), requires)
    except (zipfile.BadZipFile, StopIteration, InvalidRequirement, KeyError, TypeError) as error:
        raise WheelError(f"{wheel} is no readable wheel ({error!r}); remove it and try again.") from error


def closure(
    wanted: Sequence[Requirement], have: Mapping[str, Metadata], environment: Mapping[str, str]
) -> tuple[set[str], list[str]]:
    """Follow requirements as the node would, not as the controller's Python does.

    Args:
        wanted: where to begin.
        have: wheels at hand, by canonical name.
        environment: what markers are judged by.

    Returns:
        The canonical names that are needed, and requirements that no wheel at hand satisfies.
    """
    needed: set[str] = set()
    missing: dict[str, None] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = [requirement for requirement in wanted if _applies(requirement, environment)]
    while queue:
        requirement = queue.pop()
        name, extras = str(canonicalize_name(requirement.name)), frozenset(requirement.extras)
        found = have.get(name)
        if found is None or not requirement.specifier.contains(found.version, prereleases=True):
            missing[_bare(requirement)] = None
            continue
        needed.add(name)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        queue += [item for item in found.requires if _applies(item, environment, extras)]
    return needed, list(missing)


def lacking(output: str) -> str:
    """Return the canonical name of the package that pip found nothing fitting of; empty where that is not its news.

    Args:
        output: what a pip that failed wrote.
    """
    nothing = _NOTHING_FITS.search(output)
    if nothing is None or (_NO_ANSWER.search(output) and "from versions: none" in output):
        return ""
    return str(canonicalize_name(re.split(r"[^A-Za-z0-9._-]", nothing.group(1).strip(), maxsplit=1)[0]))


def explain(output: str, target: Target | None, variable: str) -> str:
    """Return one sentence for a pip that failed.

    Args:
        output: what pip wrote.
        target: what the wheels were for; None for a source archive.
        variable: the user's variable that named the packages.
    """
    nothing = _NOTHING_FITS.search(output)
    no_answer = bool(_NO_ANSWER.search(output))
    place = f"put what is needed into a folder of the controller and name it in {_folder_variable(variable)}"
    if no_answer and (nothing is None or "from versions: none" in output):
        what = f" while looking for {nothing.group(1)}" if nothing else ""
        return (
            f"The package index of this controller's pip configuration did not answer{what}, and the cache does not"
            f" hold what is needed; repair the way to the index, or {place}."
        )
    if nothing:
        found = _VERSIONS.search(output)
        offered = [] if not found or found.group(1) == "none" else found.group(1).split(", ")
        last = f"; the newest that fit are {', '.join(offered[-3:])}" if offered else ""
        also = " One index did not answer, or late; if it has what is missing, run again." if no_answer else ""
        fits = f"no wheel for {target} (platform {target.platform})" if target else "no source archive"
        return (
            f"{variable}: the index offers {fits} of {nothing.group(1)}{last}. Name a version that has one, or build"
            f" the wheel and {place}.{also}"
        )
    if "DO NOT MATCH THE HASHES" in output:
        names = ", ".join(re.findall(r"^\s+(\S+) from ", output, re.MULTILINE)) or "a package"
        return (
            f"The index's file of {names} is not the one that was pinned (its sha256 differs); it was not used."
            f" If the change is known and wanted, pin it anew ({variable}, or remove the lock that names it)."
        )
    if "ResolutionImpossible" in output or "conflicting dependencies" in output:
        cause = "; ".join(re.findall(r"^    (\S.* depends on .*|The user requested .*)$", output, re.MULTILINE)[:4])
        unfit = re.search(r"no matching distributions available[^\n]*\n    (\S+)", output)
        also = f"; of {unfit.group(1)} no wheel for {target} satisfies them all" if unfit and target else ""
        return f"{variable}: these requirements exclude each other: {cause or 'see pip'}{also}. Loosen one of them."
    lines = [line for line in output.splitlines() if line.strip()]
    return f"{variable}: pip failed on this controller: {' '.join(lines[-3:])}"


def _folder_variable(variable: str) -> str:
    role = re.match(r"[a-z0-9_]+?(?=_(?:requirements|sha256|framework_version|version|build_requirements)$)", variable)
    return f"{role.group(0)}_wheel_dir" if role else "the role's wheel folder"


class _PipFailedError(Exception):
    def __init__(self, output: str) -> None:
        super().__init__(output)
        self.output = output


def _pip(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    if importlib.util.find_spec("pip") is None:
        raise WheelError(
            f"The Python that runs ansible ({sys.executable}) has no pip, which fetches wheels for the nodes; add it,"
            f" for example with 'uv pip install --python {sys.executable} pip' or the distribution's python3-pip."
        )
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RUN_PIP, json.dumps(environment), *_PIP_OPTIONS, *arguments],
            env={**os.environ, "LC_ALL": "C", "NO_COLOR": "1", "COLUMNS": "200", "PIP_PROGRESS_BAR": "off"},
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_PIP_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise WheelError(f"pip did not end within {_PIP_TIMEOUT_S} s on this controller.") from error
    if done.returncode:
        if "No space left on device" in done.stdout:
            raise OSError(errno.ENOSPC, "No space left on device")
        raise _PipFailedError(done.stdout)


_PIP_OPTIONS = ("--disable-pip-version-check", "--no-input")


def _for_target(target: Target) -> list[str]:
    options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", target.python]
    return options + [f"--platform={tag}" for tag in target.tags()]


class WheelStore:
    """Wheels, source archives and locks below one cache folder; safe for several runs at the same time."""

    def __init__(self, cache_dir: Path, wheel_dir: str = "") -> None:
        """Use ``cache_dir``.

        Args:
            cache_dir: the controller's cache; folders below it are made when something is stored.
            wheel_dir: a folder of the user to look into instead of an index; empty to ask the index.

        Raises:
            WheelError: ``wheel_dir`` is no folder.
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

        The index is asked once; from then on the answer is read from the cache.

        Args:
            name: what the wheels are for; part of the lock's name.
            target: what they must fit.
            requirements: what is wanted.
            variable: the user's variable that names it, for messages.
            choice: what is wanted besides, in the best way that there is. An index that does not answer is no reason
                to take a way that is worse.

        Raises:
            WheelError: something has no fitting wheel, or the index does not answer.
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
        """Return the files of locked wheels, fetching again what the cache has lost or what was changed in it.

        Raises:
            WheelError: a wheel cannot be had with the sha256 of the lock.
        """
        with self._full_disk_named("wheels"):
            lost = [wheel for wheel in wheels if not self._has(wheel)]
            if lost:
                pins = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in lost]
                options = ["--no-deps", "--require-hashes", *_for_target(target)]
                self._download(options, pins, target, variable)
            still = [wheel for wheel in lost if not self._has(wheel)]
        if still:
            raise WheelError(f"{still[0].filename} could not be had again with the sha256 that its lock names.")
        return [self.wheels / wheel.filename for wheel in wheels]

    def sdist(self, sdist: Sdist, variable: str) -> Path:
        """Return the verified source archive of a package.

        Raises:
            WheelError: it cannot be had with this sha256.
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
            # pip checks the hash before it runs anything of the archive
            options = ["--no-deps", "--require-hashes", f"--no-binary={sdist.name}"]
            pins = [f"{sdist.name}=={sdist.version} --hash=sha256:{sdist.sha256}"]
            for path in self._download(options, pins, None, variable):
                if sha256_of(path) == sdist.sha256:
                    path.replace(target)
                    return target
        raise WheelError(f"{sdist.name} {sdist.version} could not be had with the sha256 {sdist.sha256}.")

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
        """Return the wheels; ``blame`` names the variables that ask for single packages."""
        environment = target.environment()
        asked = [_bare(requirement) for requirement in requirements if _applies(requirement, environment)]
        if not asked:
            return []
        for _ in range(_ROUNDS):
            # whether pip understood the node's markers is seen here; what it left out is asked for by name
            found = [
                (path, read_metadata(path))
                for path in self._download(_for_target(target), asked, target, variable, blame)
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
        """Return what pip fetched for these requirements, moved into the cache's folder of wheels."""
        self.wheels.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=self.wheels) as name:
            folder = Path(name)
            wanted, files = folder / "requirements.txt", folder / "files"
            wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
            argv = ["download", f"--dest={files}", *options, f"--requirement={wanted}"]
            try:
                self._ask(argv, target.environment() if target else {})
            except _PipFailedError as error:
                package = lacking(error.output)
                sentence = explain(error.output, target, (blame or {}).get(package, variable))
                if not package:
                    raise WheelError(sentence) from error
                raise NothingFitsError(sentence, package, certain=not _NO_ANSWER.search(error.output)) from error
            kept = []
            for path in sorted(files.iterdir()):
                path.chmod(0o644)
                kept.append(path.replace(self.wheels / path.name))
            return kept

    def _ask(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        if self._own:
            _pip([*argv, "--no-index", f"--find-links={self._own}"], environment)
            return
        try:
            _pip(argv, environment)
        except _PipFailedError as error:
            if not _NO_ANSWER.search(error.output):
                raise
            try:  # what was fetched for another cluster may be all that is needed
                _pip([*argv, "--no-index", f"--find-links={self.wheels}"], environment)
            except _PipFailedError:
                raise error from None

    def _has(self, wheel: Wheel) -> bool:
        path = self.wheels / wheel.filename
        return path.is_file() and sha256_of(path) == wheel.sha256

    @contextmanager
    def _alone(self, path: Path) -> Iterator[None]:
        """Hold the right to make a lock; a second run waits and then finds it made."""
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
    """Return the wheels of a lock; None where there is none, or what is there is not one for this question."""
    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != LOCK_SCHEMA or document["asked"] != asked:
            return None
        return [Wheel(**{field: str(entry[field]) for field in _WHEEL_FIELDS}) for entry in document["wheels"]]
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


def bring(item: Mapping[str, Any], cache_dir: Path) -> list[tuple[Path, str]]:
    """Return the files that an entry ``{wheels: …, dest}`` or ``{sdist: …, dest}`` of a build stands for.

    Args:
        item: ``wheels`` holds name, platform, variable, wheel_dir and either requirements or pinned, the wheels that
            M(clusterctl.hpc.wheel_lock) answered with; ``sdist`` holds name, version,
            sha256, variable and wheel_dir. ``dest`` is a folder, and for an sdist the file (or folder to unpack into).
        cache_dir: the controller's cache.

    Returns:
        Each file on the controller with its place in the build's work folder.

    Raises:
        WheelError: one of them cannot be had.
    """
    dest = str(item["dest"])
    if "sdist" in item:
        wanted: Mapping[str, Any] = item["sdist"]
        variable = str(wanted.get("variable") or f"{wanted['name']}_sha256")
        store = WheelStore(cache_dir, str(wanted.get("wheel_dir") or ""))
        return [(store.sdist(Sdist.of(wanted, variable), variable), dest)]
    wanted = item["wheels"]
    variable = str(wanted.get("variable") or f"{wanted['name']}_requirements")
    target = Target.of(str(wanted["platform"]))
    store = WheelStore(cache_dir, str(wanted.get("wheel_dir") or ""))
    if "pinned" in wanted:
        wheels = [Wheel(**{field: str(entry[field]) for field in _WHEEL_FIELDS}) for entry in wanted["pinned"]]
    else:
        requirements = parse_requirements(wanted["requirements"], variable)
        wheels = store.lock(str(wanted["name"]), target, requirements, variable)
    paths = store.files(wheels, target, variable)
    return [(path, dest if item.get("unpack") else f"{dest}/{path.name}") for path in paths]
