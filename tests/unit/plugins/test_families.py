"""Each family of distributions that preflight admits has the names of its packages, in each role that installs some."""

from __future__ import annotations

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


@pytest.mark.parametrize(("python", "package"), [("3.11.9", "python311-devel"), ("3.13.5", "python313-devel")])
@pytest.mark.parametrize("role", ["mpi4py", "horovod"])
def test_suse_has_headers_for_each_python(role: str, python: str, package: str) -> None:
    variables = {**of(role, "Suse"), f"{role}_node": {"python": {"version": python}}}
    assert rendered(f"__{role}_python_packages", variables, ()) == [package]


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
