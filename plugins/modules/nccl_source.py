# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin of the same name; nothing of it runs on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nccl_source
short_description: Decide which NCCL each platform gets, and pin it
version_added: "0.1.0"
author: The clusterctl authors
description:
  - Returns, for each platform whose hosts get NCCL, its version, the CUDA major that it is for, and the pinned wheel.
  - An archive is fetched to the controller's cache, verified, and looked into. What is not NCCL is refused here.
  - Whatever cannot be had is one sentence in RV(problem), so that the caller may refuse before a host is touched.
  - Runs on the controller and never on the host; no connection is opened. It does so in check mode as well, since the
    cache is no part of any host.
options:
  members:
    description: The cluster's hosts as M(clusterctl.hpc.preflight_judge) describes them.
    type: list
    elements: dict
    default: []
  frameworks:
    description: By platform, which framework its wheels hold, as P(clusterctl.hpc.framework_in_wheels#filter) tells.
    type: dict
    default: {}
  install:
    description: Which hosts get NCCL.
    type: str
    choices: [always, gpu, never]
    default: always
  source:
    description: Where NCCL comes from.
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
    description: Whose NCCL decides about the version.
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
    description: Folder of the controller to look into instead of an index.
    type: str
    default: ""
attributes:
  check_mode:
    description: Does the same; no host is touched.
    support: full
  diff_mode:
    description: There is no text to compare.
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
  description: Why NCCL cannot be had like this, in one sentence; empty where it can.
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
  description: The verified archive in the controller's cache with its sha256, where there is one.
  type: list
  returned: always
"""
