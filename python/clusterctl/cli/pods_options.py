"""The options of validate that take its hosts from a job of Kubernetes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeAlias, cast

import typer

from clusterctl.cli import options, output, slurm_options
from clusterctl.support.errors import ExitCode, ValidationCouldNotRunError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.cli.slurm_options import SlurmGroup
    from clusterctl.model.scheduler_options import PodsKind, PodsOptions
    from clusterctl.validation.run import ValidationOptions

_MOST_SLOTS = 1024
KINDS = ("mpijob", "pytorchjob", "runai")
_SHARED = frozenset({"--nodes", "--time", "--start-within"})  # options of Slurm that pods have as well


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
    return cast("typer.models.OptionInfo", typer.Option(name, metavar=metavar, help=words))


Via: TypeAlias = Annotated[
    Reach | None,
    typer.Option(
        "--via",
        help="Run the checks in one allocation of 'slurm', without ssh to the nodes, or in pods of an image.",
        rich_help_panel=slurm_options.PANEL,
    ),
]


@dataclass(frozen=True)
class PodsGroup:
    """What a validation asks of Kubernetes."""

    PANEL: ClassVar[str] = "Pods of Kubernetes"
    image: Annotated[
        str | None, _text("--image", "IMAGE", "Run all pods of this image; it brings Python and MPI or PyTorch.")
    ] = None
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            metavar="N",
            min=1,
            max=_MOST_SLOTS,
            help="Each pod has so many ranks. Default: its GPUs, else 1.",
        ),
    ] = None
    gpus_per_node: Annotated[
        int | None,
        typer.Option(
            "--gpus-per-node", metavar="N", min=0, max=_MOST_SLOTS, help="Each pod has so many GPUs. Default: none."
        ),
    ] = None
    python: Annotated[str | None, _text("--python", "PATH", "Use this interpreter of the image. Default: python3.")] = (
        None
    )
    namespace: Annotated[
        str | None, _text("--namespace", "NAME", "Use this namespace. Default: the context's own.")
    ] = None
    project: Annotated[
        str | None, _text("--project", "NAME", "Use this project of Run:AI; its namespace is runai-NAME.")
    ] = None
    context: Annotated[
        str | None, _text("--context", "NAME", "Use this context of the kubeconfig. Default: its current one.")
    ] = None
    kubeconfig: Annotated[
        str | None, _text("--kubeconfig", "PATH", "Use this kubeconfig. Default: the one that kubectl takes.")
    ] = None
    cpus: Annotated[str | None, _text("--cpus", "N", "Each pod with ranks has so many CPUs.")] = None
    memory: Annotated[
        str | None, _text("--memory", "SIZE", "Each pod with ranks has so much memory, such as 64Gi.")
    ] = None
    rdma: Annotated[
        list[str] | None,
        _text(
            "--rdma-resource",
            "NAME=COUNT",
            "Each pod has these RDMA devices, as their plugin calls them, and IPC_LOCK.",
        ),
    ] = None
    networks: Annotated[
        list[str] | None, _text("--network-attachment", "[NAMESPACE/]NAME", "Each pod has this further network.")
    ] = None
    render_only: Annotated[
        bool, typer.Option("--render-only", help="Print the manifest and end; no cluster is asked.")
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Have the API server check the manifest and the rights, and end; nothing is created."
        ),
    ] = False

    def wish(self, via: Reach | None, slurm: SlurmGroup, others: Iterable[str]) -> PodsOptions | None:
        """Return how Kubernetes is asked for pods, None where it is not.

        Args:
            via: how the nodes are reached.
            slurm: number of pods and limits of time; its other options have no meaning here.
            others: further options that are given and have no meaning here.

        Raises:
            BadParameter: an option is missing, has no meaning here, or is not what it takes.
        """
        from clusterctl.model.scheduler_options import AN_HOUR_S, PYTHON, START_WITHIN_S, PodsOptions  # noqa: PLC0415 - see cli.main  # noqa: PLC0415 - see cli.main

        kind = via.value if via is not None else ""
        if kind not in KINDS:
            if given := options.given(self):
                raise typer.BadParameter(
                    f"it needs --via {', '.join(KINDS[:-1])} or {KINDS[-1]}", param_hint=next(iter(given))
                )
            return None
        if alone := next((name for name in (*others, *options.given(slurm)) if name not in _SHARED), ""):
            raise typer.BadParameter(f"it does not apply to --via {kind}", param_hint=alone)
        if self.image is None:
            raise typer.BadParameter(f"--via {kind} needs the image of its pods", param_hint="--image")
        if slurm.nodes is None:
            raise typer.BadParameter(f"--via {kind} needs to know how many pods have ranks", param_hint="--nodes")
        time_s, start_within_s = slurm_options.times(slurm.time, slurm.start_within, AN_HOUR_S, START_WITHIN_S)
        return PodsOptions(
            kind=cast("PodsKind", kind),
            image=self.image,
            nodes=slurm.nodes,
            slots=self.slots,
            gpus_per_node=self.gpus_per_node or 0,
            python=self.python or PYTHON,
            namespace=self.namespace or "",
            project=self.project or "",
            context=self.context or "",
            kubeconfig=self.kubeconfig or "",
            time_s=time_s,
            start_within_s=start_within_s,
            cpus=self.cpus or "",
            memory=self.memory or "",
            rdma=dict(_counted(word) for word in self.rdma or ()),
            networks=tuple(self.networks or ()),
        )


def shown(asked: ValidationOptions, pods: PodsOptions, given: PodsGroup) -> int | None:
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
