# SPDX-License-Identifier: Apache-2.0
"""Look at an Open MPI that clusterctl did not install: NVIDIA's HPC-X, that of EFA or OFED, or one that the user built.

Names and sizes of files and its header tell most. Its ompi_info tells the rest, and runs as nobody.
"""

from __future__ import annotations

import hashlib
import os
import re

from .existing_python import PLAIN, UnusableError, answered, machine_of, other_owner, refuse_unsafe
from .reading import Json, matching_paths, output_of, read_regular

_PROGRAMS = ("mpirun", "mpicc", "ompi_info")
_DAEMONS = ("orted", "prted")
_MARKER = ".clusterctl.json"  # of artifacts.py, which imports this module
_PLACES = ("/opt/hpcx*/ompi", "/opt/amazon/openmpi*", "/usr/mpi/gcc/openmpi-*", "/opt/openmpi*")
# What HPC-X has beside its Open MPI, which finds it by LD_LIBRARY_PATH alone.
_HPCX, _BESIDE = "hpcx-init.sh", ("ucx", "ucc", "hcoll", "sharp")
_NUMBER = re.compile(r"^#define OMPI_(MAJOR|MINOR|RELEASE)_VERSION (\d{1,4})$", re.MULTILINE)
_VERSION = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}[A-Za-z0-9]{0,16}")
_NUMBERS = re.compile(r"\d+\.\d+\.\d+")
_COMPONENT = re.compile(r"mca:(pml|mtl|btl|reachable):([a-z0-9_]{1,32}):version:.*component:([A-Za-z0-9_.]{1,32})")
_PMIX = "--with-pmix="
_NOBODY = 65534
_ANSWER_S = 30.0
_MOST_FILES, _MOST_READ = 20_000, 1 << 22


def look(
    path: str, login_uid: int = 0, silent: frozenset[str] | set[str] = frozenset(), root: str = "/usr/local"
) -> Json:
    """Look at an Open MPI; the first arguments are those of :func:`existing_python.look`.

    Returns:
        ``path``; ``problem`` and ``cure``, '' where it can be used. Then also ``version``, ``machine``, ``library``
        (the folder of libmpi with links resolved), ``folders`` (those that its programs need in LD_LIBRARY_PATH),
        ``options`` (of configure, those that tell UCX, libnl and PMIx), ``components`` (versions of those that carry
        messages, such as ``pml/ucx``), ``cuda``, ``fortran`` and ``files`` (a digest of the names and sizes of its
        files).
    """
    return answered({"path": path}, path, silent, lambda: _looked(path, login_uid, root))


def changes(known: Json, silent: frozenset[str] | set[str] = frozenset()) -> str:
    """Return how an Open MPI differs from what was proved, in a sentence without its full stop; '' if it does not.

    Args:
        known: ``existing`` (the path), ``version`` and ``files`` of the artifact that stands on it.
        silent: folders on file systems that do not answer.
    """
    path = str(known.get("existing"))
    now = answered({}, path, silent, lambda: {"files": _digest(_folders(path)), "release": release(path)})
    if now["problem"] or now["files"] == known.get("files"):
        return str(now["problem"])
    before = str(known.get("version"))
    numbers = _NUMBERS.match(before)
    if not numbers or numbers[0] != now["release"]:
        return f"{path} has Open MPI {now['release']} where the proof had {before}"
    return f"{path} has files of other names or sizes than at the proof"


def of_vendors(silent: frozenset[str] | set[str] = frozenset()) -> Json:
    """Return the Open MPIs that stand where vendors put theirs, each with ``path`` and ``version``."""
    found: dict[str, Json] = {}
    for path in (one for one in places(silent) if one not in silent and PLAIN.fullmatch(one)):
        version = release(path) if os.access(f"{path}/bin/mpirun", os.X_OK) else ""
        if version:  # links to one of them count once
            found.setdefault(os.path.realpath(path), {"path": path, "version": version})
    return {"vendor_openmpis": list(found.values())}


def parents() -> list[str]:
    """Return the folders that :func:`places` lists; nothing is asked of them."""
    return list(dict.fromkeys(map(_parent, _PLACES)))


def places(silent: frozenset[str] | set[str]) -> list[str]:
    """Return the folders in which vendors' Open MPIs may be; nothing is asked of them, nor of the ``silent`` ones."""
    return [path for pattern in _PLACES if _parent(pattern) not in silent for path in matching_paths(pattern)]


def _parent(pattern: str) -> str:
    return os.path.dirname(pattern.partition("*")[0])


def in_use(root: str) -> str:
    """Return the folder of the Open MPI that the cluster's leads to; '' where it leads to none."""
    try:
        return os.path.dirname(os.readlink(f"{root}/openmpi/include"))
    except OSError:
        return ""


