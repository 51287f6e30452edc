"""A job for an existing scheduler, and what of it is refused, with a sentence that says what to write instead."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from clusterctl.launch import nccl_options
from clusterctl.model.layout import DEFAULT_LAYOUT, Layout
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_LABEL = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
_DNS_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_NAME = rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*"
_KEY_PART = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_RESOURCE = re.compile(rf"{_DNS_NAME}/{_KEY_PART}")
_KEY = re.compile(rf"(?:{_DNS_NAME}/)?{_KEY_PART}")
_ATTACHMENT = re.compile(rf"(?:{_DNS_LABEL}/)?{_DNS_NAME}(?:@[a-z0-9][a-z0-9.-]{{0,14}})?")
_QUANTITY = re.compile(r"[1-9][0-9]*(?:\.[0-9]+)?(?:m|[kMGTPE]i?)?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@#+-]*")
_SLURM_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,-]*")
_SLURM_TIME = re.compile(r"(?:[0-9]+-)?[0-9]+(?::[0-9]+){0,2}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_LABEL = 63

_OPTIONS = {
    "by_torchrun": "--launcher torchrun",
    "by_srun": "--launcher srun",
    "networks": "--network-attachment",
    "rdma": "--rdma-resource",
}
_OPTIONS |= {"annotations": "--annotation", "shm_size": "--shm-size"}


@dataclass(frozen=True)
class Submission:
    """A job as the user names it; its sizes are those of ``clusterctl run``.

    ``nproc_per_node`` None leaves it to the pod: its GPUs, else its cores. ``rdma`` are extended resources (name and
    count) of each pod, ``networks`` the network attachments, ``annotations`` further ones. ``cpus``, ``memory`` and
    ``shm_size`` are Kubernetes quantities; for Slurm, ``cpus`` is a whole number. ``nccl`` are options of NCCL
    in each pod. ``layout`` says where the software lies on nodes of Slurm.
    """

    name: str
    program: tuple[str, ...]
    image: str = ""
    nodes: int = 1
    gpus_per_node: int = 0
    nproc_per_node: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    rdma: Mapping[str, int] = field(default_factory=dict)
    networks: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    project: str = ""
    cpus: str = ""
    memory: str = ""
    shm_size: str = ""
    working_dir: str = ""
    partition: str = ""
    account: str = ""
    time: str = ""
    by_torchrun: bool = False
    by_srun: bool = False
    nccl: nccl_options.NcclOptions = nccl_options.NO_OPTIONS
    layout: Layout = DEFAULT_LAYOUT

    @property
    def is_idle(self) -> bool:
        """Whether the pods only wait for somebody to exec into them: ``sleep infinity`` is nothing for torchrun."""
        return self.program[:1] == ("sleep",)

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the pods; NCCL's are among them where ``clusterctl launch`` does not run to set them."""
        alone = self.is_idle or self.by_srun
        return {**(nccl_options.variables(self.nccl) if alone else {}), **self.environment}


def refuse(
    job: Submission, kind: str, meaningless: Sequence[str], *, image: bool = True, by_launch: bool = True
) -> None:
    """Raise where a value is missing, malformed, or of no meaning to the scheduler."""
    for name in meaningless:
        if getattr(job, name):
            raise ConfigError(f"{_OPTIONS.get(name, f'--{name}')} does not apply to {kind}; leave it out.")
    if not job.program or not job.program[0]:
        raise ConfigError("There is no program to start; name it behind '--', as in '-- train.py --epochs 3'.")
    if image and not job.image:
        raise ConfigError(f"{kind} needs a container image with clusterctl and PyTorch in it; give --image.")
    if job.nodes < 1 or job.gpus_per_node < 0 or (job.nproc_per_node is not None and job.nproc_per_node < 1):
        raise ConfigError(
            f"A job has one node and one process at least, not {job.nodes} nodes with {job.gpus_per_node} GPUs and "
            f"{job.nproc_per_node} processes."
        )
    _refuse_name(job)
    if job.environment.keys() & {"WORLD_SIZE", "RANK"}:
        raise ConfigError(
            "WORLD_SIZE and RANK are the scheduler's to set, a different one in each pod; leave them out."
        )
    for name in job.environment:
        _match(_VARIABLE, name, "environment variable", "letters, digits and '_'")
    for name, value in {**job.environment, **job.annotations}.items():
        if not value.isprintable():
            raise ConfigError(f"The value of {name} has a control character in it; leave it out.")
    _refuse_nccl(job, by_launch=by_launch)
    _refuse_words(job, whole_cpus=kind == "slurm")


