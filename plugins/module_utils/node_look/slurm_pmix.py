# SPDX-License-Identifier: Apache-2.0
"""The site's PMIx library, and what Slurm's srun does with PMIx: its default, its plugins and the library they open.

Files are read, and nothing is started.
"""

from __future__ import annotations

import json
import os
import re

from . import libraries
from .artifacts import MARKER, MOST_MARKER
from .reading import Json, list_folder, read_regular, read_text

_SONAME = "libpmix.so.2"
_RELEASE = re.compile(rb"PMIx (\d+\.\d+\.\d+)")  # of PMIx_Get_version: "OpenPMIx 4.2.2rc2 (PMIx Standard: …"
_NUMBERS = re.compile(r"^#define\s+PMIX_VERSION_(MAJOR|MINOR|RELEASE)\s+(\d+)", re.MULTILINE)
_CONF_LINE = re.compile(r"^\s*(MpiDefault|PluginDir)\s*=\s*(\S+)", re.MULTILINE | re.IGNORECASE)
_CONFS = (
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",  # of a node that gets its configuration from slurmctld
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
)
_PLUGIN = re.compile(r"mpi_(pmix\w*)\.so")
_PATH_IN_PLUGIN = re.compile(rb"\0(/[A-Za-z0-9._+/-]{3,250})(?=\0)")
_MOST_BYTES = 1 << 24


def slurm_pmix(variables: dict, search_path: str, own: str) -> Json:
    """Return ``pmix`` (the site's library, and the one of the installed Open MPI) and ``slurm`` (None without it).

    Args:
        variables: of the session.
        search_path: its PATH.
        own: the link of the installed Open MPI.
    """
    slurm = _slurm(variables, search_path)
    opened = [plugin["opens"] for plugin in (slurm or {}).get("plugins", [])]
    ours = {"own": _release(f"{own}/lib/{_SONAME}"), "built_with": built_with(_marker(own))}
    return {"pmix": {"site": _site(opened, own), **ours}, "slurm": slurm}


def built_with(marker: Json) -> str:
    """Return where the PMIx of an Open MPI comes from, by its marker: internal, external, a prefix, '' if unknown."""
    inputs = marker.get("inputs")
    options = inputs.get("configure") if isinstance(inputs, dict) else None
    words = [word for word in options or [] if isinstance(word, str)] if isinstance(options, list) else []
    return next((word.partition("=")[2] for word in reversed(words) if word.startswith("--with-pmix=")), "")


def _marker(own: str) -> Json:
    try:
        marker = json.loads(read_regular(f"{own}/{MARKER}", MOST_MARKER))
    except (OSError, ValueError, RecursionError):  # the section "artifacts" tells of a damaged one
        return {}
    return marker if isinstance(marker, dict) else {}


def plugin_library(data: bytes) -> str:
    """Return the path of the PMIx library that Slurm's plugin opens, as it stands in the plugin's bytes.

    Slurm's configure compiles the folder in. Without one the loader searches, and the answer is a bare name.
    """
    name = _SONAME if _SONAME.encode() + b"\0" in data else "libpmix.so"
    paths = [match.decode() for match in _PATH_IN_PLUGIN.findall(data)]
    whole = [path for path in paths if os.path.basename(path).startswith("libpmix.so")]
    if whole:
        return whole[0]
    folders = [path.rstrip("/") for path in paths if re.search(r"/lib(64|32)?(/|$)", path)]
    likely = [folder for folder in folders if os.path.exists(f"{folder}/{_SONAME}")]
    likely += [folder for folder in folders if "pmix" in folder.lower()]
    return f"{likely[0]}/{name}" if likely else name


def conf_settings(text: str) -> dict:
    """Return ``mpidefault`` and ``plugindir`` of slurm.conf, each if it is set; the last line of a name counts."""
    return {match.group(1).lower(): match.group(2) for match in _CONF_LINE.finditer(text)}


