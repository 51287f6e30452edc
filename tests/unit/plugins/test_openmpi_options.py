"""Open MPI as its recipe makes it: options of configure, keys that stay, the site's PMIx, and refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import parameters
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import openmpi, pmix
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import (
    Artifact,
    Cluster,
    Host,
    Plan,
    Settings,
)
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.variables import defaults
from clusterctl.model.facts import Pmix, SlurmSettings

NODE = {"platform": "debian-12-x86_64-glibc2.36-py3.11"}
DEBIAN_12 = {"family": "Debian", "major": "12", "id": "debian"}


def members(*found: dict[str, str], platform: str = NODE["platform"]) -> list[dict[str, Any]]:
    return [{"name": f"node{n}", "pmix": one, "platform": platform} for n, one in enumerate(found, start=1)]


def decided(its: list[dict[str, Any]], prefix: str = "/usr/local", **given: Any) -> Plan:
    wanted = {"openmpi_ucx": "never", "openmpi_cuda": "never", "openmpi_pmix": "internal"}
    settings = Settings(defaults(["ucx", "openmpi"]) | wanted | given)
    hosts = [Host(one["name"], one, {"distribution": DEBIAN_12}, settings) for one in its]
    return openmpi.decide(Cluster(hosts, its, prefix, frozenset({"openmpi"})), {})


def made(*found: dict[str, str], **given: Any) -> Artifact:
    plan = decided(members(*(found or ({}, {}))), **given)
    assert plan.refusals == []
    (artifact,) = plan.artifacts
    return artifact


def options(artifact: Artifact) -> list[str]:
    return list(artifact.inputs["configure"])


@pytest.mark.parametrize("version", ["5.0.7", "4.1.4"])
def test_the_wrappers_for_cpp_need_a_compiler_at_build_time(version: str) -> None:
    artifact = made(openmpi_version=version)
    assert {"CC=gcc", "CXX=g++", "--disable-mpi-fortran"} <= set(options(artifact))
    assert not [word for word in options(artifact) if word.startswith("FC=") or word == "--enable-mpi-fortran=all"]
    assert {"gcc", "g++"} <= set(artifact.build["packages"])
    assert artifact.install == {}


@pytest.mark.parametrize("version", ["5.0.7", "4.1.4"])
def test_fortran_is_one_variable(version: str) -> None:
    artifact = made(openmpi_version=version, openmpi_fortran="true")  # from -e it is text
    assert {"--enable-mpi-fortran=all", "FC=gfortran"} <= set(options(artifact))
    assert "--disable-mpi-fortran" not in options(artifact)
    assert "gfortran" in artifact.build["packages"]


def test_fortran_programs_find_their_runtime_on_every_host() -> None:
    artifact = made(openmpi_fortran=True)
    assert artifact.install == {"libraries": {"libgfortran.so.5": ["libgfortran5"]}}
    proofs = artifact.proof["checks"]
    assert {"argv": ["/sbin/ldconfig", "-p"], "expect": ["libgfortran.so.5 "]} in proofs
    assert any("bindings:use_mpi_f08:yes" in one["expect"] for one in proofs)


def test_a_series_and_a_release_that_cannot_be_built_are_refused() -> None:
    (unknown,) = decided(members({}, {}), openmpi_version="5.0.99").refusals
    assert unknown.problem.startswith("No source of Open MPI 5.0.99 is known (known are 5.0.10, 5.0.9, ")
    problems = [
        one.problem for one in decided(members({}, {}), openmpi_version="6.0.0", openmpi_sha256="a" * 64).refusals
    ]
    assert problems == ["openmpi_version is 6.0.0, and only releases of 5.0 and 4.1 can be built."]


# --- PMIx ---

SITE = {"prefix": "/opt/pmix", "library": "/opt/pmix/lib/libpmix.so.2.9.3", "version": "5.0.3", "headers": "5.0.3"}
# The keys of builds that exist already. Another key costs each site a compilation of minutes.
KEYS = {"5.0.7": "a4e3643e491bb580", "4.1.4": "a5e1645d1e15fd1b"}


@pytest.mark.parametrize("version", KEYS)
@pytest.mark.parametrize("wanted", ["auto", "internal"])
def test_a_build_without_an_external_pmix_keeps_its_key(version: str, wanted: str) -> None:
    """Hosts without a PMIx, hosts whose PMIx differs, and the word internal all give the build of before."""
    for found in (({}, {}), (SITE, {}), (SITE, SITE) if wanted == "internal" else ({}, SITE)):
        artifact = made(*found, openmpi_version=version, openmpi_pmix=wanted)
        assert "pmix" not in artifact.inputs
        assert artifact.key == KEYS[version]


def test_an_external_pmix_has_a_key_of_its_own() -> None:
    keys = {
        made(one, one, openmpi_pmix="auto").key
        for one in ({}, SITE, {**SITE, "version": "5.0.4", "headers": "5.0.4"}, {**SITE, "prefix": "/usr"})
    }
    assert len(keys) == 4


def test_an_external_pmix_takes_hwloc_and_libevent_from_outside_as_well() -> None:
    artifact = made(SITE, SITE, openmpi_pmix="auto")
    assert {"--with-pmix=/opt/pmix", "--with-hwloc=external", "--with-libevent=external"} <= set(options(artifact))
    assert "LDFLAGS=-Wl,-rpath,/opt/pmix/lib -Wl,--enable-new-dtags" in options(artifact)
    assert not [word for word in options(artifact) if word.endswith("=internal") and "prrte" not in word]
    assert artifact.inputs["pmix"] == {"prefix": "/opt/pmix", "version": "5.0.3"}
    assert artifact.proof["checks"][-1]["expect"] == ["libpmix.so.2 => /opt/pmix/lib"]


def test_the_compilers_own_folders_need_no_search_path() -> None:
    everywhere = {**SITE, "prefix": "/usr"}
    found = options(made(everywhere, everywhere, openmpi_pmix="auto"))
    assert "--with-pmix=external" in found
    assert not [word for word in found if word.startswith("LDFLAGS")]


@pytest.mark.parametrize(
    ("version", "site", "says"),
    [
        ("5.0.7", [{}, {}], ["node1", "has no PMIx library", "libpmix-dev"]),
        ("5.0.7", [{**SITE, "headers": ""}, SITE], ["node1", "PMIx 5.0.3 in /opt/pmix", "no headers"]),
        ("5.0.7", [{**SITE, "headers": "4.2.2"}, SITE], ["headers of PMIx 4.2.2"]),
        ("5.0.7", [{**SITE, "version": "4.2.2", "headers": "4.2.2"}] * 2, ["needs PMIx 4.2.4 or newer", "has 4.2.2"]),
        ("5.0.7", [{**SITE, "version": "6.0.0", "headers": "6.0.0"}] * 2, ["below 6", "has 6.0.0"]),
        ("4.1.4", [SITE, SITE], ["below 5", "has 5.0.3"]),
        ("5.0.7", [SITE, {}], ["Hosts differ", "node2 has none"]),
        ("5.0.7", [SITE, {**SITE, "version": "5.0.1"}], ["Hosts differ", "node2 has 5.0.1 in /opt/pmix"]),
    ],
)
def test_external_refuses_in_one_sentence(version: str, site: list[dict[str, str]], says: list[str]) -> None:
    artifact = made(*site, openmpi_version=version, openmpi_pmix="auto")
    assert "pmix" not in artifact.inputs
    refusals = decided(members(*site), openmpi_version=version, openmpi_pmix="external").refusals
    assert [one.host for one in refusals] == [one["name"] for one in members(*site)]
    (problem,) = {one.problem for one in refusals}
    assert problem.startswith("openmpi_pmix is external: ")
    assert all(word in problem for word in says), problem
    assert problem.endswith("or set openmpi_pmix to auto or internal.")
    assert "\n" not in problem


def test_hosts_of_another_platform_have_a_build_of_their_own() -> None:
    alien = {"name": "node3", "platform": "debian-13", "pmix": {}}
    found = pmix.choose([*members(SITE, SITE), alien], NODE["platform"], "node1", "5.0", "external")
    assert (found["prefix"], found["problem"]) == ("/opt/pmix", "")
    plan = decided([*members({}, {}), alien])
    assert [(one.hosts, one.builders) for one in plan.artifacts] == [
        (["node1", "node2"], ["node1", "node2"]),
        (["node3"], ["node3"]),
    ]


# --- the prefix ---


def test_another_prefix_has_a_key_and_folders_of_its_own() -> None:
    """configure writes its prefix into the programs, so that a build belongs to one prefix."""
    artifact = made(prefix="/opt/cluster")
    assert {"--prefix=/opt/cluster/openmpi", "--sysconfdir=/opt/cluster/etc/openmpi"} <= set(options(artifact))
    assert artifact.key != KEYS["5.0.7"]
    assert artifact.tree == f"/opt/cluster/openmpi-5.0.7-{artifact.key}"


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("debian-11-x86_64-glibc2.31-py3.9", "CFLAGS=-O2"),
        ("debian-13-x86_64-glibc2.41-py3.13", "CFLAGS=-O2"),
        ("debian-forky-x86_64-glibc2.43-py3.14", "CFLAGS=-O2 -fno-speculatively-call-stored-functions"),
        ("debian-14-aarch64-glibc2.43-py3.14", "CFLAGS=-O2 -fno-speculatively-call-stored-functions"),
    ],
)
def test_gcc_16_gets_the_flag_without_which_it_refuses_the_source(platform: str, expected: str) -> None:
    (artifact,) = decided(members({}, platform=platform), openmpi_cflags="-O2").artifacts
    assert [option for option in options(artifact) if option.startswith("CFLAGS=")] == [expected]


# --- what the probe reads of PMIx and Slurm: bytes of plugins and libraries, slurm.conf, and a whole section ---


# As in mpi_pmix_v4.so of Debian's Slurm 22.05.8: the folder and the name stand apart, between other words.
DEBIAN = b"\x7fELF\0/f7PIR2\0\0/usr/lib/x86_64-linux-gnu/pmix2/lib\0%s: %s: no\0libpmix.so\0/pmix.%d.%d/\0mpi/pmix_v4\0"


@pytest.mark.parametrize(
    ("data", "opens"),
    [
        (DEBIAN, "/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so"),
        (b"\0/opt/pmix/5/lib64/\0libpmix.so.2\0", "/opt/pmix/5/lib64/libpmix.so.2"),
        (b"\0/opt/pmix/lib/libpmix.so.2\0libpmix.so\0", "/opt/pmix/lib/libpmix.so.2"),
        (b"\0/usr/lib64/slurm\0libpmix.so\0", "libpmix.so"),
        (b"\0libpmix.so\0", "libpmix.so"),
        (b"", "libpmix.so"),
    ],
)
def test_the_library_that_a_plugin_opens_stands_in_its_bytes(data: bytes, opens: str) -> None:
    assert parameters.plugin_library(data) == opens


def test_the_settings_of_slurm_conf() -> None:
    text = "# MpiDefault=pmi2\nClusterName=x\nmpidefault = none\nMPIDEFAULT=pmix_v4\nPluginDir=/a:/b\n"
    assert parameters.conf_settings(text) == {"mpidefault": "pmix_v4", "plugindir": "/a:/b"}


@pytest.mark.parametrize(
    ("marker", "word"),
    [
        ({"inputs": {"configure": ["./configure", "--with-pmix=internal"]}}, "internal"),
        ({"inputs": {"configure": ["--with-pmix=internal", "--with-pmix=/opt/pmix"]}}, "/opt/pmix"),
        ({"inputs": {"configure": "--with-pmix=internal"}}, ""),
        ({"inputs": ["--with-pmix=internal"]}, ""),
        ({}, ""),
    ],
)
def test_the_marker_says_which_pmix_open_mpi_was_built_with(marker: dict[str, Any], word: str) -> None:
    assert parameters.built_with(marker) == word


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site with Slurm and PMIx 4.2.2 below one folder, and a development installation of it."""
    for folder in ("bin", "lib/slurm", "pmix/lib", "pmix/include/pmix/src/util", "pmix/include/event2"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bin/srun").touch(mode=0o755)
    plugin = DEBIAN.replace(b"/usr/lib/x86_64-linux-gnu/pmix2/lib", f"{tmp_path}/pmix/lib".encode())
    (tmp_path / "lib/slurm/mpi_pmix_v4.so").write_bytes(plugin)
    (tmp_path / "lib/slurm/mpi_pmix.so").symlink_to("mpi_pmix_v4.so")
    (tmp_path / "lib/slurm/mpi_none.so").touch()
    (tmp_path / "pmix/lib/libpmix.so.2.6.2").write_bytes(b"\0OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2)\0")
    for name in ("libpmix.so", "libpmix.so.2"):
        (tmp_path / "pmix/lib" / name).symlink_to("libpmix.so.2.6.2")
    for name in ("pmix.h", "pmix/src/util/pmix_argv.h", "hwloc.h", "event2/event.h"):
        (tmp_path / "pmix/include" / name).touch()
    numbers = {"MAJOR": 4, "MINOR": 2, "RELEASE": 2}
    lines = [f"#define PMIX_VERSION_{part} {number}L\n" for part, number in numbers.items()]
    (tmp_path / "pmix/include/pmix_version.h").write_text("".join(lines))
    (tmp_path / "slurm.conf").write_text("MpiDefault=none\n")
    monkeypatch.setattr(parameters, "_CONFS", (f"{tmp_path}/slurm.conf",))
    monkeypatch.setattr(parameters, "_by_loader", lambda _name: [])
    return tmp_path


def look(site: Path, **variables: str) -> tuple[Pmix, SlurmSettings]:
    found = parameters.slurm_pmix(variables, f"{site}/bin:/usr/bin", "/usr/local/openmpi")
    return Pmix.model_validate(found["pmix"]), SlurmSettings.model_validate(found["slurm"])


def test_a_site_with_slurm_and_its_pmix(site: Path) -> None:
    pmix, slurm = look(site)
    assert (pmix.site.prefix, pmix.site.version, pmix.site.headers) == (f"{site}/pmix", "4.2.2", "4.2.2")
    assert (slurm.mpi_default, slurm.mpi_default_by) == ("none", "MpiDefault")
    (plugin,) = slurm.plugins
    assert (plugin.name, plugin.found, plugin.version) == ("pmix_v4", True, "4.2.2")
    assert plugin.opens == f"{site}/pmix/lib/libpmix.so"


def test_a_missing_link_is_seen_and_the_library_beside_it_as_well(site: Path) -> None:
    (site / "pmix/lib/libpmix.so").unlink()
    pmix, slurm = look(site, SLURM_MPI_TYPE="pmi2")
    assert pmix.site is not None
    assert not slurm.plugins[0].found
    assert (slurm.mpi_default, slurm.mpi_default_by) == ("pmi2", "SLURM_MPI_TYPE")


@pytest.mark.parametrize("name", ["pmix.h", "pmix/src/util/pmix_argv.h", "hwloc.h", "pmix_version.h"])
def test_a_development_installation_with_a_hole_is_none(site: Path, name: str) -> None:
    (site / "pmix/include" / name).unlink()
    found = look(site)[0].site
    assert found.headers == ""
    assert re.fullmatch(r"\d+\.\d+\.\d+", found.version)


def test_a_node_without_slurm(site: Path) -> None:
    (site / "slurm.conf").unlink()
    found = parameters.slurm_pmix({}, "/nowhere", "/usr/local/openmpi")
    assert found["slurm"] is None
