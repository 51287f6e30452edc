# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Record on the node which packages of the distribution an installation brought."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: package_install
short_description: Record which packages of the distribution an installation brought
version_added: "0.2.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Runs before and after M(ansible.builtin.package), which installs. The packages that were not there before, those
    that others need included, are kept in the record of origins on the node. C(clusterctl uninstall) removes exactly
    these.
  - Names who holds the locks of apt and dpkg, and has dpkg finish an installation that was cut off.
options:
  name:
    description: The packages.
    type: list
    elements: str
    required: true
  phase:
    description: Whether the installation comes or has been.
    type: str
    choices: [before, after]
    default: before
  before:
    description: The packages before the installation.
    type: list
    elements: str
    default: []
attributes:
  check_mode: {support: full, description: "Looks, and records nothing."}
  diff_mode: {support: none, description: There is no file to show.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
changes: {description: A short phrase for each change., type: list, returned: success}
installed: {description: The packages of the node., type: list, returned: always}
held_by: {description: The process that holds the locks of apt or dpkg., type: str, returned: before}
came: {description: The packages that were not there before., type: list, returned: success}
watch: {description: Always empty., type: list, returned: success}
"""

from typing import Any, Dict, List

from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    audited_module,
    origins,
    packages_installed,
)


def main() -> None:
    """Look at the packages before or after an installation."""
    module = audited_module.AuditedModule(
        argument_spec={
            "name": {"type": "list", "elements": "str", "required": True},
            "phase": {"type": "str", "choices": ["before", "after"], "default": "before"},
            "before": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    names, is_before = module.params["name"], module.params["phase"] == "before"
    try:
        if is_before:
            module.exit_json(changed=False, came=[], watch=[], **before(names, really=not module.check_mode))
        present = packages_installed.installed()
        came = sorted(set(present) - set(module.params["before"]))
        if not module.check_mode:
            origins.note_packages(came)
            origins.note_installation(None)
    except packages_installed.PackageError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{origins.place()} cannot be written: {error.strerror}.")
    module.exit_json(changed=False, installed=present, came=came, changes=[], watch=[])


def before(names: List[str], *, really: bool) -> Dict[str, Any]:
    """Look at the packages; where one is missing, name who holds the locks, or finish what was cut off.

    Raises:
        packages_installed.PackageError: dpkg was cut off and cannot finish.
        OSError: the record of origins cannot be written.
    """
    present = packages_installed.installed()
    known = {packages_installed.plain_name(name) for name in present}
    if not really or all(packages_installed.plain_name(name) in known for name in names):
        return {"installed": present, "changes": [], "held_by": ""}
    held_by = packages_installed.lock_holder()
    if held_by:
        return {"installed": present, "changes": [], "held_by": held_by}
    changes = []
    cut_off = packages_installed.unfinished()
    if cut_off:
        packages_installed.finish()
        changes.append(f"finished the installation of {', '.join(cut_off)}, which was cut off")
        present = packages_installed.installed()
    earlier = origins.cut_off_installation()
    if earlier:
        origins.note_packages(set(present) - set(earlier))
    origins.note_installation(present)
    return {"installed": present, "changes": changes, "held_by": ""}


if __name__ == "__main__":
    main()