def _refuse_nccl(job: Submission, *, by_launch: bool) -> None:
    nccl_options.refuse(job.nccl)
    launches = by_launch and not job.is_idle
    if job.nccl.gid_index == nccl_options.AUTO and not launches:
        raise ConfigError(
            "--gid-index auto needs 'clusterctl launch' in each pod, which does not run here; give a number."
        )
    twice = nccl_options.variables(job.nccl).keys() & job.environment.keys()
    if twice:
        raise ConfigError(f"{', '.join(sorted(twice))} is given by -x and by an option; leave one of them out.")


def _refuse_name(job: Submission) -> None:
    longest = _LONGEST_LABEL - len(f"-worker-{job.nodes}")
    if not _LABEL.fullmatch(job.name) or len(job.name) > longest:
        raise ConfigError(
            f"{job.name!r} is not a valid name for a job; it has lowercase letters, digits and '-' (RFC 1123), begins "
            f"with a letter, and has {longest} characters at most, since pods and services are named after it."
        )


def _refuse_words(job: Submission, *, whole_cpus: bool) -> None:
    for value, pattern, what, cure in (
        (job.image, _IMAGE, "image", "a reference such as registry/name:tag"),
        (job.namespace, re.compile(_DNS_LABEL), "namespace", "lowercase letters, digits and '-'"),
        (job.project, re.compile(_DNS_LABEL), "project", "lowercase letters, digits and '-'"),
        (job.cpus, re.compile(r"[1-9][0-9]*") if whole_cpus else _QUANTITY, "number of CPUs", "a number such as 8"),
        (job.memory, _QUANTITY, "amount of memory", "a quantity such as 64Gi (64G for Slurm)"),
        (job.shm_size, _QUANTITY, "size of /dev/shm", "a quantity such as 16Gi"),
        (job.partition, _SLURM_WORD, "partition", "a name, or several joined by commas"),
        (job.account, _SLURM_WORD, "account", "a name"),
        (job.time, _SLURM_TIME, "time", "MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS"),
    ):
        if value:
            _match(pattern, value, what, cure)
    if whole_cpus and job.memory.endswith(("i", "m", "k", "E", "P")):
        raise ConfigError(f"{job.memory!r} is not a valid amount of memory for Slurm; write it as 64G.")
    if job.working_dir and not (job.working_dir.startswith("/") and job.working_dir.isprintable()):
        raise ConfigError(
            f"{job.working_dir!r} is not a valid working directory; give its whole path, which begins with '/'."
        )
    for name, count in job.rdma.items():
        _match(_RESOURCE, name, "extended resource", "a name such as rdma/hca_shared_devices_a")
        if count < 1:
            raise ConfigError(f"{count} is not a valid number of {name}; give 1 or more.")
    for network in job.networks:
        _match(_ATTACHMENT, network, "network attachment", "[NAMESPACE/]NAME[@INTERFACE]")
    for name in job.annotations:
        _match(_KEY, name, "annotation's name", "[PREFIX/]NAME")


def _match(pattern: re.Pattern[str], value: str, what: str, cure: str) -> None:
    if not pattern.fullmatch(value):
        raise ConfigError(f"{value!r} is not a valid {what}; give {cure}.")


# --- Kubernetes manifests of a job: its pods, an MPIJob and a PyTorchJob around them, and the text of documents -------

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

    ``command`` is what the container runs; without one, what its image or an operator says.
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

    Command and environment are the launcher's, which has also what lets a root's mpirun start. The workers run what the
    operator gives them, sshd. ``policy`` says when the job ends and goes away.
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
