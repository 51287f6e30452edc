# SPDX-License-Identifier: Apache-2.0
"""The names of the package packaging that this collection uses; ansible-core depends on it."""

from __future__ import annotations

from typing import Any

try:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name
except ImportError:  # the sanity tests import plugins without the dependencies of ansible-core
    from .errors import WheelError

    InvalidRequirement = ValueError  # type: ignore[misc, assignment]

    def canonicalize_name(*_given: Any, **_more: Any) -> Any:  # type: ignore[misc]
        """Raise WheelError: only a damaged installation of ansible-core lacks the package."""
        raise WheelError("The Python of Ansible lacks the package packaging; install ansible-core again.")

    Requirement = canonicalize_name  # type: ignore[misc, assignment]

__all__ = ["InvalidRequirement", "Requirement", "canonicalize_name"]
