# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe for a Python environment that the user made: the cluster's environment leads to it and changes nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import existing_python
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import uv
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.existing import Named
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.frameworks import (
    drivers_below,
    gpus_left_idle,
    platform_cuda,
    platform_with_python,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import (
    Artifact,
    Plan,
    Refusal,
    builders,
    digest,
    places,
    role_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Cluster, Host

_VARIABLE = "python_env_existing"
_NAMED = Named(_VARIABLE, "existing_python", "/opt/pytorch")
path_of, unusable = _NAMED.path_of, _NAMED.unusable
_PROGRAM = "existing_environment.py"
_SYSTEM = "/usr"
_OLDEST = (3, 9)
_PROOF_S = 180  # the first import of gigabytes waits for a cold disk
_LABELS = {"pytorch": "PyTorch", "tensorflow": "TensorFlow"}
_PACKAGES = {"pytorch": ("torch",), "tensorflow": ("tensorflow", "tensorflow-cpu")}


@dataclass(frozen=True)
class Existing:
    """An environment of the user on a host, as :mod:`node_look.existing_python` sees it; see there for the fields."""

    path: str
    interpreter: str
    real: str
    version: str
    machine: str
    base: str
    headers: bool
    shares: bool
    folders: Sequence[str]
    packages: Mapping[str, str]
    cuda: Mapping[str, str]
    nccl: Mapping[str, str]
    mpi: Mapping[str, Mapping[str, str]]

    @property
    def release(self) -> str:
        """The first two numbers of its version."""
        return ".".join(self.version.split(".")[:2])

    @property
    def labels(self) -> dict[str, str]:
        """What of it must be the same on all nodes beside its packages: what the cluster's leads to, and each CUDA."""
        cuda = {name: f"{name} for CUDA {of}" if of else f"{name} without CUDA" for name, of in self.cuda.items()}
        return {
            "python": f"Python {self.version} of {self.real}",
            "base": f"the base {self.base}",
            "interpreter": self.interpreter,
            "folders": f"packages in {' '.join(self.folders)}{' and of its base' if self.shares else ''}",
            **cuda,
            **{
                name: " ".join(
                    [f"{name} for {of['library'] or 'no library of MPI'}", of["nccl"], of["framework"]]
                ).strip()
                for name, of in self.mpi.items()
            },
        }

    def framework(self, name: str) -> dict[str, str]:
        """Return name, version, cuda, nccl and sha256 of a framework; all of them '' where it is missing."""
        package = next((one for one in _PACKAGES.get(name, ()) if one in self.packages), "")
        if not package:
            return dict.fromkeys(("name", "version", "cuda", "nccl", "sha256"), "")
        cuda = self.cuda.get(package, "").partition(".")[0]
        nccl = self.nccl["version"] if cuda and name == "pytorch" else ""
        return {"name": name, "version": self.packages[package], "cuda": cuda, "nccl": nccl, "sha256": ""}


def of(host: Host) -> Existing | None:
    """Return the environment of a host; None where none is named, or :func:`unusable` says why it has none."""
    return _NAMED.found(host, Existing)


def python(cluster: Cluster, plans: Mapping[str, Plan], host: Host, asked: str) -> uv.Python:
    """Return the Python that a host's environment has once this run ends, for what is built for it.

    Args:
        cluster: the hosts.
        plans: what was decided before.
        host: the host.
        asked: ``system`` or ``managed``, where the user names no environment.
    """
    found = of(host)
    if found is None:
        return uv.python(cluster, plans, host, asked)
    return uv.Python(
        found.interpreter,
        platform_with_python(host.platform, found.version),
        # what is built for the distribution's Python fits each environment of it
        key="" if found.base == _SYSTEM else digest(found.base, found.version)[:16],
        own_headers=found.headers and not _of_distribution(found, host),
        folders=tuple(found.folders),
    )


def without_headers(host: Host, software: str) -> str:
    """Say that the host's environment has no Python.h for a build; '' where it has, or the distribution brings it."""
    found = of(host)
    if found is None or found.headers or _of_distribution(found, host):
        return ""
    return (
        f"{software} is compiled with Python.h, and {found.base} on {host.name}, the Python of {found.path}, has none;"
        f" install the headers of Python {found.release} there."
    )


def without_packages(host: Host, software: str, needed: Sequence[str]) -> str:
    """Say that the host's environment lacks packages that software imports; '' where it has all."""
    found = of(host)
    lacking = [name for name in needed if found is not None and name not in found.packages]
    if found is None or not lacking:
        return ""
    return (
        f"{software} imports {' and '.join(lacking)}, and {found.path} has not; install them there, or set"
        f" {software.lower()}_install to never."
    )


def _of_distribution(found: Existing, host: Host) -> bool:
    """Whether an environment's Python is the one whose headers the distribution's package brings."""
    own = str((host.node.get("python") or {}).get("version", ""))
    return found.base == _SYSTEM and own.startswith(f"{found.release}.")


def decide(cluster: Cluster, groups: Sequence[Sequence[Host]], linked: Sequence[str]) -> Plan:
    """Decide about the hosts whose variables name an environment; ``told`` has ``frameworks`` by platform.

    Args:
        cluster: the hosts.
        groups: hosts of one platform with equal settings, also those that name none.
        linked: folders of packages that come before those of the environment.
    """
    naming = [_Recipe(cluster, hosts, linked) for hosts in groups if path_of(hosts[0])]
    refusals = [one for recipe in naming for one in recipe.refusals()] or list(
        _NAMED.unlike(groups, of, [recipe.platform for recipe in naming])
    )
    refusals = refusals or [one for recipe in naming for one in recipe.framework_refusals()]
    told = {"frameworks": {recipe.platform: recipe.framework for recipe in naming if not refusals}}
    return Plan([] if refusals else [recipe.artifact() for recipe in naming], refusals, (), told)


class _Recipe:
    """The environment of hosts of one platform with equal settings."""

    def __init__(self, cluster: Cluster, hosts: Sequence[Host], linked: Sequence[str]) -> None:
        self.settings, self.hosts, self.linked = hosts[0].settings, hosts, linked
        self.members, self.prefix, self.platform = cluster.members, cluster.prefix, hosts[0].platform
        self.path, self.asked = path_of(hosts[0]), self.settings.text("python_env_framework")

    @property
    def found(self) -> Existing:
        """The environment, which is the same on all hosts."""
        found = of(self.hosts[0])
        if found is None:
            raise ValueError(self.path)
        return found

    @property
    def links_to(self) -> list[str]:
        """The folders of the environment and its Python that lie elsewhere than software does."""
        found = self.found
        places = dict.fromkeys(
            (existing_python.folder_of(self.path), found.base, str(PurePosixPath(found.real).parent))
        )
        return [place for place in places if not existing_python.among_software(place, self.prefix)]

    @property
    def framework(self) -> dict[str, str]:
        """The framework that is wanted."""
        return self.found.framework(self.asked)

    def refusals(self) -> Iterator[Refusal]:
        """Yield why it cannot be used, as far as each host tells by itself."""
        if self.settings.text("python_env_python") == "managed":
            yield Refusal(
                "",
                f"{_VARIABLE} is {self.path}, which has its own Python, and python_env_python is managed; set one of"
                " them.",
            )
        if lock := self.settings.text("python_env_lock"):
            yield Refusal("", f"{_VARIABLE} is {self.path}, and python_env_lock is {lock}; set one of them.")
        if self.settings.texts("python_env_requirements"):
            yield Refusal(
                "",
                f"Nothing is installed into {self.path}, and python_env_requirements names packages; install them there"
                f" yourself and leave python_env_requirements empty, or leave {_VARIABLE} empty.",
            )
        for host in self.hosts:
            found = of(host)
            if problem := unusable(host) or (self._lack(found) if found else ""):
                yield Refusal(host.name, problem)

    def _lack(self, found: Existing) -> str:
        if tuple(int(number) for number in found.release.split(".")) < _OLDEST:
            return (
                f"{found.path} has Python {found.version}, and the checks need {'.'.join(map(str, _OLDEST))} or newer;"
                " make it with a newer Python."
            )
        if found.machine and f"-{found.machine}-" not in self.platform:
            return (
                f"{found.real}, the Python of {found.path}, is a program for {found.machine}, and the platform is"
                f" {self.platform}; make the environment on a node of this platform."
            )
        if "numpy" not in found.packages:
            return f"{found.path} has no numpy, which the checks of clusterctl need; install it there."
        return ""

    def framework_refusals(self) -> Iterator[Refusal]:
        """Yield why its framework is not what was asked for, or cannot run here."""
        framework, settings = self.framework, self.settings
        build, named = settings.text("python_env_framework_build"), settings.text("python_env_framework_version")
        if self.asked == "none":
            return
        label, version, cuda = _LABELS[self.asked], framework["version"], framework["cuda"]
        has_gpus = platform_cuda(self.members, self.platform)["gpus"]
        old = {str(one["name"]): one for one in drivers_below(self.members, self.platform, cuda)}
        problem = ""
        if not version:
            others = [one for one in _LABELS if self.found.framework(one)["version"]]
            problem = (
                f"{self.path} has no {label}, and python_env_framework is {self.asked}; install it there, or set"
                f" python_env_framework to {' or '.join([*others, 'none'])}."
            )
        elif named and named not in {version, version.partition("+")[0]}:
            problem = (
                f"python_env_framework_version is {named}, and {self.path} has {label} {version}; install that release"
                " there, or leave python_env_framework_version empty."
            )
        elif not cuda and (build == "cuda" or (build == "auto" and has_gpus)):
            wanted = "python_env_framework_build is cuda" if build == "cuda" else f"{self.platform} has GPUs"
            problem = (
                f"{wanted}, and {label} {version} of {self.path} is a build without CUDA; install a build with CUDA"
                " there, or set python_env_framework_build to cpu."
            )
        elif not cuda:
            problem = gpus_left_idle(self.members, self.platform, self.asked, build)
        elif framework["nccl"] and (settings.text("python_env_nccl") or settings.text("nccl_align")) == "cluster":
            problem = (
                f"{label} of {self.path} loads its own NCCL {framework['nccl']}, and nothing is changed there; set"
                " nccl_align to framework or report, and leave python_env_nccl empty."
            )
        for host in self.hosts:
            if problem:
                yield Refusal(host.name, problem)
            elif build != "cpu" and host.name in old:
                yield Refusal(
                    host.name,
                    f"{label} {version} of {self.path} was built for CUDA {cuda}, and the NVIDIA driver"
                    f" {old[host.name]['driver']} of {host.name} runs CUDA up to {old[host.name]['cuda']}; install a"
                    " newer driver, or a build for that CUDA.",
                )

    def artifact(self) -> Artifact:
        """Return the environment that leads to the user's."""
        found, framework, settings = self.found, self.framework, self.settings
        program = role_file("python_env", _PROGRAM)
        asked = {
            "folder": existing_python.folder_of(self.path),
            "interpreter": found.interpreter,
            "base": found.base,
            "real": found.real,
            "release": found.release,
            "shares": found.shares,
            "linked": list(self.linked),
            "folders": list(found.folders),
        }
        its_builders = builders(self.hosts, settings.text("python_env_builder"), "python_env")
        return Artifact(
            role="python_env",
            name="python_env",
            version=found.release,
            inputs={
                "recipe": "existing 1",
                "platform": platform_with_python(self.platform, found.version),
                # A node compares these three with what is there.
                "existing": self.path,
                "python": found.version,
                "packages": dict(found.packages),
                "made": asked,
                "program": digest(program),
                "framework": {field: framework[field] for field in ("name", "version", "cuda", "nccl")},
            },
            prefix=self.prefix,
            hosts=[host.name for host in self.hosts],
            builders=[host.name for host in its_builders],
            round=1,
            install={"links_to": self.links_to},
            build={
                **places(settings),
                "links_to": self.links_to,
                "files": [{"content": program, "dest": _PROGRAM}],
                "steps": [
                    {
                        "name": "environment",
                        "argv": [uv.system_python(its_builders[0]), _PROGRAM, json.dumps(asked), "@TREE@"],
                        "speaks": True,
                    }
                ],
            },
            proof={
                "stands_on": [f"{self.prefix}/nccl"],
                "timeout_s": _PROOF_S,
                "checks": [
                    {
                        "argv": [
                            *("@LINK@/bin/python", "-", "@LINK@", framework["name"]),
                            *(framework["version"], "", *found.folders),
                        ],
                        "stdin": role_file("python_env", "environment_check.py").rstrip(),
                        "expect": ['"trace": 180'],
                    }
                ],
            },
        )
