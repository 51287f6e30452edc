# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Documentation of the action plugin nccl_source, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nccl_source
short_description: Decide which NCCL each platform gets, and pin it
version_added: "0.1.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Returns the NCCL version, its CUDA major and the pinned wheel for each platform whose hosts get NCCL.
  - Fetches an archive to the controller's cache, verifies it, and refuses one that does not hold NCCL.
  - Returns an unavailable NCCL as one sentence in RV(problem), so that the caller can stop before it touches a host.
  - Runs on the controller without a connection to the host. It fetches in check mode too, because the cache is not part
    of a host.
options:
  members:
    description: The cluster's hosts as M(clusterctl.hpc.preflight_judge) describes them.
    type: list
    elements: dict
    default: []
  frameworks:
    description: The framework of each platform's wheels, as P(clusterctl.hpc.framework_in_wheels#filter) returns it.
    type: dict
    default: {}
  install:
    description: Which hosts get NCCL.
    type: str
    choices: [always, gpu, never]
    default: always
  source:
    description: The origin of NCCL.
    type: str
    choices: [wheel, archive, packages, build]
    default: wheel
  version:
    description: Release. Empty takes the framework's, the archive's or the default.
    type: str
    default: ""
  cuda:
    description: CUDA major. Empty takes what the hosts can run.
    type: str
    default: ""
  align:
    description: Which NCCL decides the version.
    type: str
    choices: [framework, cluster, report]
    default: framework
  archive:
    description: Path or URL of the archive, where O(source) is V(archive) or V(build).
    type: str
    default: ""
  sha256:
    description: Its sha256.
    type: str
    default: ""
  cache_dir:
    description: The controller's cache folder.
    type: str
    required: true
  wheel_dir:
    description: Folder of the controller to use instead of an index.
    type: str
    default: ""
attributes:
  check_mode:
    description: Does the same. Hosts are left alone.
    support: full
  diff_mode:
    description: The module changes no text.
    support: none
"""

EXAMPLES = r"""
- name: Decide and pin
  clusterctl.hpc.nccl_source:
    members: "{{ preflight_members }}"
    cache_dir: "{{ lookup('ansible.builtin.env', 'HOME') }}/.cache/clusterctl"
  run_once: true
  register: planned
"""

RETURN = r"""
problem:
  description: Why this NCCL is unavailable, in one sentence. Empty where it is available.
  type: str
  returned: always
platforms:
  description:
    - By platform, V(version), V(release) (the version that the header names), V(cuda), V(hosts) and V(wheels).
  type: dict
  returned: always
hosts:
  description: The hosts of all platforms that get NCCL.
  type: list
  returned: always
sources:
  description: The verified archive in the controller's cache with its sha256. Empty without an archive.
  type: list
  returned: always
"""
