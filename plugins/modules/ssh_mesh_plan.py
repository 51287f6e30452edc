# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Documentation of the action plugin ssh_mesh_plan, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: ssh_mesh_plan
short_description: Plan the mesh once for all nodes
version_added: 0.1.0
description:
  - Runs once, on the controller, over what M(clusterctl.hpc.mesh_key) registered on each host of the play.
  - Renders the files that are the same on all nodes. Hosts of the inventory that the play does not visit keep the keys
    that an earlier run or the visited nodes know.
options:
  looks:
    description: Name of the variable in which M(clusterctl.hpc.mesh_key) was registered.
    type: str
    required: true
  members:
    description: The cluster's members as preflight makes them.
    type: list
    elements: dict
    required: true
  inventory:
    description: Names of all hosts of the inventory. Keys of other hosts are removed.
    type: list
    elements: str
    required: true
  key_name:
    description: Bare name of the key file in C(~/.ssh).
    type: str
    required: true
  key_options:
    description: Options written before each key in authorized_keys, behind C(restrict,pty).
    type: list
    elements: str
    required: true
  from_members_only:
    description: Whether a node's key is valid only from that node's own addresses.
    type: bool
    required: true
  strict_host_keys:
    description: Whether a host key that the controller has not verified ends the login.
    type: bool
    required: true
  client_options:
    description: Further options of the ssh client for the cluster's hosts.
    type: dict
    required: true
  verify:
    description: Which logins prove the mesh.
    type: str
    choices: [ring, all, none]
    required: true
  more_host_keys:
    description: Name of a registered variable with further host keys of each node in C(host_keys). Empty means none.
    type: str
    default: ""
  trust:
    description: V(keys) lists the key of each node. V(ca) trusts an authority, so new keys need no warning.
    type: str
    choices: [keys, ca]
    default: keys
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode:
    support: full
    description: Only plans.
"""

EXAMPLES = r"""
- name: Plan the mesh
  clusterctl.hpc.ssh_mesh_plan:
    looks: __example_key
    members: "{{ preflight_members }}"
    inventory: "{{ groups['all'] }}"
    key_name: id_clusterctl
    key_options: []
    from_members_only: true
    strict_host_keys: true
    client_options: {}
    verify: ring
  run_once: true
  register: __example_plan
"""

RETURN = r"""
authorized_keys:
  description: The managed block of the user's authorized_keys.
  returned: success
  type: str
known_hosts:
  description: The managed block of /etc/ssh/ssh_known_hosts.
  returned: success
  type: str
client_config:
  description: The ssh client's drop-in.
  returned: success
  type: str
logins:
  description: The nodes that each node logs in to as the proof.
  returned: success
  type: dict
own:
  description:
    - By node the same three texts, where the node's own files hold a host of which neither this run nor the controller
      knows all. With certificates also C(outside), the hosts whose keys the node goes on to accept.
    - What a node remembers of another machine is for its own files alone.
  returned: success
  type: dict
user:
  description: User whose logins the mesh is for.
  returned: success
  type: str
members:
  description: The members, each with its public key in C(user_key).
  returned: success
  type: list
  elements: dict
"""
