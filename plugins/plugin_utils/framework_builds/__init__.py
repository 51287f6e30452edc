# SPDX-License-Identifier: Apache-2.0
"""Which release of PyTorch or TensorFlow has a build for a node's Python, machine and C library.

The table is ``builds.json``. Each row names one wheel of the public index, and the page that lists it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.wheels import Target

TABLE = Path(__file__).with_name("builds.json")
LABELS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}
# The first release of TensorFlow with the extra and-cuda. An earlier one finds no CUDA of the index on a node.
FIRST_TENSORFLOW_WITH_CUDA = (2, 14)


@dataclass(frozen=True)
class FrameworkBuild:
    """One row of the table; ``glibc`` is the oldest that the wheel allows, ``builds`` are cpu and cuda."""

    framework: str
    builds: tuple[str, ...]
    python: str
    machine: str
    glibc: str
    version: str
    wheel: str
    source: str
    why: str

    @classmethod
    def of(cls, entry: dict[str, Any]) -> FrameworkBuild:
        """Return the typed form of a row.

        Raises:
            TypeError: the row lacks a field, or has an unknown one.
        """
        return cls(**{**entry, "builds": tuple(entry["builds"])})


@cache
def table(path: Path = TABLE) -> tuple[FrameworkBuild, ...]:
    """Return the rows of the table, in its order."""
    return tuple(FrameworkBuild.of(entry) for entry in json.loads(path.read_bytes())["rows"])


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: ``2.8.0+cpu`` is (2, 8, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0]))


def release(framework: str, build: str, target: Target, rows: Sequence[FrameworkBuild] | None = None) -> str:
    """Return the release for a node; '' where the table has none.

    Args:
        framework: ``pytorch`` or ``tensorflow``.
        build: ``cpu`` or ``cuda``.
        target: the node's Python, machine and C library.
        rows: the table; the collection's by default.
    """
    fitting = (
        row
        for row in (table() if rows is None else rows)
        if (row.framework, row.python, row.machine) == (framework, target.python, target.machine)
        and build in row.builds
        and numbers(row.glibc) <= numbers(target.glibc)
    )
    return next((row.version for row in fitting), "")


def refusal(
    framework: str, version: str, build: str, target: Target, rows: Sequence[FrameworkBuild] | None = None
) -> str:
    """Return one sentence that says why a framework cannot be installed on a node, and what can; '' if it may be.

    Whether the index has a version that the user names is the index's to say. A build for CPUs is never taken for one
    with CUDA.

    Args:
        framework: ``pytorch``, ``tensorflow`` or ``none``.
        version: the release that the user names; '' leaves it to the table.
        build: ``cpu`` or ``cuda``.
        target: the node's Python, machine and C library.
        rows: the table; the collection's by default.
    """
    if framework not in LABELS:
        return ""
    rows = table() if rows is None else rows
    label, kind = LABELS[framework], "with CUDA" if build == "cuda" else "for CPUs"
    chosen = release(framework, build, target, rows)
    its = [row for row in rows if row.framework == framework and build in row.builds]
    if framework == "tensorflow" and build == "cuda" and version:
        if not any(row.machine == target.machine for row in its):
            return (
                f"{label} has no build {kind} for {target.machine}, and its CPU build would leave the GPUs unused; set"
                " python_env_framework to pytorch, or python_env_framework_build to cpu."
            )
        if numbers(version) < FIRST_TENSORFLOW_WITH_CUDA:
            return (
                f"{label} {version} has no build that brings CUDA, and its CPU build would leave the GPUs unused; name"
                f" 2.14.0 or later{f' ({chosen} has a wheel for {target})' if chosen else ''} in"
                " python_env_framework_version, or set python_env_framework_build to cpu."
            )
    if version or chosen:
        return ""
    exists = _what_exists(its, target)
    return (
        f"{label} has no build {kind} for {target} (platform {target.platform}); {exists}. Use nodes with one of these,"
        " name a version of your own index in python_env_framework_version, or set python_env_framework to none."
    )


def _what_exists(its: Sequence[FrameworkBuild], target: Target) -> str:
    """Return the rows nearest to the node in words: for its Python, else for its machine, else for others."""
    here = [row for row in its if row.machine == target.machine]
    for near in ([row for row in here if row.python == target.python], here, its):
        if near:
            return f"builds exist for {'; '.join(_folded(near))}"
    return "the table of the collection has none"


def _folded(rows: Iterable[FrameworkBuild]) -> list[str]:
    """Return one text for each release, machine and glibc, with the Pythons that it has a wheel for."""
    pythons: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        pythons.setdefault((row.machine, row.glibc, row.version), []).append(row.python)
    return [
        f"Python {_span(found)} on {machine} with glibc {glibc} or newer ({version})"
        for (machine, glibc, version), found in pythons.items()
    ]


def _span(pythons: Sequence[str]) -> str:
    ordered = sorted(set(pythons), key=numbers)
    consecutive = [numbers(text)[1] for text in ordered]
    if len(ordered) > 1 and consecutive == list(range(consecutive[0], consecutive[-1] + 1)):
        return f"{ordered[0]} to {ordered[-1]}"
    return ", ".join(ordered)
