"""What ansible-test's pylint refuses most, in what the collection packs; 'make collection' runs all sanity tests."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import yaml
from clusterctl.support import content

REFUSED = {"_", "bar", "baz", "foo", "tata", "toto", "tutu"}  # bad-names of ansible-test's pylint
# Ansible reads these in each result as its own.
OF_ANSIBLE = {"failed", "skipped", "unreachable", "exception", "warnings", "deprecations", "ansible_facts"}
PLACES = ("plugins", "roles", "examples", "playbooks")


def packed() -> Iterator[Path]:
    for place in PLACES:
        for path in sorted((content.root() / place).rglob("*.py")):
            if "molecule" not in path.parts:
                yield path


def set_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def test_no_name_is_one_that_ansible_test_refuses() -> None:
    found = [
        f"{path.relative_to(content.root())}:{line}: {name}"
        for path in packed()
        for name, line in set_in(ast.parse(path.read_text(encoding="utf-8")))
        if name in REFUSED
    ]
    assert found == []


def test_no_plugin_has_an_assert_statement() -> None:
    found = [
        f"{path.relative_to(content.root())}:{node.lineno}"
        for path in packed()
        if "plugins" in path.relative_to(content.root()).parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert found == []


def named_in_casts_alone(tree: ast.AST) -> set[str]:
    """Names that stand in a text as in ``cast("IO[bytes]", x)`` and nowhere else; to pylint they are unused."""
    in_casts = {
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "cast" and isinstance(node.args[0], ast.Constant)
        for name in ast.walk(ast.parse(str(node.args[0].value)))
        if isinstance(name, ast.Name)
    }
    return in_casts - {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - set(dir(builtins))


def test_no_import_is_used_in_a_cast_alone() -> None:
    found = [
        f"{path.relative_to(content.root())}: {name}"
        for path in packed()
        for name in sorted(named_in_casts_alone(ast.parse(path.read_text(encoding="utf-8"))))
    ]
    assert found == []


def test_no_module_ends_itself_by_sys_exit() -> None:
    """ansible-test takes every file of these folders for a part of a module; SystemExit does the same there."""
    found = [
        f"{path.relative_to(content.root())}:{node.lineno}"
        for path in packed()
        if path.parts[-2] == "modules" or "module_utils" in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.exit"
    ]
    assert found == []


def test_programs_of_roles_are_started_by_the_python_that_the_role_names() -> None:
    """ansible-test refuses a file of a role that names its interpreter or may be executed."""
    programs = [path for path in packed() if "roles" in path.parts]
    assert programs
    assert [path for path in programs if path.read_bytes().startswith(b"#!") or path.stat().st_mode & 0o111] == []


KEYS_OF_A_VALUE = {"choices", "contains", "description", "elements", "returned", "sample", "type", "version_added"}


def test_values_of_modules_are_described_by_known_keys() -> None:
    """A comma in a description of one line would end it, and the rest would be a key of its own."""
    found = []
    for path in sorted((content.root() / "plugins" / "modules").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RETURN":
                values = yaml.safe_load(ast.literal_eval(node.value)) or {}
                found += [
                    f"{path.name}: {name}: {key}" for name in values for key in set(values[name]) - KEYS_OF_A_VALUE
                ]
    assert found == []


def test_no_module_gives_ansibles_own_words_another_meaning() -> None:
    """Ansible takes ``failed`` for the module's end, whatever it holds."""
    found = []
    for path in sorted((content.root() / "plugins" / "modules").glob("*.py")):
        texts = {
            node.targets[0].id: node.value.value
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        returned = yaml.safe_load(str(texts.get("RETURN", ""))) or {}
        found += [f"{path.name}: {key}" for key in OF_ANSIBLE & returned.keys()]
    assert found == []
