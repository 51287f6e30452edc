"""Types of what a node said of PMIx: the site's library, that of the installed Open MPI, and Slurm's plugins."""

from __future__ import annotations

from clusterctl.model.base import Fact

_SERIES_41 = "4.1."


class SitePmix(Fact):
    """The PMIx library of the site: the one that Slurm opens, else the loader's.

    ``headers`` is the release of a development installation that a build can use, '' without one.
    """

    prefix: str
    library: str
    version: str
    headers: str = ""


class Pmix(Fact):
    """PMIx on a node: the site's, and that of the installed Open MPI.

    ``own`` is the release that Open MPI brings as a library, '' without one. ``built_with`` is the word of configure:
    internal, external (the site's in /usr), or the prefix of the site's.
    """

    site: SitePmix | None = None
    own: str = ""
    built_with: str = ""

    @property
    def is_external(self) -> bool:
        """Whether Open MPI was built with the site's PMIx."""
        return self.built_with not in {"", "internal"}


class SlurmPlugin(Fact):
    """A PMIx plugin of Slurm (``pmix_v4``), the library that it opens, and whether that is there."""

    name: str
    opens: str
    found: bool
    version: str = ""


class SlurmSettings(Fact):
    """What srun does about PMIx: its default type (``none``, ``pmix``), what sets that, and the plugins it has."""

    srun: str = ""
    conf: str = ""
    mpi_default: str = "none"
    mpi_default_by: str = "MpiDefault"
    plugins: tuple[SlurmPlugin, ...] = ()


def is_series_41(openmpi: str) -> bool:
    """Return whether a version of Open MPI is of the series 4.1, which has a PMIx 3 inside."""
    return openmpi.startswith(_SERIES_41)


def srun_without_pmix(openmpi: str = "") -> str:
    """Return what srun does without PMIx, as the rest of a sentence that begins with srun.

    A rank of Open MPI 5.0 becomes a world of its own. One of 4.1 sees Slurm's variables and ends with an error: 4.1.4
    did so on nodes, built with the site's PMIx, and open-mpi/ompi #10940 shows it of a build with its own.

    Args:
        openmpi: the version of Open MPI, '' where it is not known.
    """
    if is_series_41(openmpi):
        return "starts no rank: each ends with an error"
    alone = "starts each rank as a world of size 1"
    return alone if openmpi else f"{alone}, and no rank of Open MPI 4.1"
