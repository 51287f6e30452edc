"""``clusterctl render``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from clusterctl.cli import options, output
from clusterctl.launch.nccl_options import OPTIONS, NcclOptions
from clusterctl.support.errors import ExitCode, ValidationCouldNotRunError

if TYPE_CHECKING:
    from clusterctl.launch.submission import Submission


class Kind(str, Enum):
    """What to print; a test holds the submissions among it equal to ``submission_text.KINDS``."""

    RUNAI = "runai"
    RUNAI_SUBMIT_DIST = "runai-submit-dist"
    MPIJOB = "mpijob"
    PYTORCHJOB = "pytorchjob"
    SLURM = "slurm"
    SLURM_PROLOG = "slurm-prolog"


class RenderLauncher(str, Enum):
    """Who starts the ranks of an MPIJob, or of a program of MPI in a Slurm script."""

    MPIRUN = "mpirun"
    TORCHRUN = "torchrun"
    SRUN = "srun"


@dataclass(frozen=True)
class KubernetesGroup:
    """What a manifest of Kubernetes says besides, and who checks it."""

    PANEL: ClassVar[str] = "Kubernetes (runai, runai-submit-dist, mpijob, pytorchjob)"
    rdma_resource: Annotated[
        list[str] | None,
        typer.Option(
            "--rdma-resource",
            metavar="NAME=COUNT",
            help="Give each pod IPC_LOCK and RDMA devices, by their plugin's names, as rdma/hca_shared_devices_a=1.",
        ),
    ] = None
    network_attachment: Annotated[
        list[str] | None,
        typer.Option(
            "--network-attachment",
            metavar="[NAMESPACE/]NAME",
            help="Give each pod this further network (annotation k8s.v1.cni.cncf.io/networks).",
        ),
    ] = None
    annotation: Annotated[
        list[str] | None, typer.Option("--annotation", metavar="NAME=VALUE", help="Give each pod this annotation.")
    ] = None
    namespace: Annotated[
        str, typer.Option("--namespace", metavar="NAME", help="Use this namespace; only for mpijob and pytorchjob.")
    ] = ""
    project: Annotated[str, typer.Option("--project", metavar="NAME", help="Use this project; only for Run:AI.")] = ""
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Have the API server check the manifest first, and create nothing; only for mpijob and pytorchjob.",
        ),
    ] = False
    context: Annotated[
        str,
        typer.Option("--context", metavar="NAME", help="Use this context with --dry-run. Default: the current one."),
    ] = ""
    kubeconfig: Annotated[
        str,
        typer.Option(
            "--kubeconfig", metavar="PATH", help="Use this kubeconfig with --dry-run. Default: what kubectl takes."
        ),
    ] = ""
    shm_size: Annotated[
        str,
        typer.Option(
            "--shm-size", metavar="SIZE", help="Limit /dev/shm to this size. Default: half of the node's memory."
        ),
    ] = ""

    def refuse_unfit(self, kind: Kind) -> None:
        """Refuse options of a dry run where there is none.

        Raises:
            BadParameter: one is given.
        """
        if self.dry_run and kind not in (Kind.MPIJOB, Kind.PYTORCHJOB):
            raise typer.BadParameter("only mpijob and pytorchjob are manifests of Kubernetes", param_hint="--dry-run")
        alone = "--context" if self.context else "--kubeconfig" if self.kubeconfig else ""
        if alone and not self.dry_run:
            raise typer.BadParameter("it needs --dry-run", param_hint=alone)


@dataclass(frozen=True)
class SlurmScriptGroup:
    """What a script for sbatch says besides."""

    PANEL: ClassVar[str] = "Slurm"
    partition: Annotated[str, typer.Option("--partition", metavar="NAME", help="Use this partition.")] = ""
    account: Annotated[str, typer.Option("--account", metavar="NAME", help="Use this account.")] = ""
    time: Annotated[
        str, typer.Option("--time", metavar="TIME", help="Limit the job to this time, as Slurm takes it.")
    ] = ""
    prefix: Annotated[str, typer.Option("--cluster-prefix", metavar="PATH", help=options.PREFIX_HELP)] = ""


@dataclass(frozen=True)
class PrologGroup:
    """What a prolog does with an unfit node."""

    PANEL: ClassVar[str] = "Slurm's prolog (slurm-prolog)"
    reason: Annotated[
        bool,
        typer.Option(
            "--reason/--no-reason",
            help="Drain an unfit node with the cause as its reason, or let the prolog fail and nothing more.",
        ),
    ] = True
    deadline: Annotated[
        float,
        typer.Option("--deadline", metavar="SECONDS", min=1, max=300, help="End the look at a node after so long."),
    ] = 10.0


@dataclass(frozen=True)
class NcclGroup:
    """What NCCL is told in each pod."""

    PANEL: ClassVar[str] = "NCCL in each pod"
    gid_index: Annotated[str, typer.Option("--gid-index", metavar="N|auto", help=OPTIONS["--gid-index"])] = ""
    socket_threads: Annotated[int, typer.Option("--socket-threads", metavar="N", help=OPTIONS["--socket-threads"])] = 0
    sockets_per_thread: Annotated[
        int, typer.Option("--sockets-per-thread", metavar="N", help=OPTIONS["--sockets-per-thread"])
    ] = 0


def render(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help=f"Write for one of these: {', '.join(Kind)}.")],
    pods: KubernetesGroup,
    slurm: SlurmScriptGroup,
    prolog: PrologGroup,
    nccl: NcclGroup,
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- PROGRAM [ARGUMENT…]", help="Start a script, -m MODULE or any command."),
    ] = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Give the job this name.")] = "",
    image: Annotated[
        str,
        typer.Option(
            "--image",
            metavar="IMAGE",
            help="Run in this container, with clusterctl and PyTorch in it; for Slurm, by pyxis.",
        ),
    ] = "",
    nodes: Annotated[
        int, typer.Option("--nodes", metavar="N", min=1, help="Ask for so many pods or nodes; all of them work.")
    ] = 1,
    gpus_per_node: Annotated[
        int, typer.Option("--gpus-per-node", metavar="N", min=0, help="Ask for so many GPUs on each node.")
    ] = 0,
    nproc_per_node: Annotated[
        int | None,
        typer.Option(
            "--nproc-per-node",
            metavar="N",
            min=1,
            help="Start so many processes on each node. Default: the GPUs that it finds.",
        ),
    ] = None,
    launcher: Annotated[
        RenderLauncher,
        typer.Option(
            "--launcher",
            help="Choose what starts the ranks. For mpijob it is mpirun, or one torchrun in each pod. For slurm it is "
            "srun, through PMIx.",
        ),
    ] = RenderLauncher.MPIRUN,
    variables: Annotated[
        list[str] | None,
        typer.Option("-x", metavar="NAME=VALUE", help="Set this variable of the job; repeat it for several."),
    ] = None,
    cpus: Annotated[str, typer.Option("--cpus", metavar="N", help="Ask for so many CPUs on each node or pod.")] = "",
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="Ask for so much memory, such as 64Gi; for Slurm 64G.")
    ] = "",
    working_dir: Annotated[
        str, typer.Option("--working-dir", metavar="PATH", help="Start the program in this folder.")
    ] = "",
) -> int:
    """Print the submission of a job for an existing scheduler, or a prolog that looks at a node before each job.

    runai: a command line, runai-submit-dist: one for the older client; mpijob and pytorchjob: a manifest for
    'kubectl create -f -', which --dry-run has the API server check; slurm: a script for sbatch. In every pod or step
    'clusterctl launch' becomes torchrun, so the image needs clusterctl-launch; only an MPIJob's ranks are started by
    mpirun. '-- sleep infinity' makes idle pods, to exec into. slurm-prolog: a script for Prolog, Epilog and
    HealthCheckProgram of slurm.conf, without PROGRAM.
    """
    pods.refuse_unfit(kind)
    if kind is Kind.SLURM_PROLOG:
        sys.stdout.write(_prolog(program, slurm.prefix, prolog))
        return ExitCode.OK
    from clusterctl.launch import submission_text  # noqa: PLC0415 - see cli.main: --help stays quick
    from clusterctl.launch.submission import Submission  # noqa: PLC0415 - see cli.main: --help stays quick

    job = Submission(
        name=name,
        program=tuple(program or ()),
        image=image,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        nproc_per_node=nproc_per_node,
        environment=_pairs("-x", variables),
        rdma={
            resource: _count(resource, text) for resource, text in _pairs("--rdma-resource", pods.rdma_resource).items()
        },
        networks=tuple(pods.network_attachment or ()),
        annotations=_pairs("--annotation", pods.annotation),
        namespace=pods.namespace,
        project=pods.project,
        cpus=cpus,
        memory=memory,
        shm_size=pods.shm_size,
        working_dir=working_dir,
        partition=slurm.partition,
        account=slurm.account,
        time=slurm.time,
        nccl=NcclOptions(nccl.gid_index, nccl.socket_threads, nccl.sockets_per_thread),
        by_torchrun=launcher is RenderLauncher.TORCHRUN,
        by_srun=launcher is RenderLauncher.SRUN,
        layout=options.layout_of(slurm.prefix),
    )
    text = submission_text.KINDS[kind.value](job)
    if pods.dry_run:
        _have_checked(text, job, pods.kubeconfig, pods.context)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    return ExitCode.OK


def _have_checked(text: str, job: Submission, kubeconfig: str, context: str) -> None:
    """Have the API server check a manifest, without keeping it.

    Raises:
        ClusterctlError: the API server refuses it, or cannot be asked from this machine.
    """
    import yaml  # noqa: PLC0415 - see cli.main

    from clusterctl.remote.kubectl import Kubectl  # noqa: PLC0415 - see cli.main

    kubectl = Kubectl(kubeconfig, context, job.namespace)
    if cannot := kubectl.cannot_submit:
        raise ValidationCouldNotRunError(
            f"The manifest was not checked, because {cannot}; give --kubeconfig, or leave --dry-run out."
        )
    kubectl.resolve()
    kubectl.check(*yaml.safe_load_all(text))
    output.say(
        f"The API server of context '{kubectl.context}' accepts the manifest in namespace '{kubectl.namespace}'; "
        "nothing was created."
    )


def _prolog(program: list[str] | None, prefix: str, prolog: PrologGroup) -> str:
    from clusterctl.launch import submission_text  # noqa: PLC0415 - see cli.main

    if program:
        raise typer.BadParameter("slurm-prolog takes no program", param_hint="PROGRAM")
    layout = options.layout_of(prefix)
    return submission_text.script(with_reason=prolog.reason, deadline_s=prolog.deadline, layout=layout)


def _pairs(option: str, values: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in values or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
        found[name] = value
    return found


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{text!r} of {name} is not a number", param_hint="--rdma-resource")
    return int(text)
