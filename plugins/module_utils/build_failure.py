# SPDX-License-Identifier: Apache-2.0
"""Say why a build failed: read its log for the first error, a killed compiler or a full disk, and name the cure."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.machine import free_bytes

if TYPE_CHECKING:
    from pathlib import Path

_LAST_LINES = 20
_TAIL_BYTES = 16384


class Site(NamedTuple):
    """Which build runs where."""

    host: str
    name: str
    version: str
    work_dir: str
    needs_bytes: int
    jobs: int
    log: Path

    def disk_full(self) -> ArtifactError:
        """Return the sentence for this build's full disk."""
        free = free_bytes(self.work_dir)
        return disk_full(self.host, self.name, self.version, self.work_dir, free, self.needs_bytes)


def last_lines(log: Path, count: int = _LAST_LINES) -> str:
    """Return the last lines of a log."""
    with log.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - _TAIL_BYTES))
        return "\n".join(stream.read().decode(errors="replace").splitlines()[-count:])


_ERROR = re.compile(r"(?:\b(?:fatal )?error: |^CMake Error|: undefined reference to |: multiple definition of )")
_KILLED = re.compile(r"Killed signal terminated program|\bOut of memory\b|virtual memory exhausted")


def first_match(log: Path, start: int, pattern: "re.Pattern[str]") -> str:
    """Return the first line of a log, from byte ``start`` on, in which the pattern is found; empty without one."""
    with log.open("rb") as stream:
        stream.seek(start)
        lines = (raw.decode(errors="replace").strip() for raw in stream)
        return next((line for line in lines if pattern.search(line)), "")


def disk_full(host: str, name: str, version: str, work_dir: str, free: int, needs: int) -> ArtifactError:
    """Return the sentence for a full disk; ``free`` and ``needs`` are bytes."""
    return ArtifactError(
        f"{host}: the builder's disk is full: {work_dir} has {free} bytes free and building {name} {version} needs"
        f" about {needs}; make room there or name another folder ({name}_work_dir)."
    )


def memory_short(site: Site, needed: int, available: int) -> ArtifactError:
    """Return the sentence for a host on which the kernel would kill a compiler."""
    return ArtifactError(
        f"{site.host}: free some memory there or name another host ({site.name}_builder): building"
        f" {site.name} {site.version} needs {needed / 1e9:.1f} GB for one compiler, and"
        f" {available / 1e9:.1f} GB are available."
    )


def step_failed(site: Site, step: str, status: int, start: int, *, speaks: bool) -> ArtifactError:
    """Return the sentence for a step that failed.

    Args:
        site: the build.
        step: the step's name.
        status: its exit status; negative is the signal that killed it.
        start: byte of the log at which the step's output begins.
        speaks: the step's last line is a sentence for the user.
    """
    tail = last_lines(site.log)
    what = f"{site.name} {site.version}"
    if "No space left on device" in tail:
        return site.disk_full()
    if speaks and status > 0:
        sentence = last_lines(site.log, 1)
        return ArtifactError(f"{site.host}: {sentence} (Before building {what}; the log is {site.log}@LOG@.)")
    killed = first_match(site.log, start, _KILLED)
    if killed:
        return ArtifactError(
            f"{site.host}: free some memory there, set {site.name}_make_jobs to less than {site.jobs} or name another"
            f" host ({site.name}_builder): a compiler was killed while building {what} with {site.jobs} of them side"
            f" by side ({killed}); the whole log is {site.log} on {site.host}@LOG@."
        )
    ended = f"was killed by signal {-status}" if status < 0 else f"ended with {status}"
    error = first_match(site.log, start, _ERROR)
    first = f", its first error is '{error}'" if error and error not in tail else ""
    return ArtifactError(
        f"{site.host}: the step '{step}' of building {what} {ended}{first};"
        f" the whole log is {site.log} on {site.host}@LOG@, its last lines are:\n{tail}"
    )
