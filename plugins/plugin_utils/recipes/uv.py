# SPDX-License-Identifier: GPL-3.0-or-later
"""What builds with uv have in common: the Python that they are for, the packages of a builder, and steps of uv."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.frameworks import platform_with_python
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import APT, SYSTEM_PYTHON, of_family

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Cluster, Host, Plan, Settings

_PROGRAM = "@WORK@/uv/scripts/uv"
# uv must not use the network, nor a user's settings. Byte code is not compared with the time stamp of its source. Only
# root writes here, and each rank then starts with one stat less per module.
_ENVIRONMENT = {
    "UV_OFFLINE": "1",
    "UV_NO_CACHE": "1",
    "UV_NO_CONFIG": "1",
    "UV_NO_PROGRESS": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "PYC_INVALIDATION_MODE": "UNCHECKED_HASH",
}
# The installer's notes about its build folder.
NOTES = ["site-packages/.lock", "site-packages/*.dist-info/direct_url.json", "site-packages/*.dist-info/uv_cache.json"]

_OF_SYSTEM = re.compile(rf"{SYSTEM_PYTHON}([.]\d+)?")
_PACKAGES: dict[str, dict[str, Any]] = {
    "Debian": {"headers": ["libpython3-dev"], "options": APT},
    # Python 3.9 comes without distutils there, and uv makes no environment without it.
    "Debian_11": {"headers": ["libpython3-dev", "python3-distutils"]},
    "RedHat": {"headers": ["python3-devel"], "options": {}},
    # Each release of Python has packages of its own, such as python311-devel.
    "Suse": {"headers": ["python{release}-devel"], "options": {}},
}


@dataclass(frozen=True)
class Python:
    """The Python of the environment on a host.

    Attributes:
        path: the interpreter that makes environments for a build.
        target: the host's platform with this Python; wheels are pinned for it.
        managed: whether it is the one that python_env compiles, not the distribution's.
        key: of the managed one, or of the user's; '' for the distribution's, and where the host has none.
        own_headers: whether its headers come with it, not with a package of the distribution.
        folders: those of the packages of an environment that the user made; empty for the cluster's own.
    """

    path: str
    target: str
    managed: bool = False
    key: str = ""
    own_headers: bool = False
    folders: tuple[str, ...] = ()

    @property
    def release(self) -> str:
        """The first two numbers of its version."""
        return str(re.findall(r"-py(\d+[.]\d+)", self.target)[0])

    @property
    def inputs(self) -> dict[str, str]:
        """What a key has of it. The distribution's Python has no entry, so that keys of builds for it stay."""
        return {"interpreter": self.key} if self.key else {}


def python(cluster: Cluster, plans: Mapping[str, Plan], host: Host, asked: str) -> Python:
    """Return the Python that a host's environment has once this run ends.

    Args:
        cluster: the hosts.
        plans: what was decided before.
        host: the host.
        asked: ``system`` or ``managed``.
    """
    if asked != "managed":
        return Python(system_python(host), host.platform)
    comes = cluster.comes(plans, "python_env", host, "cpython")
    target = platform_with_python(host.platform, str(comes.get("version") or ""))
    return Python(
        f"{cluster.prefix}/cpython/bin/python3", target, managed=True, key=str(comes.get("key") or ""), own_headers=True
    )


def system_python(host: Host) -> str:
    """Return the distribution's Python that modules run with.

    On a distribution whose own python3 is too old, it is a newer one beside it.
    """
    return host.interpreter if _OF_SYSTEM.fullmatch(host.interpreter) else SYSTEM_PYTHON


def packages(host: Host, compilers: Mapping[str, Sequence[str]], *, own_headers: bool) -> dict[str, Any]:
    """Return what a builder needs from its distribution, as options of a build.

    Args:
        host: the builder.
        compilers: packages of each family beside Python's headers.
        own_headers: whether it builds for a Python that has its own headers.
    """
    known = of_family(_PACKAGES, host)
    release = "".join(str(host.node["python"]["version"]).split(".")[:2])
    headers = [] if own_headers else [name.format(release=release) for name in known["headers"]]
    return {"packages": [*compilers[host.families[0]], *headers], "package_options": known["options"]}


