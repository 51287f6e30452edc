"""The options of a validation, and the command line that repeats it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launch.mpirun import NO_PATH_OPTIONS, PathOptions
from clusterctl.model.hosts import InventoryOptions
from clusterctl.suite import DEFAULT
from clusterctl.support.errors import ConfigError
from clusterctl.support.words import and_more
from clusterctl.validation.checks import registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.model.hosts import Inventory, InventorySources
    from clusterctl.model.probe import Probe
    from clusterctl.model.scheduler_options import PodsOptions, SlurmOptions
    from clusterctl.model.slurm_drain_choice import DrainOptions
    from clusterctl.suite import Suite

_MOST_NAMED = 6


@dataclass(frozen=True)
class ValidationOptions:
    """What the user asks for."""

    # the options that change what the inventory means
    inventory: InventoryOptions = field(default_factory=InventoryOptions)
    launch_node: str | None = None  # the node on which mpirun starts; None is the first that can take part
    # which checks run, how long they measure, and what their figures are held against
    suite: Suite = field(default_factory=registry.default)
    checks: tuple[str, ...] | None = None  # the names of the checks that run; None is every check of the suite
    timeout_s: float | None = None  # replaces the deadline of every check
    # seconds for which a check that compares is measured on until it would see a fault of ten per cent
    patience_s: float = 0.0
    path: PathOptions = NO_PATH_OPTIONS  # transport and binding of every job, as ``run`` takes them
    gate: bool = True  # whether nodes that differ keep every check from being launched
    # whether to search for the node that makes a check hang, crash or get wrong values. None searches in every suite
    # but smoke, which must be quick; for wrong values there too, where it takes less than a minute.
    search: bool | None = None
    remembered: bool = True  # whether the run is kept in the history and compared with it
    argv: tuple[str, ...] = ()  # the command line without secrets, for messages and records
    via: SlurmOptions | None = None  # how Slurm is asked for the nodes; None reaches them by ssh
    pods: PodsOptions | None = None  # how Kubernetes is asked for pods; None does without
    skip_busy: bool = False  # whether nodes with other work are left out, by name and with the reason
    # the nodes that are left out so, each with the reason; found, not asked for
    left_out: Mapping[str, str] = field(default_factory=dict)
    drains: DrainOptions | None = None  # what Slurm is told after the run; None tells it nothing
    # facts that are known already, with the watch entries of :func:`clusterctl.validation.gate.watch_entries`; None
    # gathers them
    probe: Probe | None = None

    @property
    def searches(self) -> bool:
        """Whether a check that hung or crashed is searched for a bad node."""
        return self.suite.name != DEFAULT if self.search is None else self.search

    def refuse_unknown_launch_node(self, cluster: Inventory) -> None:
        names = [host.name for host in cluster.selected_hosts]
        if self.launch_node is not None and self.launch_node not in names:
            shown = and_more(names, _MOST_NAMED)
            raise ConfigError(f"The launch node '{self.launch_node}' is not one of the selected hosts: {shown}.")

    def repeat(self, inventory: InventorySources, check: str | None = None) -> str:
        """Return the command line that repeats one check, or the whole run."""
        via = self.via or self.pods
        named = via is None or not via.names_nodes
        words = ["clusterctl", "validate", *(inventory.arguments if named else ())]
        words += via.words if via is not None else []
        if self.suite.name != DEFAULT:
            words += ["--suite", self.suite.name]
        if self.suite.path and Path(self.suite.path).parent not in {path.parent for path in inventory.paths}:
            words += ["--suite-file", self.suite.path]
        given = {
            "--limit": self.inventory.limit,
            "--user": self.inventory.user,
            "--private-key": self.inventory.private_key,
            "--launch-node": self.launch_node,
            "--timeout": None if self.timeout_s is None else f"{self.timeout_s:g}",
            "--patience": f"{self.patience_s:g}" if self.patience_s else None,
        }
        for option, value in given.items():
            words += [] if value is None else [option, value]
        words += self.path.words
        words += [] if self.gate else ["--no-gate"]
        words += ["--skip-busy"] if self.skip_busy else []
        return shlex.join([*words, *(["--checks", check] if check else [])])
