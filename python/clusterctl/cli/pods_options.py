"""The options of validate that take its hosts from a job of Kubernetes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, TypeAlias, cast

import typer

from clusterctl.cli import output, slurm_options
from clusterctl.support.errors import ExitCode, ValidationCouldNotRunError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.pods_wish import PodsKind, PodsWish
    from clusterctl.validation.run import ValidationOptions

_PANEL = "In pods of Kubernetes"
_MOST_SLOTS = 1024
KINDS = ("mpijob", "pytorchjob", "runai")


class Reach(str, Enum):
    """How a validation reaches its hosts."""

    SSH = "ssh"
    SLURM = "slurm"
    MPIJOB = "mpijob"
    PYTORCHJOB = "pytorchjob"
    RUNAI = "runai"

    @property
    def without_pods(self) -> slurm_options.Way:
        """The same where it is no kind of pods, else ssh."""
        return slurm_options.Way.SLURM if self is Reach.SLURM else slurm_options.Way.SSH


def _text(name: str, metavar: str, words: str) -> typer.models.OptionInfo:
    return cast("typer.models.OptionInfo", typer.Option(name, metavar=metavar, help=words, rich_help_panel=_PANEL))


Via: TypeAlias = Annotated[
    Reach | None,
    typer.Option(
        "--via",
        help="slurm: run the checks in one allocation of Slurm, without ssh to the nodes. mpijob, pytorchjob, runai: in"
        " pods of an image.",
        rich_help_panel="Inside an allocation",
    ),
]
Image: TypeAlias = Annotated[
    str | None, _text("--image", "IMAGE", "The image of all pods; it brings Python and MPI or PyTorch.")
]
Slots: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--slots", metavar="N", min=1, max=_MOST_SLOTS, help="Ranks of each pod. Default: its GPUs, else 1.",
        rich_help_panel=_PANEL,
    ),
]  # fmt: skip
Gpus: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--gpus-per-node", metavar="N", min=0, max=_MOST_SLOTS, help="GPUs of each pod. Default: none.",
        rich_help_panel=_PANEL,
    ),
]  # fmt: skip
Python: TypeAlias = Annotated[str | None, _text("--python", "PATH", "The image's interpreter. Default: python3.")]
Namespace: TypeAlias = Annotated[str | None, _text("--namespace", "NAME", "Default: the context's own.")]
Project: TypeAlias = Annotated[str | None, _text("--project", "NAME", "Run:AI's project; its namespace is runai-NAME.")]
Context: TypeAlias = Annotated[str | None, _text("--context", "NAME", "Of the kubeconfig. Default: its current one.")]
Kubeconfig: TypeAlias = Annotated[str | None, _text("--kubeconfig", "FILE", "Default: what kubectl takes.")]
Cpus: TypeAlias = Annotated[str | None, _text("--cpus", "N", "Of each pod with ranks.")]
Memory: TypeAlias = Annotated[str | None, _text("--memory", "SIZE", "Of each pod with ranks, such as 64Gi.")]
Rdma: TypeAlias = Annotated[
    list[str] | None,
    _text("--rdma-resource", "NAME=COUNT", "RDMA devices as their plugin calls them; brings IPC_LOCK."),
]
Networks: TypeAlias = Annotated[
    list[str] | None, _text("--network-attachment", "[NAMESPACE/]NAME", "A further network of each pod.")
]
RenderOnly: TypeAlias = Annotated[
    bool, typer.Option("--render-only", help="Print the manifest and end; no cluster is asked.", rich_help_panel=_PANEL)
]
DryRun: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Have the API server check the manifest and the rights, and end; nothing is created.",
        rich_help_panel=_PANEL,
    ),
]  # fmt: skip


@dataclass(frozen=True)
class PodsGiven:
    """What the command line has of these options."""

    image: str | None = None
    slots: int | None = None
    gpus_per_node: int | None = None
    python: str | None = None
    namespace: str | None = None
    project: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
    cpus: str | None = None
    memory: str | None = None
    rdma: Sequence[str] | None = None
    networks: Sequence[str] | None = None
    render_only: bool = False
    dry_run: bool = False

    @property
    def named(self) -> dict[str, object]:
        """The options that are given, by name."""
        other = {"rdma": "--rdma-resource", "networks": "--network-attachment"}
        return {
            other.get(name, f"--{name.replace('_', '-')}"): value
            for name, value in vars(self).items()
            if value not in (None, False)
        }


def wish(
    via: Reach | None,
    given: PodsGiven,
    *,
    nodes: int | None,
    time: str | None,
    start_within: str | None,
    others: Mapping[str, object],
) -> PodsWish | None:
    """Return how Kubernetes is asked for pods, None where it is not.

    Args:
        via: how the nodes are reached.
        given: the options of pods.
        nodes: how many pods have ranks.
        time: limit of the job.
        start_within: limit of its wait.
        others: further options that are given and mean nothing here, by name.

    Raises:
        BadParameter: an option is missing, has no meaning here, or is not what it takes.
    """
    from clusterctl.model.pods_wish import PYTHON, PodsWish  # noqa: PLC0415 - see cli.main
    from clusterctl.model.slurm_wish import AN_HOUR_S, START_WITHIN_S  # noqa: PLC0415 - see cli.main

    kind = via.value if via is not None else ""
    if kind not in KINDS:
        if given.named:
            raise typer.BadParameter(
                f"it needs --via {', '.join(KINDS[:-1])} or {KINDS[-1]}", param_hint=next(iter(given.named))
            )
        return None
    alone = next((name for name, value in others.items() if value), "")
    if alone:
        raise typer.BadParameter(f"it does not apply to --via {kind}", param_hint=alone)
    if given.image is None:
        raise typer.BadParameter(f"--via {kind} needs the image of its pods", param_hint="--image")
    if nodes is None:
        raise typer.BadParameter(f"--via {kind} needs to know how many pods have ranks", param_hint="--nodes")
    time_s, start_within_s = slurm_options.times(time, start_within, AN_HOUR_S, START_WITHIN_S)
    return PodsWish(
        kind=cast("PodsKind", kind),
        image=given.image,
        nodes=nodes,
        slots=given.slots,
        gpus_per_node=given.gpus_per_node or 0,
        python=given.python or PYTHON,
        namespace=given.namespace or "",
        project=given.project or "",
        context=given.context or "",
        kubeconfig=given.kubeconfig or "",
        time_s=time_s,
        start_within_s=start_within_s,
        cpus=given.cpus or "",
        memory=given.memory or "",
        rdma=dict(_counted(word) for word in given.rdma or ()),
        networks=tuple(given.networks or ()),
    )


def shown(asked: ValidationOptions, pods: PodsWish, given: PodsGiven) -> int | None:
    """Print the manifest or have the API server check it, where that is all; None where the validation goes on.

    Raises:
        ClusterctlError: the API server refuses it, or nothing can be submitted from this machine.
    """
    from clusterctl.remote.kubectl import Kubectl  # noqa: PLC0415 - see cli.main
    from clusterctl.validation import via_pods  # noqa: PLC0415 - see cli.main

    cannot = Kubectl(pods.kubeconfig, pods.context).cannot_submit
    if given.render_only or (cannot and not given.dry_run):
        sys.stdout.write(via_pods.prepared(asked, pods)[1].text)
        if given.render_only:
            return ExitCode.OK
    if cannot:
        raise ValidationCouldNotRunError(
            f"Nothing was submitted, because {cannot}; give --kubeconfig, or pass the manifest of --render-only to "
            "'kubectl create -f -' elsewhere."
        )
    if not given.dry_run:
        return None
    kubectl = via_pods.cluster(pods)
    _, job = via_pods.prepared(asked, pods)
    via_pods.checked(kubectl, job)
    output.say(
        f"The API server of context '{kubectl.context}' accepts the {job.kind} in namespace '{kubectl.namespace}'; "
        "nothing was created."
    )
    return ExitCode.OK


def _counted(word: str) -> tuple[str, int]:
    name, sign, count = word.partition("=")
    if not sign or not name or not (count.isascii() and count.isdigit()):
        raise typer.BadParameter(f"{word!r} is not NAME=COUNT", param_hint="--rdma-resource")
    return name, int(count)
