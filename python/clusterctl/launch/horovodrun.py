"""The horovodrun line of Horovod 0.28, which composes an mpirun line of its own."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.launch import hostfile, mpirun
from clusterctl.model.layout import DEFAULT_LAYOUT
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

# What horovodrun gives mpirun by itself (0.28.1: -mca pml ob1 -mca btl ^openib); mpirun 5.0 takes nothing twice.
_ITS_OWN = ("pml", "btl")


@dataclass(frozen=True)
class HorovodrunLaunch:
    """What is to be launched.

    horovodrun gives the ranks every variable of its own environment, so there is nothing to export here. Without
    ``interfaces`` it looks for some that all nodes can be reached by, which takes it seconds.
    """

    version: str
    slots: Mapping[str, int]
    program: tuple[str, ...]
    job: str = ""
    ranks: int | None = None
    interfaces: tuple[str, ...] = ()
    mca: Mapping[str, str] = field(default_factory=dict)
    oversubscribe: bool = False
    bind: mpirun.Bind = mpirun.Bind.NONE
    map_by: mpirun.MapBy = mpirun.MapBy.SLOT
    directory: str = ""
    horovodrun: str = DEFAULT_LAYOUT.horovodrun


def argv(launch: HorovodrunLaunch) -> list[str]:
    """Return the tokens of the horovodrun line.

    Raises:
        ConfigError: as :func:`mpirun.argv`, or for a parameter that horovodrun sets by itself.
    """
    own = next((name for name in launch.mca if name in _ITS_OWN), None)
    if own is not None:
        raise ConfigError(
            f"horovodrun sets {own} by itself (pml ob1, btl ^openib), and mpirun takes it once only; "
            "use --launcher mpirun for another choice."
        )
    same = mpirun.MpirunLaunch(
        version=launch.version,
        slots=launch.slots,
        program=launch.program,
        ranks=launch.ranks,
        oversubscribe=launch.oversubscribe,
        bind=launch.bind,
        map_by=launch.map_by,
    )
    mpirun.argv(same)  # refuses what no mpirun takes
    speech = mpirun.dialect(launch.version)
    line = [launch.horovodrun, "-np", str(mpirun.count(same)), "-H", hostfile.words(launch.slots)]
    line += ["--network-interfaces", ",".join(launch.interfaces)] if launch.interfaces else []
    more = mpirun.parameters(speech, launch.mca, None, launch.job)
    more += ["--wdir", launch.directory] if launch.directory else []
    chosen = (launch.bind, launch.map_by) != (mpirun.Bind.NONE, mpirun.MapBy.SLOT)
    if chosen or (launch.oversubscribe and speech is mpirun.Dialect.PRRTE):
        line += [f"--binding-args={shlex.join(mpirun.placed(same))}"]
    if launch.oversubscribe and speech is mpirun.Dialect.ORTE:
        more += ["--oversubscribe"]
    # It puts these into a line for a shell as they are.
    line += [f"--mpi-args={shlex.join(more)}"] if more else []
    return [*line, *launch.program]
