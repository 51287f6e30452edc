# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Documentation of the action of this name; the work is done on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fabric_decide
short_description: Decide which network the cluster uses
version_added: 0.2.0
description:
  - Runs once, on the controller, with the results of M(clusterctl.hpc.fabric_connect) on each host of the play.
  - Takes the fastest candidate in which every connection came through, and renders the files of each node.
  - Fails if no candidate carries, and lists the networks of each host and the failed connections.
options:
  plan:
    description: Result of M(clusterctl.hpc.fabric_plan).
    type: dict
    required: true
  facts:
    description: Name of the host variable that holds a node's record.
    type: str
    required: true
  listens:
    description: Name of the variable under which fabric_listen was registered.
    type: str
    required: true
  calls:
    description: Name of the variable under which fabric_connect was registered.
    type: str
    required: true
  pin_gid:
    description: Whether to set the GID index for NCCL.
    type: bool
    required: true
  pin_hca:
    description: RDMA devices for NCCL; V(auto) takes the fastest of each node.
    type: list
    elements: str
    required: true
  nccl_socket_nthreads:
    description: Threads for NCCL's sockets; V(0) leaves it to NCCL.
    type: int
    required: true
  nccl_nsocks_perthread:
    description: Sockets for each of these threads; V(0) leaves it to NCCL.
    type: int
    required: true
  open_firewall:
    description: Whether the role opens the network in the firewalls of the nodes, which each node's record then says.
    type: bool
    default: false
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode:
    support: full
    description: It only decides.
"""

EXAMPLES = r"""
- name: Decide which network the cluster uses
  clusterctl.hpc.fabric_decide:
    plan: "{{ __example_plan }}"
    facts: preflight_node
    listens: __example_listen
    calls: __example_calls
    pin_gid: false
    pin_hca: []
    nccl_socket_nthreads: 0
    nccl_nsocks_perthread: 0
  run_once: true
  register: __example_decision
"""

RETURN = r"""
files:
  description: By host, the texts C(openmpi), C(prrte), C(nccl) and C(record).
  returned: success
  type: dict
openings:
  description: By host what its firewall has to let in, as M(clusterctl.hpc.fabric_firewall) takes it.
  returned: success
  type: dict
rejected:
  description: Every network and interface that is not taken, with its hosts and the reason.
  returned: success
  type: list
  elements: dict
failures:
  description: The connections that did not come through.
  returned: success
  type: list
  elements: dict
told:
  description: The decision, and why each other network was not taken, one sentence each.
  returned: success
  type: list
  elements: str
problems:
  description: For each host the networks that it has, and why they were rejected.
  returned: failure
  type: list
  elements: dict
"""
