"""The installation of a project's environment on the nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.inventory.ansible_inventory import Cluster
from clusterctl.model.run_record import RunObserver
from clusterctl.provisioning import playbook
from clusterctl.provisioning.host_run import HostRun, started
from clusterctl.provisioning.look import HostRequest
from clusterctl.support.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterctl.model.run_record import RunRecord

_PLAYBOOK, _ARTIFACT = "project_environment", "python_env"
# The lock decides in place of what the inventory says of the cluster's own environment.
_REPLACED = {"python_env_requirements": [], "python_env_framework_version": "", "python_env_existing": ""}


@dataclass(frozen=True, kw_only=True)
class ProjectRequest(HostRequest):
    """What the user asked for; ``lock`` is a file of the project."""

    lock: Path


@dataclass(frozen=True)
class Installed:
    """The record of the run, and by host the folder of the environment, where it ended well."""

    record: RunRecord
    trees: Mapping[str, str]


def install(request: ProjectRequest, observer: RunObserver) -> Installed:
    """Build the environment of a lock once for each platform, and install it on the selected hosts.

    Raises:
        ConfigError: the inventory or an option is wrong, or another run holds a host; nothing was changed.
    """
    cluster = Cluster.of(request.inventory, request.options).inventory
    playbook.check_files(cluster, request.options)
    chosen = cluster.selected_hosts
    with started("project", cluster, request, chosen) as run, _Install(request, observer, cluster, run) as it:
        return it.go()


class _Install(HostRun[ProjectRequest, RunObserver]):
    """One installation, from the lock to the record."""

    def go(self) -> Installed:
        if stop := self.claim(None):
            return Installed(stop, {})
        variables = {**_REPLACED, "python_env_lock": str(self.request.lock)}
        record = self.judge(self.play(_PLAYBOOK, limit=self.cluster.limit, variables=variables))
        if record.exit_code != ExitCode.OK:
            return Installed(record, {})
        planned = self.task_results.planned_trees()
        return Installed(record, {name: planned[name][_ARTIFACT] for name in self.cluster.selected})
