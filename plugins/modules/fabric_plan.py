# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Documentation of the action of this name; the work is done on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fabric_plan
short_description: Find the networks that could carry the cluster, and decide whether to probe them
version_added: 0.2.0
description:
  - Runs once, on the controller, with the record of M(clusterctl.hpc.node_facts) for each host of the play.
  - Fails if no network is common to all nodes, or if a node lacks what the user pinned. It lists the networks of each
    host.
options:
  facts:
    description: Name of the host variable that holds a node's record.
    type: str
    required: true
  members:
    description: The cluster's members. Networks that hold the addresses of members outside this play come first.
    type: list
    elements: dict
    required: true
  cidr:
    description: Networks to take instead of those that are found.
    type: raw
    required: true
  interfaces:
    description: Interfaces to take; each node takes its first one that has an address.
    type: list
    elements: str
    required: true
  probe:
    description: Whether to probe the candidates. V(auto) probes unless the best one is on record on all nodes.
    type: str
    choices: [auto, never]
    required: true
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode:
    support: full
    description: It only plans.
"""

EXAMPLES = r"""
- name: Find out which networks could carry the cluster
  clusterctl.hpc.fabric_plan:
    facts: preflight_node
    members: "{{ preflight_members }}"
    cidr: ""
    interfaces: []
    probe: auto
  run_once: true
  register: __example_plan
"""

RETURN = r"""
candidates:
  description: The networks that could carry the cluster, best first, and those that were rejected before a probe.
  returned: success
  type: dict
probe:
  description: Whether the candidates have to be probed.
  returned: success
  type: bool
known:
  description: Whether the best one is on record on all nodes, proven between all of them.
  returned: success
  type: bool
outside:
  description: The members that this play does not visit.
  returned: success
  type: list
  elements: str
proven:
  description: By network and host, the nodes with which the host's connections came through before.
  returned: success
  type: dict
pairs:
  description: Who connects to whom.
  returned: success
  type: list
  elements: list
listen:
  description: By host, the arguments of M(clusterctl.hpc.fabric_listen).
  returned: success
  type: dict
problems:
  description: For each host the networks that it has, and why they were rejected.
  returned: failure
  type: list
  elements: dict
"""
