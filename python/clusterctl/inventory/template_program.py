# SPDX-License-Identifier: GPL-3.0-or-later
"""Program of its own process: let Ansible work out variables of an inventory that hold Jinja templates.

It takes the arguments of ansible-inventory. It reads ``{host: [variable, …]}`` from standard input and writes one line
of JSON: ``values`` by host and variable, and ``failed`` as ``[host, variable, why]``. Ansible's own classes do the
work, so that lookups, vaults, ``hostvars`` and ``groups`` mean what they mean in a play.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ansible.cli.inventory import InventoryCLI
from ansible.errors import AnsibleError
from ansible.template import Templar
from ansible.vars.hostvars import HostVars

from clusterctl.inventory.templates import MARK

_OMIT_ERROR = "AnsibleValueOmittedError"  # of a value of ``default(omit)``


class _Resolver(InventoryCLI):  # type: ignore[misc]
    """ansible-inventory up to the point where it has read everything."""

    wanted: dict[str, list[str]]

    def run(self) -> None:
        """Write the values of the wanted variables."""
        super(InventoryCLI, self).run()  # the options and the plugins, without the listing of ansible-inventory
        loader, inventory, variables = self._play_prereqs()
        hostvars = HostVars(inventory=inventory, variable_manager=variables, loader=loader)
        values: dict[str, dict[str, Any]] = {}
        failed: list[tuple[str, str, str]] = []
        for host, names in self.wanted.items():
            known = variables.get_vars(host=inventory.get_host(host))
            templar = Templar(loader=loader, variables={**known, "hostvars": hostvars})
            for name in names:
                try:
                    value = templar.template(known.get(name))
                except AnsibleError as error:
                    if type(error).__name__ != _OMIT_ERROR:
                        failed.append((host, name, _cause(error)))
                    continue
                values.setdefault(host, {})[name] = value
        sys.stdout.write(MARK + json.dumps({"values": values, "failed": failed}, default=str) + "\n")


def _cause(error: AnsibleError) -> str:
    """Return the cause of an error: Ansible 2.19 puts it last, behind what it was doing."""
    words = " ".join(str(getattr(error, "message", "") or error).split())
    return words.removeprefix("Error while resolving value for ").rpartition("Error rendering template: ")[2]


def main() -> None:
    resolver = _Resolver(["ansible-inventory", *sys.argv[1:]])
    resolver.wanted = json.load(sys.stdin)
    resolver.parse()
    resolver.run()


if __name__ == "__main__":
    main()
