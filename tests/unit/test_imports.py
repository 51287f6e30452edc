"""The layers of docs/explanation/architecture.md: imports point down, without cycles, and the pure parts stay pure."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "clusterctl"

# Top to bottom; a module imports only what stands below it, or a sibling inside its own folder.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"__main__"}),
    frozenset({"cli"}),
    frozenset({"nightly"}),
    frozenset({"history", "provision", "validation", "run", "doctor", "init", "pod"}),
    frozenset({"sync", "writer"}),
    frozenset({"appraisal", "ground", "hunt"}),
    frozenset({"job"}),
    frozenset({"checks"}),
    frozenset({"runner", "netprobe"}),
    frozenset({"symptoms"}),
    frozenset({"plan", "fabric", "launch"}),
    frozenset({"report"}),
    frozenset({"diagnosis"}),
    frozenset({"verdict"}),
    frozenset({"stack"}),
    frozenset({"facts", "journal", "store", "sandbox", "logins"}),
    frozenset({"ssh"}),
    frozenset({"inventory", "suite"}),
    frozenset({"content", "seal", "result", "events", "listings"}),
    frozenset({"settings", "record", "units", "medians", "marked"}),
    frozenset({"errors"}),
    frozenset({"__init__"}),
)
PURE = ("plan", "stack", "diagnosis", "symptoms", "fabric", "launch", "verdict", "report", "checks")
TOUCHING = frozenset(
    {
        "subprocess",
        "socket",
        "asyncio",
        "shutil",
        "tempfile",
        "os",
        "fcntl",
        "ansible_runner",
        "ClusterShell",
        "sqlite3",
    }
)
HANDS = frozenset({"runner", "logins", "netprobe", "facts", "journal", "store", "sandbox"})


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def floor_of(top: str) -> int:
    return next(number for number, names in enumerate(FLOORS) if top in names)


def top_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def is_type_only(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(path: Path, *, types_too: bool) -> set[str]:
    """Return every module that a file imports, functions' own imports included, as dotted names."""
    found: set[str] = set()

    def walk(nodes: list[ast.stmt] | list[ast.AST]) -> None:
        for node in nodes:
            if isinstance(node, ast.stmt) and is_type_only(node) and not types_too:
                continue
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                found.update({f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)})
            walk(list(ast.iter_child_nodes(node)))

    walk(ast.parse(path.read_text(encoding="utf-8")).body)
    return found


def own(names: set[str]) -> set[str]:
    """Return the first folder or module below ``clusterctl`` of each import of ours."""
    parts = (name.split(".") for name in names if name.startswith("clusterctl."))
    known = {name for names in FLOORS for name in names}
    return {part[1] for part in parts if part[1] in known}


def test_every_module_has_its_floor() -> None:
    known = {name for names in FLOORS for name in names}
    assert {top_of(path) for path in modules()} - known == set()


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_stands_below(path: Path) -> None:
    here = top_of(path)
    for other in own(imports(path, types_too=True)) - {here, "__init__"}:
        assert floor_of(other) > floor_of(here), f"{here} imports {other}, which does not stand below it"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_runner_imports_ansible_runner(path: Path) -> None:
    if top_of(path) != "runner":
        assert not any(name.split(".")[0] == "ansible_runner" for name in imports(path, types_too=True))


@pytest.mark.parametrize(
    "path", [path for path in modules() if top_of(path) in PURE], ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_what_decides_touches_nothing(path: Path) -> None:
    found = imports(path, types_too=False)
    assert {name.split(".")[0] for name in found} & TOUCHING == set()
    assert own(found) & HANDS == set()


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_command_line_prints_or_exits(path: Path) -> None:
    if top_of(path) in {"cli", "__main__"}:
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in {"print", "sys.exit", "exit", "quit", "os._exit"}, f"line {node.lineno} calls {name}"
