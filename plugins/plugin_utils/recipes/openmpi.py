# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe of Open MPI: compiled once per platform, with what all hosts of the platform offer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.clusterctl.hpc.plugins.module_utils import fabric_rules
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import (
    cuda,
    existing_openmpi,
    pmix,
    rank_proof,
    ucx,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import (
    APT,
    Artifact,
    Plan,
    Refusal,
    builders,
    digest,
    of_family,
    places,
    role_file,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Cluster, Host, Settings

# Releases whose sums are verified. 'apt' is a distribution's source package, which has its own sum.
RELEASES: dict[str, dict[str, str]] = {
    "5.0.10": {"sha256": "0acecc4fc218e5debdbcb8a41d182c6b0f1d29393015ed763b2a91d5d7374cc6"},
    "5.0.9": {"sha256": "dfb72762531170847af3e4a0f21d77d7b23cf36f67ce7ce9033659273677d80b"},
    "5.0.8": {"sha256": "53131e1a57e7270f645707f8b0b65ba56048f5b5ac3f68faabed3eb0d710e449"},
    "5.0.7": {
        "sha256": "119f2009936a403334d0df3c0d74d5595a32d99497f9b1d41e90019fee2fc2dd",
        "apt": "97f10c04e9b9a1771db3fd005009e4c07afa3ce739f940e41eb0fc7397cb9473",
    },
    "5.0.6": {"sha256": "bd4183fcbc43477c254799b429df1a6e576c042e74a2d2f8b37d537b2ff98157"},
    "5.0.5": {"sha256": "6588d57c0a4bd299a24103f4e196051b29e8b55fbda49e11d5b3d32030a32776"},
    "4.1.8": {"sha256": "466f68e3132a1dc02710cc2011fafced8336d98359fa2dae4dddcfd5719f12a9"},
    "4.1.7": {"sha256": "54a33cb7ad81ff0976f15a6cc8003c3922f0f3d8ceed14e1813ef3603f22cd34"},
    "4.1.6": {"sha256": "f740994485516deb63b5311af122c265179f5328a0d857a567b85db00b11e415"},
    "4.1.5": {"sha256": "a640986bc257389dd379886fdae6264c8cfa56bc98b71ce3ae3dfbd8ce61dbe3"},
    "4.1.4": {
        "sha256": "92912e175fd1234368c8730c03f4996fe5942e7479bb1d10059405e7f2b3930d",
        "apt": "ddaee7dbdb01eb4fab1fda5b5e03e8bbff026711806c095c1f39bb410f99f263",
    },
}

# Options of both series leave parts out, and keep libraries of the builder from being picked up.
_COMMON = words(
    "--disable-oshmem --disable-io-romio --disable-static --enable-shared --disable-dependency-tracking"
    " --enable-silent-rules --enable-ipv6"
)
_WITHOUT = words(
    "libltdl treematch ofi psm2 portals4 usnic ugni udreg alps cray-xpmem xpmem knem hcoll memkind"
    " valgrind lustre gpfs pvfs2 ime lsf tm sge"
)
# Components of 5.0.x that jobs here never select.
_UNBUILT = words(
    "coll-monitoring pml-monitoring osc-monitoring common-monitoring vprotocol pml-v coll-sync"
    " sharedfp-individual sharedfp-lockedfile fcoll-dynamic fcoll-dynamic_gen2 bfrops-v12 bfrops-v20"
    " bfrops-v21 bfrops-v3 ras-simulator ras-testrm"
)
_BY_SERIES: dict[str, list[str]] = {
    "5.0": [
        "--enable-prte-prefix-by-default",
        "--with-prrte=internal",
        "--disable-sphinx",
        *(f"--without-{name}" for name in words("ft rocm ucc argobots qthreads munge libev zlibng")),
        *(
            f"--disable-{name}"
            for name in words("libxml2 opencl nvml gl rsmi levelzero pci libudev cairo cuda samples")
        ),
        f"--enable-mca-no-build={','.join(_UNBUILT)}",
    ],
    "4.1": [
        "--enable-mpirun-prefix-by-default",
        "--disable-libompitrace",
        "--disable-hwloc-pci",
        *(f"--without-{name}" for name in words("verbs psm mxm fca pmi cray-pmi flux-pmi moab")),
        "--enable-mca-no-build=coll-monitoring,pml-monitoring,osc-monitoring,common-monitoring,vprotocol,pml-v",
    ],
}
# gcc 16 calls a function directly that is stored in a structure. Open MPI 5.0 orders one of them to be inlined, which
# then calls itself, and the compiler refuses it (open-mpi/ompi #13721, mended after 5.0.10).
_NEWEST_GCC = ("debian-forky-", "debian-14-")
_FOR_NEWEST_GCC = "-fno-speculatively-call-stored-functions"

# make runs its recipes in plain sh. libtool starts twice for each of 1,600 files, and dash starts twice as fast.
_MAKE = ["make", "SHELL=/bin/sh"]
# Manuals of 80 MB, and libtool's notes for static linking.
_DOCS = ["docs/html", "docs/man", "docs/man-*", "docs/_build"]
_PRUNED = ["share/doc", "share/man", "share/bash-completion", "lib/*.la", "lib/*/*.la"]
_NEEDS_BYTES = 1_200_000_000

_PACKAGES: dict[str, dict[str, Any]] = {
    "Debian": {
        "build": words("gcc g++ libc6-dev make perl zlib1g-dev zstd"),
        "fortran": ["gfortran"],
        "runtime": ["libgfortran5"],
        "links": words("libnl-3-dev libnl-route-3-dev pkg-config"),
        "links_runtime": ["libnl-3-200"],
        "options": APT,
    },
    "RedHat": {
        "build": words(
            "gcc gcc-c++ glibc-devel make perl-interpreter perl-Data-Dumper perl-File-Basename zlib-devel zstd"
        ),
        "fortran": ["gcc-gfortran"],
        "runtime": ["libgfortran"],
        "links": ["libnl3-devel", "pkgconf-pkg-config"],
        "links_runtime": ["libnl3"],
        "options": {},
    },
    "Suse": {
        "build": words("gcc gcc-c++ glibc-devel make perl zlib-devel zstd"),
        "fortran": ["gcc-fortran"],
        "runtime": ["libgfortran5"],
        "links": ["libnl3-devel", "pkgconf-pkg-config"],
        "links_runtime": ["libnl3-200"],
        "options": {},
    },
    # The gcc-fortran of Leap 15 is that of GCC 7.
    "Suse_15": {"runtime": ["libgfortran4"], "library": "libgfortran.so.4"},
}
# The library of gfortran 8 and later, which every Fortran program of these builds loads.
_FORTRAN_LIBRARY = "libgfortran.so.5"
# By libnl, Open MPI asks the kernel which interface leads to which node.
KNOWS_LINKS = "--with-libnl"
# configure takes libnl for this only where a library before it has loaded libnl 3, which none of these builds has.
_TAKE_LIBNL = ["sed", "-i", "s/opal_libnl_version=0$/opal_libnl_version=3/", "configure"]
_MOST_CABLED = 16  # nodes; each has a cable to each other one


def decide(cluster: Cluster, plans: Mapping[str, Plan]) -> Plan:
    """Decide which Open MPI each host gets."""
    artifacts: list[Artifact] = []
    refusals: list[Refusal] = []
    links, keys_of_ucx = _has_cables(cluster), ucx.keys(cluster, plans)

    def stands_on(host: Host) -> tuple[str | None, dict[str, Any]]:
        key = keys_of_ucx[host.name]
        return key, host.settings.of("ucx") if key else {}  # as UCX's own groups, so that one host builds both

    groups = cluster.alike("openmpi", also=stands_on)
    for hosts in groups:
        if existing_openmpi.path_of(hosts[0]):
            continue
        recipe = _Recipe(cluster, hosts, keys_of_ucx[hosts[0].name], links=links)
        problems = list(recipe.refusals())
        refusals += problems
        if not problems:
            artifacts.append(recipe.artifact())
    existing = existing_openmpi.decide(cluster, groups, {hosts[0].platform: _compilers(hosts) for hosts in groups})
    return Plan([*existing.artifacts, *artifacts], [*existing.refusals, *refusals])


def _compilers(hosts: Sequence[Host]) -> dict[str, Any]:
    """Return what a program of MPI is compiled with, as options of a build."""
    known = of_family(_PACKAGES, builders(hosts, hosts[0].settings.text("openmpi_builder"))[0])
    return {"packages": known["build"], "package_options": known["options"]}


class _Recipe:
    """Open MPI for hosts of one platform with equal settings; ``ucx`` is the key of the UCX that it uses, or None."""

    def __init__(self, cluster: Cluster, hosts: Sequence[Host], key_of_ucx: str | None, *, links: bool) -> None:
        self.links = links
        settings = hosts[0].settings
        self.settings: Settings = settings
        self.hosts, self.prefix, self.platform = hosts, cluster.prefix, hosts[0].platform
        self.builders = builders(hosts, settings.text("openmpi_builder"))
        builder = self.builders[0].name
        self.version = settings.text("openmpi_version")
        self.series = ".".join(self.version.split(".")[:2])
        self.ucx = key_of_ucx
        self.cuda = cuda.taken(cluster.members, self.platform, builder, settings.text("openmpi_cuda"))
        self.pmix = pmix.choose(cluster.members, self.platform, builder, self.series, settings.text("openmpi_pmix"))
        self.fortran = settings.flag("openmpi_fortran")
        self.link, self.link_of_ucx = f"{cluster.prefix}/openmpi", f"{cluster.prefix}/ucx"
        self.sources = settings.get("openmpi_sources") or _known_sources(
            self.version, self.series, settings.text("openmpi_sha256")
        )
        self.packages = {"library": _FORTRAN_LIBRARY, **of_family(_PACKAGES, self.builders[0])}

    def refusals(self) -> Iterator[Refusal]:
        """Yield why it cannot be built."""
        if not self.sources:
            yield Refusal(
                "",
                f"No source of Open MPI {self.version} is known (known are {', '.join(RELEASES)}); set openmpi_sha256"
                f" to the sha256 of upstream's openmpi-{self.version}.tar.bz2, or list sources in openmpi_sources.",
            )
        if self.settings.text("openmpi_pmix") == "external" and self.pmix["problem"]:
            for host in self.hosts:
                yield Refusal(host.name, f"openmpi_pmix is external: {self.pmix['problem']}")
        for host in self.hosts if self.ucx == "" else ():
            yield Refusal(host.name, ucx.without(host.name, self.settings.text("openmpi_ucx")))
        if self.series not in _BY_SERIES:
            known = " and ".join(_BY_SERIES)
            yield Refusal("", f"openmpi_version is {self.version}, and only releases of {known} can be built.")

    def artifact(self) -> Artifact:
        """Return the artifact."""
        settings, packages = self.settings, self.packages
        configure, hello = self._configure(), role_file("openmpi", "hello.c")
        inputs: dict[str, Any] = {
            "recipe": 1,
            "version": self.version,
            "sources": sorted(
                str(one.get("sha256", "")) + str((one.get("apt") or {}).get("sha256", "")) for one in self.sources
            ),
            "configure": configure,
            "make": _MAKE,
            **({"links": _TAKE_LIBNL} if self.links else {}),
            "pruned": _PRUNED,
            "hello": digest(hello),
            "platform": self.platform,
        }
        if self.pmix["prefix"]:
            inputs["pmix"] = {"prefix": self.pmix["prefix"], "version": self.pmix["version"]}
        if self.ucx:
            inputs["ucx"] = self.ucx
        source = {
            "name": "openmpi",
            "version": self.version,
            "sources": self.sources,
            "variable": "openmpi_sources",
        }
        return Artifact(
            role="openmpi",
            name="openmpi",
            version=self.version,
            inputs=inputs,
            prefix=self.prefix,
            hosts=[host.name for host in self.hosts],
            builders=[host.name for host in self.builders],
            round=1,
            build={
                **places(settings),
                "packages": [
                    *packages["build"],
                    *(packages["fortran"] if self.fortran else []),
                    *(packages["links"] if self.links else []),
                ],
                "package_options": packages["options"],
                "files": [
                    {"source": source, "dest": "source", "unpack": True, "exclude": _DOCS},
                    {"content": hello, "dest": "hello.c"},
                ],
                "steps": self._steps(configure),
                "prune": _PRUNED,
                "jobs": settings.number("openmpi_make_jobs"),
                "needs_bytes": _NEEDS_BYTES,
            },
            install={
                # Fortran programs load the compiler's runtime, which only the builder has from its compiler.
                **({"libraries": {packages["library"]: packages["runtime"]}} if self.fortran else {}),
                **({"packages": packages["links_runtime"]} if self.links else {}),
                **({"waiting_paths": [f"{self.link_of_ucx}/lib"]} if self.ucx else {}),
            },
            uses=["ucx"] if self.ucx else [],
            proof={
                "stands_on": [self.link, *([self.link_of_ucx] if self.ucx else [])],
                "checks": self._proofs(),
            },
        )

    def _configure(self) -> list[str]:
        folders = [
            *([f"{self.pmix['prefix']}/lib"] if self.pmix["prefix"] not in ("", "/usr") else []),
            *([f"{self.link_of_ucx}/lib"] if self.ucx else []),
        ]
        run_paths = " ".join(f"-Wl,-rpath,{folder}" for folder in folders)
        cflags = self.settings.text("openmpi_cflags")
        if self.platform.startswith(_NEWEST_GCC):
            cflags = f"{cflags} {_FOR_NEWEST_GCC}".strip()
        return [
            "./configure",
            f"--prefix={self.link}",
            f"--sysconfdir={self.prefix}/etc/openmpi",
            *(self.settings.texts("openmpi_configure_options") or self._options()),
            *self.settings.texts("openmpi_extra_configure_options"),
            f"CFLAGS={cflags}",
            *([f"LDFLAGS={run_paths} -Wl,--enable-new-dtags"] if folders else []),
            # configure installs the C++ wrappers only where it is given a C++ compiler
            "CC=gcc",
            "CXX=g++",
            *(["FC=gfortran"] if self.fortran else []),
        ]

    def _options(self) -> list[str]:
        """Return the options of configure, a short list for the series."""
        prefix = self.pmix["prefix"]
        # configure refuses an external PMIx without an external hwloc and libevent
        others = "external" if prefix else "internal"
        pmix_option = "external" if prefix == "/usr" else prefix or "internal"
        needs_dlopen = self.cuda and self.series == "4.1"  # elsewhere it costs time without plugins to load
        return [
            "--enable-mpi-fortran=all" if self.fortran else "--disable-mpi-fortran",
            *_COMMON,
            f"--with-hwloc={others}",
            f"--with-libevent={others}",
            f"--with-pmix={pmix_option}",
            "--with-zlib",
            KNOWS_LINKS if self.links else "--without-libnl",
            *(f"--without-{name}" for name in _WITHOUT),
            *_BY_SERIES[self.series],
            f"--with-ucx={self.link_of_ucx}" if self.ucx else "--without-ucx",
            f"--with-cuda={self.settings.text('openmpi_cuda_home')}" if self.cuda else "--without-cuda",
            *([] if needs_dlopen else ["--disable-dlopen"]),
        ]

    def _steps(self, configure: list[str]) -> list[dict[str, Any]]:
        # without mpicc, which would write the path of the stage into the program
        hello = (
            f"gcc -O2 -I@TREE@/include -o @TREE@/libexec/clusterctl-hello hello.c -L@TREE@/lib "
            f"-Wl,-rpath,{self.link}/lib -Wl,-rpath-link,@TREE@/lib -Wl,--enable-new-dtags -lmpi"
        )
        return [
            *([{"name": "links", "argv": _TAKE_LIBNL, "chdir": "source"}] if self.links else []),
            {"name": "configure", "argv": configure, "chdir": "source"},
            {"name": "make", "argv": [*_MAKE, "-j@JOBS@"], "chdir": "source"},
            {"name": "install", "argv": [*_MAKE, "install", "DESTDIR=@STAGE@"], "chdir": "source"},
            {"name": "libexec", "argv": ["mkdir", "-p", "@TREE@/libexec"]},
            {"name": "hello", "argv": hello.split()},
        ]

    def _proofs(self) -> list[dict[str, Any]]:
        old_pmix = self.pmix["prefix"] and self.series == "4.1"
        info = [
            f"ompi:version:full:{self.version}",
            *(["bindings:use_mpi_f08:yes"] if self.fortran else []),
            *(["mpi_built_with_cuda_support:value:true"] if self.cuda else []),
            *(["mca:pml:ucx:version"] if self.ucx else []),
            *(["mca:pmix:ext3x:version"] if old_pmix else []),
            *(["mca:reachable:netlink:version"] if self.links else []),
        ]
        ranks = rank_proof.said("@REAL@/lib")
        proofs = [
            {"argv": ["@LINK@/bin/mpirun", "--version"], "expect": [self.version]},
            {"argv": ["@LINK@/bin/ompi_info", "--parsable", "--all"], "expect": info},
            {"argv": rank_proof.launch(), "expect": ranks},
        ]
        if self.ucx:  # two ranks talk through it, as its own log tells
            through = rank_proof.launch(*rank_proof.THROUGH_UCX, "-x", "UCX_LOG_LEVEL=info")
            proofs.append({"argv": through, "expect": [*ranks, " tag("]})
        if self.fortran:
            proofs.append({"argv": ["/sbin/ldconfig", "-p"], "expect": [f"{self.packages['library']} "]})
        if self.pmix["prefix"]:  # the loader takes the site's PMIx for this build
            library = "libopen-pal.so" if self.series == "4.1" else "libmpi.so"
            folder = f"{self.pmix['prefix']}/lib" if self.pmix["prefix"] != "/usr" else "/"
            proofs.append({"argv": ["ldd", f"@LINK@/lib/{library}"], "expect": [f"libpmix.so.2 => {folder}"]})
        return proofs


def _has_cables(cluster: Cluster) -> bool:
    """Tell whether messages go over cables, so that Open MPI must know which interface leads to which node."""
    if any(fabric_rules.over_cables(host.node.get("fabric")) for host in cluster.hosts):
        return True
    if not 2 < len(cluster.hosts) <= _MOST_CABLED:  # noqa: PLR2004 - two nodes have one network
        return False
    return bool(fabric_rules.candidates({host.name: host.node for host in cluster.hosts}).cables)


def _known_sources(version: str, series: str, sha256: str) -> list[dict[str, Any]]:
    """Return where a release can be had."""
    release = {"sha256": sha256} if sha256 else RELEASES.get(version, {})
    url = f"https://download.open-mpi.org/release/open-mpi/v{series}/openmpi-{version}.tar.bz2"
    found: list[dict[str, Any]] = [{"url": url, "sha256": release["sha256"]}] if "sha256" in release else []
    if "apt" in release:
        found.append({"apt": {"package": "openmpi", "version": version, "sha256": release["apt"]}})
    return found
