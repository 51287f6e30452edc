# SPDX-License-Identifier: Apache-2.0
"""The files of wheels and source archives that an entry of a build asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils import waited_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

from .packages import Sdist, Wheel
from .requirements import parse_requirements
from .store import WheelStore
from .target import Target


def bring(
    item: Mapping[str, Any],
    cache_dir: Path,
    warn: Callable[[str], object] = lambda _text: None,
    note: Callable[[str], None] = waited_lock.on_stderr,
) -> list[tuple[Path, str]]:
    """Return the files of an entry ``{wheels: …, dest}`` or ``{sdist: …, dest}`` of a build.

    Args:
        item: ``wheels`` holds name, platform, variable, wheel_dir, and either requirements or pinned: the wheels that
            M(clusterctl.hpc.wheel_lock) returned. ``sdist`` holds name, version, sha256, variable and wheel_dir.
            ``dest`` is a folder, and for an sdist the file (or the folder to unpack into).
        cache_dir: the controller's cache.
        warn: takes warnings for the user.
        note: takes a line of life.

    Returns:
        Each file on the controller with its place in the build's work folder.

    Raises:
        WheelError: a file is not available.
    """
    dest = str(item["dest"])
    if "sdist" in item:
        wanted: Mapping[str, Any] = item["sdist"]
        variable = str(wanted.get("variable") or f"{wanted['name']}_sha256")
        store = WheelStore(cache_dir, str(wanted.get("wheel_dir") or ""))
        return [(store.sdist(Sdist.of(wanted, variable), variable), dest)]
    wanted = item["wheels"]
    variable = str(wanted.get("variable") or f"{wanted['name']}_requirements")
    target = Target.of(str(wanted["platform"]))
    store = WheelStore(cache_dir, str(wanted.get("wheel_dir") or ""), note=note)
    if "pinned" in wanted:
        wheels = [Wheel.of(entry) for entry in wanted["pinned"]]
    else:
        requirements = parse_requirements(wanted["requirements"], variable)
        wheels = store.lock(str(wanted["name"]), target, requirements, variable)
        for text in store.notes:
            warn(text)
    paths = store.files(wheels, target, variable)
    return [(path, dest if item.get("unpack") else f"{dest}/{path.name}") for path in paths]
