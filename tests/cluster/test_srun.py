"""Ranks that srun starts through Slurm's PMIx, and the mismatches by which each rank would be alone."""

from __future__ import annotations

import json
from collections.abc import Callable

import planting
import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.diagnosis import doctor
from clusterctl.launch import submission_text
from clusterctl.launch.submission import Submission
from clusterctl.model.results import Verdict
from clusterctl.support.errors import ExitCode, ValidationCouldNotRunError
from slurm_nodes import SUBMIT, by_srun
from validated import Cluster, result

pytestmark = [pytest.mark.cluster, pytest.mark.long]  # a sandbox of its own

NODES = ("node1", "node2")
TIMES = 10
HELLO = "/usr/local/openmpi/libexec/clusterctl-hello"
LIBRARY = "/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so"
# A rank of a check that is to be one of four, as the launcher of a check tells it.
ONE_OF_FOUR = "OMPI_COMM_WORLD_SIZE=4 /usr/local/python_env/bin/python /usr/local/libexec/clusterctl/mpi_checks.py"


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., sandboxes.Sandbox]) -> Cluster:
    """Two provisioned nodes that Slurm owns; its controller runs on the first."""
    found = Cluster(sandbox("srun", nodes=len(NODES), extras=("slurm",)))
    found.provision()
    return found


def test_ranks_are_one_world_through_pmix(cluster: Cluster) -> None:
    record = by_srun(cluster, "hello", "allreduce", "pairs")
    assert record.verdict is Verdict.PASS, [check.reason for check in record.checks if check.is_bad]
    assert (record.launcher, record.via) == ("srun", "slurm")
    assert record.pmix.startswith("internal 5.")
    assert all(result(record, name).command[0] == "srun" for name in ("hello", "allreduce", "pairs"))
    assert [rank.host for rank in result(record, "hello").ranks] == ["node1", "node1", "node2", "node2"]


def test_the_script_of_render_runs_the_program_every_time(cluster: Cluster) -> None:
    """With the default fence of Slurm's plugin, one of twenty runs lost a rank in MPI_Init."""
    job = Submission("hello", (HELLO,), nodes=len(NODES), nproc_per_node=2, by_srun=True)
    script = submission_text.slurm(job).replace("#!/bin/bash\n", "cd /tmp\n", 1)
    for _ in range(TIMES):
        said = cluster.on(SUBMIT, "salloc", "--nodes=2", "--exclusive", "bash", "-c", script)
        assert said.count('"size": 4, "host"') == 4


@pytest.mark.parametrize(
    ("mpi", "says"), [("none", "world of size 1"), ("pmi2", "world of size 1"), ("pmix_v9", "no type")]
)
def test_a_type_without_pmix_is_refused(cluster: Cluster, mpi: str, says: str) -> None:
    with pytest.raises(ValidationCouldNotRunError, match=says) as refused:
        by_srun(cluster, "hello", mpi=mpi)
    assert refused.value.exit_code is ExitCode.VALIDATION_ERROR


def test_a_world_of_size_1_that_ends_with_0_is_a_fault_of_the_rank(cluster: Cluster) -> None:
    alone = cluster.on(SUBMIT, "srun", "--nodes=2", "--chdir=/tmp", "--mpi=none", HELLO)  # it ends with 0
    assert alone.count('"rank": 0, "size": 1,') == len(NODES)
    check = f"{ONE_OF_FOUR} --check allreduce || true"
    said = cluster.on(SUBMIT, "srun", "--nodes=2", "--chdir=/tmp", "--mpi=none", "sh", "-c", check)
    ended = [json.loads(line) for line in said.splitlines() if '"event": "result"' in line]
    assert len(ended) == len(NODES)
    for rank in ended:
        problem = rank["problems"][0]
        assert (rank["ok"], problem["expected"], problem["got"]) == (False, "4", "1")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(f"mv {LIBRARY} {LIBRARY}.aside", f"opens {LIBRARY}, which is missing", id="missing"),
        pytest.param(
            # Slurm's plugin is built for PMIx 4, and its link leads to the PMIx 5 that Open MPI brings.
            f"mv {LIBRARY} {LIBRARY}.aside && ln -s {planting.OPENMPI}/lib/libpmix.so.2 {LIBRARY}",
            f"needs PMIx 4, and {LIBRARY} is PMIx 5.",
            id="another release",
        ),
    ],
)
def test_a_wrong_library_is_named_by_validate_and_by_doctor(cluster: Cluster, change: str, says: str) -> None:
    with planting.changed(cluster, "node2", change, f"mv {LIBRARY}.aside {LIBRARY}"):
        found = result(by_srun(cluster, "hello"), "hello")
        (named,) = (one for one in doctor.examine(cluster.box.inventory).findings if one.check == "slurm pmix")
    for words in (found.reason, f"{named.cause}; {named.cure}"):
        assert says in words
        assert "restart slurmd" in words
    assert (found.verdict, named.hosts) == (Verdict.ERROR, ("node2",))