def release(path: str) -> str:
    """Return the three numbers of the version that its header names; '' where it has none of Open MPI."""
    try:
        text = read_regular(f"{path}/include/mpi.h", _MOST_READ).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
    numbers = dict(_NUMBER.findall(text))
    return ".".join(numbers[part] for part in ("MAJOR", "MINOR", "RELEASE")) if len(numbers) == 3 else ""  # noqa: PLR2004


def _folders(path: str) -> list[str]:
    """Return the folders with its libraries and those of HPC-X beside it; its own is the first.

    Raises:
        UnusableError: it is not the folder of an Open MPI.
    """
    if not os.path.isdir(path):
        raise UnusableError(f"{path} does not exist", "install it there too, or name another openmpi_existing")
    if os.path.exists(f"{path}/{_MARKER}"):
        raise UnusableError(f"{path} was installed by clusterctl", "leave openmpi_existing empty")
    lacking = next((one for one in _PROGRAMS if not os.access(f"{path}/bin/{one}", os.X_OK)), "")
    if lacking:
        raise UnusableError(
            f"{path} has no bin/{lacking}", "name the folder of a whole Open MPI, such as /opt/hpcx/ompi"
        )
    own = next((f"{path}/{one}" for one in ("lib", "lib64") if os.path.exists(f"{path}/{one}/libmpi.so")), "")
    if not own or not release(path):
        lacks = "include/mpi.h of Open MPI" if own else "lib/libmpi.so"
        raise UnusableError(f"{path} has no {lacks}", "name the folder of a whole Open MPI, such as /opt/hpcx/ompi")
    above = os.path.dirname(path)
    beside = [f"{above}/{one}/lib" for one in _BESIDE] if os.path.exists(f"{above}/{_HPCX}") else []
    return [own, *filter(os.path.isdir, beside)]


def _looked(path: str, login_uid: int, root: str) -> Json:
    folders = _folders(path)
    own = os.path.realpath(folders[0])
    if login_uid >= 0:
        plugins = [one for one in (f"{folders[0]}/openmpi", f"{path}/share") if os.path.isdir(one)]
        files = [*(f"{path}/bin/{one}" for one in (*_PROGRAMS, *_DAEMONS)), f"{folders[0]}/libmpi.so"]
        files = [one for one in files if os.path.exists(one)]
        for place in (f"{path}/bin", f"{path}/include", *folders, *plugins, *files):
            refuse_unsafe(place, other_owner(place, login_uid, root))
    if not PLAIN.fullmatch(own):
        raise UnusableError(
            f"{path} leads to a folder with other signs than letters, digits and . _ + -", "move it to another folder"
        )
    return {
        "machine": machine_of(f"{own}/libmpi.so"),
        "library": own,
        "folders": folders,
        "files": _digest(folders),
        **_told(path, folders),
    }


def _digest(folders: list[str]) -> str:
    """Return a digest of the names and sizes of all files below folders of libraries.

    Raises:
        UnusableError: there are too many.
    """
    found: list[str] = []
    for top in folders:
        for folder, _unused, names in os.walk(top):
            found += [f"{folder}/{name} {os.lstat(f'{folder}/{name}').st_size}" for name in names]
            if len(found) > _MOST_FILES:
                raise UnusableError(f"{top} has more than {_MOST_FILES} files", "name the folder of Open MPI itself")
    return hashlib.sha256("\n".join(sorted(found)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _told(path: str, folders: list[str]) -> Json:
    """Return what its ompi_info tells.

    Raises:
        UnusableError: it does not run.
    """
    wanted = {"OPAL_PREFIX": path, "LD_LIBRARY_PATH": ":".join(folders)}
    user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": "/", **wanted}
    argv = [f"{path}/bin/ompi_info", "--parsable", "--all"]
    status, output = output_of(argv, _ANSWER_S, env=environment, cwd="/", **user)
    lines = output.decode("utf-8", "replace").split("\n")
    by_name = dict(line.rpartition(":")[::2] for line in lines)
    version = by_name.get("ompi:version:full", "")
    if status or not _VERSION.fullmatch(version):
        words = " ".join(f"{name}={value}" for name, value in wanted.items())
        raise UnusableError(f"{argv[0]} does not run there", f"see why: '{words} {argv[0]}'")
    components = {f"{one[1]}/{one[2]}": one[3] for one in map(_COMPONENT.match, lines) if one}
    configured = next((line for line in lines if line.startswith("config:cli:")), "")
    named = re.findall(rf"{_PMIX}([A-Za-z0-9_./+-]+)", configured)
    own_pmix = os.path.exists(f"{folders[0]}/libpmix.so.2") or version.startswith("4.")
    return {
        "version": version,
        "components": components,
        "options": [
            f"{_PMIX}{[*named[-1:], 'internal' if own_pmix else 'external'][0]}",
            *(["--with-ucx"] if "pml/ucx" in components else []),
            *(["--with-libnl"] if "reachable/netlink" in components else []),
        ],
        "cuda": any(line.endswith("_built_with_cuda_support:value:true") for line in lines),
        "fortran": by_name.get("bindings:use_mpi_f08") == "yes",
    }
