# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe of mpi4py: compiled once per platform against the Open MPI that the hosts have, for their Python."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import existing_python
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import existing_env, existing_openmpi, uv
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import (
    Artifact,
    Plan,
    Refusal,
    builders,
    digest,
    places,
    plan_of,
    role_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Cluster, Host

# Source archives whose sums are verified.
RELEASES = {
    "4.1.2": "56860286dc45f20e8821e93cb06669e30462348bf866f685553fa4b712d58d02",
    "4.1.1": "eb2c8489bdbc47fdc6b26ca7576e927a11b070b6de196a443132766b3d0a2a22",
    "4.0.3": "de2710d73e25e115865a3ab63d34a54b2d8608b724f761c567b6ad58dd475609",
}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TOOLS = ["setuptools>=70", "cython>=3.0,<4"]
_COMPILERS = {"Debian": ["gcc", "libc6-dev"], "RedHat": ["gcc", "glibc-devel"], "Suse": ["gcc", "glibc-devel"]}
_NEEDS_BYTES = 500_000_000


def decide(cluster: Cluster, plans: Mapping[str, Plan]) -> Plan:
    """Decide which mpi4py each host gets."""

    def stands_on(host: Host) -> tuple[str, uv.Python, _Own]:
        asked = host.settings.text("mpi4py_python") or host.settings.text("python_env_python")
        openmpi = cluster.comes(plans, "openmpi", host, "openmpi")
        python = existing_env.python(cluster, plans, host, asked)
        return str(openmpi.get("key") or ""), python, _own_of(host, cluster.prefix)

    groups = cluster.alike("mpi4py", also=stands_on)
    if refusals := existing_openmpi.unlike(groups):
        return Plan(refusals=refusals)
    recipes = [_Recipe(cluster.prefix, hosts, *stands_on(hosts[0])) for hosts in groups]
    notes = dict.fromkeys(recipe.own.note for recipe in recipes if recipe.own.note)
    return replace(plan_of(recipes), warnings=tuple(notes))


@dataclass(frozen=True)
class _Own:
    """The mpi4py in the environment of a host's user.

    Attributes:
        path: its folder, where it was built against the cluster's Open MPI, so that no other is built; else ''.
        version: of the one in that folder.
        note: for the user where it was built against another MPI; else ''.
    """

    path: str = ""
    version: str = ""
    note: str = ""


def _own_of(host: Host, prefix: str) -> _Own:
    """Return the mpi4py that the host's environment has; an empty one without it."""
    found = existing_env.of(host)
    if found is None or "mpi4py" not in found.packages:
        return _Own()
    its = found.mpi.get("mpi4py", {"folder": "", "library": ""})
    library, version = its["library"], found.packages["mpi4py"]
    if str(PurePosixPath(library).parent) in {f"{prefix}/openmpi/lib", *existing_openmpi.libraries(host)}:
        return _Own(f"{its['folder']}/mpi4py", version)
    why = f"takes {library} of the system" if library else "finds its MPI when it starts"
    note = (
        f"mpi4py {version} of {found.path} {f'was built against {library}' if '/' in library else why}; jobs get the"
        f" cluster's own mpi4py (to use yours, build it with MPICC={prefix}/openmpi/bin/mpicc)"
    )
    return _Own(note=note)


@dataclass(frozen=True)
class _Made:
    """What differs between an mpi4py that is compiled, and one that is there."""

    version: str
    inputs: Mapping[str, Any]
    build: Mapping[str, Any]
    install: Mapping[str, Any]


class _Recipe:
    """mpi4py for hosts of one platform with equal settings, Open MPI and Python."""

    def __init__(self, prefix: str, hosts: Sequence[Host], openmpi: str, python: uv.Python, own: _Own) -> None:
        self.prefix, self.hosts, self.openmpi, self.python, self.own = prefix, hosts, openmpi, python, own
        self.settings = hosts[0].settings
        self.folders = existing_openmpi.folders(hosts[0])
        self.version = self.settings.text("mpi4py_version")
        self.sha256 = self.settings.text("mpi4py_sha256") or RELEASES.get(self.version, "")

    def refusals(self) -> Iterator[Refusal]:
        """Yield why it cannot be built."""
        if not self.own.path and not _SHA256.fullmatch(self.sha256):
            yield Refusal(
                "",
                f"No sha256 of mpi4py {self.version} is known (known are {', '.join(RELEASES)}); set mpi4py_sha256 to"
                f" the 64 hex digits that its publisher names for mpi4py-{self.version}.tar.gz.",
            )
        for host in self.hosts:
            if not self.openmpi:
                link = f"{self.prefix}/openmpi"
                yield Refusal(host.name, uv.without_library(host.name, "Open MPI", link, "mpi4py"))
            elif problem := (
                existing_openmpi.unusable(host)
                or existing_env.unusable(host)
                or ("" if self.own.path else existing_env.without_headers(host, "mpi4py"))
            ):
                yield Refusal(host.name, problem)
            elif self.python.managed and not self.python.key:
                yield Refusal(host.name, uv.without_python(host.name, self.prefix, "mpi4py"))

    def artifact(self) -> Artifact:
        """Return the artifact."""
        python, openmpi = self.python, f"{self.prefix}/openmpi"
        its_builders = builders(self.hosts, self.settings.text("mpi4py_builder"))
        check, environment = role_file("mpi4py", "mpi4py_check.py"), f"{self.prefix}/python_env"
        key = "" if self.folders else self.openmpi  # a library outside of the artifacts has no key
        made = self._taken() if self.own.path else self._built(its_builders[0])
        build = {
            **places(self.settings),
            **made.build,
            "files": [*made.build["files"], {"content": check, "dest": "mpi4py_check.py"}],
        }
        return Artifact(
            role="mpi4py",
            name="mpi4py",
            version=made.version,
            inputs={
                **made.inputs,
                "openmpi": self.openmpi,
                "check": digest(check),
                "platform": python.target,
                **python.inputs,
            },
            prefix=self.prefix,
            hosts=[host.name for host in self.hosts],
            builders=[host.name for host in its_builders],
            round=2,
            uses=["ucx", "openmpi", "cpython"],
            build=build,
            install=made.install,
            proof={
                "stands_on": [openmpi, environment, *([f"{self.prefix}/cpython"] if python.managed else [])],
                "checks": [uv.two_ranks(self.prefix, "clusterctl-mpi4py-check", key, self.own.path or "@REAL@")],
            },
        )

    def _taken(self) -> _Made:
        """Return how the artifact leads to the mpi4py of the user's environment."""
        own = self.own
        links_to = [] if existing_python.among_software(own.path, self.prefix) else [own.path]
        steps = [
            {"name": "folder", "argv": ["install", "-d", "-m", "0755", "@TREE@/site-packages"]},
            {"name": "link", "argv": ["ln", "-s", own.path, "@TREE@/site-packages/mpi4py"]},
            *self._check_steps(),
        ]
        return _Made(
            own.version,
            {"recipe": "existing 1", "version": own.version, "taken_from": own.path},
            build={"links_to": links_to, "files": [], "steps": steps},
            install={"links_to": links_to},
        )

    def _built(self, builder: Host) -> _Made:
        """Return how mpi4py is compiled."""
        settings, target = self.settings, self.python.target
        sdist = {
            "name": "mpi4py",
            "version": self.version,
            "sha256": self.sha256,
            "wheel_dir": settings.text("mpi4py_wheel_dir"),
            "variable": "mpi4py_sha256",
        }
        inputs = {
            "recipe": 1,
            "version": self.version,
            "source": self.sha256,
            "cflags": settings.text("mpi4py_cflags"),
        }
        files = [
            *uv.brought(settings, "mpi4py", target, _TOOLS),
            {"sdist": sdist, "dest": "source", "unpack": True},
        ]
        return _Made(
            self.version,
            inputs,
            build={
                **uv.packages(builder, _COMPILERS, own_headers=self.python.own_headers),
                "files": files,
                "steps": [*self._compile_steps(), *self._check_steps()],
                "prune": uv.NOTES,
                "needs_bytes": _NEEDS_BYTES,
            },
            install={
                "library_path": ["lib", *self.folders],
                "waiting_paths": [f"{self.prefix}/ucx/lib", f"{self.prefix}/openmpi/lib"],
            },
        )

    def _compile_steps(self) -> list[dict[str, Any]]:
        compiles = {
            "MPICC": f"{self.prefix}/openmpi/bin/mpicc",
            "CFLAGS": self.settings.text("mpi4py_cflags"),
            "MPI4PY_BUILD_BACKEND": "setuptools",
        }
        return [
            *uv.environment_with(self.python, ["setuptools", "cython"]),
            uv.installs("compile", "./source", "--no-build-isolation", **compiles),
        ]

    def _check_steps(self) -> list[dict[str, Any]]:
        # MPI itself need not start for that
        load = "import mpi4py; mpi4py.rc.initialize = False; import mpi4py.MPI"
        return [
            uv.places_program("check", "mpi4py_check.py", "@TREE@/libexec/clusterctl-mpi4py-check"),
            uv.loads(self.python.path, load, self.folders),
        ]
