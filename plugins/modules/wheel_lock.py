# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Documentation of the action plugin wheel_lock, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: wheel_lock
short_description: Pin the Python wheels that fit the nodes
version_added: "0.1.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Returns, for each platform, the wheels that satisfy O(requirements) there, with version and sha256.
  - The locks that ship with the collection come first. The controller's pip fetches exactly their files. An index that
    has another file of the same name is refused. An index that lacks a file leads to the next alternative.
  - For other requirements, the controller's pip asks its configured index once. The answer is kept as a lock in the
    controller's cache, so later runs get the same wheels without the index. A second remote index is refused here.
  - The Python and the C library of the platform decide, not those of the controller. Only wheels are taken.
  - Runs on the controller without a connection to the host. It runs in check mode too, because the cache is not part of
    a host.
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
    description: Names of packages with versions, extras and markers (PEP 508). URLs and options of pip are refused.
    type: list
    elements: str
    default: []
  by_platform:
    description:
      - Additional requirements of single platforms, by platform id.
      - V(requirements) is a list of requirements.
      - V(first_of) is a list of lists of requirements in the order of preference. The first list that the index has is
        taken. An index that does not answer is an error.
      - V(otherwise) is the warning for a list other than the first one.
      - V(target) is the platform id that the wheels must fit, where the environment has another Python than the node.
    type: dict
    default: {}
  cache_dir:
    description: The controller's cache folder; it holds the folders C(locks) and C(wheels).
    type: str
    required: true
  wheel_dir:
    description: Folder of the controller to use instead of an index, for controllers without a network.
    type: str
    default: ""
  variable:
    description: The user's variable that lists requirements, named in messages. The default is V(NAME_requirements).
    type: str
  choice_variable:
    description: The user's variable behind V(first_of), named in messages. The default is O(variable).
    type: str
  refuse:
    description: Fail where wheels are unavailable. Otherwise RV(problem) says why and RV(wheels) is empty.
    type: bool
    default: true
attributes:
  check_mode:
    description: Does the same. Hosts are left alone.
    support: full
  diff_mode:
    description: The module changes no text.
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
  description: Why wheels are unavailable, in one sentence. Empty where they are available.
  type: str
  returned: success
"""
