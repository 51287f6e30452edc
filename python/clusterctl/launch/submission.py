"""A job for an existing scheduler, and what of it is refused, with a sentence that says what to write instead."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
