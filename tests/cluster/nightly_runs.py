"""Nights of a cluster in tests: a state folder of the test's own, a schedule that never fires, and the real command."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from clusterctl.nightly import install, scheduler
from clusterctl.state import paths, snapshots
from validated import CLUSTERCTL, Cluster

QUICK = "name: quick\nchecks:\n  hello: true\n"


class Nights:
    """The nights of one cluster, whose state folder knows the cluster's snapshot and nothing else."""

    def __init__(self, cluster: Cluster, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.cluster, self.folder = cluster, folder
        self.inventory = cluster.box.inventory
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state state")}
        snapshot = snapshots.read(paths.cluster_id(self.inventory))
        patch.setenv("XDG_STATE_HOME", self.environment["XDG_STATE_HOME"])
        snapshots.write(paths.cluster_id(self.inventory), snapshot)
        # What is written where is proven apart from this: here it is what a night does.
        self.table = ""
        patch.setattr(scheduler, "no_systemd", lambda _scope: "this test starts the nights itself")
        patch.setattr(scheduler, "_crontab", lambda: self.table)
        patch.setattr(scheduler, "_write_crontab", lambda text: setattr(self, "table", text))

    def enable(self, **options: Any) -> None:
        """Schedule the nights of a suite that is quick; options are those of ``EnableRequest``."""
        suite = self.folder / "validation.yml"
        suite.write_text(QUICK)
        install.enable(
            install.EnableRequest(
                inventory=self.inventory, at="02:00", suite_file=suite, scope="user", wait_s=0.0, **options
            )
        )

    def run(self) -> tuple[int, dict[str, Any]]:
        """Run a night and return its exit code and its record."""
        done = self.command("run", "--format", "json")
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.clusterctl("nightly", *words)

    def clusterctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a verb of the command line on the inventory."""
        argv = [*CLUSTERCTL, *words, str(self.inventory)]
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=self.environment)
