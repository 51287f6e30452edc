# SPDX-License-Identifier: Apache-2.0
"""The filter folders_to: the folders on the way to the cluster's software, as file_set makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils import prefix_rules

DOCUMENTATION = r"""
name: folders_to
short_description: The folders on the way to the cluster's software
version_added: "0.2.0"
author: The clusterctl authors
description:
  - Returns an entry of M(clusterctl.hpc.file_set) for each folder on the way to the prefix, and for the prefix itself.
    A folder that is there stays as it is. A missing one is made, with mode 0755.
  - Returns an empty list for C(/usr/local), which every distribution has.
options:
  _input:
    description: The prefix, an absolute path.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Make the folder of the software
  clusterctl.hpc.file_set:
    files: "{{ '/opt/cluster' | clusterctl.hpc.folders_to }}"
"""

RETURN = r"""
_value:
  description: Entries with path and state, the outermost folder first.
  type: list
"""


def folders_to(prefix: str) -> list[dict[str, Any]]:
    """Return the entries of file_set that make the folders on the way to a prefix, and the prefix."""
    return [{"path": path, "state": "directory"} for path in prefix_rules.folders_to(prefix)]


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"folders_to": folders_to}
