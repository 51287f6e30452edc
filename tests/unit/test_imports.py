"""The floors of docs/explanation/architecture.md: imports point down, without a cycle, and pure rooms do no I/O."""

from __future__ import annotations

import re
from collections import defaultdict

from clusterctl.support import content
from import_graph import PACKAGE, imports, modules, own, source

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
    "report.what_to_do",
    "report.figure_words",
    "report.exports",
    "report.page",
    "report.prometheus",
    "report.tables",
    "validation.checks",
    "validation.pod_output",
    "diagnosis.skew",
    "diagnosis.training_stack",
    "diagnosis.rules",
    "provisioning.ansible_events",
    "provisioning.plan",
    "remote.kubectl_output",
    "remote.slurm_text",
    "nightly.policy",
    "nightly.schedule",
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
IMPORTERS_OF_ANSIBLE_RUNNER = {"provisioning.playbook"}


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


def packages(name: str, *, types_too: bool) -> set[str]:
    """Return the outermost packages that a module imports."""
    return {full.split(".")[0] for full in imports(name, types_too=types_too)}


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


def test_a_module_imports_only_what_stands_below() -> None:
    pairs = [(name, other) for name in modules() for other in own(name, types_too=True) - {"__init__"}]
    wrong = [f"{a} imports {b}" for a, b in pairs if room(a) != room(b) and floor_of(b) <= floor_of(a)]
    assert wrong == []


def test_modules_import_each_other_without_a_cycle() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a cycle: {' -> '.join((*path[path.index(name) :], name))}"
        if name not in done:
            for other in sorted(own(name, types_too=True)):
                if not name.startswith(f"{other}."):  # a package and its own modules
                    visit(other, (*path, name))
            done.add(name)

    for name in modules():
        visit(name, ())


def test_only_one_module_imports_ansible_runner() -> None:
    importers = {name for name in modules() if "ansible_runner" in packages(name, types_too=True)}
    assert importers == IMPORTERS_OF_ANSIBLE_RUNNER


def test_what_decides_touches_nothing_through_any_import() -> None:
    touching = {name: packages(name, types_too=False) & TOUCHING for name in modules()}
    wrong = [
        f"{name} reaches {other} (imported by {importer or 'itself'}), which imports {touching[other]}"
        for name in filter(is_pure, modules())
        for other, importer in {name: "", **reached(name)}.items()
        if touching[other] and other not in READS_OWN_CONTENT
    ]
    assert wrong == []


def test_only_the_command_line_prints_or_exits() -> None:
    ending = {"print", "sys.exit", "exit", "quit", "os._exit"}
    calls = [
        f"{name}, line {line}, calls {called}"
        for name in modules()
        if room(name) not in {"cli", "__main__"}
        for called, line in source(name).calls.items()
        if called in ending
    ]
    assert calls == []


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for name, path in modules().items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for one in source(name).classes:
            places[one].add(package)
    assert {name: sorted(found) for name, found in places.items() if len(found) > 1} == {}


TESTS = PACKAGE.parents[1] / "tests"


def test_no_test_file_imports_another() -> None:
    """What two test files share lies in a module of its own, such as tests/unit/factory.py."""
    importing = re.compile(r"^\s*(?:from|import) test_", re.MULTILINE)
    paths = list(TESTS.rglob("test_*.py"))
    assert paths
    assert [path.name for path in paths if importing.search(path.read_text(encoding="utf-8"))] == []


def test_nothing_inside_ansible_is_imported_or_replaced() -> None:
    """Its internals change with each release; what the collection needs of them is public."""
    inside = re.compile(r"^\s*(?:from|import) ansible\.(?:_internal|executor|plugins\.strategy)\b", re.MULTILINE)
    replaced = re.compile(
        r"^\s*setattr\((?!constants\b)\w*(?:Ansible|Base|Executor|Manager|Templar|Engine)\w*,", re.MULTILINE
    )
    found = [
        str(path.relative_to(content.root()))
        for folder in ("plugins", "python")
        for path in (content.root() / folder).rglob("*.py")
        if inside.search(text := path.read_text(encoding="utf-8")) or replaced.search(text)
    ]
    assert found == []
