"""The files of the job supervisor on a node, and how to see whether a node has this clusterctl's."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.model.hosts import Host
    from clusterctl.model.layout import Layout

SUPERVISOR = "job_supervisor.py"
DETACHED = "detached_job.py"
IMPORTED = ("bounded_run.py", "job_look.py", "job_members.py")  # what these two import
# The program, what keeps it without a controller, what they import, and what the user's program may import.
SUPERVISOR_FILES = (SUPERVISOR, DETACHED, *IMPORTED, "pace/clusterctl/pace.py")


def digests(names: Iterable[str], layout: Layout) -> dict[str, str]:
    """Return the sha256 that programs of the nodes must have, by their path on a node."""
    folder = content.role_files("validation")
    return {layout.program(name): hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def watch_entries(host: Host, names: Iterable[str] = SUPERVISOR_FILES) -> list[dict[str, Any]]:
    """Return what to ask of a node in addition to its facts: by default the supervisor and what it imports."""
    return [{"path": host.layout.program(name), "kind": "file"} for name in names]
