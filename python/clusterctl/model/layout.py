"""Where clusterctl's software lies on a node: folders and programs below one prefix, the variable ``cluster_prefix``.

The rules of a prefix are the collection's ``plugins/module_utils/prefix_rules``, which the role ``preflight`` uses as
well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.support import content

DEFAULT_PREFIX = "/usr/local"


@dataclass(frozen=True)
class Layout:
    """The paths of the software on a node.

    ``prefix`` is the inventory variable ``cluster_prefix``: the folder of the artifacts and of their links.
    ``environment`` is the folder of a project's Python environment that takes the place of the cluster's own.
    ``by_path``: other nodes of the job have it in another folder, and each finds its own by ``PATH``.
    """

    prefix: str = DEFAULT_PREFIX
    environment: str = ""
    by_path: bool = False

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
        """The interpreter of the job's Python environment, as all nodes of the job know it."""
        return "python" if self.by_path else self.own_python

    @property
    def own_python(self) -> str:
        """The interpreter of the job's Python environment on the node."""
        return f"{self.environment or self.link('python_env')}/bin/python"

    @property
    def horovodrun(self) -> str:
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
        return f"{self.programs}/{name}"


DEFAULT_LAYOUT = Layout()


if TYPE_CHECKING:
    from collections.abc import Mapping

    from module_utils import prefix_rules as _rules  # mypy finds it by mypy_path

else:
    _rules = content.module_util("prefix_rules")


def prefix_problem(variables: Mapping[str, Any]) -> str:
    """Return what is wrong with the prefix of a host, as a clause with its cure; '' if nothing is, or none is set."""
    given = variables.get(_rules.VARIABLE)
    return "" if given in (None, "") else _rules.problem(given)


def prefix_disagreement(prefixes: Mapping[str, str]) -> str:
    """Return how hosts differ in their prefix, as a clause with its cure; '' if all have the same."""
    found: str = _rules.disagreement(prefixes)
    return found
