# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe of NCCL: one release for the cluster, from NVIDIA's wheel or archive, from packages, or compiled."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import nccl
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import uv
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import (
    APT,
    Artifact,
    Plan,
    Refusal,
    WheelWish,
    builders,
    digest,
    of_family,
    places,
    role_file,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.source import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Cluster, Host
    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.source import Fetched

_CACHED_AS = "source"  # only the archive itself tells its version
_PROGRAMS = {
    "nccl_arrange.py": "nccl_arrange.py",
    "nccl_check.c": "nccl_check.c",
    "cuda_runtime.h": "cuda/cuda_runtime.h",
}
_HEADERS = ["nccl.h", "nccl_device.h", "nccl_device"]
# The folder in which nccl_arrange.py finds the files. Packages come from the host's own package manager.
_FOLDERS = {"wheel": "source", "archive": "source", "build": "build", "packages": "/usr"}
# Space for the unpacked and packed files; the objects of a build take more.
_NEEDS_BYTES = {
    "wheel": 1_500_000_000,
    "archive": 1_500_000_000,
    "packages": 100_000_000,
    "build": 4_000_000_000,
}
_MEMORY_PER_JOB_BYTES = 3_000_000_000
_CUDA_HOME = "/usr/local/cuda"  # the folder that facts of a host look into

_PACKAGES: dict[str, dict[str, Any]] = {
    "Debian": {
        "build": ["gcc", "libc6-dev", "zstd"],
        "compile": ["g++", "make"],
        "system": ["libnccl2={version}-*", "libnccl-dev={version}-*"],
        "options": APT,
    },
    "RedHat": {
        "build": ["gcc", "glibc-devel", "zstd"],
        "compile": ["gcc-c++", "make"],
        "system": ["libnccl-{version}-*", "libnccl-devel-{version}-*"],
        "options": {},
    },
    # NVIDIA documents packages of NCCL for Ubuntu and RHEL alone. The role asks for nccl_packages.
    "Suse": {
        "build": ["gcc", "glibc-devel", "zstd"],
        "compile": ["gcc-c++", "make"],
        "system": [],
        "options": {},
    },
}


def decide(cluster: Cluster, plans: Mapping[str, Plan]) -> Plan:
    """Decide which NCCL each host gets.

    The settings of the first host decide for all. Where python_env refuses, its framework is not known, and nothing is
    decided.

    ``told`` has ``hosts``, the names of all hosts of the cluster that get NCCL, and ``platforms`` with ``version``,
    ``release`` and ``cuda`` of each.
    """
    environment = plans.get("python_env")
    if environment is not None and "frameworks" not in environment.told:
        return Plan()
    frameworks = environment.told["frameworks"] if environment is not None else {}
    try:
        decided = _decide(cluster, frameworks)
    except (ArtifactError, OSError) as error:
        return Plan((), [Refusal("", str(error))])
    recipes = []
    for hosts in cluster.alike("nccl"):
        found = decided.platforms.get(hosts[0].platform)
        getting = [host for host in hosts if found and host.name in found.hosts]
        if found and getting:
            recipes.append(_Recipe(cluster.prefix, getting, decided, found))
    refusals = [refusal for recipe in recipes for refusal in recipe.refusals()]
    artifacts = [] if refusals else [recipe.artifact() for recipe in recipes]
    return Plan(artifacts, refusals, decided.notes, decided.told())


@dataclass(frozen=True)
class _Decided:
    """What the cluster gets: by platform its release and the wheels, and the archive."""

    source: str
    platforms: Mapping[str, nccl.PlatformPlan]
    wheels: Mapping[str, Sequence[Mapping[str, str]]]
    archive: Fetched | None
    notes: Sequence[str]

    def told(self) -> dict[str, Any]:
        """Return it for those who build on it."""
        return {
            "hosts": [name for found in self.platforms.values() for name in found.hosts],
            "platforms": {
                platform: {"version": found.version, "release": nccl.release(found.version), "cuda": found.cuda}
                for platform, found in self.platforms.items()
            },
        }


def _decide(cluster: Cluster, frameworks: Mapping[str, Mapping[str, str]]) -> _Decided:
    """Decide on a release, and pin it.

    Raises:
        ArtifactError: it is not available, or a driver cannot run it.
    """
    settings = cluster.hosts[0].settings
    wish = nccl.Options(
        **{one.name: text for one in fields(nccl.Options) if (text := settings.text(f"nccl_{one.name}"))}
    )
    cache_dir, archive, contents = places(settings)["cache_dir"], None, None
    platforms = nccl.plan(wish, cluster.members, frameworks)  # problems that need no download come first
    if platforms and (sources := nccl.sources(wish, next(iter(platforms.values())).version)):
        try:
            archive = cluster.controller.fetch("nccl", _CACHED_AS, sources, cache_dir)
        except SourceError as error:
            raise _unavailable(str(error), wish) from error
        contents = nccl.look_into(archive.path, wish.archive or archive.source, wish.source)
        platforms = nccl.plan(wish, cluster.members, frameworks, contents)
    wheels: dict[str, Sequence[Mapping[str, str]]] = {}
    notes: list[str] = []
    for platform, found in platforms.items() if wish.source == "wheel" else ():
        wheel_dir = settings.text("nccl_wheel_dir")
        asked = WheelWish("nccl", platform, [found.requirement], "nccl_version", cache_dir, wheel_dir)
        pinned = cluster.controller.pin(asked)
        wheels[platform] = pinned.wheels
        notes += pinned.notes
    return _Decided(wish.source, platforms, wheels, archive, notes)


def _unavailable(said: str, wish: nccl.Options) -> nccl.NcclError:
    reason = said.partition(" could be used: ")[2].partition(" Put the release's")[0] or said
    cure = "correct nccl_archive or nccl_sha256" if wish.archive else "set nccl_archive and nccl_sha256"
    return nccl.NcclError(f"NCCL cannot be had from {reason.rstrip('.')}; {cure}.")


class _Recipe:
    """NCCL for hosts of one platform with equal settings."""

    def __init__(self, prefix: str, hosts: Sequence[Host], decided: _Decided, found: nccl.PlatformPlan) -> None:
        settings, self.platform = hosts[0].settings, hosts[0].platform
        self.settings, self.hosts, self.prefix, self.link = settings, hosts, prefix, f"{prefix}/nccl"
        self.source, self.archive, self.cuda = decided.source, decided.archive, found.cuda
        self.wheels = decided.wheels.get(self.platform, ())
        self.version, self.release = found.version, nccl.release(found.version)
        # A compiler is looked for on the first host, or on the one that the user names.
        turn = "" if self.source == "build" else "nccl"
        self.builders = builders(hosts, settings.text("nccl_builder"), turn)
        self.packages = of_family(_PACKAGES, self.builders[0])
        self.nvcc = f"{settings.text('nccl_cuda_home')}/bin/nvcc"

    def refusals(self) -> Iterator[Refusal]:
        """Yield why it cannot be prepared."""
        builder = self.builders[0]
        has_nvcc = (builder.node.get("tools") or {}).get("nvcc", True)
        if self.source == "build" and self.settings.text("nccl_cuda_home") == _CUDA_HOME and not has_nvcc:
            yield Refusal(builder.name, f"nccl_source is 'build', and {builder.name}, {self._without_nvcc()}")
        if self.source == "packages" and not self._system():
            for host in self.hosts:
                yield Refusal(
                    host.name,
                    "nccl_source is 'packages', and no packages of NCCL are known for"
                    f" {host.node['distribution']['name']} on {host.name}; name them in nccl_packages, or set"
                    " nccl_source to 'wheel'.",
                )

    def _without_nvcc(self) -> str:
        return (
            f"which is to build NCCL, has no {self.nvcc}: install the CUDA toolkit there, name its folder in"
            " nccl_cuda_home or a host that has it in nccl_builder, or set nccl_source to 'wheel'."
        )

    def _system(self) -> list[str]:
        """Return the distribution's packages that bring NCCL."""
        if self.source != "packages":
            return []
        known = [name.format(version=self.version) for name in self.packages["system"]]
        return self.settings.texts("nccl_packages") or known

    def artifact(self) -> Artifact:
        """Return the artifact."""
        settings, packages, system, compiled = self.settings, self.packages, self._system(), self.source == "build"
        texts = {name: role_file("nccl", name) for name in _PROGRAMS}
        inputs: dict[str, Any] = {
            "recipe": 1,
            "version": self.version,
            "cuda": self.cuda,
            "source": self.source,
            "sha256": [
                *(str(wheel["sha256"]) for wheel in self.wheels),
                *([self.archive.sha256] if self.archive else []),
            ],
            "packages": settings.texts("nccl_packages") if system else [],
            "build": settings.texts("nccl_build_options") if compiled else [],
            "programs": digest(*texts.values()),
            "platform": self.platform,
        }
        if self.prefix != "/usr/local":  # files of NCCL name its link
            inputs["link"] = self.link
        for_packages = {"packages": system, "package_options": packages["options"]} if system else {}
        return Artifact(
            role="nccl",
            name="nccl",
            version=self.version,
            inputs=inputs,
            prefix=self.prefix,
            hosts=[host.name for host in self.hosts],
            builders=[host.name for host in self.builders],
            round=1,
            # A package that writes through one of the role's links would change an artifact.
            before={"nccl_system": {"link": self.link, "headers": []}} if system else {},
            build={
                **places(settings),
                "packages": [*packages["build"], *(packages["compile"] if compiled else []), *system],
                "package_options": packages["options"],
                "files": [
                    *self._brought(),
                    *({"content": texts[name], "dest": dest} for name, dest in _PROGRAMS.items()),
                    # nccl.h includes these by name, but uses none of their content for C
                    *({"content": "/* nothing */\n", "dest": f"cuda/cuda_{of}.h"} for of in ("fp16", "bf16", "fp8")),
                ],
                "steps": [*(self._compile() if compiled else []), *self._steps()],
                "jobs": settings.number("nccl_make_jobs"),
                "memory_per_job_bytes": _MEMORY_PER_JOB_BYTES,
                "needs_bytes": _NEEDS_BYTES[self.source],
            },
            install=for_packages,
            proof={
                "checks": [
                    {
                        "argv": ["@LINK@/libexec/clusterctl-nccl-check", "--prove", "@LINK@", self.release],
                        "expect": [f'"version": "{self.release}", "header": "{self.release}"'],
                    }
                ]
            },
            after={"nccl_system": {"link": self.link, "headers": [] if system else _HEADERS}},
            reports={
                "nccl_report": {
                    "version": self.release,
                    "align": settings.text("nccl_align"),
                    "link": self.link,
                    "python_env": f"{self.prefix}/python_env",
                }
            },
        )

    def _brought(self) -> list[dict[str, Any]]:
        """Return what the builder gets; nccl_arrange.py lays out the files of a wheel or an archive."""
        if self.source == "wheel":
            wheels = {
                "name": "nccl",
                "pinned": self.wheels,
                "platform": self.platform,
                "wheel_dir": self.settings.text("nccl_wheel_dir"),
                "variable": "nccl_version",
            }
            return [{"wheels": wheels, "dest": "source", "unpack": True, "strip": 1}]
        if self.archive:
            without = ["lib/*.a", "lib64/*.a"]
            return [{"path": str(self.archive.path), "dest": "source", "unpack": True, "exclude": without}]
        return []

    def _compile(self) -> list[dict[str, Any]]:
        """Return the steps that compile it. Facts do not tell whether a folder of the user's has the compiler."""
        look = 'test -x "$1" || { echo "$2"; exit 1; }'
        said = f"nccl_source is 'build', and this host, {self._without_nvcc()}"
        make = ["make", "-j@JOBS@", "src.build", "BUILDDIR=@WORK@/build"]
        make += [f"CUDA_HOME={self.settings.text('nccl_cuda_home')}", *self.settings.texts("nccl_build_options")]
        return [
            {"name": "nvcc", "argv": ["sh", "-c", look, "sh", self.nvcc, said], "speaks": True},
            {"name": "compile", "argv": make, "chdir": "source"},
        ]

    def _steps(self) -> list[dict[str, Any]]:
        builder = self.builders[0]
        multiarch = f"/usr/lib/{builder.node.get('machine') or 'x86_64'}-linux-gnu"
        in_place = ["--by-link", "--library-folder", multiarch, "--library-folder", "/usr/lib64"]
        arrange = [uv.system_python(builder), "nccl_arrange.py", "--version", self.release, "--cuda", self.cuda]
        arrange += ["--link", self.link, "--tree", "@TREE@", *(in_place if self.source == "packages" else [])]
        check = ["gcc", "-O2", "-Icuda", "-I@TREE@/include", f"-DCUDART_VERSION={self.cuda}000"]
        check += ["-o", "@TREE@/libexec/clusterctl-nccl-check", "nccl_check.c", "-ldl"]
        return [
            {"name": "arrange", "argv": [*arrange, _FOLDERS[self.source]]},
            {"name": "libexec", "argv": ["mkdir", "-p", "@TREE@/libexec"]},
            {"name": "check", "argv": check},
            {"name": "load", "argv": ["@TREE@/libexec/clusterctl-nccl-check", "@TREE@/lib/libnccl.so.2"]},
        ]
