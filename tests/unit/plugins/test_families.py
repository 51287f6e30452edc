"""Each family of distributions that preflight admits has the names of its packages, in each role that installs some."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from clusterctl.support import content
from role_templates import rendered, variables_of

ROLES = content.root() / "roles"
FAMILIES = ("Debian", "RedHat", "Suse")
WITH_PACKAGES = sorted(path.parents[1].name for path in ROLES.glob("*/vars/RedHat.yml"))


def of(role: str, *files: str) -> dict[str, Any]:
    return variables_of(role, [f"vars/{name}.yml" for name in files])


@pytest.mark.parametrize("role", WITH_PACKAGES)
def test_each_family_names_the_same_kinds_of_packages(role: str) -> None:
    kinds = {
        family: {name for name in of(role, family) if name.endswith(("_packages", "_runtime"))} for family in FAMILIES
    }
    assert kinds["Debian"]
    assert kinds["RedHat"] == kinds["Suse"] == kinds["Debian"]
    options = {f"__{role}_package_options", f"__{role}_interpreter_package_options"}
    assert options & set(of(role, "Suse")) == options & set(of(role, "RedHat"))


@pytest.mark.parametrize("role", WITH_PACKAGES)
def test_a_package_manager_gets_only_options_that_it_has(role: str) -> None:
    apt = {"update_cache", "cache_valid_time", "install_recommends"}
    for family in ("RedHat", "Suse"):
        given = [set(value) for name, value in of(role, family).items() if name.endswith("_package_options")]
        assert not apt & set().union(*given), "options of apt"


def test_the_fortran_library_of_leap_15_is_that_of_its_compiler() -> None:
    leap = of("openmpi", "main", "Suse", "Suse_15")
    assert (leap["__openmpi_fortran_runtime"], leap["__openmpi_fortran_library"]) == (
        ["libgfortran4"],
        "libgfortran.so.4",
    )
    assert rendered("__openmpi_fortran_proofs[0].expect", leap, ()) == ["libgfortran.so.4 "]


def test_nccl_asks_for_the_names_of_packages_that_no_vendor_documents() -> None:
    text = (ROLES / "nccl" / "tasks" / "packages.yml").read_text(encoding="utf-8")
    (refusal,) = (task["ansible.builtin.assert"] for task in yaml.safe_load(text) if "ansible.builtin.assert" in task)
    for family, known in (("Debian", True), ("Suse", False)):
        variables = {**of("nccl", family), "nccl_packages": [], "__nccl_version": "2.21.5"}
        assert rendered(refusal["that"], variables, ()) is known
    assert "nccl_packages" in refusal["fail_msg"]


# --- A switch of a role may be text: '-e name=true' and 'name=true' in an INI inventory are text for Ansible ---


def switches() -> Iterator[str]:
    for specs in sorted(ROLES.glob("*/meta/argument_specs.yml")):
        entries = yaml.safe_load(specs.read_text(encoding="utf-8"))["argument_specs"].values()
        for entry in entries:
            yield from (name for name, spec in (entry.get("options") or {}).items() if spec.get("type") == "bool")


def uses(name: str) -> list[str]:
    """Return the lines that test a switch; a module converts the value that it is given whole."""
    given_whole = re.compile(rf'^\s*[\w-]+: "{{{{ {name} }}}}"$')
    return [
        line.strip()
        for place in ("tasks", "vars", "templates")
        for path in sorted(ROLES.glob(f"*/{place}/*"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(rf"\b{name}\b", line) and not given_whole.match(line)
    ]


@pytest.mark.parametrize("name", sorted(set(switches())))
def test_text_is_turned_into_a_truth_value_wherever_a_switch_is_tested(name: str) -> None:
    bare = [line for line in uses(name) if re.search(rf"\b{name}\b(?! \| bool)", line)]
    assert bare == []


# --- lists of the roles keep their order: what they write would otherwise differ from one run to the next ---


# These filters of Ansible go through a set, whose order differs in each process.
UNORDERED = re.compile(r"\|\s*(?:difference|intersect|symmetric_difference|union)\b(?!\([^|]*\) \| length)")


def test_no_list_goes_through_a_set() -> None:
    root = content.root()
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for pattern in ("roles/*/tasks/*.yml", "roles/*/defaults/*.yml", "roles/*/vars/*.yml", "playbooks/*.yml")
        for path in sorted(root.glob(pattern))
        for line in path.read_text(encoding="utf-8").splitlines()
        if UNORDERED.search(line)
    ]
    assert found == []
