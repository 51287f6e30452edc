# SPDX-License-Identifier: Apache-2.0
"""Look at a Python environment that the user made: a venv, a conda environment, or the folder of a Python.

Nothing of it runs or is imported. Names of folders and a few small files tell its packages and versions.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from typing import Callable, Iterator

from .reading import Json, list_folder, read_regular, user_name

_MOST_READ = 1 << 16  # bytes of a file
_MOST_PACKAGES = 4096
_SHOWN = 5
_MACHINES = {3: "i386", 21: "ppc64le", 22: "s390x", 62: "x86_64", 183: "aarch64", 243: "riscv64"}  # e_machine of elf(5)
_ELF, _MACHINE_AT = b"\x7fELF", 18
PLAIN = re.compile(r"(/(?![.]{1,2}(/|$))[A-Za-z0-9_.+-]+)+")  # a path that shells and files of Python take as it is
_PROGRAM = re.compile(r"python(3([.]\d+)?)?")
_RELEASE = re.compile(r"python(3[.]\d+)")
_VERSION = re.compile(r"3[.]\d+([.]\d+)?[A-Za-z0-9+]*")
_INFO = re.compile(r"([A-Za-z0-9][A-Za-z0-9._]*)-([A-Za-z0-9_.+!~]{1,64})(-py[0-9.]+)?[.](dist-info|egg-info)")
_OF_CONDA = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)-([A-Za-z0-9_.+!]{1,64})-([A-Za-z0-9_.]{1,64})[.]json")
_NCCL = re.compile(r"nvidia-nccl-cu\d+")
_NCCL_FILE = re.compile(r"libnccl[.]so[.](2[.][0-9.]+)")
# Where a framework's own files tell the CUDA that it was built for.
_CUDA = {
    "torch": ("torch/version.py", re.compile(r"^cuda\b[^=\n]*=\s*['\"]([0-9.]{1,16})['\"]", re.MULTILINE)),
    "tensorflow": (
        "tensorflow/python/platform/build_info.py",
        re.compile(r"['\"]cuda_version['\"]\s*[,:]\s*['\"]([0-9.]{1,16})['\"]"),
    ),
}
_SYSTEM = "/usr"
_SOFTWARE = ("/opt/", "/usr/")
Frozen = Callable[["list[str]"], "set[str]"]


class UnusableError(Exception):
    """Why software of the user cannot be used: a clause, and what to do."""

    def __init__(self, problem: str, cure: str) -> None:
        """Keep both."""
        super().__init__(problem)
        self.cure = cure


def folder_of(path: str) -> str:
    """Return the folder of an environment, which may be named by its python."""
    folder, name = os.path.split(path.rstrip("/"))
    above, last = os.path.split(folder)
    return above if last == "bin" and _PROGRAM.fullmatch(name) else path.rstrip("/")


def among_software(path: str, root: str) -> bool:
    """Whether a path lies where software lies on every machine, or below the folder of the artifacts."""
    return path == _SYSTEM or f"{path}/".startswith((*_SOFTWARE, f"{root}/"))


def in_use(root: str) -> str:
    """Return the folder of the Python that the cluster's environment stands on; '' without one."""
    try:
        return folder_of(os.readlink(f"{root}/python_env/bin/python"))
    except OSError:
        return ""


def look(
    path: str,
    login_uid: int = 0,
    silent: frozenset[str] | set[str] = frozenset(),
    root: str = "/usr/local",
    frozen: Frozen | None = None,
) -> Json:
    """Look at an environment.

    Args:
        path: its folder, or its python.
        login_uid: the user who may own it beside root where software lies; -1 compares no owners.
        silent: folders on file systems that do not answer.
        root: folder of the artifacts, where software lies too.
        frozen: returns those of some paths that are on file systems that do not answer; without it, ``mpi`` stays
            empty.

    Returns:
        ``path`` and ``folder``; ``problem`` and ``cure``, '' where it can be used. Then also ``kind`` (venv, conda or
        prefix), ``interpreter`` and what it leads to (``real``), ``version``, ``machine``, ``base`` (the prefix of the
        Python that it was made of), ``headers`` (Python.h is there), ``shares`` (it sees the packages of that Python),
        ``folders`` of its packages, ``packages`` (their versions by name), ``cuda`` (by framework), ``nccl`` (path and
        version of the library beside them) and ``mpi``: for each package that was compiled for MPI, the ``folder`` that
        it lies in, the ``library`` of MPI and the ``nccl`` that it loads (a path where the package itself names its
        folder), and the version of the ``framework`` that it was compiled for.
    """
    folder = folder_of(path)
    found = {"path": path, "folder": folder}
    return answered(found, folder, silent, lambda: _looked(path, folder, login_uid, root, frozen))


