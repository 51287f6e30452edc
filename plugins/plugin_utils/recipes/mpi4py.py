# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe of mpi4py: compiled once per platform against the Open MPI that the hosts have, for their Python."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import (
    existing_env,
    existing_openmpi,
    own_package,
    uv,
)
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

    def stands_on(host: Host) -> tuple[str, uv.Python, own_package.Own]:
        asked = host.settings.text("mpi4py_python") or host.settings.text("python_env_python")
        openmpi = cluster.comes(plans, "openmpi", host, "openmpi")
        python = existing_env.python(cluster, plans, host, asked)
        own = own_package.find(
            host,
            "mpi4py",
            "mpi4py",
            lambda its: own_package.elsewhere(cluster, plans, host, "openmpi", its["library"]),
            f"build it with MPICC={cluster.prefix}/openmpi/bin/mpicc",
        )
        return str(openmpi.get("key") or ""), python, own

    groups = cluster.alike("mpi4py", also=stands_on)
    if refusals := existing_openmpi.unlike(groups):
        return Plan(refusals=refusals)
    recipes = [_Recipe(cluster.prefix, hosts, *stands_on(hosts[0])) for hosts in groups]
    notes = dict.fromkeys(recipe.own.note for recipe in recipes if recipe.own.note)
    return replace(plan_of(recipes), warnings=tuple(notes))


class _Recipe:
    """mpi4py for hosts of one platform with equal settings, Open MPI and Python."""

    def __init__(
        self, prefix: str, hosts: Sequence[Host], openmpi: str, python: uv.Python, own: own_package.Own
    ) -> None:
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
        made = own_package.leads_to(self.own, "mpi4py", self.prefix) if self.own.path else self._built(its_builders[0])
        build = {
            **places(self.settings),
            **made.build,
            "files": [*made.build["files"], {"content": check, "dest": "mpi4py_check.py"}],
            "steps": [*made.build["steps"], *self._check_steps()],
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

    def _built(self, builder: Host) -> own_package.Made:
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
        return own_package.Made(
            self.version,
            inputs,
            build={
                **uv.packages(builder, _COMPILERS, own_headers=self.python.own_headers),
                "files": files,
                "steps": self._compile_steps(),
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
