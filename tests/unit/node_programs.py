"""The programs that run on nodes, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

FOLDER = Path(__file__).parents[2] / "roles" / "validation" / "files"


def load(name: str) -> ModuleType:
    """Return a new module of a node's program; it lies beside the modules that it imports."""
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(name, module)  # dataclasses look there
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module
