"""Nodes that Slurm owns in tests: its queue, and states of nodes for a while."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from clusterctl.model.results import ValidationRecord
from clusterctl.model.scheduler_options import SlurmOptions
from clusterctl.validation import run as validation
from clusterctl.validation import via_slurm
from validated import Cluster

SUBMIT = "node1"  # Slurm's controller runs there
EMPTY_WITHIN_S = 20.0
CONF = "/etc/slurm/slurm.conf"
AS_USER = ("runuser", "-u", "cluster", "--")
# Ends Slurm's daemons that run here and starts them again, the controller first.
_RESTART = """\
for daemon in slurmctld slurmd; do
  pid_file=/run/$daemon.pid
  if [ -s "$pid_file" ]; then
    kill "$(cat "$pid_file")"
    for _ in $(seq 50); do
      [ -s "$pid_file" ] || break
      sleep 0.2
    done
    "$daemon"
  fi
done
"""


def by_slurm(cluster: Cluster, *checks: str, wish: SlurmOptions | None = None, **options: Any) -> ValidationRecord:
    """Validate in an allocation, without a search."""
    asked = wish or SlurmOptions(submit_host=SUBMIT)
    given = validation.ValidationOptions(
        checks=checks or None, **{"remembered": False, "search": False, "via": asked, **options}
    )
    inventory = None if asked.names_nodes else cluster.box.inventory
    return via_slurm.validate(inventory, given, asked)


def by_srun(cluster: Cluster, *checks: str, mpi: str = "pmix") -> ValidationRecord:
    """Validate in an allocation whose ranks are started by srun."""
    wish = SlurmOptions(submit_host=SUBMIT, launcher="srun", mpi=mpi)
    given = validation.ValidationOptions(checks=checks, remembered=False, search=False, via=wish)
    return via_slurm.validate(cluster.box.inventory, given, wish)


def queue(cluster: Cluster) -> list[str]:
    """Return the jobs that Slurm has, those that end included."""
    return cluster.on(SUBMIT, "squeue", "--noheader", "--format=%i %T %r %N").splitlines()


def is_empty(cluster: Cluster) -> bool:
    """Wait until Slurm has no job; fail with those that it has."""
    until = time.monotonic() + EMPTY_WITHIN_S
    while (jobs := queue(cluster)) and time.monotonic() < until:
        time.sleep(0.3)
    if jobs:
        pytest.fail(f"Slurm's queue has {jobs}")
    return True


def states(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Return state and whole reason of each node."""
    lines = cluster.on(SUBMIT, "sinfo", "--noheader", "--Node", "--format=%N|%T|%E").splitlines()
    return {name: (state, reason) for name, state, reason in (line.split("|", 2) for line in lines)}


def resumed(cluster: Cluster) -> None:
    """Have Slurm take back the nodes that are drained or down."""
    for node, (state, _) in states(cluster).items():
        if state.startswith(("down", "drain")):
            cluster.on(SUBMIT, "scontrol", "update", f"nodename={node}", "state=resume")


def all_take_jobs(cluster: Cluster) -> bool:
    """Wait until every node is idle; fail with the states of those that are not."""
    until = time.monotonic() + EMPTY_WITHIN_S
    while (busy := {n: s for n, s in states(cluster).items() if s[0] != "idle"}) and time.monotonic() < until:
        time.sleep(0.3)
    if busy:
        pytest.fail(f"Slurm's nodes are {busy}")
    return True


@contextlib.contextmanager
def configured(cluster: Cluster, change: Callable[[str], str], *, restart: bool = False) -> Iterator[None]:
    """Have another slurm.conf on all nodes for a while; daemons read it again, or start again."""
    nodes = tuple(node.name for node in cluster.box.nodes)
    before = cluster.on(SUBMIT, "cat", CONF) + "\n"

    def configure(text: str) -> None:
        for node in nodes:
            cluster.on(node, "sh", "-c", 'printf %s "$1" > "$2"', "sh", text, CONF)
        if restart:
            for node in cluster.box.nodes:  # not by nsenter: a job has to stay within the quota of its node
                cluster.engine.run("exec", node.container, "sh", "-ec", _RESTART)
        else:
            cluster.on(SUBMIT, "scontrol", "reconfigure")

    configure(change(before))
    try:
        yield
    finally:
        configure(before)
        all_take_jobs(cluster)


@contextlib.contextmanager
def partition(cluster: Cluster, name: str, *settings: str) -> Iterator[str]:
    cluster.on(SUBMIT, "scontrol", "create", f"partition={name}", "nodes=ALL", *settings)
    try:
        yield name
    finally:
        cluster.on(SUBMIT, "scontrol", "delete", f"partition={name}")


@contextlib.contextmanager
def drained(cluster: Cluster, node: str, reason: str) -> Iterator[None]:
    cluster.on(SUBMIT, "scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")
    try:
        yield
    finally:
        cluster.on(SUBMIT, "scontrol", "update", f"nodename={node}", "state=resume")


@contextlib.contextmanager
def with_job(cluster: Cluster, node: str, *command: str) -> Iterator[None]:
    """Have a job of the cluster's user run on a node; it is cancelled afterwards."""
    options = ("--parsable", "--output=/dev/null", "--chdir=/tmp", f"--nodelist={node}", "--ntasks=2", "--exclusive")
    job = cluster.on(SUBMIT, *AS_USER, "sbatch", *options, f"--wrap=exec {shlex.join(command)}")
    try:
        until = time.monotonic() + EMPTY_WITHIN_S
        while f"{job} RUNNING" not in "\n".join(queue(cluster)):
            assert time.monotonic() < until, queue(cluster)
            time.sleep(0.3)
        yield
    finally:
        cluster.on(SUBMIT, "scancel", job)
        is_empty(cluster)
