# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Documentation of the action of this name; the work is done on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: preflight_look
short_description: Look at a node, and at the controller's clock before and after
version_added: 0.1.0
description:
  - Runs M(clusterctl.hpc.node_facts), with the given options, between two readings of the controller's clock.
  - Never fails. A node that is unreachable, lacks Python or refuses sudo is an answer, which
    M(clusterctl.hpc.preflight_judge) reports with the problems of all other nodes.
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode:
    support: full
    description: It only looks.
"""

EXAMPLES = r"""
- name: Look at every node
  clusterctl.hpc.preflight_look:
  register: __example_look
"""

RETURN = r"""
node:
  description: The record of the node, null if it could not be looked at.
  returned: always
  type: dict
failure:
  description: The words of ssh, sudo or Python if the node could not be looked at.
  returned: always
  type: str
before_s:
  description: The controller's clock before the look, in seconds since the epoch.
  returned: always
  type: float
after_s:
  description: The controller's clock after the look.
  returned: always
  type: float
"""
