"""The text that hands a job to an existing scheduler: Run:AI's commands, two of Kubeflow's manifests, a Slurm script.

Inside, ``clusterctl launch`` reads what the scheduler sets; only MPIJob's launcher starts the ranks itself, by mpirun.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from clusterctl.launch import nccl_options, srun, submission
from clusterctl.launch.submission import refuse
from clusterctl.launch.torchrun import DEFAULT_PORT
from clusterctl.model.layout import DEFAULT_LAYOUT, Layout
from clusterctl.model.slurm_drain_choice import OF_CHECK_NODE
from clusterctl.support.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.launch.submission import Submission


_POLICY = {"cleanPodPolicy": "Running"}


def runai(job: Submission) -> str:
    """Return the command line that submits the job to Run:AI (its command line since 2.18), quoted for a shell.

    Raises:
        ConfigError: a value is malformed, missing, or means nothing to Run:AI.
    """
    return _runai_line(
        job,
        ["runai", "training", "pytorch", "submit", job.name],
        gpus="--gpu-devices-request",
        capability="--capability",
        cpus="--cpu-core-request",
        memory="--cpu-memory-request",
        of_master=True,
    )


def runai_submit_dist(job: Submission) -> str:
    """Return the command line for Run:AI's older client (``runai submit-dist pytorch``, since 2.10).

    It gives the master the same resources as a worker.

    Raises:
        ConfigError: a value is malformed, missing, or means nothing to Run:AI.
    """
    return _runai_line(
        job,
        ["runai", "submit-dist", "pytorch", "--name", job.name],
        gpus="--gpu",
        capability="--add-capability",
        cpus="--cpu",
        memory="--memory",
        of_master=False,
    )


def _runai_line(
    job: Submission, start: Sequence[str], *, gpus: str, capability: str, cpus: str, memory: str, of_master: bool
) -> str:
    """Return a command line of one of Run:AI's clients, which differ in their words for the same things."""
    refuse(
        job,
        start[1] if start[1] == "submit-dist" else "runai",
        ("namespace", "partition", "account", "time", "by_torchrun", "by_srun", "shm_size"),
    )
    line = [*start, *(["--project", job.project] if job.project else []), "--image", job.image]
    # The first node is the master's pod; all of them train.
    line += ["--workers", str(job.nodes - 1)] if job.nodes > 1 else []
    several = of_master and job.nodes > 1
    if job.gpus_per_node:
        line += [gpus, str(job.gpus_per_node)]
        line += [f"--master-{gpus.removeprefix('--')}", str(job.gpus_per_node)] if several else []
    for name, count in job.rdma.items():
        line += ["--extended-resource", f"{name}={count}"]
        line += ["--master-extended-resource", f"{name}={count}"] if several else []
    for name, value in submission.pod_annotations(job).items():
        line += ["--annotation", f"{name}={value}"]
    line += [capability, "IPC_LOCK"] if job.rdma else []
    line += [cpus, job.cpus] if job.cpus else []
    line += [memory, job.memory] if job.memory else []
    line += ["--working-dir", job.working_dir] if job.working_dir else []
    for name, value in job.variables.items():
        line += ["-e", f"{name}={submission.literal(value)}"]
    line += ["--large-shm", "--command", "--", *map(submission.literal, _in_pod(job))]
    return shlex.join(line)


def pytorchjob(job: Submission) -> str:
    """Return a PyTorchJob (kubeflow.org/v1) as YAML.

    ``nprocPerNode`` is left out on purpose: with it the operator's ``WORLD_SIZE`` counts processes instead of pods.

    Raises:
        ConfigError: a value is malformed, missing, or means nothing to Kubeflow.
    """
    refuse(job, "pytorchjob", ("project", "partition", "account", "time", "by_torchrun", "by_srun"))
    return submission.text(submission.pytorchjob(job, _in_pod(job), job.variables, _POLICY))


def mpijob(job: Submission) -> str:
    """Return an MPIJob (kubeflow.org/v2beta1) as YAML.

    By default its launcher starts ``nproc_per_node`` ranks a pod with mpirun, for MPI and Horovod programs; with
    ``by_torchrun`` one ``clusterctl launch`` a pod. The workers' pods run what the operator gives them, sshd.

    Raises:
        ConfigError: a value is malformed, missing, or means nothing to Kubeflow.
    """
    refuse(job, "mpijob", ("project", "partition", "account", "time", "by_srun"), by_launch=job.by_torchrun)
    slots = job.nproc_per_node or job.gpus_per_node
    if not slots and not job.by_torchrun:
        raise ConfigError("An MPIJob needs to know its ranks; give --nproc-per-node, or --gpus-per-node.")
    line = ["mpirun", "-np", str(job.nodes * (1 if job.by_torchrun else slots)), "--bind-to", "none"]
    line += ["--map-by", "ppr:1:node" if job.by_torchrun else "slot"]
    handed_on = {**({} if job.by_torchrun else nccl_options.variables(job.nccl)), **job.environment}
    if job.by_torchrun:
        handed_on = {
            "MASTER_ADDR": f"{job.name}-worker-0.{job.name}",
            "MASTER_PORT": str(DEFAULT_PORT),
            **handed_on,
        }
    for name in ("PATH", "LD_LIBRARY_PATH", *handed_on):
        line += ["-x", name]
    line += _in_pod(job) if job.by_torchrun else list(job.program)
    line = list(job.program) if job.is_idle else line
    slots = 1 if job.by_torchrun else slots
    return submission.text(submission.mpijob(job, slots, line, handed_on, _POLICY))


