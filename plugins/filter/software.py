# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter builders: the hosts that build the artifacts of a plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.plugin_utils import planned

DOCUMENTATION = r"""
name: builders
short_description: The hosts that build the artifacts of a plan
version_added: "0.3.0"
author: The clusterctl authors
description:
  - Returns the host that builds each artifact, the first of its builders that still takes part.
options:
  _input:
    description: The artifacts that M(clusterctl.hpc.software_plan) returns.
    type: list
    elements: dict
    required: true
  living:
    description: The hosts that still take part.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Go on where nothing falls to this host
  ansible.builtin.meta: end_host
  when: inventory_hostname not in software_plan.artifacts | clusterctl.hpc.builders(ansible_play_hosts)
"""

RETURN = r"""
_value:
  description: Names of hosts.
  type: list
"""


def builders(artifacts: Iterable[Mapping[str, Any]], living: Collection[str]) -> list[str]:
    """Return the hosts that build the artifacts of a plan."""
    hosts = frozenset(map(str, living))
    return sorted({planned.builder_of(one, hosts) for one in artifacts} - {""})


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"builders": builders}
