"""Options of Open MPI's configure, as the role makes them from its variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from clusterctl.support import content

ROLE = content.root() / "roles" / "openmpi"
FILES = ("defaults/main.yml", "vars/main.yml", "vars/Debian.yml")
TASKS = ("install.yml", "fortran.yml")


def trusted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: trusted(one) for key, one in value.items()}
    if isinstance(value, list):
        return [trusted(one) for one in value]
    return trust_as_template(value) if isinstance(value, str) else value


def made(expression: str, **given: Any) -> Any:
    variables: dict[str, Any] = {}
    for name in FILES:
        variables |= yaml.safe_load(Path(ROLE, name).read_text(encoding="utf-8"))
    variables |= {"openmpi_ucx": "never", "openmpi_cuda": "never", **given}
    return Templar(DataLoader(), variables=trusted(variables)).template(trusted(f"{{{{ {expression} }}}}"))


@pytest.mark.parametrize("version", ["5.0.7", "4.1.4"])
def test_the_wrappers_for_cpp_need_a_compiler_at_build_time(version: str) -> None:
    options = made("__openmpi_configure_argv", openmpi_version=version)
    assert {"CC=gcc", "CXX=g++", "--disable-mpi-fortran"} <= set(options)
    assert not [word for word in options if word.startswith("FC=") or word == "--enable-mpi-fortran=all"]
    assert {"gcc", "g++"} <= set(made("__openmpi_build_packages"))


@pytest.mark.parametrize("version", ["5.0.7", "4.1.4"])
def test_fortran_is_one_variable(version: str) -> None:
    options = made("__openmpi_configure_argv", openmpi_version=version, openmpi_fortran=True)
    assert {"--enable-mpi-fortran=all", "FC=gfortran"} <= set(options)
    assert "--disable-mpi-fortran" not in options
    assert made("__openmpi_fortran_packages") == ["gfortran"]


def test_fortran_programs_find_their_runtime_on_every_host() -> None:
    assert made("__openmpi_fortran_runtime") == ["libgfortran5"]
    proofs = made("__openmpi_proofs + __openmpi_fortran_proofs", openmpi_version="5.0.7", openmpi_fortran=True)
    assert {"argv": ["/sbin/ldconfig", "-p"], "expect": ["libgfortran.so.5 "]} in proofs
    assert any("bindings:use_mpi_f08:yes" in one["expect"] for one in proofs)
    tasks = {name: yaml.safe_load((ROLE / "tasks" / name).read_text(encoding="utf-8")) for name in TASKS}
    bring = next(task for task in tasks["install.yml"] if task.get("ansible.builtin.import_tasks") == "fortran.yml")
    assert bring["when"] == "openmpi_fortran | bool"
    packages = next(task for task in tasks["fortran.yml"] if "clusterctl.hpc.package_install" in task)
    assert packages["clusterctl.hpc.package_install"]["name"] == "{{ __openmpi_fortran_runtime }}"
    assert "__openmpi_fortran_library not in __openmpi_libraries.stdout" in packages["when"]