def _slurm(variables: dict, search_path: str) -> Json | None:
    folders = [folder.rstrip("/") for folder in search_path.split(":") if folder.startswith("/")]
    srun = next((f"{folder}/srun" for folder in folders if os.access(f"{folder}/srun", os.X_OK)), "")
    conf = next((path for path in (variables.get("SLURM_CONF", ""), *_CONFS) if path and os.path.isfile(path)), "")
    if not srun and not conf:
        return None
    try:
        settings = conf_settings(read_text(conf, "")) if conf else {}
    except OSError:  # a site may hide it from users
        settings = {}
    asked = variables.get("SLURM_MPI_TYPE", "")
    return {
        "srun": srun,
        "conf": conf,
        "mpi_default": asked or settings.get("mpidefault", "none"),
        "mpi_default_by": "SLURM_MPI_TYPE" if asked else "MpiDefault",
        "plugins": _plugins(_plugin_folders(settings.get("plugindir", ""), srun)),
    }


def _plugin_folders(named: str, srun: str) -> list[str]:
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(srun))) if srun else "/usr"
    libraries = [f"{root}/{lib}" for root in (prefix, "/usr") for lib in ("lib64", f"lib/{_multiarch()}", "lib")]
    return [*filter(None, named.split(":")), *(f"{lib}/{end}" for lib in libraries for end in ("slurm", "slurm-wlm"))]


def _plugins(folders: list[str]) -> list[Json]:
    """Return the PMIx plugins of the first folder that has plugins for MPI; srun loads them from there."""
    for folder in folders:
        names = [name for name in list_folder(folder) if name.startswith("mpi_")]
        files = {os.path.realpath(f"{folder}/{name}") for name in names if _PLUGIN.fullmatch(name)}
        if names:
            return [_plugin(path) for path in sorted(files)]
    return []


def _plugin(path: str) -> Json:
    opens = plugin_library(_head(path))
    found = opens if opens.startswith("/") else next(iter(_by_loader(opens)), "")
    there = bool(found) and os.path.isfile(found)
    match = _PLUGIN.fullmatch(os.path.basename(path))
    return {
        "name": match.group(1) if match else os.path.basename(path),
        "opens": opens,
        "found": there,
        "version": _release(found) if there else "",
    }


def _site(opened: list[str], own: str) -> Json | None:
    """Return the PMIx of the site: the one that Slurm opens, else the loader's, else the distribution's."""
    beside = [f"{os.path.dirname(path)}/{_SONAME}" for path in opened if path.startswith("/")]
    packaged = f"/usr/lib/{_multiarch()}/pmix2/lib/{_SONAME}"
    for path in (*beside, *_by_loader(_SONAME), packaged, f"/usr/lib64/{_SONAME}"):
        real = os.path.realpath(path)
        release = "" if real.startswith(own) else _release(real)
        if release:
            prefix = _prefix(real)
            return {"prefix": prefix, "library": real, "version": release, "headers": _headers(prefix)}
    return None


def _by_loader(soname: str) -> list[str]:
    return libraries.read_library_cache(libraries.content(), soname)


def _prefix(library: str) -> str:
    folder = os.path.dirname(library)
    if folder in {f"/usr/lib/{_multiarch()}", f"/lib/{_multiarch()}", "/usr/lib64", "/lib64", "/usr/lib", "/lib"}:
        return "/usr"
    return os.path.dirname(folder)


def _headers(prefix: str) -> str:
    """Return the release of the headers if a build can use them, '' if something is missing.

    Open MPI's runtime needs headers of PMIx's inside. An external PMIx also needs hwloc and libevent from outside.
    """
    roots = (f"{prefix}/include", "/usr/include", f"/usr/include/{_multiarch()}")
    for name in ("pmix.h", "pmix/src/util/pmix_argv.h", "hwloc.h", "event2/event.h"):
        if not any(os.path.isfile(f"{root}/{name}") for root in roots):
            return ""
    found = dict(_NUMBERS.findall(read_text(f"{prefix}/include/pmix_version.h", "")))
    release = ".".join(found.get(part, "") for part in ("MAJOR", "MINOR", "RELEASE"))
    return release if len(found) == 3 else ""  # noqa: PLR2004 - the parts of a release


def _release(path: str) -> str:
    match = _RELEASE.search(_head(path))
    return match.group(1).decode() if match else ""


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(_MOST_BYTES)
    except OSError:
        return b""


def _multiarch() -> str:
    return f"{os.uname().machine}-linux-gnu"
