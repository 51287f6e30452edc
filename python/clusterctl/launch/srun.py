"""The srun line that starts MPI ranks inside an allocation of Slurm, through Slurm's PMIx instead of mpirun."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from clusterctl.launch import mpirun, mpirun_job
from clusterctl.launch.mpirun_job import MpirunLine
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.launch.mpirun_job import Member, MpirunJob

PMIX = "pmix"
# How Slurm's plugin passes a fence of PMIx between nodes. With its default, a rank gets out of the last fence of
# MPI_Init while others are still before it, and these die of its first message.
# On Slurm 22.05 that was 5 of 100 runs, and 0 of 100 with a ring.
FENCE = ("SLURM_PMIX_FENCE", "ring")
# What mpirun tells each rank, and programs read before MPI_Init. Its arguments: the number of ranks, "NODE=RANKS" words
# of the nodes or one number for all, and the program. Slurm names a task's node in SLURMD_NODENAME.
_AS_RANK = (
    'size=$1; local=$2; shift 2; for word in $local; do case $word in "$SLURMD_NODENAME="*) local=${word##*=};; '
    'esac; done; export OMPI_COMM_WORLD_RANK="$SLURM_PROCID" OMPI_COMM_WORLD_SIZE="$size" '
    'OMPI_COMM_WORLD_LOCAL_RANK="$SLURM_LOCALID" OMPI_COMM_WORLD_LOCAL_SIZE="$local"; exec "$@"'
)


def argv(
    slots: Mapping[str, int], program: Sequence[str], mpi: str = PMIX, ranks: int | None = None, directory: str = ""
) -> list[str]:
    """Return the tokens of the srun line, a step of the job that shares its nodes with the job's other steps.

    ``--distribution=arbitrary`` places the n-th rank on the n-th node of the list. Slurm would sort the nodes. The
    slots are by NodeName, in the order of the ranks.

    Raises:
        ConfigError: the program is an option, or there are more ranks than slots.
    """
    if program and program[0].startswith("-"):
        raise ConfigError(f"The program {program[0]!r} is an option; name the program first, then its options.")
    places = mpirun.placement(slots)
    ranks = len(places) if ranks is None else ranks
    if not 0 < ranks <= len(places):
        raise ConfigError(f"{ranks} ranks do not fit into {len(places)} slots; raise slots= on the hosts.")
    places = places[:ranks]
    return [
        "srun",
        "--overlap",
        f"--mpi={mpi}",
        "--distribution=arbitrary",
        f"--nodelist={','.join(places)}",
        f"--ntasks={ranks}",
        "--cpu-bind=none",
        "--kill-on-bad-exit=1",
        "--export=ALL",
        *([f"--chdir={directory}"] if directory else []),
        "sh",
        "-c",
        _AS_RANK,
        "sh",
        str(ranks),
        _local_sizes(places),
        *program,
    ]


def line(
    members: Mapping[str, Member], slots: Mapping[str, int], job: MpirunJob, launch_node: str, mpi: str = PMIX
) -> MpirunLine:
    """Return the srun line of a job, and the variables that take the place of mpirun's parameters.

    ``called`` of a member is Slurm's NodeName. The ranks of ``launch_node`` come first. ``mpi`` is the type of PMIx as
    srun names it.
    """
    here = {name: members[name] for name in slots}
    if (job.path.bind, job.path.map_by) != (mpirun.Bind.NONE, mpirun.MapBy.SLOT):
        raise ConfigError("--bind-to and --map-by are mpirun's; srun starts the ranks here, so leave them out.")
    ordered = mpirun.ordered(dict(slots), launch_node)
    path = mpirun_job.decide(here, ordered, job.path, per_node=job.per_node, workers=job.workers)
    chosen = any(name in job.mca for name in ("pml", "btl"))
    named = {here[name].called or name: 1 if job.per_node else count for name, count in ordered.items()}
    tokens = argv(named, (*path.before, *job.program), mpi, job.ranks, job.directory)
    variables = environment({**({} if chosen else path.mca), **job.mca})
    return MpirunLine(tuple(tokens), {**dict([FENCE]), **variables, mpirun.JOB_VARIABLE: job.job}, path)


def environment(mca: Mapping[str, str]) -> dict[str, str]:
    """Return MCA parameters as the variables that a rank reads; those of mpirun's own runtime mean nothing here."""
    found = {}
    for option, name, value in _triples(mpirun.parameters(mpirun.Dialect.PRRTE, mca)):
        if option != "--prtemca":
            found[f"{'PMIX_MCA' if option == '--pmixmca' else 'OMPI_MCA'}_{name}"] = value
    return found


def _triples(tokens: Sequence[str]) -> list[tuple[str, str, str]]:
    return [(tokens[at], tokens[at + 1], tokens[at + 2]) for at in range(0, len(tokens), 3)]


def _local_sizes(places: Sequence[str]) -> str:
    """Return the ranks of each node as words, or one number where all nodes have the same."""
    counts = Counter(places)
    if len(set(counts.values())) == 1:
        return str(next(iter(counts.values())))
    return " ".join(f"{name}={count}" for name, count in counts.items())
