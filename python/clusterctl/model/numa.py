"""Type of a NUMA node."""

from __future__ import annotations

from clusterctl.model.base import Fact


class NumaNode(Fact):
    """A NUMA node; ``cores`` that a session may use, each as the list of its hardware threads (``0,64``)."""

    number: int
    cores: tuple[str, ...] = ()
