# SPDX-License-Identifier: Apache-2.0
"""The interpreter and the C library of a node, and the platform tags of the wheels that fit them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import WheelError

_PLATFORM = re.compile(r"-(?P<machine>x86_64|aarch64|ppc64le|s390x)-glibc(?P<glibc>2\.\d+)-py(?P<python>3\.\d+)(?:-|$)")

# By machine, the oldest minor release of glibc that wheels can be built against (PEP 600); older names of releases.
_OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17, "ppc64le": 17, "s390x": 17}

_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True)
class Target:
    """The interpreter and C library that wheels must fit."""

    platform: str
    python: str  # major.minor
    machine: str
    glibc: str

    @classmethod
    def of(cls, platform: str) -> Target:
        """Return the target of a platform's id.

        Raises:
            WheelError: the id has no machine, glibc or Python.
        """
        match = _PLATFORM.search(platform)
        if not match:
            raise WheelError(
                f"The platform '{platform}' does not name a machine, glibc and Python that wheels exist for;"
                " write an id like debian-12-x86_64-glibc2.36-py3.11."
            )
        return cls(platform, match["python"], match["machine"], match["glibc"])

    def __str__(self) -> str:
        """Return the words for messages."""
        return f"Python {self.python} on {self.machine} with glibc {self.glibc}"

    def tags(self) -> list[str]:
        """Return the platform tags that fit, the newest C library first."""
        tags = []
        for minor in range(int(self.glibc.split(".")[1]), _OLDEST_GLIBC[self.machine] - 1, -1):
            tags.append(f"manylinux_2_{minor}_{self.machine}")
            if minor in _OLD_NAMES:
                tags.append(f"{_OLD_NAMES[minor]}_{self.machine}")
        return [*tags, f"linux_{self.machine}"]

    def environment(self) -> dict[str, str]:
        """Return the variables of PEP 508 markers on the node."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }
