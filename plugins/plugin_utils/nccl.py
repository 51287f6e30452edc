# SPDX-License-Identifier: Apache-2.0
"""Decides which NCCL each platform gets, for which CUDA, on which hosts; and looks into archives of NCCL.

What decides takes facts and gives a plan or one sentence; :func:`look_into` alone reads a file.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

# What is taken where neither the user nor a framework says anything.
DEFAULT_VERSION = "2.32.3"
DEFAULT_CUDA = "13"
# Source trees whose sums were checked: the distribution's source package holds the release's own tree.
SOURCE_TREES = {
    "2.29.7": {
        "package": "nvidia-nccl",
        "version": "2.29.7-1",
        "component": "contrib",
        "sha256": "e67239212c395bfdb398a7519491840d06fdf6b599c299f97c7ed0109777bba1",
    },
}
DEFAULT_TREE = "2.29.7"
SOURCES = ("wheel", "archive", "packages", "build")

_VERSION = re.compile(r"^\d+\.\d+(\.\d+)?(\.post\d+)?$")
_CUDA = re.compile(r"^(?P<major>\d{2})(\.\d+)?$")
_SHA256 = re.compile(r"^[0-9a-f]{64}$")
_ARCHIVE_NAME = re.compile(r"^nccl_(?P<version>\d+\.\d+\.\d+)(?:-\d+)?\+cuda(?P<cuda>\d+)\.\d+_\w+")
_HEADER = re.compile(r"(?:^|/)include/nccl\.h$")
_MAKEFILE = re.compile(r"(?:^|/)makefiles/version\.mk$")
_LIBRARY = re.compile(r"(?:^|/)lib(?:64)?/libnccl\.so\.\d")
_NUMBER = r"^\s*(?:#define\s+)?NCCL_{part}\s*(?::=)?\s*(\d+)\s*$"
_LARGEST_TEXT = 1 << 20
EXPECTED = {
    "archive": "NVIDIA's nccl_<version>+cuda<version>_<machine>.txz, or another archive with its include and lib",
    "build": "an archive of NCCL's source tree",
}
_HOLDS = {"tree": "as sources", "built": "ready built"}
_MARKS = {"archive": "include/nccl.h with a version and lib/libnccl.so.2", "build": "makefiles/version.mk"}


class NcclError(ArtifactError):
    """NCCL is not available as asked; the message is one sentence with the cure."""


@dataclass(frozen=True)
class Options:
    """The variables of the role that decide."""

    install: str = "always"
    source: str = "wheel"
    version: str = ""
    cuda: str = ""
    align: str = "framework"
    archive: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class PlatformPlan:
    """The version of NCCL that the hosts of one platform get."""

    version: str
    cuda: str  # the major alone
    hosts: tuple[str, ...] = field(default_factory=tuple)

    @property
    def requirement(self) -> str:
        """Return the wheel as pip writes it."""
        return f"nvidia-nccl-cu{self.cuda}=={self.version}"


@dataclass(frozen=True)
class Contents:
    """The kind of an archive of NCCL, ``built`` (header and library) or ``tree`` (sources), and its version."""

    kind: str
    version: str


def release(version: str) -> str:
    """Return a wheel's version without its packaging suffix: ``2.26.2`` of ``2.26.2.post1``."""
    return version.partition(".post")[0]


def targets(members: Sequence[Mapping[str, Any]], install: str) -> dict[str, list[Mapping[str, Any]]]:
    """Return, by platform, the hosts that get NCCL.

    Args:
        members: the cluster's hosts as preflight describes them.
        install: ``always``, ``gpu`` (hosts with a GPU that NVIDIA's driver has taken) or ``never``.

    Raises:
        NcclError: ``install`` has another value.
    """
    if install not in {"always", "gpu", "never"}:
        raise NcclError(f"nccl_install is '{install}'; set it to always, gpu or never.")
    found: dict[str, list[Mapping[str, Any]]] = {}
    for member in members:
        if install == "always" or (install == "gpu" and member.get("gpus")):
            found.setdefault(str(member["platform"]), []).append(member)
    return found


def named_in(archive: str) -> tuple[str, str]:
    """Return version and CUDA major in the name of NVIDIA's archive, both empty for another name."""
    match = _ARCHIVE_NAME.match(unquote(urlsplit(archive).path).rpartition("/")[2])
    return (match["version"], match["cuda"]) if match else ("", "")


