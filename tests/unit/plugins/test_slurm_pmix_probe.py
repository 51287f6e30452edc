"""What the probe reads of PMIx and Slurm: bytes of plugins and libraries, slurm.conf, and a whole section."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import slurm_pmix
from clusterctl.model.facts import Pmix, SlurmSettings

if TYPE_CHECKING:
    from pathlib import Path

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
    assert slurm_pmix.plugin_library(data) == opens


def test_the_settings_of_slurm_conf() -> None:
    text = "# MpiDefault=pmi2\nClusterName=x\nmpidefault = none\nMPIDEFAULT=pmix_v4\nPluginDir=/a:/b\n"
    assert slurm_pmix.conf_settings(text) == {"mpidefault": "pmix_v4", "plugindir": "/a:/b"}


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
    assert slurm_pmix.built_with(marker) == word


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
    monkeypatch.setattr(slurm_pmix, "_CONFS", (f"{tmp_path}/slurm.conf",))
    monkeypatch.setattr(slurm_pmix, "_by_loader", lambda _name: [])
    return tmp_path


def look(site: Path, **variables: str) -> tuple[Pmix, SlurmSettings]:
    found = slurm_pmix.slurm_pmix(variables, f"{site}/bin:/usr/bin", "/usr/local/openmpi")
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
    found = slurm_pmix.slurm_pmix({}, "/nowhere", "/usr/local/openmpi")
    assert found["slurm"] is None
