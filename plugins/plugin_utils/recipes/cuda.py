# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide whether builds of Open MPI and UCX use CUDA: where all hosts of a platform have it, or on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def taken(members: Sequence[Mapping[str, Any]], platform: str, builder: str, asked: str) -> bool:
    """Whether a build uses CUDA.

    Args:
        members: the cluster's hosts, as :func:`all_provide` has them.
        platform: the platform to build for.
        builder: name of the host that builds.
        asked: ``openmpi_cuda`` of the platform's hosts: auto, always or never.
    """
    return asked == "always" or (asked == "auto" and offered(members, platform, builder))


def offered(members: Sequence[Mapping[str, Any]], platform: str, builder: str) -> bool:
    """Whether every host of a platform has the driver's library, and the builder a toolkit."""
    provides = next((one.get("provides") or () for one in members if one["name"] == builder), ())
    return all_provide(members, platform, "libcuda") and "cuda_toolkit" in provides


def all_provide(members: Sequence[Mapping[str, Any]], platform: str, name: str) -> bool:
    """Whether every host of a platform has something.

    Args:
        members: the cluster's hosts; ``provides`` lists what each has.
        platform: the platform.
        name: such as ``libcuda``.
    """
    its = [one.get("provides") or () for one in members if one["platform"] == platform]
    return bool(its) and all(name in one for one in its)
