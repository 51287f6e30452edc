# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin of the same name; nothing of it runs on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: wheel_lock
short_description: Pin the Python wheels that fit the nodes
version_added: "0.1.0"
author: The clusterctl authors
description:
  - Returns, for each platform, the wheels that satisfy O(requirements) there, with version and sha256.
  - The controller's pip asks the index of its own configuration once; the answer is kept as a lock in the controller's
    cache, so that later runs get the same wheels and ask nobody. Other requirements are another lock.
  - The Python and the C library of the platform decide, not the controller's; only wheels are taken, nothing is built.
  - Runs on the controller and never on the host; no connection is opened. It does so in check mode as well, since the
    cache is no part of any host.
options:
  name:
    description: What the wheels are for; part of the lock's file name.
    type: str
    required: true
  platforms:
    description:
      - Platform ids as M(clusterctl.hpc.node_facts) gives them. One of O(platforms) and O(by_platform) is needed.
    type: list
    elements: str
    default: []
  requirements:
    description: Names of packages with versions, extras and markers (PEP 508); no addresses, no options of pip.
    type: list
    elements: str
    default: []
  by_platform:
    description:
      - What single platforms want besides O(requirements), by platform id.
      - V(requirements) is one more list of them.
      - V(first_of) is a list of lists of requirements in the order of preference. The first list that the index has is
        taken; an index that does not answer is no reason to take a worse one.
      - V(otherwise) is said where it was not the first one.
    type: dict
    default: {}
  cache_dir:
    description: The controller's cache folder; locks lie in C(locks) and wheels in C(wheels) below it.
    type: str
    required: true
  wheel_dir:
    description: Folder of the controller to look into instead of an index; for controllers without a network.
    type: str
    default: ""
  variable:
    description: The user's variable that lists requirements, named in messages. The default is V(NAME_requirements).
    type: str
  choice_variable:
    description: The user's variable behind V(first_of), named in messages. The default is O(variable).
    type: str
  refuse:
    description: Fail where wheels cannot be had. Without it, RV(problem) says why and RV(wheels) is empty.
    type: bool
    default: true
attributes:
  check_mode:
    description: Does the same; no host is touched.
    support: full
  diff_mode:
    description: There is no text to compare.
    support: none
"""

EXAMPLES = r"""
- name: Pin the wheels of the cluster's Python
  clusterctl.hpc.wheel_lock:
    name: python_env
    platforms: [debian-12-x86_64-glibc2.36-py3.11]
    requirements: ["numpy>=1.26"]
    cache_dir: "{{ lookup('ansible.builtin.env', 'HOME') }}/.cache/clusterctl"
  run_once: true
  register: pinned
"""

RETURN = r"""
wheels:
  description: By platform, a list of wheels, each with V(name), V(version), V(filename) and V(sha256).
  type: dict
  returned: success
problem:
  description: Why wheels cannot be had, in one sentence; empty where they can.
  type: str
  returned: success
"""
