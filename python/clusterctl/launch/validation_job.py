"""The manifests of a validation in pods: an MPIJob or a PyTorchJob of the user's image, and a ConfigMap of programs.

The pods that speak (an MPIJob's launcher, every pod of a PyTorchJob) run ``plugins/module_utils/pod_runner.py``. It
starts the programs of the role ``validation``, which the ConfigMap puts where they lie on provisioned nodes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.launch import submission
from clusterctl.launch.submission import Submission, refuse
from clusterctl.model.layout import DEFAULT_LAYOUT
from clusterctl.support import content
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.scheduler_options import PodsOptions

PROGRAMS = DEFAULT_LAYOUT.programs
RUNNER = "pod_runner"
RUN_LABEL = "clusterctl.io/run"
MANAGED = ("app.kubernetes.io/managed-by", "clusterctl")
RESOURCES = {"MPIJob": "mpijobs.kubeflow.org", "PyTorchJob": "pytorchjobs.kubeflow.org"}
KEPT_S = 600  # a job that nobody deletes goes away so long after its end
_VOLUME = "clusterctl"
_PLAN = "plan.json"
_RUNAI_SCHEDULER = "runai-scheduler"
_MOST_BYTES = 1_000_000  # etcd takes 1.5 MiB of a request, and Kubernetes 1 MiB of a ConfigMap's data


@dataclass(frozen=True)
class PlannedCheck:
    """One check as the pods run it: its program's argv, with the image's own Python first."""

    name: str
    argv: tuple[str, ...]
    deadline_s: float
    per_node: bool = False


@dataclass(frozen=True)
class ValidationJob:
    """What is created in the cluster."""

    name: str
    kind: str  # of the job, such as MPIJob
    job: Mapping[str, Any]  # the job's document
    programs: Mapping[str, Any]  # the ConfigMap's document
    ranks: tuple[str, ...]  # the pods with ranks, in the order of ranks
    speakers: int  # how many pods print results

    @property
    def pod_count(self) -> int:
        """How many pods it has, a launcher without ranks included."""
        return len(self.ranks) + (self.kind == "MPIJob")

    @property
    def resource(self) -> str:
        """The job's resource, as kubectl takes it."""
        return RESOURCES[self.kind]

    @property
    def selector(self) -> str:
        """The label of its pods."""
        return f"{RUN_LABEL}={self.name}"

    def speaks(self, pod: str) -> bool:
        """Tell whether a pod of this name prints results: a worker of an MPIJob does not, whatever its log has."""
        if self.kind == "MPIJob":
            return pod.startswith(f"{self.name}-launcher")
        return pod.removeprefix(f"{self.name}-") in self.ranks

    @property
    def text(self) -> str:
        """Both documents as YAML."""
        return submission.text(self.programs, self.job)

    def owned(self, uid: str) -> dict[str, Any]:
        """Return the ConfigMap that goes away with the job of this uid."""
        owner = {
            "apiVersion": self.job["apiVersion"],
            "kind": self.kind,
            "name": self.name,
            "uid": uid,
            "blockOwnerDeletion": False,
        }
        metadata = {**self.programs["metadata"], "ownerReferences": [owner]}
        return {**self.programs, "metadata": metadata}


def build(name: str, wish: PodsOptions, checks: Sequence[PlannedCheck]) -> ValidationJob:
    """Return the manifests of a validation.

    Raises:
        ConfigError: a value is malformed or missing.
    """
    wanted = _submission(name, wish)
    refuse(wanted, wish.kind, () if wish.kind == "runai" else ("project",))
    if wish.kind == "runai" and not wish.place:
        raise ConfigError("--via runai needs Run:AI's project; give --project, or --namespace.")
    data = {**program_texts(), _PLAN: plan(wish, checks)}
    programs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(name, wish), "data": data}
    if sum(len(text.encode()) for text in data.values()) > _MOST_BYTES:
        raise ConfigError("The programs of the checks do not fit into a ConfigMap; name fewer with --checks.")
    by_mpi = wish.kind == "mpijob"
    if by_mpi:
        job = submission.mpijob(wanted, wish.ranks_per_pod, wanted.program, {}, _policy(wish))
    else:
        job = submission.pytorchjob(wanted, wanted.program, {}, _policy(wish))
    job["metadata"] = _metadata(name, wish)
    for replica in job["spec"]["mpiReplicaSpecs" if by_mpi else "pytorchReplicaSpecs"].values():
        _complete(replica["template"], name, wish)
    ranks = ranked(wish)
    return ValidationJob(name, job["kind"], job, programs, ranks, 1 if by_mpi else len(ranks))


