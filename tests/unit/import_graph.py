"""Which module of clusterctl imports which, read from the sources."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "clusterctl"


@cache
def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name below ``clusterctl``."""
    return {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def is_type_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def imports(name: str, *, types_too: bool) -> frozenset[str]:
    """Return every module that a module imports, functions' own imports included, as dotted names."""
    found: set[str] = set()

    def walk(nodes: list[ast.stmt] | list[ast.AST]) -> None:
        for node in nodes:
            if is_type_only(node) and not types_too:
                continue
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name}: relative import"
                found.update({f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)})
            walk(list(ast.iter_child_nodes(node)))

    walk(ast.parse(modules()[name].read_text(encoding="utf-8")).body)
    return frozenset(found)


def own(name: str, *, types_too: bool) -> set[str]:
    """Return the modules of ours that a module imports, by their dotted names below ``clusterctl``."""
    found = {full.removeprefix("clusterctl.") for full in imports(name, types_too=types_too)}
    return {full for full in found if full in modules()} - {name}
