# SPDX-License-Identifier: Apache-2.0
"""Filters for the training stack: the framework in a set of wheels, and the CUDA that a platform can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.frameworks import (
    drivers_below,
    framework_choice,
    framework_in_wheels,
    framework_release,
    frameworks_by_platform,
    gpus_left_idle,
    platform_cuda,
    platform_wishes,
    platform_with_python,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENTATION = r"""
name: framework_in_wheels
short_description: Which framework a set of pinned wheels holds
version_added: "0.1.0"
author: The clusterctl authors
description:
  - Returns V(name) (V(pytorch), V(tensorflow) or empty), V(version), V(cuda) (the CUDA major that the wheels bring,
    empty for a CPU build), V(nccl) (the NCCL version that they bring, if any) and V(sha256) of the framework's wheel.
options:
  _input:
    description: Wheels as M(clusterctl.hpc.wheel_lock) pins them for one platform.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the framework
  ansible.builtin.debug:
    msg: "{{ pinned.wheels['debian-12-x86_64-glibc2.36-py3.11'] | clusterctl.hpc.framework_in_wheels }}"
"""

RETURN = r"""
_value:
  description: name, version, cuda, nccl and sha256.
  type: dict
"""


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "drivers_below": drivers_below,
            "framework_choice": framework_choice,
            "framework_in_wheels": framework_in_wheels,
            "framework_release": framework_release,
            "frameworks_by_platform": frameworks_by_platform,
            "gpus_left_idle": gpus_left_idle,
            "platform_cuda": platform_cuda,
            "platform_with_python": platform_with_python,
            "platform_wishes": platform_wishes,
        }
