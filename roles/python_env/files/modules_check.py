# SPDX-License-Identifier: Apache-2.0
"""Checks that a Python has the modules that take a library of the distribution.

Usage: PYTHON modules_check.py MODULE...

Exits 0, or exits 1 with a sentence on standard error that names the missing modules.
"""

from __future__ import annotations

import importlib
import platform
import sys


def missing(modules: list[str]) -> dict[str, str]:
    """Return the modules that cannot be imported, with the reason."""
    found = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            found[name] = str(error)
    return found


def main() -> int:
    """Name what is missing."""
    lacking = missing(sys.argv[1:])
    if lacking:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in lacking.items())
        print(
            f"Python {platform.python_version()} lacks {reasons}; install the headers of these libraries on the host"
            " that builds, then run again.",
            file=sys.stderr,
        )
        return 1
    print(f"Python {platform.python_version()} has {', '.join(sys.argv[1:])}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
