"""Where clusterctl's software lies on a node: folders and programs below one prefix."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PREFIX = "/usr/local"


@dataclass(frozen=True)
class Layout:
    """The paths of the software on a node.

    ``prefix`` is the inventory variable ``cluster_prefix``: the folder of the artifacts and of their links.
    """

    prefix: str = DEFAULT_PREFIX

    def link(self, name: str) -> str:
        """Return the link that leads to the version in use of an artifact."""
        return f"{self.prefix}/{name}"

    @property
    def openmpi(self) -> str:
        """Open MPI in use."""
        return self.link("openmpi")

    @property
    def mpirun(self) -> str:
        """The launcher of Open MPI."""
        return f"{self.openmpi}/bin/mpirun"

    @property
    def hello(self) -> str:
        """The program in which each rank says where it is."""
        return f"{self.openmpi}/libexec/clusterctl-hello"

    @property
    def python(self) -> str:
        """The interpreter of the cluster's Python environment."""
        return f"{self.link('python_env')}/bin/python"

    @property
    def horovodrun(self) -> str:
        """The launcher of Horovod."""
        return f"{self.link('horovod')}/bin/horovodrun"

    @property
    def programs(self) -> str:
        """The folder of the programs that the role ``validation`` installs."""
        return f"{self.prefix}/libexec/clusterctl"

    @property
    def pace(self) -> str:
        """The folder in which a program under ``run --pace`` finds ``clusterctl.pace``."""
        return self.program("pace")

    def program(self, name: str) -> str:
        """Return the path of such a program."""
        return f"{self.programs}/{name}"


DEFAULT_LAYOUT = Layout()
