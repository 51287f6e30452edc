# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Documentation of the action of this name; the work is done on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: preflight_judge
short_description: Check all nodes of the play at once
version_added: 0.1.0
description:
  - Runs once, on the controller, with the results of M(clusterctl.hpc.preflight_look) on each host of the play.
  - Checks distribution, Python, root, disk, host names, addresses, host keys and clocks.
  - Checks every variable that has the prefix of a role of this collection against that role's argument specs.
  - Fails with all problems of all nodes, or ends with the members of the cluster.
options:
  looks:
    description: Name of the variable under which preflight_look was registered.
    type: str
    required: true
  supported:
    description: Distribution ids and their releases.
    type: dict
    required: true
  min_python:
    description: Oldest Python that the modules run on.
    type: str
    required: true
  min_disk_bytes:
    description: Free space that every node needs, by path.
    type: dict
    required: true
  min_builder_disk_bytes:
    description: Free space that a node needs to compile on, by path.
    type: dict
    required: true
  builders:
    description: Nodes that may have to compile; empty means the first of each platform.
    type: list
    elements: str
    required: true
  max_clock_skew_s:
    description: How far apart the clocks of two nodes may be.
    type: float
    required: true
  require_unique_host_keys:
    description: Whether equal host keys are a problem.
    type: bool
    required: true
  ignored_variables:
    description: Variables that are not checked.
    type: list
    elements: str
    required: true
  node_domains:
    description: Domains whose names a node may give itself. All other names come from the inventory.
    type: list
    elements: str
    required: true
  known_members:
    description: Members of an earlier run. They stand for hosts of the inventory that this play does not visit.
    type: list
    elements: dict
    required: true
  left_out:
    description: Hosts of the inventory that do not belong to the cluster.
    type: list
    elements: str
    default: []
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode:
    support: full
    description: It only looks.
"""

EXAMPLES = r"""
- name: Judge all nodes together
  clusterctl.hpc.preflight_judge:
    looks: __example_look
    supported: {debian: ["12", "13"]}
    min_python: "3.9"
    min_disk_bytes: {/usr/local: 1000000000}
    min_builder_disk_bytes: {}
    builders: []
    max_clock_skew_s: 5
    require_unique_host_keys: true
    ignored_variables: []
    node_domains: []
    known_members: []
  run_once: true
  register: __example_verdict
"""

RETURN = r"""
problems:
  description: Every problem of every host, each with host, check, problem, cure and variable.
  returned: always
  type: list
  elements: dict
members:
  description: The cluster's members in the inventory's order.
  returned: success
  type: list
  elements: dict
missing:
  description: Hosts of the inventory that neither this run nor an earlier one has seen.
  returned: success
  type: list
  elements: str
"""
