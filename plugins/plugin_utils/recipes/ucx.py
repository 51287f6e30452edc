# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe of UCX: compiled once per platform where Open MPI is to use it, with the node's rdma-core and CUDA."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.preflight_rules.member import usable_devices
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import cuda, existing_openmpi
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import (
    APT,
    Artifact,
    Plan,
    Refusal,
    builders,
    of_family,
    places,
    plan_of,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Cluster, Host, Settings

# Releases whose sums are verified. 'apt' is a distribution's source package, which has its own sum and version.
RELEASES: dict[str, dict[str, str]] = {
    "1.20.1": {"sha256": "545c419a7b5e04643cb8bff5a19b3b5071a8f8f0605f1e8efb36f8f3d7bfb9d3"},
    "1.19.1": {"sha256": "dea5d821fce05b6ffe175a74e6e148386dd85791409fc71242f3d1369100fd8a"},
    "1.18.1": {"sha256": "8018dd75f11b5e8d6e57dcdb5b798d2c1f000982c353efde1f3170025c6c3b4c"},
    "1.17.0": {"sha256": "34658e282f99f89ce7a991c542e9727552734ac6ad408c52f22b4c2653b04276"},
    "1.16.0": {"sha256": "f73770d3b583c91aba5fb07557e655ead0786e057018bfe42f0ebe8716e9d28c"},
    "1.15.0": {"sha256": "4b202087076bc1c98f9249144f0c277a8ea88ad4ca6f404f94baa9cb3aebda6d"},
    "1.13.1": {
        "sha256": "efc37829b68e131d2acc82a3fd4334bfd611156a756837ffeb650ab9a9dd3828",
        "apt": "1a88e09ca1b406c046a469c2ae271d2c330050b5664c0bcd9890e26c6ef09f3c",
    },
}
_SERIES = re.compile(r"1\.(\d{1,3})\.\d{1,3}")
_OLDEST = 11  # Open MPI 5.0 asks for UCX 1.9 or newer, and 1.11 is the first with the options below

# What jobs on Open MPI do not use: other languages, programs, file systems and hardware, and checks of UCX itself. Logs
# stay up to the level debug, which tells the transports that were chosen. Open MPI needs the locks of --enable-mt for
# MPI_THREAD_MULTIPLE, which mpi4py asks for.
_OPTIONS = [
    *words(
        "--disable-static --enable-shared --disable-dependency-tracking --enable-silent-rules --enable-optimizations"
        " --enable-mt --enable-cma --disable-logging --disable-debug --disable-assertions --disable-params-check"
        " --disable-doxygen-doc --disable-gtest --disable-examples --disable-numa --with-verbs --with-rdmacm"
    ),
    *(f"--without-{name}" for name in words("java go mpi openmp bfd fuse3 rocm ze knem xpmem ugni")),
]
# A warning of a compiler that is newer than the release is no error.
_CFLAGS = "-Wno-error"
_PRUNED = ["share", "lib/*.la", "lib/*/*.la"]
_NEEDS_BYTES = 500_000_000
_MOST_NAMED = 4
# Debian's source archive lacks 'configure', and upstream's files for its packages, which automake asks for.
_CONFIGURED = (
    "test -x configure || { mkdir -p debian && touch debian/rules.in debian/control.in debian/changelog.in"
    " debian/compat debian/copyright debian/ucx.prerm && ./autogen.sh; }"
)
# The libraries in the order in which they stand on each other, and the program that tells what they can do.
_PARTS = ("src/ucm", "src/ucs", "src/uct", "src/ucp", "src/tools/info")
_IN = {"chdir": "source"}
# Libraries of rdma-core and of the driver that a host may lack. UCX leaves out what does not load.
_RDMA = ("libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1")
_OPTIONAL_LIBRARIES = [*_RDMA, "libcuda.so.*", "libcudart.so.*", "libnvidia-ml.so.*", "libgdrapi.so.*"]

_PACKAGES: dict[str, dict[str, Any]] = {
    "Debian": {
        "build": words("gcc g++ libc6-dev make autoconf automake libtool libibverbs-dev librdmacm-dev zstd"),
        "runtime": [["libibverbs1", "ibverbs-providers"], ["librdmacm1"], ["ibverbs-providers"]],
        "options": APT,
    },
    "RedHat": {
        "build": words("gcc gcc-c++ glibc-devel make autoconf automake libtool rdma-core-devel zstd"),
        "runtime": [["libibverbs"], ["librdmacm"], ["libibverbs"]],
        "options": {},
    },
    "Suse": {
        "build": words("gcc gcc-c++ glibc-devel make autoconf automake libtool rdma-core-devel zstd"),
        "runtime": [["libibverbs1"], ["librdmacm1"], ["libmlx5-1"]],
        "options": {},
    },
}


def wanted(members: Sequence[Mapping[str, Any]], asked: str, builds: Mapping[str, tuple[str, str]]) -> bool:
    """Whether Open MPI is to use UCX: where it is asked for, or where a host has an RDMA device, or NVLink and CUDA.

    All hosts of a cluster use it or none, because ranks with and without it do not reach each other. UCX uses NVLink
    only where its own build has CUDA.

    Args:
        members: the cluster's hosts; ``provides`` has ``rdma`` for a host with an RDMA device that UCX can use, and
            ``nvlink`` for one whose GPUs are joined.
        asked: ``openmpi_ucx``: auto, always or never.
        builds: ``openmpi_cuda`` and ``openmpi_builder`` by host; a host that is missing here has their defaults.
    """
    if asked != "auto":
        return asked == "always"
    builder: dict[tuple[str, str, str], str] = {}
    joined: set[tuple[str, str, str]] = set()
    for one in members:
        name, provided = str(one["name"]), set(one.get("provides") or ())
        with_cuda, named = builds.get(name, ("auto", ""))
        build = (str(one.get("platform", "")), with_cuda, named)
        if name == named or build not in builder:
            builder[build] = name
        if "rdma" in provided:
            return True
        if provided >= {"nvlink", "libcuda"}:
            joined.add(build)
    return any(cuda.taken(members, build[0], builder[build], build[1]) for build in joined)


def keys(cluster: Cluster, plans: Mapping[str, Plan]) -> dict[str, str | None]:
    """Return by host the key of the UCX that its Open MPI uses: None where it uses none, '' where it lacks one."""
    using = _using(cluster)
    return {
        host.name: str(cluster.comes(plans, "ucx", host, "ucx").get("key") or "") if host.name in using else None
        for host in cluster.hosts
    }


def decide(cluster: Cluster, _plans: Mapping[str, Plan]) -> Plan:
    """Decide which UCX each host gets; Open MPI's variables say whether it gets one, and what builds it."""
    using = _using(cluster)
    groups = cluster.alike("ucx", "openmpi")  # as Open MPI's, so that one host builds both
    getting = [hosts for hosts in groups if hosts[0].name in using]
    plan = plan_of(_Recipe(cluster, hosts) for hosts in getting)
    return replace(plan, warnings=[words_of for host in cluster.hosts if getting and (words_of := without_port(host))])


def _using(cluster: Cluster) -> set[str]:
    """Return the hosts that get the cluster's UCX; an Open MPI that is there already has its own, or none."""
    builds = {
        one.name: (one.settings.text("openmpi_cuda"), one.settings.text("openmpi_builder")) for one in cluster.hosts
    }
    asked = {one.name: one.settings.text("openmpi_ucx") for one in cluster.hosts if not existing_openmpi.path_of(one)}
    getting = {word: wanted(cluster.members, word, builds) for word in set(asked.values())}
    return {name for name, word in asked.items() if getting[word]}


def without_port(host: Host) -> str:
    """Return that no port of a host's RDMA devices is up, so that its MPI cannot use them yet; '' where one is."""
    devices = {str(one["name"]): one.get("ports") or [] for one in usable_devices(host.node)}
    if not devices or any(port.get("state") == "ACTIVE" for ports in devices.values() for port in ports):
        return ""
    named = " and ".join(list(devices)[:_MOST_NAMED])
    what = f"every port of {named} is down" if any(devices.values()) else f"the driver of {named} shows no port"
    cure = "connect it" if any(devices.values()) else "look in the kernel's log"
    return (
        f"{host.name}: {what}, so jobs with this host go over TCP until one is up; {cure}, or set openmpi_ucx to never."
    )


def without(host: str, asked: str) -> str:
    """Return the refusal of a host whose Open MPI is to use UCX, and that has none."""
    return (
        f"openmpi_ucx is {asked}, and {host} has no UCX that Open MPI could be built with; run the role ucx before"
        " openmpi, or set openmpi_ucx to never."
    )


class _Recipe:
    """UCX for hosts of one platform with equal settings."""

    def __init__(self, cluster: Cluster, hosts: Sequence[Host]) -> None:
        settings = hosts[0].settings
        self.settings: Settings = settings
        self.hosts, self.prefix, self.platform = hosts, cluster.prefix, hosts[0].platform
        self.builders = builders(hosts, settings.text("openmpi_builder"))
        self.version = settings.text("ucx_version")
        self.sources = settings.get("ucx_sources") or _known_sources(self.version, settings.text("ucx_sha256"))
        self.packages = of_family(_PACKAGES, self.builders[0])
        self.cuda = cuda.taken(cluster.members, self.platform, self.builders[0].name, settings.text("openmpi_cuda"))
        self.gdrcopy = self.cuda and cuda.all_provide(cluster.members, self.platform, "gdrcopy")

    def refusals(self) -> Iterator[Refusal]:
        """Yield why it cannot be built."""
        if not self.sources:
            yield Refusal(
                "",
                f"No source of UCX {self.version} is known (known are {', '.join(RELEASES)}); set ucx_sha256 to the"
                f" sha256 of upstream's ucx-{self.version}.tar.gz, or list sources in ucx_sources.",
            )
        series = _SERIES.fullmatch(self.version)
        if series is None or int(series[1]) < _OLDEST:
            yield Refusal(
                "", f"ucx_version is {self.version}, and only releases 1.{_OLDEST} and newer of UCX 1 can be built."
            )

    def artifact(self) -> Artifact:
        """Return the artifact."""
        settings, packages, configure = self.settings, self.packages, self._configure()
        source = {"name": "ucx", "version": self.version, "sources": self.sources, "variable": "ucx_sources"}
        return Artifact(
            role="ucx",
            name="ucx",
            version=self.version,
            inputs={
                "recipe": 1,
                "version": self.version,
                "sources": sorted(
                    str(one.get("sha256", "")) + str((one.get("apt") or {}).get("sha256", "")) for one in self.sources
                ),
                "configure": configure,
                "pruned": _PRUNED,
                "platform": self.platform,
            },
            prefix=self.prefix,
            hosts=[host.name for host in self.hosts],
            builders=[host.name for host in self.builders],
            round=1,
            build={
                **places(settings),
                "packages": packages["build"],
                "package_options": packages["options"],
                "files": [{"source": source, "dest": "source", "unpack": True}],
                "steps": [
                    {"name": "autogen", "argv": ["sh", "-c", _CONFIGURED], **_IN},
                    {"name": "configure", "argv": configure, **_IN},
                    *(
                        {"name": Path(part).name, "argv": _make("-j@JOBS@", "-C", part, "install"), **_IN}
                        for part in _PARTS
                    ),
                    {"name": "install", "argv": _make("install-am"), **_IN},
                ],
                "prune": _PRUNED,
                "jobs": settings.number("ucx_make_jobs"),
                "needs_bytes": _NEEDS_BYTES,
            },
            install={
                "library_path": ["lib", "lib/ucx"],  # modules load each other's libraries
                "closure_ignore": _OPTIONAL_LIBRARIES,
                "libraries": dict(zip(_RDMA, packages["runtime"], strict=True)),
            },
            proof={"stands_on": [self._link], "checks": self._proofs()},
        )

    @property
    def _link(self) -> str:
        return f"{self.prefix}/ucx"

    def _configure(self) -> list[str]:
        settings = self.settings
        return [
            "./configure",
            f"--prefix={self._link}",
            f"--sysconfdir={self.prefix}/etc",
            *(settings.texts("ucx_configure_options") or _OPTIONS),
            f"--with-cuda={settings.text('openmpi_cuda_home')}" if self.cuda else "--without-cuda",
            "--with-gdrcopy" if self.gdrcopy else "--without-gdrcopy",
            *settings.texts("ucx_extra_configure_options"),
            f"CFLAGS={settings.text('ucx_cflags')} {_CFLAGS}",
            f"CXXFLAGS={settings.text('ucx_cflags')} {_CFLAGS}",
            "CC=gcc",
            "CXX=g++",
        ]

    def _proofs(self) -> list[dict[str, Any]]:
        """Return what it must print on each host: its release, and the transports that need no device."""
        transports = ["Transport: self", "Transport: tcp", "Transport: posix"]
        return [
            {"argv": ["@LINK@/bin/ucx_info", "-v"], "expect": [self.version]},
            {"argv": ["@LINK@/bin/ucx_info", "-d"], "expect": transports},
        ]


def _make(*words_of_make: str) -> list[str]:
    return ["make", "SHELL=/bin/sh", *words_of_make, "DESTDIR=@STAGE@"]


def _known_sources(version: str, sha256: str) -> list[dict[str, Any]]:
    """Return where a release can be had."""
    release = {"sha256": sha256} if sha256 else RELEASES.get(version, {})
    url = f"https://github.com/openucx/ucx/releases/download/v{version}/ucx-{version}.tar.gz"
    found: list[dict[str, Any]] = [{"url": url, "sha256": release["sha256"]}] if "sha256" in release else []
    if "apt" in release:
        found.append({"apt": {"package": "ucx", "version": version, "sha256": release["apt"]}})
    return found