def slurm(job: Submission) -> str:
    """Return a batch script for ``sbatch``, whose srun starts one ``clusterctl launch`` on each node.

    With an image, srun is asked for it as NVIDIA's pyxis understands it (``--container-image``).

    Raises:
        ConfigError: a value is malformed, missing, or means nothing to Slurm.
    """
    elsewhere = ("project", "namespace", "rdma", "networks", "annotations", "shm_size", "by_torchrun")
    refuse(
        job,
        "slurm",
        (*elsewhere, "image") if job.by_srun else elsewhere,
        image=False,
        by_launch=not job.by_srun,
    )
    tasks = (job.nproc_per_node or job.gpus_per_node) if job.by_srun else 1
    if not tasks:
        raise ConfigError("srun needs to know the ranks of a node; give --nproc-per-node, or --gpus-per-node.")
    options = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": tasks,
        "gpus-per-node": job.gpus_per_node or None,
        "cpus-per-task": job.cpus or None,
        "mem": job.memory or None,
        "time": job.time or None,
        "partition": job.partition or None,
        "account": job.account or None,
    }
    step = ["srun", f"--nodes={job.nodes}", f"--ntasks-per-node={tasks}", "--kill-on-bad-exit=1"]
    step += ["--mpi=pmix"] if job.by_srun else []
    # srun has not taken the batch script's --cpus-per-task since Slurm 22.05.
    step += [f"--cpus-per-task={job.cpus}"] if job.cpus else []
    step += [f"--container-image={job.image}"] if job.image else []
    there = "--container-workdir" if job.image else "--chdir"
    step += [f"{there}={job.working_dir}"] if job.working_dir else []
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None]
    lines += ["", "set -euo pipefail", ""]
    variables = {**(dict([srun.FENCE]) if job.by_srun else {}), **job.variables}
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    if job.by_srun:
        lines += [_proof_of_pmix(step, job.nodes * tasks, job.layout), ""]
    return "\n".join([*lines, shlex.join([*step, *(job.program if job.by_srun else _in_pod(job))]), ""])


def _proof_of_pmix(step: Sequence[str], ranks: int, layout: Layout) -> str:
    """Return lines of a script that end it where srun's ranks are not one world: each would be alone and end with 0."""
    cure = "run 'clusterctl doctor', and see 'srun --mpi=list'"
    words = f"srun --mpi=pmix does not start one world of {ranks} ranks; {cure}, or start the program by mpirun."
    return "\n".join(
        (
            f"found=$({shlex.join([*step, layout.hello])} 2>&1) || true",
            f"""if [ "$(grep -c '"size": {ranks},' <<<"$found")" != {ranks} ]; then""",
            f"  printf '%s\\n' \"$found\" {shlex.quote(words)} >&2",
            f"  exit {int(ExitCode.VALIDATION_ERROR)}",
            "fi",
        )
    )


KINDS: Mapping[str, Callable[[Submission], str]] = {
    "runai": runai,
    "runai-submit-dist": runai_submit_dist,
    "mpijob": mpijob,
    "pytorchjob": pytorchjob,
    "slurm": slurm,
}


def _in_pod(job: Submission) -> list[str]:
    if job.is_idle:
        return list(job.program)
    count = [f"--nproc-per-node={job.nproc_per_node}"] if job.nproc_per_node else []
    return ["clusterctl", "launch", *count, *nccl_options.words(job.nccl), "--", *job.program]


# --- The prolog of Slurm that looks at a node before each job, and drains a node that is not fit ----------------------

_PROGRAM = "check_node.py"  # of the role validation
_PYTHON = "/usr/bin/python3"
_UNKNOWN = 11  # the status of a look that was killed
_HEAD = """\
#!/bin/sh
# Prolog of Slurm: it lets a job start where the node is fit, by 'clusterctl render slurm-prolog'.
#
#   install -m 755 THIS /etc/slurm/clusterctl-prolog.sh      on each node
#   Prolog=/etc/slurm/clusterctl-prolog.sh                   in slurm.conf
#
# Epilog and HealthCheckProgram may name the same file. Run it by hand on each node first: it drains an unfit node.
# slurmd runs it as root, and it needs no clusterctl on the node: provision has left the program that it starts.
said=$(timeout --signal=KILL {kill_s:.0f} {python} -I -S {program} --quick --deadline {deadline_s:g} 2>&1) && exit 0
status=$?
node=${{SLURMD_NODENAME:-$(hostname -s)}}
said=${{said:-"$node: the check of the node gave no answer; run '{program} --quick' by hand"}}
said=$(printf '%s' "$said" | tail -n 1)
printf '%s\\n' "$said" >&2
logger -t clusterctl-prolog -- "$said" 2>/dev/null
# Somebody killed the look, which says nothing about the node; the next job's prolog looks again.
[ "$status" -eq {unknown} ] && exit 0
"""
_DRAIN = """\
# slurmd drains a node whose prolog fails as "Prolog error". A reason that the node has already stays.
timeout {kill_s:.0f} scontrol update nodename="$node" state=drain reason="{prefix} ${{said#*: }}"
"""
_END = """\
exit 1
"""


def script(*, with_reason: bool, deadline_s: float, layout: Layout = DEFAULT_LAYOUT) -> str:
    """Return the script.

    With a reason, scontrol drains the node and tells what is wrong; otherwise the prolog only fails. ``deadline_s`` is
    that of the look at the node.
    """
    kill_s, program = deadline_s + 10, layout.program(_PROGRAM)
    head = _HEAD.format(kill_s=kill_s, python=_PYTHON, program=program, deadline_s=deadline_s, unknown=_UNKNOWN)
    return head + (_DRAIN.format(kill_s=kill_s, prefix=OF_CHECK_NODE) if with_reason else "") + _END
