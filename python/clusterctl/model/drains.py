"""Reasons that clusterctl gives when it drains a node of Slurm."""

from __future__ import annotations

PREFIX = "clusterctl"
OF_CHECK_NODE = f"{PREFIX} check-node:"
OF_VALIDATE = f"{PREFIX} validate:"
