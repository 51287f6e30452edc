"""``clusterctl launch`` by itself, for the images of pods: no package besides this one.

The modules are clusterctl's own. They lie in the folder ``lib`` under their own names, so that an uninstall takes
nothing from a whole clusterctl in the same environment.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_LIB = Path(__file__).resolve().parent / "lib"


def main() -> int:
    """Run ``clusterctl``: the whole one where it is installed beside, else ``launch`` alone."""
    if sys.argv[1:2] != ["launch"]:
        try:
            return int(importlib.import_module("clusterctl.cli.main").main())
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "clusterctl":
                raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "clusterctl"]:
        del sys.modules[name]
    sys.path.insert(0, str(_LIB))
    return int(importlib.import_module("clusterctl.cli.launch_alone").main())
