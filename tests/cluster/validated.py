"""Provisioned nodes under validation: what can be asked of them, and the faults that can be planted in them."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from clusterctl import validation
from clusterctl.sandbox import podman

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.result import CheckResult, ValidationEvent, ValidationRecord
    from clusterctl.sandbox import Sandbox

CLUSTERCTL = [sys.executable, "-m", "clusterctl"]
PYTHON = "^/usr/local/python_env[^ ]*/bin/python"
NODES = ("node1", "node2", "node3", "node4")


class Cluster:
    """Four provisioned nodes, and the faults that can be planted in them."""

    def __init__(self, box: Sandbox) -> None:
        self.box, self.engine = box, podman.find()

    def on(self, node: str, *argv: str) -> str:
        return self.engine.text("exec", self.box.node(node).container, *argv)

    def validate(
        self, *checks: str, timeout_s: float | None = None, on_event: Callable[[ValidationEvent], None] | None = None
    ) -> ValidationRecord:
        options = validation.ValidationOptions(checks=checks or None, timeout_s=timeout_s)
        return validation.validate(self.box.inventory, options, on_event)

    def command(self, *options: str) -> list[str]:
        return [*CLUSTERCTL, "validate", str(self.box.inventory), *options]

    def left_behind(self, nodes: tuple[str, ...] = NODES) -> list[str]:
        """Return processes of the cluster's user and files of Open MPI that are on the nodes."""
        script = (
            "ps -u cluster -o comm=,args= | grep -v '^sshd' | grep -v '^ps '; "
            "find /tmp /dev/shm -mindepth 1 -maxdepth 1 -user cluster; true"
        )
        return [f"{node}: {line}" for node in nodes for line in self.on(node, "sh", "-c", script).splitlines()]

    def is_clean(self, nodes: tuple[str, ...] = NODES, within_s: float = 15) -> bool:
        end = time.monotonic() + within_s
        while (left := self.left_behind(nodes)) and time.monotonic() < end:
            time.sleep(0.5)
        assert left == []
        return True

    def when_a_rank_runs(self, node: str, check: str, act: str, after_s: float = 0) -> None:
        """Have the node itself do something to one of its ranks as soon as it has one, or so much later."""
        self.when_there_is(node, f"{PYTHON}.*_checks.py --check {check}", act, after_s)

    def when_there_is(self, node: str, pattern: str, act: str, after_s: float = 0) -> None:
        """Have the node itself do something to the newest process whose command line is like that."""
        found = f"rank=$(pgrep -n -f '{pattern}')"
        script = f"for try in $(seq 3000); do {found} && break; sleep 0.02; done; sleep {after_s}; {found}; {act}"
        self.engine.run("exec", "-d", self.box.node(node).container, "bash", "-c", script)

    @contextlib.contextmanager
    def in_every_python_of(self, node: str, program: str) -> Iterator[None]:
        """Have the cluster's Python on a node run a program of ours at its start, as a broken environment might."""
        site = self.on(node, "sh", "-c", "echo /usr/local/python_env/lib/python3*/site-packages")
        self.on(
            node,
            "sh",
            "-c",
            'printf %s "$1" > "$2/planted.py"; echo import planted > "$2/planted.pth"',
            "sh",
            program,
            site,
        )
        try:
            yield
        finally:
            self.on(node, "rm", f"{site}/planted.py", f"{site}/planted.pth")


def result(record: ValidationRecord, check: str) -> CheckResult:
    return next(found for found in record.checks if found.check == check)
