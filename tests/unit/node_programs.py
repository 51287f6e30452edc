"""The programs that run on nodes, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROLES = Path(__file__).parents[2] / "roles"


def load(name: str, role: str = "validation") -> ModuleType:
    """Return a new module of a program of a role; it lies beside the modules that it imports."""
    folder = ROLES / role / "files"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(name, module)  # dataclasses look there
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module
