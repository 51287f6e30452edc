"""A corrupted result: a bit flips in what one rank of one node gets from an allreduce, and that node is named."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from clusterctl.model.results import Verdict
from clusterctl.validation import run as validation
from clusterctl.validation import suites
from clusterctl.validation.checks.collectives import SweepOptions
from validated import result

if TYPE_CHECKING:
    from validated import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("mpi")]

SOURCE = Path(__file__).with_name("flip.c")
SUITE = suites.builtin("nightly").model_copy(
    update={"checks": {"collectives": SweepOptions(sizes=(8, 1024), operations=("allreduce", "allgather"))}}
)
LIBRARY = "/opt/clusterctl-flip.so"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    target = tmp_path_factory.mktemp("flip") / "flip.so"
    argv = [compiler, "-Wall", "-Werror", "-O2", "-shared", "-fPIC", "-o", str(target), str(SOURCE), "-ldl"]
    subprocess.run(argv, check=True)
    return target


def test_a_flipped_bit_in_one_rank_s_answer_is_found_and_its_node_is_named(mpi_cluster: Cluster, library: Path) -> None:
    cluster = mpi_cluster
    options = validation.ValidationOptions(suite=SUITE, checks=("allreduce", "collectives"), search=False)
    container = cluster.box.node("node3").container
    cluster.engine.run("cp", str(library), f"{container}:{LIBRARY}")
    try:
        with cluster.with_file("/etc/ld.so.preload", f"{LIBRARY}\n", nodes=("node3",)):
            record = validation.validate(cluster.box.inventory, options)
    finally:
        cluster.on("node3", "rm", LIBRARY)
    answers = result(record, "allreduce")
    assert (answers.verdict, answers.hosts) == (Verdict.FAIL, ("node3",))
    assert answers.reason.startswith("rank 5 on node3: allreduce min i4[1], value 0 (1 of 1 wrong): expected 1, got 0")
    sweep = result(record, "collectives")
    assert (sweep.verdict, sweep.hosts) == (Verdict.FAIL, ("node3",))
    assert sweep.reason.startswith("rank 5 on node3: allreduce of 8 bytes, value 1 (1 of 2 wrong)")
    assert [report.rank for report in sweep.ranks if not report.ok] == [5]
    assert cluster.is_clean()
