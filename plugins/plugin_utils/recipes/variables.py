# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of the software roles, as each host has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import plain
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import ROLES, SHARED, Settings


def defaults(roles: Sequence[str]) -> dict[str, Any]:
    """Return the default of every variable of these roles and of the folders that they share, as the files have it."""

    def of(role: str) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(Path(ROLES, role, "defaults", "main.yml").read_text(encoding="utf-8"))
        return found

    found = {name: value for name, value in of(SHARED).items() if name.endswith("_dir")}
    for role in roles:
        found |= of(role)
    return found


def of_hosts(
    roles: Sequence[str],
    hosts: Sequence[str],
    variables: Mapping[str, Any],
    template: Callable[[Any, Mapping[str, Any]], Any],
) -> dict[str, Settings]:
    """Return the settings of each host.

    A task that runs once has the variables of one host. What the play or the role's entry in it sets counts for all
    hosts. What the inventory sets is asked of each host.

    Args:
        roles: whose variables are wanted.
        hosts: names of the hosts of the run.
        variables: those of the task that runs once, by name, and among them ``hostvars``.
        template: returns a value with the variables of a host put in.
    """
    known = defaults(roles)
    hostvars = variables["hostvars"]
    own = hostvars.raw_get(variables["inventory_hostname"])  # as it is written, before templates
    of_play = {
        name: variables[name]
        for name in known
        if name in variables and variables[name] != (own[name] if name in own else known[name])
    }
    found = {}
    for host in hosts:
        its = hostvars[host]
        values = dict(known)
        for name in known:
            if name in of_play:
                value = of_play[name]
                values[name] = plain(template(value, its) if _has_template(value) else value)
            elif name in its:
                values[name] = plain(its[name])
        found[host] = Settings(values)
    return found


def _has_template(value: Any) -> bool:
    return "{{" in str(value) or "{%" in str(value)
