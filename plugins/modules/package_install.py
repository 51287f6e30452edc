# SPDX-License-Identifier: Apache-2.0
"""Install packages of the distribution, and record on the node which ones came with it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: package_install
short_description: Install packages of the distribution, and record which ones came
version_added: "0.2.0"
author: The clusterctl authors
description:
  - Installs packages by M(ansible.builtin.package). The packages that were not there before, those that others need
    included, are kept in the record of origins on the node. C(clusterctl uninstall) removes exactly these.
options:
  name:
    description: The packages.
    type: list
    elements: str
    required: true
  options:
    description: More options for M(ansible.builtin.package) on this host.
    type: dict
    default: {}
  phase:
    description: Set by the action plugin.
    type: str
    choices: [before, after]
    default: before
  before:
    description: Set by the action plugin.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Installs nothing.
    support: full
  diff_mode:
    description: There is no file to show.
    support: none
"""

EXAMPLES = r"""
- name: Install the runtime of Fortran
  clusterctl.hpc.package_install:
    name: [libgfortran5]
"""

RETURN = r"""
changes: {description: A short phrase for each change., type: list, returned: success}
installed: {description: The packages of the node., type: list, returned: always}
came: {description: The packages that were not there before., type: list, returned: success}
watch: {description: Always empty., type: list, returned: success}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.clusterctl.hpc.plugins.module_utils import origins, packages_installed


def main() -> None:
    """Look at the packages before or after an installation."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "list", "elements": "str", "required": True},
            "options": {"type": "dict", "default": {}},
            "phase": {"type": "str", "choices": ["before", "after"], "default": "before"},
            "before": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    present = packages_installed.installed()
    if module.params["phase"] == "before" or module.check_mode:
        module.exit_json(changed=False, installed=present, came=[], changes=[], watch=[])
    came = sorted(set(present) - set(module.params["before"]))
    try:
        origins.note_packages(came)
    except OSError as error:
        module.fail_json(msg=f"{origins.place()} cannot be written: {error.strerror}.")
    module.exit_json(changed=False, installed=present, came=came, changes=[], watch=[])


if __name__ == "__main__":
    main()
