"""How a validation gets its nodes from Slurm, or its pods from Kubernetes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

AN_HOUR_S = 3600.0
START_WITHIN_S = 300.0


@dataclass(frozen=True)
class SlurmOptions:
    """How a validation gets its nodes from Slurm."""

    partition: str = ""  # Slurm's default partition where it is empty
    account: str = ""  # the user's default account where it is empty
    time_s: float = AN_HOUR_S  # the time limit of the job
    start_within_s: float = START_WITHIN_S  # a job that has not started then is cancelled
    nodes: int | None = None  # how many nodes Slurm chooses; None is all of them
    submit_host: str = ""  # the host that runs Slurm's commands, empty for this machine
    names_nodes: bool = False  # whether Slurm names the nodes, and not an inventory
    launcher: Literal["mpirun", "srun"] = "mpirun"  # what starts the ranks: mpirun, or srun through Slurm's PMIx
    mpi: str = "pmix"  # the type of PMIx that srun takes, one of ``srun --mpi=list``

    @property
    def by_srun(self) -> bool:
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


PodsKind: TypeAlias = Literal["mpijob", "pytorchjob", "runai"]
PYTHON = "python3"


@dataclass(frozen=True)
class PodsOptions:
    """How a validation gets its pods."""

    kind: PodsKind  # an MPIJob, a PyTorchJob, or a PyTorchJob that Run:AI schedules
    image: str  # the image of all pods; it brings Python and MPI or PyTorch
    nodes: int  # how many pods have ranks
    slots: int | None = None  # ranks of each of them; None is one for each GPU, or one
    gpus_per_node: int = 0  # GPUs that each of them asks for
    python: str = PYTHON  # the image's interpreter, as a path or a name in PATH
    namespace: str = ""  # where the job is created; empty is the context's own, and Run:AI's of the project
    project: str = ""  # Run:AI's project
    context: str = ""  # of the kubeconfig; empty is its current one
    kubeconfig: str = ""  # its path; empty is what kubectl takes
    time_s: float = AN_HOUR_S  # limit of the job once its pods run
    start_within_s: float = START_WITHIN_S  # a job whose pods do not run then is deleted
    cpus: str = ""  # of each pod with ranks, as Kubernetes writes it
    memory: str = ""  # of each pod with ranks
    rdma: Mapping[str, int] = field(default_factory=dict)  # extended resources of each pod with ranks
    networks: tuple[str, ...] = ()  # network attachments of each pod with ranks

    @property
    def ranks_per_pod(self) -> int:
        """The ranks of each pod that has any."""
        return self.slots or self.gpus_per_node or 1

    @property
    def place(self) -> str:
        """The namespace that the manifest names, empty for the context's own."""
        return self.namespace or (f"runai-{self.project}" if self.project else "")

    @property
    def names_nodes(self) -> bool:
        """Whether the scheduler names the hosts, and not an inventory."""
        return True

    @property
    def words(self) -> list[str]:
        """The options of the command line that ask for the same."""
        given = {
            "--image": self.image,
            "--nodes": str(self.nodes),
            "--slots": "" if self.slots is None else str(self.slots),
            "--gpus-per-node": str(self.gpus_per_node) if self.gpus_per_node else "",
            "--python": "" if self.python == PYTHON else self.python,
            "--namespace": self.namespace,
            "--project": self.project,
            "--context": self.context,
            "--kubeconfig": self.kubeconfig,
            "--time": "" if self.time_s == AN_HOUR_S else f"{math.ceil(self.time_s / 60)}",
            "--start-within": "" if self.start_within_s == START_WITHIN_S else f"{self.start_within_s:g}",
            "--cpus": self.cpus,
            "--memory": self.memory,
        }
        several = [("--rdma-resource", f"{name}={count}") for name, count in self.rdma.items()]
        several += [("--network-attachment", name) for name in self.networks]
        pairs = [*((name, value) for name, value in given.items() if value), *several]
        return ["--via", self.kind, *(word for pair in pairs for word in pair)]
