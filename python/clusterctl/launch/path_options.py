"""What a user asks for of a job's path; ``run`` and ``validate`` have the same options and the same defaults."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from clusterctl.launch.mpirun import Bind, MapBy


class Transport(str, Enum):
    """What MPI's messages go through; auto is UCX where every node can, else TCP."""

    AUTO = "auto"
    TCP = "tcp"
    UCX = "ucx"


class Affinity(str, Enum):
    """Whether each rank is kept on the cores and the network port nearest to its GPU."""

    NONE = "none"
    AUTO = "auto"


@dataclass(frozen=True)
class PathOptions:
    """What the user asks for; the default is the same for a run and for a validation."""

    network: Transport = Transport.AUTO
    bind: Bind = Bind.NONE
    map_by: MapBy = MapBy.SLOT
    affinity: Affinity = Affinity.NONE

    @property
    def words(self) -> list[str]:
        """The options that differ from the default, as ``run`` and ``validate`` take them."""
        network = [] if self.network is Transport.AUTO else ["--network", self.network.value]
        bind = [] if self.bind is Bind.NONE else ["--bind-to", self.bind.value]
        map_by = [] if self.map_by is MapBy.SLOT else ["--map-by", self.map_by.value]
        return [*network, *bind, *map_by, *([] if self.affinity is Affinity.NONE else ["--affinity", "auto"])]


NO_PATH_OPTIONS = PathOptions()
