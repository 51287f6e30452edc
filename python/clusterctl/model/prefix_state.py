"""What a node says of the folder of the software."""

from __future__ import annotations

from clusterctl.model.base import Fact
from clusterctl.model.layout import DEFAULT_PREFIX


class PrefixState(Fact):
    """The folder of the software.

    ``problem`` says why root must not install there. ``others`` are further folders that hold artifacts. ``trees`` are
    the names of the artifacts' folders, whole or not; None where they could not be read.
    """

    path: str = DEFAULT_PREFIX
    problem: str = ""
    read_only: bool = False
    others: tuple[str, ...] = ()
    trees: tuple[str, ...] | None = None