def brought(
    settings: Settings, role: str, target: str, tools: Sequence[str] = (), variable: str = "version"
) -> list[dict[str, Any]]:
    """Return uv and the wheels of other tools, as entries of a build's files. They leave no trace in what is built.

    Args:
        settings: of the host.
        role: that builds.
        target: platform of the wheels.
        tools: requirements; their wheels come into the folder ``wheels``.
        variable: of the role; messages name it where an index lacks a wheel.
    """
    common = {
        "platform": target,
        "wheel_dir": settings.text(f"{role}_wheel_dir"),
        "variable": f"{role}_{variable}",
    }
    found: list[dict[str, Any]] = [
        {"wheels": {"name": "uv", "requirements": ["uv"], **common}, "dest": "uv", "unpack": True}
    ]
    if tools:
        found.append({"wheels": {"name": f"{role}_tools", "requirements": list(tools), **common}, "dest": "wheels"})
    return found


def step(name: str, *arguments: str, **more: str) -> dict[str, Any]:
    """Return a step of a build that calls uv.

    Args:
        name: of the step.
        arguments: of uv.
        more: variables of the environment.
    """
    return {"name": name, "argv": [_PROGRAM, *arguments], "environment": {**_ENVIRONMENT, **more}}


def environment_with(python: Python, tools: Sequence[str]) -> list[dict[str, Any]]:
    """Return the steps that make an environment for a build, with the tools that :func:`brought` brings."""
    into = "--python=@WORK@/tools/bin/python"
    return [
        step("environment", "venv", "--python", python.path, "@WORK@/tools"),
        step("tools", "pip", "install", into, "--no-index", "--find-links=wheels", *tools),
    ]


def installs(name: str, package: str, option: str, **more: str) -> dict[str, Any]:
    """Return the step that installs a package into the tree, with one more option of uv."""
    into = ["--python=@WORK@/tools/bin/python", "--no-index", "--no-deps"]
    tree = ["--compile-bytecode", "--target=@TREE@/site-packages"]
    return step(name, "pip", "install", *into, option, *tree, package, **more)


def places_program(name: str, file: str, dest: str) -> dict[str, Any]:
    """Return the step that installs a program."""
    return {"name": name, "argv": ["install", "-D", "-m", "0755", file, dest]}


def finding(library_path: Sequence[str]) -> dict[str, str]:
    """Return the variable by which the loader and the linker find libraries in folders; {} for none."""
    return {"LD_LIBRARY_PATH": ":".join(library_path)} if library_path else {}


def loads(interpreter: str, code: str, library_path: Sequence[str] = ()) -> dict[str, Any]:
    """Return the step that loads what was built. A missing symbol shows when a module is loaded."""
    return {
        "name": "load",
        "argv": [interpreter, "-B", "-c", code],
        "environment": {"PYTHONPATH": "@TREE@/site-packages", **finding(library_path)},
    }


def two_ranks(prefix: str, program: str, *arguments: str) -> dict[str, Any]:
    """Return the check that runs a program of the artifact with two ranks in the cluster's Python."""
    # a proof is about answers, and the ranks of several hosts may share cores
    mpirun = [f"{prefix}/openmpi/bin/mpirun", "--host", "localhost:2", "-np", "2", "--mca", "mpi_yield_when_idle", "1"]
    return {
        "argv": [*mpirun, f"{prefix}/python_env/bin/python", f"@REAL@/libexec/{program}", *arguments],
        "expect": ['"rank": 0, "size": 2', '"rank": 1, "size": 2'],
    }


def without_library(host: str, library: str, link: str, software: str) -> str:
    """Say that a host lacks a library that software is compiled against."""
    role = link.rpartition("/")[2]
    return (
        f"{host} has no {library} at {link} that {software} could be built against; run the role {role} before"
        f" {software.lower()}."
    )


def without_python(host: str, prefix: str, software: str) -> str:
    """Say that a host lacks the managed Python that software is compiled for."""
    return (
        f"python_env_python is managed, and {host} has no Python at {prefix}/cpython that {software} could be built"
        f" for; run the role python_env before {software.lower()}."
    )
