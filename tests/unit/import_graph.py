"""Which module of clusterctl imports which, read from the sources."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

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


class Source(NamedTuple):
    """What a module says, read once: a tree of all modules takes seconds and a hundred megabytes."""

    imports: frozenset[str]  # by dotted names, functions' own imports included
    type_imports: frozenset[str]
    classes: tuple[str, ...]
    calls: dict[str, int]  # of plain and dotted names, with the line of the last


@cache
def source(name: str) -> Source:
    imported: dict[bool, set[str]] = {False: set(), True: set()}
    classes: list[str] = []
    calls: dict[str, int] = {}

    def walk(nodes: Iterable[ast.AST], *, type_only: bool = False) -> None:
        for node in nodes:
            if isinstance(node, ast.Import):
                imported[type_only].update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name}: relative import"
                imported[type_only].update({f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)})
            elif isinstance(node, ast.ClassDef):
                classes.append(node.name)
            elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
                calls[ast.unparse(node.func)] = node.lineno
            walk(ast.iter_child_nodes(node), type_only=type_only or is_type_only(node))

    walk(ast.parse(modules()[name].read_text(encoding="utf-8")).body)
    return Source(frozenset(imported[False]), frozenset(imported[True]), tuple(classes), calls)


def imports(name: str, *, types_too: bool) -> frozenset[str]:
    """Return every module that a module imports."""
    read = source(name)
    return read.imports | read.type_imports if types_too else read.imports


def own(name: str, *, types_too: bool) -> set[str]:
    """Return the modules of ours that a module imports, by their dotted names below ``clusterctl``."""
    found = {full.removeprefix("clusterctl.") for full in imports(name, types_too=types_too)}
    return {full for full in found if full in modules()} - {name}
