"""Types of what a node said of PMIx: the site's library, that of the installed Open MPI, and Slurm's plugins."""

from __future__ import annotations

from clusterctl.model.base import Fact


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
