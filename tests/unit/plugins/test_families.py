"""Each family of distributions that preflight admits has the names of its packages, in each role that installs some."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import APT, Artifact
from clusterctl.support import content
from recipe_clusters import all_of, host

ROLES = content.root() / "roles"
FAMILIES = ("Debian", "RedHat", "Suse")


def built(family: str, major: str = "9", **given: Any) -> list[Artifact]:
    """Return what all recipes build on a host of a family."""
    node = {"distribution": {"family": family, "major": major, "id": "other", "name": "Other"}}
    return all_of(host("node1", given, node=node))


@pytest.mark.parametrize("family", FAMILIES)
def test_each_build_has_packages_of_its_family_and_only_options_of_its_package_manager(family: str) -> None:
    found = built(family, openmpi_fortran=True, python_env_python="managed")
    assert [one.name for one in found] == ["openmpi", "cpython", "python_env", "mpi4py", "nccl", "horovod"]
    for one in found:
        assert all(one.build["packages"]), one.name
        assert bool(one.build["packages"]) is (one.name != "python_env"), one.name
        assert one.build["package_options"] == (APT if family == "Debian" else {}), one.name


def test_the_fortran_library_of_leap_15_is_that_of_its_compiler() -> None:
    leap = built("Suse", "15", openmpi_fortran=True)[0]
    assert leap.install["libraries"] == {"libgfortran.so.4": ["libgfortran4"]}
    assert leap.proof["checks"][3]["expect"] == ["libgfortran.so.4 "]


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
