# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Connect to the nodes that listen, from the addresses that a job would use."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fabric_connect
short_description: Connect to the other nodes, all at once, and return the result of each connection
version_added: 0.2.0
description:
  - The action of this name makes the targets from O(plan) and from the results of M(clusterctl.hpc.fabric_listen) on
    the other hosts. It runs this module with them.
options:
  plan:
    description: Name of the variable under which M(clusterctl.hpc.fabric_plan) was registered.
    type: str
  listens:
    description: Name of the variable under which fabric_listen was registered.
    type: str
  name:
    description: Name of this node. The action gives it.
    type: str
  token:
    description: Secret of this run, which the listeners know. The action gives it.
    type: str
  targets:
    description: Nodes to connect to, each with network, source, name, address and port. The action gives them.
    type: list
    elements: dict
  timeout_s:
    description: >-
      Time limit of a connection. A connection that timed out is tried twice more, the second time after a pause.
    type: float
    default: 5
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode: {support: full, description: It changes nothing.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
results:
  description: >-
    For each target its network, its name, the kind of result (V(ok) or the kind of failure), the problem in words and
    the port.
  returned: success
  type: list
  elements: list
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_probe


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "str"},
            "listens": {"type": "str"},
            "name": {"type": "str"},
            "token": {"type": "str", "no_log": False},  # good for one run's greetings
            "targets": {"type": "list", "elements": "dict"},
            "timeout_s": {"type": "float", "default": 5},
        },
        supports_check_mode=True,
    )
    given = module.params
    exchange = fabric_probe.Exchange(given["name"] or "", given["token"] or "")
    exchange.connect_all(given["targets"] or [], given["timeout_s"], pauses_s=fabric_probe.PAUSES_S)
    exchange.close()
    module.exit_json(changed=False, changes=[], watch=[], results=exchange.results)


if __name__ == "__main__":
    main()
