# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Documentation of the action plugin ssh_mesh_sign, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: ssh_mesh_sign
short_description: Sign the certificates of the mesh once for all nodes
version_added: "0.2.0"
description:
  - Runs once, on the controller, over what M(clusterctl.hpc.mesh_key) registered on each host of the play.
  - Makes the cluster's certificate authority where it is missing, and signs the certificates that nodes lack, that say
    something else, or that have less than a third of their life left.
  - Reads the passphrase from the variables C(ssh_mesh_ca_passphrase_file) or C(ssh_mesh_ca_passphrase). It is never an
    argument of a program.
options:
  folder:
    description: Folder of the authority on the controller.
    type: str
    required: true
  only_check:
    description: Whether to refuse what would end the run later, and to do nothing else.
    type: bool
    default: false
  looks:
    description: Name of the variable in which M(clusterctl.hpc.mesh_key) was registered.
    type: str
  plan:
    description: What M(clusterctl.hpc.ssh_mesh_plan) returned.
    type: dict
  inventory:
    description: Names of all hosts of the inventory.
    type: list
    elements: str
  patterns:
    description: Patterns of the names and addresses for which the host authority is trusted. Empty derives them.
    type: list
    elements: str
  accept_keys:
    description: Whether the files accept the keys of single nodes as well, while these keys are rotated.
    type: bool
    default: false
  days:
    description: Life of a certificate in days.
    type: int
  key_name:
    description: Bare name of the key file in C(~/.ssh).
    type: str
  key_options:
    description: Options written before the authority's key in authorized_keys, behind C(restrict,pty).
    type: list
    elements: str
  from_members_only:
    description: Whether a node's certificate is valid only from that node's own addresses.
    type: bool
  strict_host_keys:
    description: Whether a host without a certificate of the authority ends the login.
    type: bool
  client_options:
    description: Further options of the ssh client for the cluster's hosts.
    type: dict
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode:
    support: full
    description: Signs nothing, and makes no authority.
"""

EXAMPLES = r"""
- name: Sign the certificates
  clusterctl.hpc.ssh_mesh_sign:
    folder: ~/.local/state/example/ca
    looks: __example_key
    plan: "{{ __example_plan }}"
    inventory: "{{ groups['all'] }}"
    patterns: []
    days: 30
    key_name: id_clusterctl
    key_options: []
    from_members_only: true
    strict_host_keys: true
    client_options: {}
  run_once: true
  register: __example_signed
"""

RETURN = r"""
certificates:
  description: The certificates of each visited node, C(user) and C(host).
  returned: success
  type: dict
revoked:
  description: The list of revoked keys (KRL) in base64.
  returned: success
  type: str
gone:
  description: Nodes that left the inventory, whose keys were revoked.
  returned: success
  type: list
  elements: str
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
both:
  description: Blocks that accept the keys of single nodes as well, for the change from one to the other.
  returned: success
  type: dict
own:
  description: By node the same texts, where the node's own files go on to hold keys of single hosts.
  returned: success
  type: dict
"""
