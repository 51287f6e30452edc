"""Kubernetes manifests of a job: its pods, an MPIJob and a PyTorchJob around them, and the text of documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from clusterctl.launch.submission import Submission

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NETWORKS = "k8s.v1.cni.cncf.io/networks"  # Multus and its kin attach these networks to the pod
GPU = "nvidia.com/gpu"

# A root's mpirun refuses to start unless told twice, by each series under names of its own.
_AS_ROOT = tuple(f"{name}_ALLOW_RUN_AS_ROOT{end}" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM"))
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a mount point in a manifest


def literal(word: str) -> str:
    """Return a word of a container's command or environment as it has to be written to arrive as it is.

    Kubernetes puts a variable's value in the place of ``$(NAME)`` and one dollar in the place of two.
    """
    return word.replace("$", "$$") if "$$" in word or "$(" in word else word


def variables(given: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the variables of a container."""
    return [{"name": name, "value": literal(value)} for name, value in given.items()]


def pod_annotations(job: Submission) -> dict[str, str]:
    """Return the annotations of a pod, those of its networks included."""
    return {**({NETWORKS: ",".join(job.networks)} if job.networks else {}), **job.annotations}


def pod(job: Submission, container: str, command: Sequence[str], environment: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the template of a pod.

    Args:
        job: gives image, sizes, networks and annotations.
        container: the name of its only container.
        command: what it runs; without one, what its image or an operator says.
        environment: see :func:`variables`.
    """
    limits: dict[str, Any] = {GPU: job.gpus_per_node} if job.gpus_per_node else {}
    limits |= dict(job.rdma)
    limits |= {name: value for name, value in (("cpu", job.cpus), ("memory", job.memory)) if value}
    volume = {"medium": "Memory", **({"sizeLimit": job.shm_size} if job.shm_size else {})}
    parts: dict[str, Any] = {
        "name": container,
        "image": job.image,
        "command": [literal(word) for word in command],
        "workingDir": job.working_dir,
        "env": environment,
        "resources": {"limits": limits} if limits else {},
        # RDMA locks the memory that it works on, which a container may not without being allowed to.
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}} if job.rdma else {},
        # A container's own /dev/shm has 64 MiB, which NCCL and data loaders soon fill.
        "volumeMounts": [{"name": "dshm", "mountPath": _SHARED_MEMORY}],
    }
    template: dict[str, Any] = {"metadata": {"annotations": pod_annotations(job)}} if pod_annotations(job) else {}
    template["spec"] = {
        "containers": [{name: value for name, value in parts.items() if value}],
        "volumes": [{"name": "dshm", "emptyDir": volume}],
    }
    return template


def mpijob(
    job: Submission, slots: int, command: Sequence[str], environment: Mapping[str, str], policy: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an MPIJob (kubeflow.org/v2beta1).

    Args:
        job: names and sizes it.
        slots: the ranks of a worker.
        command: what the launcher runs; the workers run what the operator gives them, sshd.
        environment: of the launcher, beside what lets a root's mpirun start.
        policy: when the job ends and goes away.
    """
    # The launcher's pod computes nothing, so it asks for no GPU and no RDMA.
    alone = Submission(job.name, job.program, job.image, annotations=job.annotations, working_dir=job.working_dir)
    replicas = {
        "Launcher": (1, pod(alone, "launcher", command, variables({**dict.fromkeys(_AS_ROOT, "1"), **environment}))),
        "Worker": (job.nodes, pod(job, "worker", [], [])),
    }
    spec = {"slotsPerWorker": slots, "runPolicy": policy, "mpiReplicaSpecs": _replicas(replicas)}
    return _document("kubeflow.org/v2beta1", "MPIJob", job, spec)


def pytorchjob(
    job: Submission, command: Sequence[str], environment: Mapping[str, str], policy: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a PyTorchJob (kubeflow.org/v1), whose pods all run the command; see :func:`mpijob`.

    ``nprocPerNode`` is left out on purpose: with it the operator's ``WORLD_SIZE`` counts processes instead of pods.
    """
    # The operator looks for that name of a container.
    replicas = {
        kind: (count, pod(job, "pytorch", command, variables(environment)))
        for kind, count in (("Master", 1), ("Worker", job.nodes - 1))
        if count
    }
    spec = {"runPolicy": policy, "pytorchReplicaSpecs": _replicas(replicas)}
    return _document("kubeflow.org/v1", "PyTorchJob", job, spec)


def _replicas(of_kind: Mapping[str, tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    return {
        kind: {"replicas": count, "restartPolicy": "Never", "template": template}
        for kind, (count, template) in of_kind.items()
    }


def _document(version: str, kind: str, job: Submission, spec: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {"name": job.name, **({"namespace": job.namespace} if job.namespace else {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": dict(spec)}


class _Dumper(yaml.SafeDumper):
    """Writes a manifest's parts in full each time; an anchor is what no reader expects."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def text(*documents: Mapping[str, Any]) -> str:
    """Return documents as YAML."""
    return yaml.dump_all(
        [dict(one) for one in documents],
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=1 << 16,
    )
