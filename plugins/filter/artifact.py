# SPDX-License-Identifier: Apache-2.0
"""Filters for artifacts: the key, the host that builds, and the libraries that a build may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils import builder_turns
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import artifact_key
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact_links import by_tree, links_to_switch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DOCUMENTATION = r"""
name: artifact_key
short_description: The key of an artifact
version_added: "0.1.0"
author: The clusterctl authors
description:
  - Returns 16 hex digits of the sha256 of the canonical JSON of everything that shapes an artifact.
  - Equal inputs have equal keys. The order within mappings does not matter.
options:
  _input:
    description: Everything that shapes the artifact; sources, options, platform.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the key
  ansible.builtin.debug:
    msg: "{{ {'version': '5.0.7', 'platform': 'debian-12-x86_64'} | clusterctl.hpc.artifact_key }}"
"""

RETURN = r"""
_value:
  description: 16 hex digits.
  type: str
"""


def artifact_builder(
    members: Sequence[Mapping[str, Any]],
    platform: str,
    wanted: str = "",
    alive: Sequence[str] | None = None,
    apart: str = "",
) -> str:
    """Return the name of the host that builds for a platform; '' where no host can.

    The answer is the same on every host of the platform.

    Args:
        members: the cluster's hosts, each with ``name`` and ``platform``, in the order of the inventory.
        platform: the platform to build for.
        wanted: the preferred host; it must be alive and of this platform.
        alive: names of hosts that still take part in the play; None for all.
        apart: name of an artifact that is to be built beside others. Another host than the first one builds it, if one
            has room to build. Where a host has the artifact installed, the first one packs it or builds it.
    """
    able = [
        member for member in members if member["platform"] == platform and (alive is None or member["name"] in alive)
    ]
    if wanted in [member["name"] for member in able]:
        return wanted
    if any(apart in member.get("trees", ()) for member in able):
        apart = ""
    roomy = able[:1] + [member for member in able[1:] if member.get("builds", True)]
    return str(roomy[builder_turns.turn(apart, len(roomy))]["name"]) if roomy else ""


def artifact_offers(members: Sequence[Mapping[str, Any]], platform: str, builder: str) -> list[str]:
    """Return which of ``ucx`` and ``cuda`` a build for a platform may use.

    Every host of the platform must have the library. CUDA needs a toolkit on the builder as well.

    Args:
        members: the cluster's hosts; ``provides`` lists which of ``ucx``, ``libcuda``, ``cuda_toolkit`` each has.
        platform: the platform to build for.
        builder: name of the host that builds.
    """
    its = {
        str(member["name"]): set(member.get("provides") or ()) for member in members if member["platform"] == platform
    }
    if not its:
        return []
    common = set.intersection(*its.values())
    offers = ["ucx"] if "ucx" in common else []
    return [*offers, "cuda"] if "libcuda" in common and "cuda_toolkit" in its.get(builder, ()) else offers


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "artifact_key": artifact_key,
            "artifact_builder": artifact_builder,
            "artifact_offers": artifact_offers,
            "links_to_switch": links_to_switch,
            "by_tree": by_tree,
        }
