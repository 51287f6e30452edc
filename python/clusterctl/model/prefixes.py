"""Is ``cluster_prefix`` of an inventory a folder for software, the same on all hosts?

The rules are the collection's ``plugins/module_utils/prefix_rules``, which the role ``preflight`` uses as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from module_utils import prefix_rules as _rules  # mypy finds it by mypy_path

    from clusterctl.model.hosts import Host
else:
    _rules = content.module_util("prefix_rules")


def problem(variables: Mapping[str, Any]) -> str:
    """Return what is wrong with the prefix of a host, as a clause with its cure; '' if nothing is, or none is set."""
    given = variables.get(_rules.VARIABLE)
    return "" if given in (None, "") else _rules.problem(given)


def disagreement(hosts: Iterable[Host]) -> str:
    """Return how hosts differ in their prefix, as a clause with its cure; '' if all have the same."""
    return _rules.disagreement({host.name: host.layout.prefix for host in hosts})