def sources(wish: Options, version: str) -> list[dict[str, Any]]:
    """Return where the archive of the sources ``archive`` and ``build`` comes from, as ``source.fetch`` takes it.

    Raises:
        NcclError: no archive or no sha256 is known.
    """
    if wish.source not in {"archive", "build"}:
        return []
    if wish.archive:
        if not _SHA256.match(wish.sha256):
            raise NcclError(
                f"nccl_archive is {wish.archive}, and nccl_sha256 is {repr(wish.sha256) if wish.sha256 else 'empty'};"
                " set it to the 64 hex digits that the archive's publisher names."
            )
        kind = "url" if urlsplit(wish.archive).scheme in {"http", "https", "file"} else "path"
        return [{kind: wish.archive, "sha256": wish.sha256}]
    if wish.source == "build" and version in SOURCE_TREES:
        return [{"apt": SOURCE_TREES[version]}]
    known = f" (without, the source of {' and '.join(SOURCE_TREES)} is known)" if wish.source == "build" else ""
    raise NcclError(
        f"nccl_source is '{wish.source}' and nccl_archive is empty: set it to the path or URL of"
        f" {EXPECTED[wish.source]}, and nccl_sha256 to its sha256{known}."
    )


def _version(wish: Options, frameworks: Mapping[str, Mapping[str, Any]], contents: Contents | None) -> str:
    bundled = next((str(found["nccl"]) for found in frameworks.values() if found.get("nccl")), "")
    asked = wish.version
    if asked and not _VERSION.match(asked):
        raise NcclError(f"nccl_version is '{asked}', which is no release of NCCL; write it like {DEFAULT_VERSION}.")
    cure = "set nccl_align to 'cluster' (the framework shall use the cluster's) or 'report' (each its own)"
    if wish.align == "framework" and bundled:
        if asked and release(asked) != release(bundled):
            raise NcclError(
                f"nccl_version is {asked}, but the framework brings NCCL {bundled} and nccl_align is 'framework': leave"
                f" nccl_version empty, or {cure}."
            )
        if contents and contents.version != release(bundled):
            raise NcclError(
                f"{wish.archive} holds NCCL {contents.version}, but the framework brings NCCL {bundled} and nccl_align"
                f" is 'framework': name an archive of {bundled}, or {cure}."
            )
    if contents:
        if asked and release(asked) != contents.version:
            raise NcclError(
                f"nccl_version is {asked}, but {wish.archive} holds NCCL {contents.version}; correct the one or the"
                " other (an empty nccl_version takes the archive's)."
            )
        return contents.version
    if wish.align == "framework" and bundled:
        return bundled
    if asked:
        return asked
    if wish.source == "packages":
        raise NcclError(
            "nccl_source is 'packages' and nccl_version is empty: name the release that your package manager offers"
            " ('apt-cache policy libnccl2' or 'dnf info libnccl' on a node shows it)."
        )
    return DEFAULT_TREE if wish.source == "build" else DEFAULT_VERSION


def _cuda_of(wish: Options, hosts: Sequence[Mapping[str, Any]], framework: Mapping[str, Any], usual: str) -> str:
    named = named_in(wish.archive)[1] if wish.source == "archive" else ""
    if wish.cuda:
        match = _CUDA.match(wish.cuda)
        if not match:
            raise NcclError(f"nccl_cuda is '{wish.cuda}', which is no major version of CUDA; write it like '12'.")
        if named and named != match["major"]:
            raise NcclError(
                f"nccl_cuda is {wish.cuda}, but {wish.archive} is for CUDA {named} by its name; correct the one or the"
                " other."
            )
        return match["major"]
    driver = _lowest(host.get("cuda", {}).get("driver_major") for host in hosts)
    toolkit = _lowest(str(host.get("cuda", {}).get("toolkit_version") or "").partition(".")[0] for host in hosts)
    its = str(framework.get("cuda") or "")
    if named:
        return named
    # The library of the framework, if the drivers can run it; a driver runs older CUDA majors as well.
    if wish.align == "framework" and framework.get("nccl") and its and (not driver or int(its) <= int(driver)):
        return its
    return driver or toolkit or its or usual


def _lowest(majors: Iterator[Any]) -> str:
    return str(min((int(major) for major in majors if major), default="") or "")


