"""The floors of docs/explanation/architecture.md: imports point down, without a cycle, and pure rooms do no I/O."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from import_graph import PACKAGE, imports, modules, own

if TYPE_CHECKING:
    from pathlib import Path

# Top to bottom. A module imports its own room and the rooms of the floors below.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"__main__"}),
    frozenset({"cli"}),
    frozenset({"nightly"}),
    frozenset({"provisioning", "validation", "jobs", "report"}),
    frozenset({"diagnosis"}),
    frozenset({"launch", "inventory", "remote", "sandbox"}),
    frozenset({"state"}),
    frozenset({"analysis"}),
    frozenset({"suite"}),
    frozenset({"model"}),
    frozenset({"pace"}),
    frozenset({"support"}),
    frozenset({"__init__"}),
)
MOST_ROOMS = 16
MOST_LINES = 600
# Modules that decide: data in, data out. Every module that they import, directly or not, is held to the same.
PURE = (
    "launch",
    "analysis",
    "model",
    "report.actions",
    "report.doctor_table",
    "report.figure_words",
    "report.jsonl",
    "report.junit",
    "report.page",
    "report.prometheus",
    "report.validation_table",
    "validation.checks",
    "validation.pod_output",
    "diagnosis.skew",
    "diagnosis.training_stack",
    "diagnosis.rules",
    "provisioning.ansible_events",
    "provisioning.drift",
    "provisioning.plan",
    "remote.kubectl_refusal",
    "remote.kubectl_text",
    "remote.slurm_text",
    "nightly.cron",
    "nightly.policy",
    "nightly.schedule",
    "nightly.systemd",
)
# Pure modules may read files of the collection and of the package through these; nothing else of the machine.
READS_OWN_CONTENT = frozenset({"support.content"})
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
        "sqlite3",
    }
)
IMPORTERS_OF_ANSIBLE_RUNNER = {"provisioning.play_process", "provisioning.runner_stream"}


def room(name: str) -> str:
    return name.partition(".")[0]


def floor_of(name: str) -> int:
    return next(number for number, names in enumerate(FLOORS) if room(name) in names)


def reached(name: str) -> dict[str, str]:
    """Return every module of ours that importing a module brings in at run time, each with who imports it."""
    found: dict[str, str] = {}
    waiting = [name]
    while waiting:
        here = waiting.pop()
        for other in own(here, types_too=False) - {"__init__"}:
            if other not in found:
                found[other] = here
                waiting.append(other)
    return found


def is_pure(name: str) -> bool:
    return any(name == pure or name.startswith(f"{pure}.") for pure in PURE)


def test_every_room_has_its_floor() -> None:
    known = {name for names in FLOORS for name in names}
    assert {room(name) for name in modules()} == known


def test_a_stranger_sees_few_rooms() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert len(rooms) <= MOST_ROOMS
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py", "pace.py"}


def test_a_module_is_read_in_one_sitting() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_a_plugin_or_a_program_of_a_role_is_read_in_one_sitting() -> None:
    root = PACKAGE.parents[1]
    paths = [*root.glob("plugins/**/*.py"), *root.glob("roles/*/files/*.py")]
    lines = {str(path.relative_to(root)): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
    assert len(lines) > len(list(root.glob("roles/*/files/*.py"))) > 0


@pytest.mark.parametrize("name", modules())
def test_a_module_imports_only_what_stands_below(name: str) -> None:
    for other in own(name, types_too=True) - {"__init__"}:
        if room(other) != room(name):
            assert floor_of(other) > floor_of(name), f"{name} imports {other}, which does not stand below it"


def test_modules_import_each_other_without_a_cycle() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a cycle: {' -> '.join((*path[path.index(name) :], name))}"
        if name not in done:
            for other in sorted(own(name, types_too=False)):
                if not name.startswith(f"{other}."):  # a package and its own modules
                    visit(other, (*path, name))
            done.add(name)

    for name in modules():
        visit(name, ())


@pytest.mark.parametrize("name", modules())
def test_only_two_modules_import_ansible_runner(name: str) -> None:
    if name not in IMPORTERS_OF_ANSIBLE_RUNNER:
        assert not any(full.split(".")[0] == "ansible_runner" for full in imports(name, types_too=True))


@pytest.mark.parametrize("name", [name for name in modules() if is_pure(name)])
def test_what_decides_touches_nothing_through_any_import(name: str) -> None:
    chain = {name: "", **reached(name)}
    for other, importer in chain.items():
        if other in READS_OWN_CONTENT:
            continue
        touched = {full.split(".")[0] for full in imports(other, types_too=False)} & TOUCHING
        assert touched == set(), f"{name} reaches {other} (imported by {importer or 'itself'}), which imports {touched}"


@pytest.mark.parametrize("name", modules())
def test_only_the_command_line_prints_or_exits(name: str) -> None:
    if room(name) in {"cli", "__main__"}:
        return
    for node in ast.walk(ast.parse(modules()[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"print", "sys.exit", "exit", "quit", "os._exit"}, f"line {node.lineno} calls {called}"


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for name, path in modules().items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(package)
    assert {name: sorted(found) for name, found in places.items() if len(found) > 1} == {}


TESTS = PACKAGE.parents[1] / "tests"


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_file_imports_another(path: Path) -> None:
    """What two test files share lies in a module of its own, such as tests/unit/factory.py."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        assert not [name for name in names if name.startswith("test_")]
