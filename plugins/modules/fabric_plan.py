# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action of this name; the work is done on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fabric_plan
short_description: Find out which networks could carry the cluster, and whether they have to be proven
version_added: 0.2.0
description:
  - Runs once, on the controller, over the records that M(clusterctl.hpc.node_facts) made of each host of the play.
  - Fails with who has what where no network is common to all nodes, or where a node lacks what the user pinned.
options:
  facts:
    description: Name of the host variable that holds a node's record.
    type: str
    required: true
  members:
    description: The cluster's members; networks that hold the addresses of those outside this play come first.
    type: list
    elements: dict
    required: true
  cidr:
    description: Networks to take, instead of those that are found.
    type: raw
    required: true
  interfaces:
    description: Interfaces to take; of each node the first of these that has an address.
    type: list
    elements: str
    required: true
  probe:
    description: Whether to prove candidates. V(auto) does unless the best one is on record on all nodes.
    type: str
    choices: [auto, never]
    required: true
author:
  - The clusterctl authors
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
  description: The networks that could, best first, and what was rejected before any probe.
  returned: success
  type: dict
probe:
  description: Whether they have to be proven.
  returned: success
  type: bool
known:
  description: Whether the best one is on record on all nodes.
  returned: success
  type: bool
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
  description: Of each host what it has and why that will not do.
  returned: failure
  type: list
  elements: dict
"""
