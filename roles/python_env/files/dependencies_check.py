# SPDX-License-Identifier: Apache-2.0
"""Checks that the packages of an environment have what they need, as uv finds it.

Usage: PYTHON dependencies_check.py UV pip check OPTIONS

Exits as uv does, and with 0 where uv complains of nothing but platforms. A wheel was chosen for its platform by the
name of its file. What is written inside does not count: NVIDIA's wheels for aarch64 may say sbsa there.
"""

from __future__ import annotations

import re
import subprocess
import sys

_FOUND = re.compile(r"^Found (\d+) incompatibilit", re.MULTILINE)
_OF_PLATFORM = re.compile(r"^The package `[^`]+` was built for a different platform$", re.MULTILINE)


def main() -> int:
    """Ask uv."""
    done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout, end="")
    found = _FOUND.search(done.stdout)
    return 0 if found and int(found[1]) == len(_OF_PLATFORM.findall(done.stdout)) else done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
