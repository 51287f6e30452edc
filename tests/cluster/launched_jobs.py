"""Jobs of ``clusterctl run`` that say when they are up, and a node that is killed under one."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

from clusterctl.support.errors import HostFailedError
from validated import CLUSTERCTL, Cluster

UP = "up"
_TRIES = 60


@dataclass(frozen=True)
class Ended:
    """How a job ended, and what it and clusterctl said."""

    code: int
    stdout: str
    stderr: str


@contextlib.contextmanager
def up(cluster: Cluster, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a job, and go on when it has printed the line ``up``."""
    pipe = subprocess.PIPE
    argv = [*CLUSTERCTL, "run", str(cluster.box.inventory), "--timeout", "900", *words]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() == UP:
                    break
            else:
                raise AssertionError(process.communicate()[1])
            yield process
        finally:
            process.terminate()


def ended(process: subprocess.Popen[str]) -> Ended:
    """Wait for the end of a job."""
    stdout, stderr = process.communicate(timeout=600)
    return Ended(process.returncode, stdout, stderr)


@contextlib.contextmanager
def killed(cluster: Cluster, node: str) -> Iterator[None]:
    """Kill a node, and start it again afterwards without what nobody could sweep there."""
    container = cluster.box.node(node).container
    cluster.engine.run("kill", container)
    try:
        yield
    finally:
        cluster.engine.run("start", container)
        cluster.on(node, "sh", "-c", "find /tmp /dev/shm -mindepth 1 -maxdepth 1 -user cluster -exec rm -rf {} +")
        for _try in range(_TRIES):  # until its sshd listens
            with contextlib.suppress(HostFailedError, subprocess.CalledProcessError):
                cluster.on(node, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/22")
                break
            time.sleep(0.5)
