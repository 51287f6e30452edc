# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe for an Open MPI that the nodes have already: the cluster's leads to it and changes nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import existing_python
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import rank_proof, uv
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.existing import Named
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

_VARIABLE = "openmpi_existing"
_NAMED = Named(_VARIABLE, "existing_openmpi", "/opt/hpcx/ompi")
path_of, unusable = _NAMED.path_of, _NAMED.unusable
_PROGRAM = "existing_openmpi.py"
_SERIES = ("4.1.", "5.")


@dataclass(frozen=True)
class Existing:
    """An Open MPI on a host, as :mod:`node_look.existing_openmpi` sees it; see there for the fields."""

    path: str
    version: str
    machine: str
    library: str
    folders: Sequence[str]
    options: Sequence[str]
    components: Mapping[str, str]
    cuda: bool
    fortran: bool
    files: str

    @property
    def labels(self) -> dict[str, str]:
        """What of it must be the same on all nodes beside the components that carry messages."""
        return {
            "version": f"Open MPI {self.version}",
            "cuda": "CUDA" if self.cuda else "no CUDA",
            "options": " ".join(self.options),
            "library": f"libraries in {self.library}",
            "folders": f"its search path {':'.join(self.folders)}",
            "files": f"library files with digest {self.files[:8]}",
        }

    @property
    def packages(self) -> Mapping[str, str]:
        """Versions of the components that carry messages."""
        return self.components


def of(host: Host) -> Existing | None:
    """Return the Open MPI of a host; None where none is named, or it cannot be used."""
    return _NAMED.found(host, Existing)


def folders(host: Host) -> list[str]:
    """Return the folders that programs of a host's own Open MPI need in LD_LIBRARY_PATH; [] where none is named."""
    found = of(host)
    return list(found.folders) if found else []


def libraries(host: Host) -> list[str]:
    """Return the folders by which a program can name the libmpi of a host's own Open MPI; [] where none is named."""
    found = of(host)
    return [found.folders[0], found.library] if found else []


def unlike(groups: Sequence[Sequence[Host]]) -> list[Refusal]:
    """Return where hosts of one platform do not have the same; ``groups`` are those of :func:`decide`."""
    return list(_NAMED.unlike(groups, of, [hosts[0].platform for hosts in groups if path_of(hosts[0])]))


def decide(
    cluster: Cluster, groups: Sequence[Sequence[Host]], compilers: Mapping[str, Mapping[str, Sequence[str]]]
) -> Plan:
    """Decide about the hosts whose variables name an Open MPI.

    Args:
        cluster: the hosts.
        groups: hosts of one platform with equal settings, also those that name none.
        compilers: by platform, the packages and options that a program of MPI is compiled with.
    """
    naming = [hosts for hosts in groups if path_of(hosts[0])]
    refusals = [one for hosts in naming for host in hosts for one in _refusals(host)]
    refusals = refusals or unlike(groups)
    return Plan([] if refusals else [_artifact(cluster, hosts, compilers) for hosts in naming], refusals)


def _refusals(host: Host) -> Iterator[Refusal]:
    """Yield why the Open MPI of a host cannot be used, as far as it tells by itself."""
    found, settings = of(host), host.settings
    if found is None:
        yield Refusal(host.name, unusable(host))
        return
    if not found.version.startswith(_SERIES):
        yield Refusal(
            host.name,
            f"{found.path} has Open MPI {found.version}, and clusterctl can launch 4.1 and 5; install one of these"
            f" series, or leave {_VARIABLE} empty.",
        )
    if found.machine and f"-{found.machine}-" not in host.platform:
        yield Refusal(
            host.name,
            f"{found.path} has libraries for {found.machine}, and the platform is {host.platform}; install the Open MPI"
            " for this platform.",
        )
    asked = {
        "openmpi_ucx": (settings.text("openmpi_ucx") == "always", "pml/ucx" in found.components, "UCX", "auto"),
        "openmpi_cuda": (settings.text("openmpi_cuda") == "always", found.cuda, "CUDA", "auto"),
        "openmpi_fortran": (settings.flag("openmpi_fortran"), found.fortran, "Fortran", "false"),
    }
    for variable, (wanted, has, what, other) in asked.items():
        if wanted and not has:
            yield Refusal(
                host.name,
                f"{variable} is {settings.text(variable)}, and {found.path} was built without {what}; set {variable} to"
                f" {other}, or name an Open MPI with {what}.",
            )


def _artifact(
    cluster: Cluster, hosts: Sequence[Host], compilers: Mapping[str, Mapping[str, Sequence[str]]]
) -> Artifact:
    """Return the Open MPI that leads to the user's, which is the same on all hosts."""
    found, settings, link = of(hosts[0]), hosts[0].settings, f"{cluster.prefix}/openmpi"
    if found is None:
        raise ValueError(hosts)
    program, hello = role_file("openmpi", _PROGRAM), role_file("openmpi", "hello.c")
    etc = f"{cluster.prefix}/etc"
    asked = {
        "path": found.path,
        "folders": list(found.folders),
        "link": link,
        "etc": f"{etc}/openmpi",
        "ucx": f"{etc}/ucx",
    }
    links_to = [
        place for place in (found.path, found.library) if not existing_python.among_software(place, cluster.prefix)
    ]
    its_builders = builders(hosts, settings.text("openmpi_builder"))
    compile_hello = (
        f"gcc -O2 -I{found.path}/include -o @TREE@/libexec/clusterctl-hello hello.c -L{found.folders[0]}"
        f" -Wl,-rpath,{link}/lib -Wl,-rpath-link,{':'.join(found.folders)} -Wl,--enable-new-dtags -lmpi"
    )
    return Artifact(
        role="openmpi",
        name="openmpi",
        version=found.version,
        inputs={
            "recipe": "existing 1",
            "platform": hosts[0].platform,
            # A node compares these three with what is there.
            "existing": found.path,
            "version": found.version,
            "files": found.files,
            "library": found.library,
            "configure": list(found.options),
            "made": asked,
            "program": digest(program),
            "hello": digest(hello),
        },
        prefix=cluster.prefix,
        hosts=[host.name for host in hosts],
        builders=[host.name for host in its_builders],
        round=1,
        build={
            **places(settings),
            **compilers[hosts[0].platform],
            "links_to": links_to,
            "files": [{"content": program, "dest": _PROGRAM}, {"content": hello, "dest": "hello.c"}],
            "steps": [
                {
                    "name": "links",
                    "argv": [uv.system_python(its_builders[0]), _PROGRAM, json.dumps(asked), "@TREE@"],
                    "speaks": True,
                },
                {"name": "hello", "argv": compile_hello.split()},
            ],
        },
        install={"links_to": links_to, "library_path": list(found.folders)},
        proof={"stands_on": [link], "checks": _proofs(found)},
    )


def _proofs(found: Existing) -> list[dict[str, object]]:
    """Return what it must print on each host, by its own programs and by ranks that run on its own library."""
    ranks = rank_proof.said(found.library)
    proofs: list[dict[str, object]] = [
        {"argv": ["@LINK@/bin/mpirun", "--version"], "expect": [found.version]},
        {"argv": ["@LINK@/bin/ompi_info", "--parsable"], "expect": [f"ompi:version:full:{found.version}"]},
        {"argv": rank_proof.launch(), "expect": ranks},
    ]
    if "pml/ucx" in found.components:
        proofs.append({"argv": rank_proof.launch(*rank_proof.THROUGH_UCX), "expect": ranks})
    return proofs
