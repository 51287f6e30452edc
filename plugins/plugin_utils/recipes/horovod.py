# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe of Horovod: compiled once per platform against the Open MPI, framework and NCCL that the hosts have."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
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

    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Cluster, Host, Settings

# Source archives whose sums are verified, and that have been built.
RELEASES = {"0.28.1": "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_URL = re.compile(r"[a-z]+://")
_TOOLKIT = "/usr/local/cuda"
# setuptools 81 removed functions that Horovod's setup.py uses. The others are required by setup.py.
_TOOLS = ["setuptools>=70,<81", "packaging", "cffi>=1.4", "cloudpickle", "psutil", "pyyaml"]
_IMPORTS = ("cloudpickle", "packaging", "psutil", "pyyaml")  # at run time
_COMPILERS = {
    "Debian": ["g++", "make", "cmake", "libc6-dev"],
    "RedHat": ["gcc-c++", "make", "cmake", "glibc-devel"],
    "Suse": ["gcc-c++", "make", "cmake", "glibc-devel"],
}
# Data-centre GPUs that a CUDA major version compiles for. The last one is kept as PTX too, for later GPUs.
_CC_LISTS = {"11": "70,80", "12": "70,80,90", "13": "75,80,90,100"}
_NEWEST_CC_LIST = "80,90"
# GCC 16 brings fewer of C++'s headers unasked, and refuses a template of flatbuffers that nothing uses.
_FOR_NEWER_COMPILERS = "-include cstdint -include stdexcept -include string -Wno-template-body"
_OPTIONAL_LIBRARIES = ["libcuda.so.*", "libnvidia-ml.so.*"]
_NEEDS_BYTES = 600_000_000

# Open MPI has no wrapper for C++, since it is built without a C++ compiler; the one for C runs any compiler.
_MPICXX = """\
#!/bin/sh
OMPI_CC=g++ exec {openmpi}/bin/mpicc "$@"
"""
_HOROVODRUN = """\
#!{interpreter}
from horovod.runner.launch import run_commandline

# its helpers begin by importing this very file
if __name__ == "__main__":
    run_commandline()
"""


def decide(cluster: Cluster, plans: Mapping[str, Plan]) -> Plan:
    """Decide which Horovod each host gets."""
    groups = cluster.alike("horovod", also=lambda host: _stands(cluster, plans, host))
    recipes = [_Recipe(cluster, hosts, _stands(cluster, plans, hosts[0])) for hosts in groups]
    wanted = [recipe for recipe in recipes if recipe.wanted]
    if refusals := existing_openmpi.unlike([recipe.hosts for recipe in wanted]):
        return Plan(refusals=refusals)
    notes = dict.fromkeys(recipe.own.note for recipe in wanted if recipe.own.note)
    return replace(plan_of(wanted), warnings=tuple(notes))


@dataclass(frozen=True)
class _Stands:
    """What Horovod stands on, on a host.

    Attributes:
        openmpi: key of Open MPI; '' without one.
        python: the Python of the environment.
        framework: name, version, cuda, nccl and sha256 of the environment's framework; empty without one.
        operations: which library moves tensors between GPUs: NCCL, MPI or none.
        own: the Horovod in the environment of the host's user.
        nccl: key of NCCL, where its operations are wanted.
        lacking: packages that Horovod imports and the environment of a user's lock does not have.
        gets_nccl: whether the host keeps or gets an NCCL, as far as it is decided.
    """

    openmpi: str
    python: uv.Python
    framework: Mapping[str, str]
    operations: str
    own: own_package.Own
    nccl: str = ""
    gets_nccl: bool = True
    lacking: Sequence[str] = ()


def _stands(cluster: Cluster, plans: Mapping[str, Plan], host: Host) -> _Stands:
    settings, decided = host.settings, plans.get("nccl")
    framework = plans["python_env"].told.get("frameworks", {}).get(host.platform) or {}
    gets_nccl = decided is None or decided.of(host.name, "nccl") is not None
    nccl = str(cluster.comes(plans, "nccl", host, "nccl").get("key") or "") if gets_nccl else ""
    operations = settings.text("horovod_gpu_operations")
    if operations == "auto":
        comes = bool(nccl) or (gets_nccl and decided is not None)
        # A platform without a GPU gets a CUDA framework where the index has no build for CPUs.
        its = [member for member in cluster.members if member["platform"] == host.platform]
        for_gpus = any(member.get("gpus") or _has_toolkit(member, settings) for member in its)
        operations = "NCCL" if framework.get("cuda") and comes and for_gpus else "none"
    with_nccl = operations == "NCCL"
    return _Stands(
        openmpi=str(cluster.comes(plans, "openmpi", host, "openmpi").get("key") or ""),
        python=existing_env.python(
            cluster, plans, host, settings.text("horovod_python") or settings.text("python_env_python")
        ),
        framework=framework,
        operations=operations,
        own=_own(cluster, plans, host, framework, operations),
        lacking=plans["python_env"].told.get("horovod_lacks", {}).get(host.platform, ()),
        nccl=nccl if with_nccl else "",
        gets_nccl=gets_nccl or not with_nccl,
    )


def _own(
    cluster: Cluster, plans: Mapping[str, Plan], host: Host, framework: Mapping[str, str], operations: str
) -> own_package.Own:
    """Return the Horovod that the environment of a host's user has."""
    name, version = framework.get("name", ""), framework.get("version", "")

    def misfit(its: Mapping[str, str]) -> str:
        built_for, nccl = its["framework"], its["nccl"]
        if version not in {built_for, built_for.partition("+")[0]}:  # PyPI's PyTorch 2.7.0 calls itself 2.7.0+cu126
            return f"was built for {name} {built_for}" if built_for else f"does not tell which {name} it was built for"
        if problem := own_package.elsewhere(cluster, plans, host, "openmpi", its["library"]):
            return problem
        if operations == "NCCL":
            return own_package.elsewhere(cluster, plans, host, "nccl", nccl)
        if operations == "MPI":  # no file tells that without running it
            return "does not tell whether its operations for GPUs are those of MPI"
        return f"takes {nccl}, and its operations for GPUs are to be none" if nccl else ""

    with_nccl = f" HOROVOD_NCCL_HOME={cluster.prefix}/nccl HOROVOD_NCCL_LINK=SHARED HOROVOD_GPU_OPERATIONS=NCCL"
    cure = f"build it with PATH={cluster.prefix}/openmpi/bin:$PATH{with_nccl if operations == 'NCCL' else ''}"
    if operations == "MPI":
        cure = "set horovod_gpu_operations to auto"
    return own_package.find(host, "Horovod", f"horovod-{name}", misfit, cure)


def _has_toolkit(member: Mapping[str, Any], settings: Settings) -> bool:
    """Say whether a host can run nvcc. Where the user names the toolkit's folder, any may."""
    return settings.text("horovod_cuda_home") != _TOOLKIT or bool((member.get("cuda") or {}).get("toolkit_version"))


class _Recipe:
    """Horovod for hosts of one platform with equal settings, which stand on the same."""

    def __init__(self, cluster: Cluster, hosts: Sequence[Host], stands: _Stands) -> None:
        self.cluster, self.hosts, self.stands, self.prefix = cluster, hosts, stands, cluster.prefix
        self.settings, self.platform, self.own = hosts[0].settings, hosts[0].platform, stands.own
        settings, framework = self.settings, stands.framework
        self.has, self.cuda = str(framework.get("name") or ""), str(framework.get("cuda") or "")
        install = settings.text("horovod_install")
        self.wanted = install == "always" or (install == "auto" and bool(self.has) and not stands.lacking)
        self.asked = settings.texts("horovod_with")
        self.framework = (self.asked or [self.has])[0]
        self.version, self.archive = settings.text("horovod_version"), settings.text("horovod_archive")
        self.sha256 = settings.text("horovod_sha256") or ("" if self.archive else RELEASES.get(self.version, ""))
        self.gpus = stands.operations != "none"
        asked_for = settings.text("horovod_cuda_cc_list").replace(" ", "")
        self.cc_list = asked_for or _CC_LISTS.get(self.cuda, _NEWEST_CC_LIST)
        self.arch_flags = settings.text("horovod_arch_flags") or (
            "-mf16c -mavx -mfma" if "x86_64" in self.platform else " "
        )
        self.openmpi, self.nccl = f"{self.prefix}/openmpi", f"{self.prefix}/nccl"
        self.environment = f"{self.prefix}/python_env"
        self.interpreter = f"{self.environment}/bin/python"
        own = f"{self.environment}/lib/python{stands.python.release}/site-packages"
        self.folders = stands.python.folders or (own,)
        self.packages = self.folders[0]
        self.of_openmpi = existing_openmpi.folders(hosts[0])

    def refusals(self) -> Iterator[Refusal]:
        """Yield why it cannot be built."""
        if not self.own.path and not _SHA256.fullmatch(self.sha256):
            archive = self.archive or f"Horovod {self.version}"
            file = self.archive.rpartition("/")[2] or f"horovod-{self.version}.tar.gz"
            yield Refusal(
                "",
                f"No sha256 of {archive} is known (known are the releases {', '.join(RELEASES)}); set horovod_sha256 to"
                f" the 64 hex digits that its publisher names for {file}.",
            )
        for host in self.hosts:
            problem = (
                existing_openmpi.unusable(host)
                or existing_env.unusable(host)
                or self._misfit(host.name)
                or self._lack(host.name)
            )
            problem = problem or existing_env.without_packages(host, "Horovod", _IMPORTS)
            problem = problem or ("" if self.own.path else existing_env.without_headers(host, "Horovod"))
            if problem:
                yield Refusal(host.name, problem)

    def _misfit(self, host: str) -> str:
        """Say what of the settings does not fit the host; '' if all fits."""
        asked, framework = self.settings.text("horovod_gpu_operations"), self.stands.framework
        toolkits = [one for one in self.cluster.members if _has_toolkit(one, self.settings)]
        if not self.has:
            return (
                f"horovod_install is always, and the environment of {host} has no framework to build Horovod for; set"
                " python_env_framework to pytorch or tensorflow, or horovod_install to auto."
            )
        if self.asked not in ([], [self.has]):
            return (
                f"horovod_with asks for {' and '.join(self.asked)}, and the environment of {host} has {self.has}; set"
                " python_env_framework to what Horovod is to be built for, or leave horovod_with empty."
            )
        if asked not in ("auto", "none") and not self.cuda:
            return (
                f"horovod_gpu_operations is {asked}, and the {self.has} {framework['version']} of {host} is a CPU"
                " build; set python_env_framework_build to cuda, or horovod_gpu_operations to auto or none."
            )
        if asked == "NCCL" and not self.stands.gets_nccl:
            return (
                f"horovod_gpu_operations is NCCL, and {host} gets no NCCL; set nccl_install to always, or"
                " horovod_gpu_operations to auto, MPI or none."
            )
        if self.gpus and not self.own.path and self.platform not in [one["platform"] for one in toolkits]:
            return (
                f"Horovod's {self.stands.operations} operations need nvcc, and no host of platform {self.platform} has"
                f" a CUDA toolkit in {_TOOLKIT}; install CUDA {self.cuda} on one of them (its folder goes into"
                " horovod_cuda_home, the host into horovod_builder), or set horovod_gpu_operations to none."
            )
        return ""

    def _lack(self, host: str) -> str:
        """Say what the host lacks that Horovod is compiled against; '' if it has all."""
        stands = self.stands
        if stands.lacking:
            return (
                f"horovod_install is always, and the environment of {host} lacks {', '.join(stands.lacking)}, which"
                " Horovod imports; add them to python_env_lock, or set horovod_install to auto."
            )
        if not stands.openmpi:
            return uv.without_library(host, "Open MPI", self.openmpi, "Horovod")
        if stands.operations == "NCCL" and not stands.nccl:
            return uv.without_library(host, "NCCL", self.nccl, "Horovod")
        if stands.python.managed and not stands.python.key:
            return uv.without_python(host, self.prefix, "Horovod")
        return ""

    def artifact(self) -> Artifact:
        """Return the artifact."""
        settings = self.settings
        # with operations for GPUs, a host with a CUDA toolkit builds
        able = [host for host in self.hosts if not self.gpus or _has_toolkit(host.member, settings)] or self.hosts
        its_builders = builders(able, settings.text("horovod_builder"), "horovod")
        made = own_package.leads_to(self.own, "horovod", self.prefix) if self.own.path else self._built(its_builders[0])
        programs = {
            "horovod_check.py": self._check(),
            "horovodrun": _HOROVODRUN.format(interpreter=self.interpreter),
        }
        return Artifact(
            role="horovod",
            name="horovod",
            version=made.version,
            inputs={**made.inputs, **self._stands_on()},
            prefix=self.prefix,
            hosts=[host.name for host in self.hosts],
            builders=[host.name for host in its_builders],
            round=2,
            uses=["ucx", "openmpi", "cpython", "python_env", "nccl"],
            build={
                **places(settings),
                **made.build,
                "files": [
                    *made.build["files"],
                    *({"content": content, "dest": name} for name, content in programs.items()),
                ],
                "steps": [*made.build["steps"], *self._check_steps()],
            },
            install=made.install,
            proof=self._proof(made.version),
        )

    def _stands_on(self) -> dict[str, Any]:
        """Return what a key has of the proof and of what Horovod stands on."""
        stands = self.stands
        return {
            "check": digest(role_file("horovod", "clusterctl-horovod-check")),
            "openmpi": stands.openmpi,
            "nccl": stands.nccl,
            "framework": dict(stands.framework),
            "with": self.framework,
            "gpu_operations": stands.operations,
            "platform": stands.python.target,
            **stands.python.inputs,
            **({"folders": list(stands.python.folders)} if stands.python.folders else {}),
        }

    def _built(self, builder: Host) -> own_package.Made:
        """Return how Horovod is compiled."""
        settings = self.settings
        # horovod.torch could be imported without its compiled module, and --check-build would list PyTorch
        pruned = [] if self.framework == "pytorch" else ["site-packages/horovod/torch"]
        return own_package.Made(
            self.version,
            {
                "recipe": 2,
                "version": self.version,
                "source": self.sha256,
                "edits": digest(role_file("horovod", "edit_source.py")),
                "skipped_edits": sorted(settings.texts("horovod_skip_edits")),
                "cuda_cc_list": self.cc_list if self.gpus else "",
                "gloo": settings.flag("horovod_gloo"),
                "cxxflags": settings.text("horovod_cxxflags"),
                "arch_flags": self.arch_flags,
            },
            build={
                **uv.packages(builder, _COMPILERS, own_headers=self.stands.python.own_headers),
                "files": self._files(),
                "steps": self._compile_steps(uv.system_python(builder)),
                "prune": [*uv.NOTES, "site-packages/bin", *pruned],
                "jobs": settings.number("horovod_make_jobs"),
                "memory_per_job_bytes": settings.number("horovod_job_memory_bytes"),
                "memory_strict": True,
                "needs_bytes": _NEEDS_BYTES,
            },
            install={
                "library_path": ["lib", *self.of_openmpi],
                "waiting_paths": [f"{self.prefix}/ucx/lib", *self._run_paths(), f"{self.packages}/torch/lib"],
                "closure_ignore": _OPTIONAL_LIBRARIES,
            },
        )

    def _files(self) -> list[dict[str, Any]]:
        settings = self.settings
        source: dict[str, Any] = {"name": "horovod", "version": self.version}
        if self.archive:
            kind = "url" if _URL.match(self.archive) else "path"
            its = [{kind: self.archive, "sha256": self.sha256}]
            source = {"source": {**source, "sources": its, "variable": "horovod_archive"}}
        else:
            its_folder = settings.text("horovod_wheel_dir")
            more = {"sha256": self.sha256, "wheel_dir": its_folder, "variable": "horovod_sha256"}
            source = {"sdist": {**source, **more}}
        contents = {
            "build_preflight.py": role_file("horovod", "build_preflight.py"),
            "edit_source.py": role_file("horovod", "edit_source.py"),
            # The tools stand apart from the framework, whose environment comes after them.
            "framework.pth": "".join(f"{folder}\n" for folder in self.folders),
            "mpicxx": _MPICXX.format(openmpi=self.openmpi),
        }
        return [
            *uv.brought(settings, "horovod", self.stands.python.target, _TOOLS),
            {**source, "dest": "source", "unpack": True},
            *({"content": content, "dest": name} for name, content in contents.items()),
        ]

    def _check(self) -> str:
        """Return the program of the proof. An Open MPI that was moved finds its own libraries by LD_LIBRARY_PATH."""
        program = role_file("horovod", "clusterctl-horovod-check")
        path = f'"LC_ALL": "C", "LD_LIBRARY_PATH": "{":".join(self.of_openmpi)}"'
        return program.replace('"LC_ALL": "C"', path) if self.of_openmpi else program

    def _compile_steps(self, system_python: str) -> list[dict[str, Any]]:
        skipped = [f"--skip={name}" for name in self.settings.texts("horovod_skip_edits")]
        edit = ["edit_source.py", "source", self.framework, self.stands.framework["version"], "--expect", self.version]
        site_packages = f"@WORK@/tools/lib/python{self.stands.python.release}/site-packages"
        return [
            {
                "name": "preflight",
                "argv": [system_python, "build_preflight.py", json.dumps(self._needs())],
                "speaks": True,
            },
            {"name": "edit", "argv": [system_python, *edit, *skipped], "speaks": True},
            *uv.environment_with(self.stands.python, _TOOLS),
            {
                "name": "framework",
                "argv": ["install", "-m", "0644", "framework.pth", f"{site_packages}/framework.pth"],
            },
            uv.places_program("wrapper", "mpicxx", "@WORK@/wrappers/mpicxx"),
            # Called without an installer in between, which would keep the compiler's output to itself until the end.
            {
                "name": "compile",
                "argv": ["@WORK@/tools/bin/python", "setup.py", "-q", "bdist_wheel", "-d", "@WORK@/dist"],
                "chdir": "source",
                "environment": self._compiles(),
            },
            uv.installs("install", "horovod", "--find-links=dist"),
        ]

    def _check_steps(self) -> list[dict[str, Any]]:
        module = "horovod.tensorflow" if self.framework == "tensorflow" else "horovod.torch"
        return [
            uv.places_program("horovodrun", "horovodrun", "@TREE@/bin/horovodrun"),
            uv.places_program("check", "horovod_check.py", "@TREE@/libexec/clusterctl-horovod-check"),
            uv.loads(self.interpreter, f"import {module} as hvd; assert hvd.mpi_built()", self.of_openmpi),
        ]

    def _needs(self) -> dict[str, str]:
        """Return what the builder must have; the check before the build compares it."""
        stands = self.stands
        return {
            "framework": self.framework,
            "framework_version": stands.framework["version"],
            "python": self.interpreter,
            "openmpi": self.openmpi,
            "openmpi_key": stands.openmpi,
            "nccl": self.nccl,
            "nccl_key": stands.nccl,
            "cuda_home": self.settings.text("horovod_cuda_home"),
            "cuda": self.cuda,
            "gpu_operations": stands.operations,
            "cc_list": self.cc_list,
        }

    def _run_paths(self) -> list[str]:
        """Return where the libraries are found. They are links, so a new version of one of them is used at once.

        If a node has no NCCL or CUDA of its own, a CUDA framework's wheels bring them. CMake knows PyTorch's libraries,
        but not TensorFlow's.
        """
        bundled = [f"{self.packages}/nvidia/{name}/lib" for name in ("nccl", f"cu{self.cuda}", "cuda_runtime")]
        return [
            f"{self.openmpi}/lib",
            *([f"{self.packages}/tensorflow"] if self.framework == "tensorflow" else []),
            *([f"{self.nccl}/lib", *bundled] if self.gpus else []),
        ]

    def _compiles(self) -> dict[str, str]:
        """Return the environment of setup.py."""
        settings, cuda_home = self.settings, self.settings.text("horovod_cuda_home")
        other = "TENSORFLOW" if self.framework == "pytorch" else "PYTORCH"
        cuda = {
            "HOROVOD_GPU": "CUDA",
            "HOROVOD_GPU_OPERATIONS": self.stands.operations,
            "HOROVOD_NCCL_HOME": self.nccl,
            "HOROVOD_NCCL_LINK": "SHARED",
            "HOROVOD_CUDA_HOME": cuda_home,
            "CUDA_HOME": cuda_home,
            "HOROVOD_BUILD_CUDA_CC_LIST": self.cc_list,
        }
        return {
            "PATH": f"@WORK@/wrappers:{self.openmpi}/bin:/usr/local/bin:/usr/bin:/bin",
            **uv.finding(self.of_openmpi),
            "MAKEFLAGS": "-j@JOBS@",
            "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
            "CLUSTERCTL_CXXFLAGS": (
                f"{settings.text('horovod_cxxflags')} {_FOR_NEWER_COMPILERS} -ffile-prefix-map=@WORK@/="
            ),
            "LDFLAGS": " ".join(["-Wl,-s", *(f"-Wl,-rpath,{path}" for path in self._run_paths())]),
            "HOROVOD_BUILD_ARCH_FLAGS": self.arch_flags,
            "HOROVOD_WITH_MPI": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITHOUT_NVTX": "1",
            "HOROVOD_WITH_GLOO" if settings.flag("horovod_gloo") else "HOROVOD_WITHOUT_GLOO": "1",
            f"HOROVOD_WITH_{self.framework.upper()}": "1",
            f"HOROVOD_WITHOUT_{other}": "1",
            **(cuda if self.gpus else {}),
        }

    def _proof(self, version: str) -> dict[str, Any]:
        stands, taken = self.stands, self.own.path
        # whether a Horovod of the user has Gloo is the user's choice
        backends = ["MPI", *(["Gloo"] if self.settings.flag("horovod_gloo") and not taken else [])]
        promise = {
            "framework": self.framework,
            "controllers": backends,
            "operations": [*backends, *(["NCCL"] if stands.operations == "NCCL" else [])],
            "openmpi_key": "" if self.of_openmpi else stands.openmpi,  # a library outside has no key
            "nccl": self.nccl,
            "nccl_key": stands.nccl,
            "folder": taken or "@REAL@",
            "taken": bool(taken),
        }
        links = [self.openmpi, self.environment, self.nccl]
        return {
            "stands_on": [*links, *([f"{self.prefix}/cpython"] if stands.python.managed else [])],
            # One thread per rank is enough for the check, and nodes are checked at the same time.
            "environment": {"OMP_NUM_THREADS": "1"},
            "timeout_s": 300,
            "checks": [
                uv.two_ranks(self.prefix, "clusterctl-horovod-check", json.dumps(promise)),
                {"argv": ["@LINK@/bin/horovodrun", "--version"], "expect": [version]},
            ],
        }
