# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Remove from a node what unfinished runs left there."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: leftovers
short_description: Remove what unfinished runs left
version_added: "0.2.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Waits until programs of unfinished runs have ended on the host. Then it removes staged files and links, half trees,
    pushed packs, folders of builds, and packs that the controller has fetched.
  - On the controller, it removes partial files from the cache that no process holds.
options:
  runs:
    description: The names of the unfinished runs.
    type: list
    elements: str
    default: []
  folders:
    description: Folders of the host to which packs are pushed and in which software is built.
    type: list
    elements: path
    default: [/var/tmp]
  prefix:
    description: Folder of the cluster's software.
    type: path
    default: /usr/local
  cache_dir:
    description: The cache of the controller.
    type: str
    required: true
  patience_s:
    description: How many seconds to wait for programs of unfinished runs.
    type: float
    default: 300
  packs:
    description: Set by the action plugin.
    type: list
    elements: str
    default: []
  host:
    description: Set by the action plugin.
    type: str
    default: ""
attributes:
  check_mode:
    description: Removes nothing.
    support: full
  diff_mode:
    description: There is no content to show.
    support: none
"""

EXAMPLES = r"""
- name: Remove what unfinished runs left
  clusterctl.hpc.leftovers:
    cache_dir: ~/.cache/clusterctl
"""

RETURN = r"""
changes: {description: A short phrase for each change., type: list, returned: always}
watch: {description: Always empty., type: list, returned: always}
"""

from ansible_collections.clusterctl.hpc.plugins.module_utils import audited_module, disk_files, leftovers


def main() -> None:
    """Run the module."""
    module = audited_module.AuditedModule(
        argument_spec={
            "runs": {"type": "list", "elements": "str", "default": []},
            "folders": {"type": "list", "elements": "path", "default": ["/var/tmp"]},  # noqa: S108 - names of ours
            "prefix": {"type": "path", "default": "/usr/local"},
            "cache_dir": {"type": "str", "required": True},
            "patience_s": {"type": "float", "default": 300.0},
            "packs": {"type": "list", "elements": "str", "default": []},
            "host": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    p = module.params
    left = [] if module.check_mode else leftovers.still_at_work(p["runs"], p["patience_s"], module.debug)
    if left:
        first = left[0]
        module.fail_json(
            msg=f"{p['host']}: {first.name} (process {first.pid}) of the unfinished run {first.run} is still at work;"
            " wait until it has ended, or end it, and run again.",
            changes=[],
            watch=[],
        )
    changes = []
    try:
        for path in leftovers.of_unfinished(p["folders"], p["packs"], p["prefix"]):
            if not module.check_mode:
                leftovers.remove(path)
            changes.append(f"removed {path}, which an unfinished run left")
    except OSError as error:
        module.fail_json(msg=disk_files.sentence(p["host"], error), changes=changes, watch=[])
    module.exit_json(changed=bool(changes), changes=changes, watch=[])


if __name__ == "__main__":
    main()
