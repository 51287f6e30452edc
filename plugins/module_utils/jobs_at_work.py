# SPDX-License-Identifier: Apache-2.0
"""Name the ranks of this host, and the processes that use a folder which a link is about to leave."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping

from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact_link
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import processes

_MOST_NAMED = 3
_LONGEST_COMMAND = 60
_CURE = "wait for their end, or give --while-busy"


class JobsError(ArtifactError):
    """Jobs stand in the way of a switch; ``problems`` is what the run's record says of it."""

    def __init__(self, host: str, jobs: str) -> None:
        """Take the jobs in words."""
        super().__init__(f"{host}: {jobs}; {_CURE}.")
        self.problems = [{"host": host, "check": "jobs", "problem": jobs, "cure": _CURE}]


def refuse(links: Mapping[str, str], host: str) -> None:
    """Refuse to switch links while jobs run here; a link that leads to its folder already, or is new, is no matter.

    Args:
        links: by link, the folder to which it is to lead.
        host: name of the host, for the message.

    Raises:
        JobsError: ranks run here, or processes that use a folder which a link is about to leave.
    """
    now = {link: artifact_link.tree_of(link) for link in links}
    leaving = {now[link] for link, tree in links.items() if now[link] not in {"", tree}}
    for root in sorted({os.path.dirname(tree) for tree in leaving}):  # noqa: PTH120 - a text
        jobs = words(processes.busy(wanted=True, root=root)["busy"], leaving)
        if jobs:
            raise JobsError(host, jobs)


def words(found: List[Dict[str, Any]], leaving: "set[str]") -> str:
    """Return the jobs among processes, in words; '' without one."""
    busy = [process for process in found if process["rank"] or leaving & set(process["trees"])]
    shown = [
        f"{'rank' if process['rank'] else 'process'} {process['pid']} of {process['user']}:"
        f" {process['command'][:_LONGEST_COMMAND]}"
        for process in busy
    ]
    rest = len(shown) - _MOST_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return f"jobs run here: {'; '.join(shown[:_MOST_NAMED])}{more}" if shown else ""