def answered(found: Json, folder: str, silent: frozenset[str] | set[str], looked: Callable[[], Json]) -> Json:
    """Return what is known of software, with what a look at it finds, or with ``problem`` and ``cure``.

    Args:
        found: what is known before.
        folder: of the software.
        silent: folders on file systems that do not answer.
        looked: the look; it raises UnusableError or OSError.
    """
    found = {**found, "problem": "", "cure": ""}
    if folder in silent:
        problem = f"{folder} is on a file system that does not answer"
        return {**found, "problem": problem, "cure": "mount it again, or restart its server"}
    try:
        return {**found, **looked()}
    except UnusableError as error:
        return {**found, "problem": str(error), "cure": error.cure}
    except OSError as error:
        problem = f"{error.filename or folder} cannot be read ({error.strerror})"
        return {**found, "problem": problem, "cure": "look at this folder on the node"}


def changes(known: Json, silent: frozenset[str] | set[str] = frozenset()) -> str:
    """Return how an environment differs from what was proved, in a sentence without its full stop; '' if it does not.

    Args:
        known: ``existing`` (the path), ``python`` (version) and ``packages`` of the artifact that stands on it.
        silent: folders on file systems that do not answer.
    """
    path, before = str(known.get("existing")), known.get("packages")
    now = look(path, login_uid=-1, silent=silent)
    if now["problem"]:
        return str(now["problem"])
    version = str(known.get("python"))
    found = [] if now["version"] == version else [f"Python {now['version']} where the proof had {version}"]
    its = before if isinstance(before, dict) else {}
    found += differences(
        its, now["packages"], "where the proof had", "which the proof had", "which came after the proof"
    )
    return f"{path} has {_first(found)}" if found else ""


def differences(before: Json, now: Json, than: str, theirs: str, later: str) -> list[str]:
    """Return how the packages of an environment differ from others, each as what follows 'it has'.

    Args:
        before: versions of the others, by package.
        now: its own.
        than: words between its version and theirs.
        theirs: words after the packages that it lacks.
        later: words after the packages that the others lack.
    """
    found = [
        f"{name} {now[name]} {than} {before[name]}" for name in sorted(now) if before.get(name, now[name]) != now[name]
    ]
    gone = [name for name in sorted(before) if name not in now]
    more = [f"{name} {now[name]}".rstrip() for name in sorted(now) if name not in before]
    found += [f"no {_first(gone)}, {theirs}"] if gone else []
    return found + ([f"{_first(more)}, {later}"] if more else [])


