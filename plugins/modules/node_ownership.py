# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Refuse a node that belongs to another cluster, which would lose members."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_ownership
short_description: Refuse a node that belongs to another cluster
version_added: "0.2.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Reads the mark of a cluster, C(/var/lib/clusterctl/cluster.json), which C(clusterctl) keeps on every node.
  - Fails where another cluster marked the node, and that cluster has a member that this inventory does not list.
  - C(clusterctl) itself looks before it starts Ansible. It also takes a lock on each node, which this module does not.
options:
  host:
    description: Name of the host, for sentences.
    type: str
    required: true
  names:
    description: The names of all hosts of the inventory.
    type: list
    elements: str
    required: true
  members:
    description: The members of the cluster, as M(clusterctl.hpc.preflight_judge) returns them.
    type: list
    elements: dict
    required: true
  cluster:
    description: The id of the cluster that wants the node. Empty where only Ansible knows it.
    type: str
    default: ""
  adopt:
    description: Take the node over. Its mark then names the members of this inventory.
    type: bool
    default: false
attributes:
  check_mode: {support: full, description: Only looks.}
"""

EXAMPLES = r"""
- name: Refuse a node of another cluster
  clusterctl.hpc.node_ownership:
    host: "{{ inventory_hostname }}"
    names: "{{ groups['all'] }}"
    members: "{{ preflight_members }}"
"""

RETURN = r"""
problems:
  description: What stands in the way, each with host, check, problem, cure and kind.
  returned: always
  type: list
  elements: dict
changes: {description: A short phrase for each change., type: list, returned: success}
watch: {description: Always empty., type: list, returned: success}
"""

from typing import Any, Dict

from ansible_collections.clusterctl.hpc.plugins.module_utils.audited_module import AuditedModule
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_ownership import mark_and_lock
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_ownership.mark_and_lock import Node


def main() -> None:
    """Run the module."""
    module = AuditedModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "names": {"type": "list", "elements": "str", "required": True},
            "members": {"type": "list", "elements": "dict", "required": True},
            "cluster": {"type": "str", "default": ""},
            "adopt": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given, node = module.params, Node()
    mark = node.mark()
    known = {str(member.get("name")): str(member.get("address") or "") for member in given["members"]}
    lost = mark_and_lock.lost_members(mark, given["cluster"], given["names"], known.values())
    said: Dict[str, Any] = {"changes": [], "watch": []}
    if mark is None or not lost:
        module.exit_json(changed=False, problems=[], **said)
    if not given["adopt"]:
        problem = mark_and_lock.foreign_words(mark, lost)
        cure = "take it over with --adopt, or without clusterctl with -e preflight_adopt=true"
        entry = {
            "host": given["host"],
            "check": "other_cluster",
            "problem": problem,
            "cure": cure,
            "kind": "configuration",
        }
        module.fail_json(msg=f"{given['host']} {problem}; {cure}.", problems=[entry], **said)
    said["changes"] = [f"taken over from {mark_and_lock.cluster_words(mark)}"]
    if not module.check_mode:
        try:
            node.write_mark({**mark, "members": {name: known.get(name, "") for name in given["names"]}})
        except OSError as error:
            module.fail_json(msg=f"{error.filename or 'The mark'} cannot be written: {error.strerror}.", problems=[])
    module.exit_json(changed=True, problems=[], **said)


if __name__ == "__main__":
    main()
