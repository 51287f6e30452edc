"""The table of commands: name, module and summary of each, their groups, and no other import."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """Where a command's code is, and what it is for in one line."""

    module: str
    attribute: str
    summary: str
    hidden: bool = False  # an old name, which help does not list


COMMANDS = {
    "init": Command("init", "init", "Write a commented example inventory."),
    "provision": Command("provision", "provision", "Make one proven cluster of the inventory's hosts."),
    "rollback": Command("change", "rollback", "Go back to the software that an earlier run left, in seconds."),
    "remove": Command("change", "remove", "Take nodes out of the cluster, also dead ones."),
    "uninstall": Command("change", "uninstall", "Put every node back to what it was before the first provision."),
    "gc": Command("cache", "collect_artifacts", "Remove old versions of artifacts from nodes and from the cache."),
    "cache": Command("cache", "app", "Share compiled software with other controllers, signed."),
    "replace": Command("change", "replace", "Take a machine that was installed anew into the cluster again."),
    "rotate": Command("change", "rotate", "Give all nodes new mesh keys or host keys."),
    "validate": Command("validate", "validate", "Prove the cluster again and name what is wrong."),
    "doctor": Command("doctor", "doctor", "Look at the hosts, change nothing, say what would hurt."),
    "hardware": Command("doctor", "hardware", "Show the parts of a node, and since when it has them."),
    "drift": Command("doctor", "drift", "Say what differs from what the last run left."),
    "check-node": Command("doctor", "check_node", "Say on a node itself whether it is fit for a job."),
    "ca": Command("ca", "app", "Show, renew and revoke the certificates of a cluster's nodes."),
    "run": Command("run", "run", "Start a program on the cluster by mpirun or another launcher."),
    "hostfile": Command("hostfile", "hostfile", "Print the nodes and their slots for another launcher."),
    "jobs": Command("jobs", "app", "List, follow and stop jobs that 'run --detach' has started."),
    "env": Command("env", "app", "List and remove the environments that 'run --project' has installed."),
    "launch": Command("launch", "launch", "Become torchrun inside a pod of an existing scheduler."),
    "render": Command("render", "render", "Print the submission of a job for an existing scheduler."),
    "history": Command("history", "history", "Show the runs of a cluster, their verdicts and what changed."),
    "compare": Command("history", "compare", "Put the figures of two runs side by side."),
    "baseline": Command("history", "app", "Accept, show or reset the runs that figures are compared with."),
    "report": Command("report", "report", "Write the reports of a run: page, JUnit, Prometheus, JSON lines."),
    "nightly": Command("nightly", "app", "Validate every night, check drift, tell when the verdict changes."),
    "sandbox": Command("sandbox", "app", "A cluster of containers on this machine, to try things on."),
    "version": Command("app", "version", "Show the versions of clusterctl and of what it stands on."),
    "inventory-of": Command("doctor", "inventory_of", "The old name of hardware.", hidden=True),
}
GROUPS = {
    "set up": ("init", "provision", "sandbox"),
    "prove": ("validate", "nightly", "doctor", "check-node", "drift"),
    "use": ("run", "jobs", "env", "hostfile", "render", "launch"),
    "change back": ("rollback", "remove", "replace", "rotate", "uninstall", "gc"),
    "look back": ("report", "history", "compare", "baseline", "hardware"),
    "share": ("cache", "ca", "version"),
}
