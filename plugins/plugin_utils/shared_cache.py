# SPDX-License-Identifier: Apache-2.0
"""Take a pack from a shared cache, by the program clusterctl, which verifies its signature and its hash."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MOST_WORDS = 600
_BEGINNING = "clusterctl: "


@dataclass(frozen=True)
class SharedCache:
    """The shared cache of an inventory."""

    where: str
    signers: str
    program: tuple[str, ...]  # empty where this controller has no clusterctl

    @staticmethod
    def of(value: Callable[[str], Any]) -> SharedCache | None:
        """Return the shared cache; None without one.

        Args:
            value: of a variable; empty where it is not set.
        """
        where = str(value("cluster_cache") or "")
        if not where:
            return None
        given = value("cluster_cache_program") or ()
        found = shutil.which("clusterctl")
        program = tuple(str(word) for word in given) if given else (found,) if found else ()
        return SharedCache(where, str(value("cluster_cache_signers") or ""), program)

    def pull(self, tree: str, cache_dir: Path) -> str:
        """Bring a pack into a cache folder, if the shared cache has it; returns why it was not taken, or ''.

        Args:
            tree: the name of the artifact's folder.
            cache_dir: the cache folder of the controller.
        """
        if not self.program:
            return "this controller has no program 'clusterctl', which verifies signatures; install it beside ansible."
        argv = [*self.program, "cache", "pull", f"--pack={tree}", f"--into={cache_dir}"]
        argv += [f"--signers={self.signers}"] if self.signers else []
        done = subprocess.run(
            [*argv, "--", self.where],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
            env={**os.environ, "COLUMNS": "100000"},
        )
        if done.returncode == 0:
            return ""
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        told = next((line for line in lines if line.startswith(_BEGINNING)), lines[-1] if lines else "no reason given")
        return told.removeprefix(_BEGINNING)[:_MOST_WORDS]
