# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Listen on an ephemeral port of each candidate address, in a process that ends by itself."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fabric_listen
short_description: Listen for the other nodes' probes, for a limited time
version_added: 0.2.0
description:
  - Leaves a process behind that answers callers of this run. It ends when every caller had its answer, or when its
    time is up. It has a session of its own.
  - The action of this name takes the other options from O(plan). It runs this module with them, after
    M(clusterctl.hpc.fabric_firewall) where the role may open the firewall. Where the plan has no trial, it does
    nothing.
options:
  plan:
    description: Name of the variable under which M(clusterctl.hpc.fabric_plan) was registered.
    type: str
  open_firewall:
    description: Whether the firewall of the node may be opened to the others.
    type: bool
    default: false
  name:
    description: Name under which this node answers.
    type: str
    default: ""
  token:
    description: Secret of this run, which the callers know.
    type: str
    default: ""
  addresses:
    description: Addresses to listen on, by network.
    type: dict
    default: {}
  callers:
    description: Number of expected callers.
    type: int
    default: 0
  lifetime_s:
    description: Seconds after which the process ends in any case.
    type: float
    default: 0
  prefix:
    description: >-
      Folder of the software, where Open MPI is looked at; empty looks at nothing. The action gives it where cables are
      tried.
    type: str
    default: ""
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode: {support: full, description: Its process ends by itself.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
ports: {description: The port by network., type: dict, returned: success}
problems: {description: "By network, why there is no port.", type: dict, returned: success}
tells_cables:
  description: Whether Open MPI there asks the kernel which interface leads to which node.
  returned: success
  type: bool
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_probe

_LARGEST_LIBRARY = 1 << 26


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "str"},
            "open_firewall": {"type": "bool", "default": False},
            "name": {"type": "str", "default": ""},
            "token": {"type": "str", "default": "", "no_log": False},  # good for one run's greetings
            "addresses": {"type": "dict", "default": {}},
            "callers": {"type": "int", "default": 0},
            "lifetime_s": {"type": "float", "default": 0},
            "prefix": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    given = module.params
    exchange = fabric_probe.Exchange(given["name"], given["token"])
    exchange.listen(given["addresses"])
    ports = {network: its[0] for network, its in exchange.ports.items()}
    if ports:
        fabric_probe.listen_apart(exchange, given["callers"], given["lifetime_s"])
    tells = bool(given["prefix"]) and _tells_cables(given["prefix"])
    module.exit_json(changed=False, changes=[], watch=[], ports=ports, problems=exchange.problems, tells_cables=tells)


def _tells_cables(prefix: str) -> bool:
    """Tell whether Open MPI was built with libnl; its component ``reachable`` then reads the kernel's routes."""
    try:
        with Path(prefix, "openmpi/lib/libopen-pal.so").open("rb") as library:
            return b"libnl-3.so" in library.read(_LARGEST_LIBRARY)
    except OSError:
        return False


if __name__ == "__main__":
    main()
