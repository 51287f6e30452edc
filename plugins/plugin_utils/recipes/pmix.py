# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which PMIx a build of Open MPI uses: the site's, or the one that Open MPI brings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

# PRRTE of Open MPI 5.0.5 to 5.0.10 refuses PMIx before 4.2.4, and does not compile with PMIx 6. Open MPI 4.1 has a
# component for PMIx 3 and 4.
_SUITABLE = {"5.0": ((4, 2, 4), (6,)), "4.1": ((3, 1, 5), (5,))}
_RELEASE = re.compile(r"\d+(?:\.\d+)*")
_CURE = "or set openmpi_pmix to auto or internal."
_MOST_NAMED = 3


def choose(
    members: Sequence[Mapping[str, Any]], platform: str, builder: str, series: str, wanted: str = "auto"
) -> dict[str, str]:
    """Return ``prefix`` and ``version`` of the PMIx to build against, empty for Open MPI's own, and ``problem``.

    Args:
        members: the cluster's hosts; ``pmix`` has ``prefix``, ``library``, ``version`` and ``headers`` of each.
        platform: the platform to build for.
        builder: name of the host that builds.
        series: of Open MPI.
        wanted: auto, internal or external.
    """
    own = {"prefix": "", "version": "", "problem": ""}
    if wanted == "internal":
        return own
    its = {str(member["name"]): member.get("pmix") or {} for member in members if member["platform"] == platform}
    mine = its.get(builder) or {}
    problem = _unusable(builder, mine, series) or _different(its, builder, mine)
    if problem:
        return {**own, "problem": problem}
    return {"prefix": str(mine["prefix"]), "version": str(mine["version"]), "problem": ""}


def _unusable(builder: str, mine: Mapping[str, Any], series: str) -> str:
    """Say why the builder cannot build against its PMIx, '' if it can."""
    if not mine.get("version"):
        return (
            f"{builder} builds Open MPI and has no PMIx library of the site; "
            f"install it with its headers (libpmix-dev or pmix-devel) there, {_CURE}"
        )
    version, headers = str(mine["version"]), str(mine.get("headers") or "")
    if headers != version:
        lacks = f"headers of PMIx {headers}" if headers else "no headers for it (PMIx, hwloc and libevent)"
        return (
            f"{builder} builds Open MPI, and has PMIx {version} in {mine['prefix']} but {lacks}; "
            f"install the headers of that release (libpmix-dev or pmix-devel) there, {_CURE}"
        )
    least, below = _SUITABLE.get(series, ((0,), (0,)))
    if not least <= _numbers(version) < below:
        words = f"{'.'.join(map(str, least))} or newer, below {below[0]}"
        return (
            f"Open MPI {series} needs PMIx {words}, and {builder} has {version} in {mine['prefix']}; "
            f"choose another openmpi_version, {_CURE}"
        )
    return ""


def _different(its: Mapping[str, Mapping[str, Any]], builder: str, mine: Mapping[str, Any]) -> str:
    """Name hosts that have another library than the builder, '' if all have the same."""
    found = [
        f"{name} has {one['version']} in {one['prefix']}" if one.get("version") else f"{name} has none"
        for name, one in its.items()
        if (one.get("prefix"), one.get("version")) != (mine.get("prefix"), mine.get("version"))
    ]
    if not found:
        return ""
    more = f" and {len(found) - _MOST_NAMED} more differ" if len(found) > _MOST_NAMED else ""
    return (
        f"Hosts differ in PMIx: {builder} has {mine['version']} in {mine['prefix']}, "
        f"{', '.join(found[:_MOST_NAMED])}{more}; install the same library on all, {_CURE}"
    )


def _numbers(release: str) -> tuple[int, ...]:
    match = _RELEASE.match(release)
    return tuple(int(part) for part in match.group().split(".")) if match else (0,)
