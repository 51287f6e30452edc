# SPDX-License-Identifier: Apache-2.0
"""The control groups of a process, in both versions that the kernel has."""

from __future__ import annotations

import os

ROOT = "/sys/fs/cgroup"


def folders(root: str, lines: str, controller: str) -> list[tuple[str, bool]]:
    """Return the folders of the control groups of a process and of all above it, and whether each is of version 2.

    A container may see its own group at the root, under a path that is the host's. Paths may not exist.

    Args:
        root: where the control groups are mounted.
        lines: the list of the control groups of the process.
        controller: what the groups of version 1 are to control, ``cpu`` or ``memory``.
    """
    found = []
    for line in lines.split("\n"):
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            top = root if os.path.exists(f"{root}/cgroup.controllers") else f"{root}/unified"
        elif controller in controllers.split(","):
            top = next((at for at in (f"{root}/{controllers}", f"{root}/{controller}") if os.path.isdir(at)), "")
        else:
            continue
        while top:
            found.append((top + path.rstrip("/"), number == "0"))
            if path in {"", "/"}:
                break
            path = os.path.dirname(path)
    return found
