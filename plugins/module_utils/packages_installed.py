# SPDX-License-Identifier: Apache-2.0
"""The packages of a node's distribution: what is installed, what can go, what needs it, and who holds the locks."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from typing import Dict, Iterable, List, Sequence, Tuple

from . import command

# --- packages --------------------------------------------------------------------------------------------------------

_ANSWER_S = 120
_REMOVAL_S = 900
_FINISH_S = 900
_UPDATES = "/var/lib/dpkg/updates"  # dpkg keeps numbered files here while it is at work
_ENVIRONMENT = {"PATH": command.SYSTEM_PATH, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
_PREVENTED = re.compile(r"^dpkg: dependency problems prevent removal of (\S+?):\n((?: .*\n?)+)", re.MULTILINE)
_NEEDS = re.compile(r"^ (\S+) (?:pre-)?depends on ", re.MULTILINE)
_REFUSED = re.compile(r"^dpkg: error processing package (\S+) \(--purge\):\n (.*)", re.MULTILINE)
_RPM_NEEDED = re.compile(r"^\s*(.+?) is needed by \(installed\) (\S+)", re.MULTILINE)


class PackageError(Exception):
    """The packages cannot be removed; the message is one sentence."""


def _has(program: str) -> bool:
    return shutil.which(program, path=command.SYSTEM_PATH) is not None


def _run(argv: List[str], timeout_s: float = _ANSWER_S) -> command.Done:
    return command.run(argv, timeout_s, _ENVIRONMENT)


def plain_name(name: str) -> str:
    """Return a package's name without its architecture."""
    return name.partition(":")[0]


def installed() -> List[str]:
    """Return the names of all installed packages; [] without a known package manager."""
    if _has("dpkg-query"):
        lines = _run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${binary:Package}\n"]).output.splitlines()
        return sorted(line.split()[1] for line in lines if line.startswith("ii "))
    if _has("rpm"):
        return sorted(set(_run(["rpm", "-qa", "--queryformat", "%{NAME}\n"]).output.split()))
    return []


def unfinished() -> List[str]:
    """Return the packages that dpkg was cut off from unpacking or configuring; ['dpkg'] where it cannot tell."""
    if not _has("dpkg-query"):
        return []
    lines = _run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n"]).output.splitlines()
    states = {"unpacked", "half-configured", "half-installed", "triggers-awaited", "triggers-pending"}
    found = sorted(line.split()[1] for line in lines if line.split()[0] in states)
    is_cut_off = any(path.name.isdigit() for path in Path(_UPDATES).glob("*"))
    return found or (["dpkg"] if is_cut_off else [])


def finish() -> None:
    """Have dpkg finish what it was cut off from; a file that the administrator changed stays as it is.

    Raises:
        PackageError: dpkg could not.
    """
    argv = ["dpkg", "--force-confdef", "--force-confold", "--configure", "--pending"]
    done = _run(argv, _FINISH_S)
    if not done.ok:
        last = (done.said.splitlines() or ["it gave no reason"])[-1].strip()
        raise PackageError(
            f"An installation of packages was cut off, and 'dpkg --configure --pending' could not finish it: {last};"
            " repair it on this host, and run again."
        )


def needed_by_others(said: str) -> Dict[str, str]:
    """Return the packages that dpkg refuses to remove, each with the reason, from what a trial said."""
    found = {plain_name(name): words.strip() for name, words in _REFUSED.findall(said)}
    for name, block in _PREVENTED.findall(said):
        needing = _NEEDS.findall(block)
        found[plain_name(name)] = f"{plain_name(needing[0])} needs it" if needing else "another package needs it"
    return found


def removable(ours: Iterable[str]) -> Tuple[List[str], Dict[str, str]]:
    """Return which of these packages can go, and those that stay, each with the reason. Nothing is changed."""
    present = {plain_name(name): name for name in installed()}
    left = sorted({present[plain_name(name)] for name in ours if plain_name(name) in present})
    kept: Dict[str, str] = {}
    while left:
        refused = _trial(left)
        kept.update(refused)
        fewer = [name for name in left if plain_name(name) not in refused]
        if len(fewer) == len(left):
            break
        left = fewer
    return left, kept


def _trial(names: List[str]) -> Dict[str, str]:
    if _has("dpkg-query"):
        done = _run(["dpkg", "--no-act", "--purge", *names])
        return {} if done.ok else needed_by_others(done.errors)
    done = _run(["rpm", "-e", "--test", *names])
    if done.ok:
        return {}
    found = {}
    for capability, package in _RPM_NEEDED.findall(done.errors):
        asked = _run(["rpm", "-q", "--whatprovides", "--queryformat", "%{NAME}\n", capability.split()[0]])
        found.update({name: f"{package} needs it" for name in asked.output.split() if name in names})
    return found


def remove(names: List[str]) -> None:
    """Remove packages with their settings.

    Raises:
        PackageError: the package manager refused.
    """
    if not names:
        return
    argv = ["dpkg", "--purge"] if _has("dpkg-query") else ["rpm", "-e"]
    done = _run([*argv, *names], _REMOVAL_S)
    if not done.ok:
        said = done.said.splitlines()[-1] if done.said else "it gave no reason"
        raise PackageError(f"The packages {', '.join(names)} could not be removed: {said}.")


# --- locks -----------------------------------------------------------------------------------------------------------

LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
_FLOCK = "hhqqi"  # struct flock of fcntl(2): type, whence, start, length, process


def lock_holder(locks: Sequence[str] = LOCKS) -> str:
    """Return the process that holds one of the locks, for example ``unattended-upgr (process 812)``; '' without one."""
    for path in locks:
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                found = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, asked))
            finally:
                os.close(handle)
            if found[0] != fcntl.F_UNLCK:
                return _named(int(found[4]))
    return ""


def _named(pid: int) -> str:
    with suppress(OSError):
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
        return f"{name} (process {pid})"
    return f"process {pid}"
