"""Open MPI that was built with the PMIx of the distribution, which Slurm uses as well: ``srun --mpi=pmix ./hello``.

Debian 12 has PMIx 4.2.2. Open MPI 5.0 needs a newer one, so this is 4.1.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import planting
import pytest
from clusterctl import sandbox as sandboxes
from clusterctl.model.results import Verdict
from slurm_nodes import SUBMIT, by_srun
from validated import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.long]  # a build of Open MPI and a sandbox of its own

NODES = ("node1", "node2")
TIMES = 20
PREFIX = "/usr/lib/x86_64-linux-gnu/pmix2"
HELLO = f"{planting.OPENMPI}/libexec/clusterctl-hello"
AS_USER = ("runuser", "-u", "cluster", "--", "srun", "--nodes=2", "--ntasks-per-node=2", "--chdir=/tmp")
HEADERS = """
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends libpmix-dev >/dev/null
"""


@pytest.fixture(scope="module")
def cluster(sandbox: Callable[..., sandboxes.Sandbox]) -> Cluster:
    """Two nodes that Slurm owns, whose Open MPI was built with Slurm's PMIx."""
    found = Cluster(sandbox("pmix", nodes=len(NODES), extras=("slurm",)))
    for node in NODES:
        found.on(node, "sh", "-ec", HEADERS)
    variables = found.box.inventory.parent / "group_vars" / "all.yml"
    wanted = {**json.loads(variables.read_text()), "openmpi_version": "4.1.4", "openmpi_pmix": "external"}
    variables.write_text(json.dumps(wanted), encoding="utf-8")
    found.provision()
    return found


def test_a_program_is_one_world_by_plain_srun(cluster: Cluster) -> None:
    for _ in range(TIMES):
        said = cluster.on(SUBMIT, *AS_USER, "--mpi=pmix", "sh", "-c", f"{HELLO} 2>&1")
        ranks = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        assert len(said.splitlines()) == len(ranks), said  # not a word of PMIx's
        assert sorted((rank["rank"], rank["size"]) for rank in ranks) == [(number, 4) for number in range(4)], said
        assert {rank["host"] for rank in ranks} == set(NODES)


def test_checks_pass_and_the_record_names_the_pmix(cluster: Cluster) -> None:
    record = by_srun(cluster, "hello", "allreduce", "pairs")
    assert record.verdict is Verdict.PASS, [check.reason for check in record.checks if check.is_bad]
    assert (record.launcher, record.pmix) == ("srun", f"{PREFIX} 4.2.2")