def ranked(wish: PodsOptions) -> tuple[str, ...]:
    """Return the pods with ranks in the order of ranks, by their names behind the job's."""
    if wish.kind == "mpijob":
        return tuple(f"worker-{number}" for number in range(wish.nodes))
    return ("master-0", *(f"worker-{number}" for number in range(wish.nodes - 1)))


def plan(wish: PodsOptions, checks: Sequence[PlannedCheck]) -> str:
    """Return what ``pod_runner.py`` is to do, as JSON."""
    by_mpi = wish.kind == "mpijob"
    return json.dumps(
        {
            "by": "mpirun" if by_mpi else "torchrun",
            "nodes": wish.nodes,
            "ranks_per_pod": wish.ranks_per_pod,
            "python": wish.python,
            "modules": ["mpi4py", "numpy"] if by_mpi else ["torch", "numpy"],
            "gpus": wish.gpus_per_node,
            "start_within_s": wish.start_within_s,
            "checks": [
                {"name": one.name, "argv": list(one.argv), "deadline_s": one.deadline_s, "per_node": one.per_node}
                for one in checks
            ],
        },
        indent=1,
    )


def program_texts() -> dict[str, str]:
    """Return the text of each program that goes into the pods, by its file name."""
    folder = content.role_files("validation")
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
    runner = content.root() / "plugins" / "module_utils" / f"{RUNNER}.py"
    return {**texts, runner.name: runner.read_text(encoding="utf-8")}


def _submission(name: str, wish: PodsOptions) -> Submission:
    return Submission(
        name=name,
        program=(wish.python, f"{PROGRAMS}/{RUNNER}.py", f"{PROGRAMS}/{_PLAN}"),
        image=wish.image,
        nodes=wish.nodes,
        gpus_per_node=wish.gpus_per_node,
        nproc_per_node=wish.ranks_per_pod,
        rdma=wish.rdma,
        networks=wish.networks,
        namespace=wish.namespace,
        project=wish.project,
        cpus=wish.cpus,
        memory=wish.memory,
    )


def _metadata(name: str, wish: PodsOptions) -> dict[str, Any]:
    place = {"namespace": wish.place} if wish.place else {}
    return {"name": name, **place, "labels": {MANAGED[0]: MANAGED[1], RUN_LABEL: name}}


def _policy(wish: PodsOptions) -> dict[str, Any]:
    """Return what ends the job and takes it away where clusterctl is no longer there to do so."""
    limit = math.ceil(wish.start_within_s + wish.time_s)
    return {
        "cleanPodPolicy": "Running",
        "activeDeadlineSeconds": limit,
        "ttlSecondsAfterFinished": KEPT_S,
        **({"backoffLimit": 0} if wish.kind == "mpijob" else {}),  # of the launcher, which waits by itself
    }


def _complete(template: dict[str, Any], name: str, wish: PodsOptions) -> None:
    """Add what every pod has: the label of the run and the folder of the programs."""
    template.setdefault("metadata", {})["labels"] = {MANAGED[0]: MANAGED[1], RUN_LABEL: name}
    spec = template["spec"]
    (container,) = spec["containers"]
    container["volumeMounts"] = [
        *container["volumeMounts"],
        {"name": _VOLUME, "mountPath": PROGRAMS, "readOnly": True},
    ]
    spec["volumes"] = [*spec["volumes"], {"name": _VOLUME, "configMap": {"name": name}}]
    spec["automountServiceAccountToken"] = False
    if wish.kind == "runai":
        spec["schedulerName"] = _RUNAI_SCHEDULER
