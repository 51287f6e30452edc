# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""List the installed artifacts with their size, age and users, and remove old ones that nothing uses."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: artifact_collect
short_description: List the installed artifacts, and remove old ones that nothing uses
version_added: "0.2.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Lists every artifact below C(/usr/local), with its size, when it was installed, and what uses it.
  - Removes the artifacts of O(trees). One to which a link leads, or of which a process maps a file, stays and is named,
    also where O(trees) names it.
options:
  trees:
    description: Folders to remove.
    type: list
    elements: path
    default: []
  root:
    description: Folder below which artifacts are installed.
    type: path
    default: /usr/local
  host:
    description: Name of the host, for sentences.
    type: str
    default: ""
attributes:
  check_mode: {support: full, description: Removes nothing.}
  diff_mode: {support: none, description: There is no file to show.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
trees:
  description: >-
    The artifacts that are left, each with C(path), C(size) in bytes, C(installed) in seconds since 1970, C(linked), and
    C(used_by), its processes.
  type: list
  returned: success
told: {description: "What stays although it was named, a sentence each.", type: list, returned: success}
changes: {description: A short phrase for each change., type: list, returned: success}
watch: {description: Always empty., type: list, returned: success}
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List

from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    audited_module,
    brought,
    library_closure,
    tree_removal,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import (
    MARKER,
    ArtifactError,
    manifest_of,
    parse_manifest,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import processes


def size_of(tree: Path) -> int:
    """Return the bytes of an artifact's files, by its manifest."""
    try:
        return sum(entry.size for entry in parse_manifest(manifest_of(tree)))
    except ArtifactError:
        return 0


def installed(root: str) -> List[Dict[str, Any]]:
    """Return the artifacts below a folder."""
    trees, links = brought.trees_and_links(root)
    linked = {os.path.realpath(link) for link in links}
    users: Dict[str, List[str]] = {}
    for process in processes.busy(wanted=True, root=root)["busy"]:
        for tree in process["trees"]:
            users.setdefault(tree, []).append(f"{process['pid']} of {process['user']}")
    found = []
    for path in map(Path, trees):
        with suppress(OSError):
            if not path.name.startswith("."):  # the rest of an interrupted run
                found.append(
                    {
                        "path": str(path),
                        "size": size_of(path),
                        "installed": (path / brought.MARKER).stat().st_mtime,
                        "linked": os.path.realpath(path) in linked,
                        "used_by": users.get(os.path.realpath(path), []),
                    }
                )
    return found


def why_kept(tree: Dict[str, Any]) -> str:
    """Return why an artifact may not be removed; '' where it may."""
    if tree["linked"]:
        return "a link leads there"
    if tree["used_by"]:
        return f"process {tree['used_by'][0]} uses it"
    return ""


def remove(path: Path) -> None:
    """Remove an artifact, and what is remembered of its libraries."""
    tree_removal.remove_by_name(str(path), MARKER)
    library_closure.forget(path.name)


def main() -> None:
    """Run the module."""
    module = audited_module.AuditedModule(
        argument_spec={
            "trees": {"type": "list", "elements": "path", "default": []},
            "root": {"type": "path", "default": "/usr/local"},
            "host": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    changes: List[str] = []
    told: List[str] = []
    try:
        found = installed(module.params["root"])
        for tree in list(found):
            if tree["path"] not in module.params["trees"]:
                continue
            why = why_kept(tree)
            if why:
                told.append(f"{module.params['host']}: {tree['path']} stays, because {why}.")
                continue
            changes.append(f"removed {tree['path']}")
            found.remove(tree)
            if not module.check_mode:
                remove(Path(tree["path"]))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or 'A file'}: {error.strerror}; run again.", changes=changes, watch=[])
    module.exit_json(changed=bool(changes), changes=changes, told=told, trees=found, watch=[])


if __name__ == "__main__":
    main()