def plan(
    wish: Options,
    members: Sequence[Mapping[str, Any]],
    frameworks: Mapping[str, Mapping[str, Any]],
    contents: Contents | None = None,
) -> dict[str, PlatformPlan]:
    """Return the plan of each platform; a platform whose hosts get nothing is left out.

    Args:
        wish: the role's variables.
        members: the cluster's hosts as preflight describes them.
        frameworks: by platform, which framework its pinned wheels hold (``name``, ``cuda``, ``nccl``).
        contents: the content of ``nccl_archive``, if it is set.

    Raises:
        NcclError: a variable is not valid, or a driver is too old.
    """
    if wish.source not in SOURCES:
        raise NcclError(f"nccl_source is '{wish.source}'; set it to {', '.join(SOURCES[:-1])} or {SOURCES[-1]}.")
    if wish.align not in {"framework", "cluster", "report"}:
        raise NcclError(f"nccl_align is '{wish.align}'; set it to framework, cluster or report.")
    by_platform = targets(members, wish.install)
    if not by_platform:
        return {}
    version = _version(wish, frameworks, contents)
    usual = _lowest(one.get("cuda") for one in frameworks.values()) or DEFAULT_CUDA
    found = {
        platform: PlatformPlan(
            version,
            _cuda_of(wish, hosts, frameworks.get(platform) or {}, usual),
            tuple(str(host["name"]) for host in hosts),
        )
        for platform, hosts in by_platform.items()
    }
    _refuse_old_drivers(wish, by_platform, found)
    return found


def _refuse_old_drivers(
    wish: Options, by_platform: Mapping[str, Sequence[Mapping[str, Any]]], found: Mapping[str, PlatformPlan]
) -> None:
    behind = [
        (host, found[platform].cuda)
        for platform, hosts in by_platform.items()
        for host in hosts
        if 0 < int(host.get("cuda", {}).get("driver_major") or 0) < int(found[platform].cuda)
    ]
    if not behind:
        return
    named = ", ".join(
        f"{host['name']} ({host['cuda']['driver_version']}, up to CUDA {host['cuda']['driver_major']})"
        for host, _unused in behind
    )
    lowest = min(int(host["cuda"]["driver_major"]) for host, _unused in behind)
    cure = f"name an archive for CUDA {lowest}" if wish.source == "archive" else f"set nccl_cuda to '{lowest}'"
    raise NcclError(
        f"NCCL for CUDA {behind[0][1]} cannot run on the NVIDIA driver of {named}: {cure}, or install a newer driver"
        " there."
    )


def _texts(path: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Yield each file's path in an archive, with a stream of its content."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as bundle:
            for name in bundle.namelist():
                with bundle.open(name) as stream:
                    yield name, stream
        return
    with tarfile.open(path, "r|*") as bundle:
        for member in bundle:
            yield member.name, bundle.extractfile(member) if member.isfile() else None


def version_in(text: str) -> str:
    """Return the version in an ``nccl.h`` or a ``makefiles/version.mk``, '' if it is missing."""
    parts = [re.search(_NUMBER.format(part=part), text, re.MULTILINE) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(part[1] for part in parts if part) if all(parts) else ""


def look_into(path: Path, name: str, source: str) -> Contents:
    """Return the content of an archive; reading stops as soon as it is known.

    Args:
        path: the archive, a tar of any compression that Python knows, or a zip.
        name: its name for messages.
        source: its purpose, ``archive`` or ``build``.

    Raises:
        NcclError: it does not hold NCCL, or holds the other kind.
    """
    wanted, other = ("built", "tree") if source == "archive" else ("tree", "built")
    version, library, kind = "", False, ""
    try:
        for member, stream in _texts(path):
            library = library or bool(_LIBRARY.search(member))
            is_tree, is_built = bool(_MAKEFILE.search(member)), bool(_HEADER.search(member))
            if stream is not None and (is_tree or is_built):
                version = version_in(stream.read(_LARGEST_TEXT).decode(errors="replace"))
                kind = ("tree" if is_tree else "built") if version else kind
            if kind == "tree" or (kind == "built" and library):
                break
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise NcclError(
            f"{name} cannot be read as an archive of NCCL ({error}); nccl_archive names {EXPECTED[source]}."
        ) from error
    if kind == "built" and not library:
        kind = ""
    if kind == other:
        raise NcclError(
            f"{name} holds NCCL {version} {_HOLDS[other]}, and nccl_source is '{source}'; set nccl_source to"
            f" '{'build' if other == 'tree' else 'archive'}', or name {EXPECTED[source]} in nccl_archive."
        )
    if kind != wanted:
        raise NcclError(f"{name} is not NCCL: it has no {_MARKS[source]}; nccl_archive names {EXPECTED[source]}.")
    return Contents(kind, version)
