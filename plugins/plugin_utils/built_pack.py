# SPDX-License-Identifier: GPL-3.0-or-later
"""What a builder says of the pack that it made, in the form and within the bounds that the controller takes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import MOST_UNPACKED, ArtifactError
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact_pack import FOLDER, SUFFIXES
from ansible_collections.clusterctl.hpc.plugins.module_utils.plain_text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

_WAYS = ("built", "packed", "kept")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_STEPS = 100
_MOST_JOBS = 1 << 16
_LONGEST_S = 1e8
_LONGEST_NAME = 100


def told(said: Mapping[str, Any], host: str, base: str, log: str) -> dict[str, Any]:
    """Return a builder's answer; each path in it is one that the controller has chosen.

    Args:
        said: the answer, which may hold anything.
        host: the builder.
        base: base name of the artifact's folder.
        log: the build's log on the host.

    Raises:
        ArtifactError: a field is missing, or has another form.
    """
    try:
        compression, way = said["compression"], said["way"]
        if way not in _WAYS:
            raise ValueError("way")  # noqa: TRY301 - as for any other field
        return {
            "pack": f"{FOLDER}/{base}{SUFFIXES[compression]}",
            "compression": compression,
            "way": way,
            "sha256": _digest(said["sha256"]),
            "manifest_sha256": _digest(said["manifest_sha256"]),
            "size": _number(said["size"], MOST_UNPACKED),
            "jobs": _number(said["jobs"], _MOST_JOBS),
            "log": log,
            "seconds": _seconds(said["seconds"]),
            "cpu_seconds": _seconds(said["cpu_seconds"]),
            "steps": [
                {
                    "name": one_line(str(step["name"]), _LONGEST_NAME),
                    "seconds": _seconds(step["seconds"]),
                    "cpu_seconds": _seconds(step["cpu_seconds"]),
                }
                for step in list(said["steps"])[:_MOST_STEPS]
            ],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{host}: its answer about the pack of {base} has another form ({one_line(str(error), 80)}); look at this"
            " node, or build on another one."
        ) from error


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError("a digest")
    return value


def _number(value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError("a number")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LONGEST_S:
        raise ValueError("a time")  # also where it is not a number
    return value
