# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Open the cluster's network to its members in the firewall of a node."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: fabric_firewall
short_description: Open the cluster's network to its members in the firewall of a node
version_added: "0.2.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Lets the members in to the addresses of their network where ufw or firewalld is active, and nobody else.
  - Keeps which rules it added in the record of origins on the node. C(clusterctl uninstall) removes exactly these.
  - Changes nothing where neither is active. A ruleset of nftables without a manager stays as it is.
options:
  networks:
    description: The networks, each with C(cidr), C(interface) and C(members), the addresses of the other nodes.
    type: list
    elements: dict
    required: true
  exact:
    description: Whether rules of an earlier run that are no longer wanted go.
    type: bool
    default: true
attributes:
  check_mode: {support: full, description: Says what would change.}
  diff_mode: {support: none, description: There is no file to show.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
changes: {description: A short phrase for each change., type: list, returned: always}
watch: {description: Always empty., type: list, returned: always}
"""

import os

from ansible_collections.clusterctl.hpc.plugins.module_utils import audited_module, firewall_manager


def main() -> None:
    """Run the module."""
    module = audited_module.AuditedModule(
        argument_spec={
            "networks": {"type": "list", "elements": "dict", "required": True},
            "exact": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    if os.geteuid() != 0:
        module.fail_json(msg="Only root can open the firewall; set ansible_become=true.", changes=[], watch=[])
    try:
        wanted = [firewall_manager.Opening.of(one) for one in module.params["networks"]]
        changes = firewall_manager.change(wanted, exact=module.params["exact"], really=not module.check_mode)
    except firewall_manager.OpeningError as error:
        module.fail_json(msg=str(error), changes=[], watch=[])
    except OSError as error:
        module.fail_json(msg=f"{error.filename or 'A file'}: {error.strerror}; run again.", changes=[], watch=[])
    module.exit_json(changed=bool(changes), changes=changes, watch=[])


if __name__ == "__main__":
    main()
