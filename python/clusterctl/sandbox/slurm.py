"""A real Slurm in a sandbox: one controller on the first node, slurmd and munge on all; nothing but their daemons.

They run without systemd and without control groups, each with a pid file. The packages are the distribution's.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from clusterctl.support.errors import HostFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from clusterctl.sandbox.container_engine import Podman, Report
    from clusterctl.sandbox.model import Sandbox, SandboxNode

_PACKAGES = ("munge", "slurmd", "slurm-client", "libpmix2")
_CONTROLLER_PACKAGES = ("slurmctld",)
_MOST_CORES = 2  # as many as the inventory has slots
_MEMORY_MB = 1000
_READY_S = 60.0
_POLL_S = 0.3
_KEY = "/etc/munge/munge.key"
# Its arguments are packages. Slurm's plugin for PMIx opens libpmix.so in that folder; only libpmix-dev has that link.
_INSTALL = """\
if ! dpkg-query --show "$@" >/dev/null 2>&1; then
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends "$@" >/dev/null
fi
ln -sf libpmix.so.2 "/usr/lib/$(uname -m)-linux-gnu/pmix2/lib/libpmix.so"
install -d -o slurm -g slurm -m 755 /etc/slurm /var/lib/slurm /var/lib/slurm/slurmctld
install -d -m 755 /var/lib/slurm/slurmd
"""
# Reads a key that all nodes share; the package has made one of its own.
_TAKE_KEY = f"install -o munge -g munge -m 400 /dev/stdin {_KEY}"
# Reads slurm.conf; its arguments are daemons of Slurm. One that runs with the same configuration stays.
_START = """\
runs() {
  [ -s "$1" ] && [ "$(cat "/proc/$(cat "$1")/comm" 2>/dev/null)" = "$2" ]
}
conf=/etc/slurm/slurm.conf
cat >"$conf.new"
same=false
if cmp -s "$conf.new" "$conf"; then same=true; fi
mv "$conf.new" "$conf"
install -d -o munge -g munge -m 755 /run/munge
runs /run/munge/munged.pid munged || setpriv --reuid=munge --regid=munge --clear-groups munged
for daemon in "$@"; do
  if runs "/run/$daemon.pid" "$daemon"; then
    if $same; then continue; fi
    kill "$(cat "/run/$daemon.pid")"
    for _ in 1 2 3 4 5 6 7 8 9 10; do
      runs "/run/$daemon.pid" "$daemon" || break
      sleep 0.5
    done
  fi
  rm -f "/run/$daemon.pid"
  "$daemon"
done
"""


def conf(sandbox: Sandbox, cores: int) -> str:
    """Return slurm.conf: all nodes in one partition, and no more than containers can do.

    The first node is the controller. slurmd drains a node that has fewer ``cores``.
    """
    first = sandbox.nodes[0]
    settings = {
        "ClusterName": sandbox.name,
        "SlurmctldHost": f"{first.name}({first.address})",  # without the address, daemons ask for the name
        "AuthType": "auth/munge",
        "SlurmUser": "slurm",
        "StateSaveLocation": "/var/lib/slurm/slurmctld",
        "SlurmdSpoolDir": "/var/lib/slurm/slurmd",
        "SlurmctldPidFile": "/run/slurmctld.pid",
        "SlurmdPidFile": "/run/slurmd.pid",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",  # task/affinity hangs for a minute in containers
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "MpiDefault": "none",
        "ReturnToService": "1",
        "SlurmdTimeout": "15",
        "PrologFlags": "Alloc",
    }
    hardware = f"Sockets=1 CoresPerSocket={cores} ThreadsPerCore=1 RealMemory={_MEMORY_MB}"
    return "".join(
        [
            *(f"{name}={value}\n" for name, value in settings.items()),
            *(f"NodeName={node.name} NodeAddr={node.address} {hardware}\n" for node in sandbox.nodes),
            "PartitionName=main Nodes=ALL Default=YES State=UP MaxTime=INFINITE\n",
        ]
    )


def cores() -> int:
    """Return the cores that each node has for Slurm; containers see those of the machine."""
    return max(1, min(_MOST_CORES, os.cpu_count() or 1))


def start(
    engine: Podman,
    sandbox: Sandbox,
    each: Callable[[Callable[[SandboxNode], Any], Sequence[SandboxNode]], Any],
    report: Report,
) -> None:
    """Install Slurm on all nodes, start what does not run, and wait until every node takes jobs.

    ``each`` does something to every node, a few at a time.

    Raises:
        HostFailedError: a package, a daemon or a node failed.
    """
    first, others = sandbox.nodes[0], sandbox.nodes[1:]

    def install(node: SandboxNode) -> None:
        own = (*_PACKAGES, *(_CONTROLLER_PACKAGES if node == first else ()))
        engine.run("exec", node.container, "sh", "-ec", _INSTALL, "sh", *own)

    def begin(node: SandboxNode) -> None:
        daemons = ("slurmctld", "slurmd") if node == first else ("slurmd",)
        text = conf(sandbox, cores()).encode()
        engine.run("exec", "--interactive", node.container, "sh", "-ec", _START, "sh", *daemons, stdin=text)

    report("installing Slurm")
    each(install, sandbox.nodes)
    key = engine.run("exec", first.container, "cat", _KEY)
    each(lambda node: engine.run("exec", "--interactive", node.container, "sh", "-ec", _TAKE_KEY, stdin=key), others)
    report("starting Slurm")
    begin(first)
    each(begin, others)
    _wait(engine, first, len(sandbox.nodes))


def waiting_for(text: str, nodes: int) -> str:
    """Return which nodes take no jobs, and why; '' where all do.

    The text has name, state and reason of each node, separated by '|'.
    """
    states = [line.split("|", 2) for line in text.splitlines() if line.count("|") > 1]
    bad = [
        f"{name} is {state} ({reason})" for name, state, reason in states if state not in {"idle", "mixed", "allocated"}
    ]
    return "; ".join(bad) or ("" if len(states) == nodes else f"{len(states)} of {nodes} nodes are known")


def _wait(engine: Podman, first: SandboxNode, nodes: int) -> None:
    deadline = time.monotonic() + _READY_S
    command = ["sinfo", "--noheader", "--Node", "--format=%N|%T|%E"]
    while True:
        answers = engine.succeeds("exec", first.container, *command)
        text = engine.text("exec", first.container, *command) if answers else ""
        why = waiting_for(text, nodes) if answers else "slurmctld does not answer"
        if not why:
            return
        if time.monotonic() > deadline:
            raise HostFailedError(
                f"Slurm is not ready after {_READY_S:.0f} s: {why}. Look at slurmctld with 'podman exec "
                f"{first.container} slurmctld -D -vv', or take the sandbox down and up again."
            )
        time.sleep(_POLL_S)