def _first(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return f"{', '.join(names[:_SHOWN])}{f' and {rest} more' if rest > 0 else ''}"


# --- the environment -------------------------------------------------------------------------------------------------


def _looked(path: str, folder: str, login_uid: int, root: str, frozen: Frozen | None) -> Json:
    if not os.path.isdir(folder):
        raise UnusableError(f"{folder} does not exist", "make it there too, or name another python_env_existing")
    settings = _settings(f"{folder}/pyvenv.cfg")
    is_conda = os.path.isdir(f"{folder}/conda-meta")
    if not settings and not is_conda and not _libraries(folder):
        raise UnusableError(
            f"{folder} is not a Python environment (it has no pyvenv.cfg, no conda-meta and no lib/python3*)",
            "name the folder of a venv, of a conda environment or of a Python",
        )
    interpreter = _interpreter(path, folder)
    real = os.path.realpath(interpreter)
    home = settings.get("home", "") if settings else os.path.dirname(real if folder == _SYSTEM else interpreter)
    if login_uid >= 0:
        refuse_unsafe(f"{folder}/bin", other_owner(f"{folder}/bin", login_uid, root))
        refuse_unsafe(real, other_owner(real, login_uid, root), f"{interpreter} leads to {real}, and ")
    release = _release(real, settings, folder, interpreter)
    base = os.path.dirname(os.path.realpath(home)) if home else os.path.dirname(os.path.dirname(real))
    conda = _conda_packages(folder) if is_conda else {}
    shares = not settings or settings.get("include-system-site-packages", "").lower() == "true"
    folders = _folders(folder, base, release, is_venv=bool(settings), shares=shares)
    if login_uid >= 0:
        for place in _own_folders(folder, base, folders):
            refuse_unsafe(place, other_owner(place, login_uid, root))
    odd = [place for place in (real, base, *folders) if not PLAIN.fullmatch(place)]
    if odd:
        raise UnusableError(
            f"the Python or packages of {folder} lie in a folder with other signs than letters, digits and . _ + -",
            "make the environment in another folder",
        )
    packages: Json = {}
    for place in folders:
        packages = {**_packages(place), **packages}
    if len(packages) > _MOST_PACKAGES:
        raise UnusableError(f"{folder} has more than {_MOST_PACKAGES} packages", "name an environment with fewer")
    others = {f"conda:{name}": words for name, words in conda.items() if name.lower() not in packages}
    return {
        "kind": "venv" if settings else "conda" if is_conda else "prefix",
        "interpreter": interpreter,
        "real": real,
        "version": _version(settings, conda, base, release),
        "machine": machine_of(real),
        "base": base,
        "headers": os.path.isfile(f"{base}/include/python{release}/Python.h"),
        "shares": shares,
        "folders": folders,
        "packages": {**packages, **others},
        "cuda": {name: _cuda(name, folders) for name in _CUDA if name in packages},
        "nccl": _nccl(folders, base, packages),
        "mpi": _mpi(folders, root, frozen) if frozen else {},
    }


def _settings(path: str) -> dict[str, str]:
    """Return the settings of a venv; {} without the file."""
    try:
        text = read_regular(path, _MOST_READ).decode("utf-8", "replace")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UnusableError(f"{path} is not the file of a venv: {error}", "make the environment again") from None
    pairs = (line.partition("=") for line in text.split("\n"))
    return {name.strip().lower(): value.strip() for name, sign, value in pairs if sign}


def _libraries(prefix: str) -> list[str]:
    """Return the releases of Python whose standard library is below a folder."""
    names = (_RELEASE.fullmatch(name) for name in list_folder(f"{prefix}/lib"))
    return [name[1] for name in names if name and os.path.isfile(f"{prefix}/lib/{name[0]}/os.py")]


def _interpreter(path: str, folder: str) -> str:
    named = path.rstrip("/")
    for program in [named] if named != folder else [f"{folder}/bin/python", f"{folder}/bin/python3"]:
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return program
        if os.path.lexists(program):
            raise UnusableError(
                f"{program} leads to {os.path.realpath(program)}, which is not a program there",
                "install the Python that the environment was made of, or make the environment again",
            )
    raise UnusableError(f"{folder} has no bin/python", "name the folder of an environment with its Python")


def _release(real: str, settings: dict[str, str], folder: str, interpreter: str) -> str:
    """Return the first two numbers of the version."""
    named = _RELEASE.match(os.path.basename(real))
    told = _VERSION.match(settings.get("version") or settings.get("version_info") or "")
    releases = _libraries(folder)
    if named:
        return named[1]
    if told:
        return ".".join(told[0].split(".")[:2])
    if len(releases) == 1:
        return releases[0]
    raise UnusableError(
        f"the version of {interpreter} is not known", "name the program with its version, such as bin/python3.12"
    )


def _version(settings: dict[str, str], conda: dict[str, str], base: str, release: str) -> str:
    """Return the version as far as files of the environment tell; those of the distribution's headers come and go."""
    told = settings.get("version") or settings.get("version_info") or conda.get("python", "").partition("=")[0]
    if not told and base != _SYSTEM:
        text = _text(f"{base}/include/python{release}/patchlevel.h")
        line = re.search(r'#define\s+PY_VERSION\s+"([^"]+)"', text)
        told = line[1] if line else ""
    found = _VERSION.match(told)
    return found[0] if found and f"{found[0]}.".startswith(f"{release}.") else release


def machine_of(program: str) -> str:
    """Return the architecture that a program or a library is for; '' if it is neither."""
    handle = os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        head = os.read(handle, _MACHINE_AT + 2)
    finally:
        os.close(handle)
    number = int.from_bytes(head[_MACHINE_AT:], "little" if head[5:6] == b"\1" else "big")
    return _MACHINES.get(number, str(number)) if head.startswith(_ELF) else ""


def _folders(folder: str, base: str, release: str, *, is_venv: bool, shares: bool) -> list[str]:
    """Return the folders with packages in the order in which Python searches them, each once."""
    places = [f"{folder}/{name}/python{release}/site-packages" for name in ("lib", "lib64")] if is_venv else []
    if shares:
        local = ["/usr/local"] if base == _SYSTEM else []
        names = [f"python{release}/site-packages", f"python{release}/dist-packages", "python3/dist-packages"]
        places += [f"{prefix}/{lib}/{name}" for prefix in (*local, base) for lib in ("lib", "lib64") for name in names]
    found: dict[str, str] = {}
    for place in places:
        real = os.path.realpath(place)
        if os.path.isdir(real):
            found.setdefault(real, place)
    return list(found.values())


def _own_folders(folder: str, base: str, folders: list[str]) -> list[str]:
    """Return the folders with code that are not the distribution's."""
    if folder == _SYSTEM:
        return []
    if base != _SYSTEM:
        return [f"{base}/lib", *folders]
    return [one for one in folders if one.startswith(f"{folder}/")]


# --- its packages ----------------------------------------------------------------------------------------------------


def _plain(name: str) -> str:
    """Return the name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _packages(folder: str) -> Json:
    """Return the versions of the packages of a folder by name, as the names of their folders tell."""
    infos = (_INFO.fullmatch(name) for name in list_folder(folder))
    return {_plain(info[1]): info[2] for info in infos if info}


def _conda_packages(folder: str) -> dict[str, str]:
    """Return version and build of each package of conda, as the names of its records tell."""
    records = (_OF_CONDA.fullmatch(name) for name in list_folder(f"{folder}/conda-meta"))
    return {record[1]: f"{record[2]}={record[3]}" for record in records if record}


def _cuda(framework: str, folders: list[str]) -> str:
    """Return the CUDA that a framework was built for; '' without."""
    path, line = _CUDA[framework]
    for folder in folders:
        found = line.search(_text(f"{folder}/{path}"))
        if found:
            return found[1]
    return ""


def _nccl(folders: list[str], base: str, packages: Json) -> Json:
    """Return the library of NCCL that a framework of these folders finds beside itself."""
    own = [f"{folder}/nvidia/nccl/lib/libnccl.so.2" for folder in folders]
    for path in (*own, *([f"{base}/lib/libnccl.so.2"] if base != _SYSTEM else [])):
        if os.path.isfile(path):
            named = _NCCL_FILE.fullmatch(os.path.basename(os.path.realpath(path)))
            wheels = [version for name, version in packages.items() if _NCCL.fullmatch(name)] if path in own else []
            return {"path": path, "version": [*wheels, named[1] if named else ""][0]}
    return {"path": "", "version": ""}


# --- what its mpi4py and Horovod were compiled for --------------------------------------------------------------------

_OF_MPI = {
    "mpi4py": ("mpi4py", re.compile(r"MPI[.].*so")),
    "horovod-pytorch": ("horovod/torch", re.compile(r"mpi_lib_v2[.].*so")),
    "horovod-tensorflow": ("horovod/tensorflow", re.compile(r"mpi_lib[.].*so")),
}
# What they load, by the field that tells it, and the artifact of the cluster that may be installed only later.
_LOADED = {
    "library": (re.compile(r"lib(mpi|mpich|pmpi|mpi_[a-z0-9]+)[.]so[.0-9]*"), "openmpi"),
    "nccl": (re.compile(r"libnccl[.]so[.0-9]*"), "nccl"),
}
_MOST_HEADERS, _MOST_DYNAMIC, _MOST_WORD = 128, 1 << 16, 1 << 12
_LOAD, _DYNAMIC = 1, 2  # p_type of elf(5)
_NEEDED, _STRINGS, _RPATH, _RUNPATH = 1, 5, 15, 29  # d_tag


def _mpi(folders: list[str], root: str, frozen: Frozen) -> Json:
    found: Json = {}
    for name, (package, module) in _OF_MPI.items():
        top, _dash, framework = name.partition("-")
        for folder in [one for one in folders if os.path.isdir(f"{one}/{top}")][:1]:  # Python takes the first one
            modules = [one for one in list_folder(f"{folder}/{package}") if module.fullmatch(one)]
            loaded = [_loaded(f"{folder}/{package}/{one}", root, frozen) for one in modules]
            if loaded:
                its = loaded[0] if loaded.count(loaded[0]) == len(loaded) else dict.fromkeys(_LOADED, "")
                found[name] = {"folder": folder, **its, "framework": _built_for(f"{folder}/{top}", framework)}
    return found


def _built_for(package: str, framework: str) -> str:
    """Return the version of the framework that a package notes beside its modules; '' without a note."""
    text = _text(f"{package}/metadata.json") if framework else ""
    found = re.search(rf'"{framework}"\s*:\s*"([A-Za-z0-9_.+!~]{{1,64}})"', text)
    return found[1] if found else ""


def _loaded(module: str, root: str, frozen: Frozen) -> dict[str, str]:
    """Return the libraries that a compiled module loads, '' for none: its path, or its name where others say it.

    On a file system that does not answer, the loader would wait for the first folder that the module names, so the
    library counts as there.
    """
    try:
        needed, places = _dynamic(module)
    except (OSError, ValueError, OverflowError, struct.error):
        return dict.fromkeys(_LOADED, "")
    origin = os.path.dirname(os.path.realpath(module))
    found = {}
    for field, (library, artifact) in _LOADED.items():
        name = next((one for one in needed if library.fullmatch(one)), "")
        named = [os.path.normpath(f"{place.replace('$ORIGIN', origin)}/{name}") for place in places if name]
        paths = [path for path in named if PLAIN.fullmatch(path)]
        silent = frozen(paths)
        there = (
            path
            for path in paths
            if path in silent or os.path.dirname(path) == f"{root}/{artifact}/lib" or os.path.exists(path)
        )
        found[field] = next(there, name)
    return found


def _dynamic(path: str) -> tuple[list[str], list[str]]:
    """Return the libraries that a shared object of 64 bits needs, and the folders that it names for them.

    Raises:
        OSError: it cannot be read.
        ValueError, OverflowError, struct.error: it is not such a file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("not a regular file")
        head = os.pread(handle, 64, 0)
        if not head.startswith(_ELF + b"\2"):
            raise ValueError("not an ELF file of 64 bits")
        order = "<" if head[5:6] == b"\1" else ">"
        at, size, count = struct.unpack_from(f"{order}Q14xHH", head, 32)
        rows = os.pread(handle, size * min(count, _MOST_HEADERS), at)
        parts = [struct.unpack_from(f"{order}II6Q", rows, start) for start in range(0, len(rows), max(size, 1))]
        table = next(part for part in parts if part[0] == _DYNAMIC)
        entries = list(_pairs(order, os.pread(handle, min(table[5], _MOST_DYNAMIC), table[2])))
        strings = next((value for tag, value in entries if tag == _STRINGS), 0)
        start = next((strings - one[3] + one[2] for one in parts if one[0] == _LOAD and 0 <= strings - one[3] < one[5]))
        words: dict[int, list[str]] = {tag: [] for tag in (_NEEDED, _RPATH, _RUNPATH)}
        for tag, value in entries:
            if tag in words:
                words[tag].append(os.pread(handle, _MOST_WORD, start + value).partition(b"\0")[0].decode("ascii"))
    except StopIteration:
        raise ValueError("no names") from None
    finally:
        os.close(handle)
    return words[_NEEDED], [one for line in words[_RUNPATH] or words[_RPATH] for one in line.split(":") if one]


def _pairs(order: str, data: bytes) -> Iterator[tuple[int, int]]:
    return struct.iter_unpack(f"{order}qQ", data[: len(data) // 16 * 16])  # type: ignore[return-value]


def _text(path: str) -> str:
    try:
        return read_regular(path, _MOST_READ).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


# --- who may write to it ---------------------------------------------------------------------------------------------


def other_owner(path: str, login_uid: int, root: str) -> int:
    """Return who may own a path beside root: elsewhere than where software lies, nobody."""
    return login_uid if among_software(os.path.realpath(path), root) else 0


def refuse_unsafe(path: str, login_uid: int, before: str = "") -> None:
    """Refuse a path that other users could change, or that users cannot reach.

    Args:
        path: a folder, a program or a library; the folders above it count, and so does what links lead to.
        login_uid: the user who may own them beside root.
        before: words before what is wrong.

    Raises:
        UnusableError: a user could change it, or only root can reach it.
    """
    for place in dict.fromkeys((*_above(path), *_above(os.path.realpath(path)))):
        status = os.lstat(place)
        if status.st_uid not in {0, login_uid}:
            raise UnusableError(
                f"{before}{place} belongs to {user_name(status.st_uid)}, who could change what jobs run",
                f"give it to root ('chown -R root {place}'), or move the software out of it",
            )
        if stat.S_ISLNK(status.st_mode):
            continue
        mode = stat.S_IMODE(status.st_mode)
        if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and status.st_gid not in {0, _own_group(login_uid)}):
            raise UnusableError(
                f"{before}{place} can be written by others than its owner (mode {mode:04o}), who could change what"
                " jobs run",
                f"close it ('chmod go-w {place}'), or move the software out of it",
            )
        needed = 0o005 if mode & 0o100 else 0o004  # to read, and to enter or to run
        if mode & needed != needed:
            raise UnusableError(
                f"{before}{place} can be used by its owner alone (mode {mode:04o}), and jobs of users need it",
                "move the software to a folder that all users can read, such as /opt",
            )


def _above(path: str) -> list[str]:
    """Return a path and the folders above it, / first."""
    parts = path.strip("/").split("/")
    return ["/", *("/" + "/".join(parts[: count + 1]) for count in range(len(parts)))]


def _own_group(uid: int) -> int:
    """Return the group of a user whose only member is this user, by its number; -1 for root."""
    return uid or -1
