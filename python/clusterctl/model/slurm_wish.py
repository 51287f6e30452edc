"""How a validation gets its nodes from Slurm: partition, account, limits of time, number of nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

AN_HOUR_S = 3600.0
START_WITHIN_S = 300.0


@dataclass(frozen=True)
class SlurmWish:
    """How a validation gets its nodes from Slurm.

    Attributes:
        partition: Slurm's default partition where it is empty.
        account: the user's default account where it is empty.
        time_s: the time limit of the job.
        start_within_s: a job that has not started then is cancelled.
        nodes: how many nodes Slurm chooses; None is all of them.
        submit_host: the host that runs Slurm's commands, empty for this machine.
        names_nodes: whether Slurm names the nodes, and not an inventory.
        launcher: what starts the ranks: mpirun, or srun through Slurm's PMIx.
        mpi: the type of PMIx that srun takes, one of ``srun --mpi=list``.
    """

    partition: str = ""
    account: str = ""
    time_s: float = AN_HOUR_S
    start_within_s: float = START_WITHIN_S
    nodes: int | None = None
    submit_host: str = ""
    names_nodes: bool = False
    launcher: Literal["mpirun", "srun"] = "mpirun"
    mpi: str = "pmix"

    @property
    def by_srun(self) -> bool:
        """Whether srun starts the ranks."""
        return self.launcher == "srun"

    @property
    def words(self) -> list[str]:
        """The options of the command line that ask for the same."""
        given = {
            "--partition": self.partition,
            "--account": self.account,
            "--time": "" if self.time_s == AN_HOUR_S else f"{math.ceil(self.time_s / 60)}",
            "--start-within": "" if self.start_within_s == START_WITHIN_S else f"{self.start_within_s:g}",
            "--nodes": "" if self.nodes is None else str(self.nodes),
            "--submit-host": self.submit_host,
            "--inventory-from": "slurm" if self.names_nodes else "",
            "--launcher": "" if self.launcher == "mpirun" else self.launcher,
            "--mpi": "" if self.mpi == "pmix" else self.mpi,
        }
        return ["--via", "slurm", *(word for pair in given.items() if pair[1] for word in pair)]
