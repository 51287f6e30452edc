"""Slurm's PMIx in a validation: types of srun that are refused, nodes that cannot serve it, and ranks left alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from captured_cluster import SLOTS, site
from clusterctl.model.job_outcome import JobOutcome, OutputLine
from clusterctl.model.results import Verdict
from clusterctl.remote import slurm_text
from clusterctl.support.errors import ExitCode, ValidationCouldNotRunError
from clusterctl.validation import run, via_slurm
from clusterctl.validation.checks import judging, registry
from factory import captured_outcome, node
from node_programs import load

ROOT = Path(__file__).parents[3]
# As Slurm 22.05.8 and 18.08 say it (the latter on stderr).
LISTED = (
    "MPI plugin types are...\n\tpmix\n\tnone\n\tcray_shasta\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n"
)
LISTED_BEFORE = "srun: MPI types are...\nsrun: openmpi\nsrun: none\nsrun: pmi2\n"


def test_the_types_of_srun() -> None:
    assert slurm_text.mpi_types(LISTED) == ("pmix", "none", "cray_shasta", "pmi2", "pmix_v4")
    assert slurm_text.mpi_types(LISTED_BEFORE) == ("openmpi", "none", "pmi2")
    assert slurm_text.mpi_types("") == ()


@pytest.mark.parametrize(
    ("wanted", "listed", "says"),
    [
        ("none", LISTED, ["'srun --mpi=none'", "no rank of Open MPI 4.1", "--mpi pmix or pmix_v4"]),
        ("pmi2", LISTED, ["'srun --mpi=pmi2'", "starts each rank as a world of size 1"]),
        ("pmix_v5", LISTED, ["login", "no type 'pmix_v5'", "pmix or pmix_v4"]),
        (
            "pmix",
            LISTED_BEFORE,
            ["login", "no PMIx plugin", "no rank of Open MPI 4.1", "none, pmi2", "leave --launcher srun out"],
        ),
        ("pmix", "", ["no PMIx plugin", "has none"]),
    ],
)
def test_a_type_without_pmix_is_refused_in_one_sentence(wanted: str, listed: str, says: list[str]) -> None:
    with pytest.raises(ValidationCouldNotRunError) as refused:
        via_slurm.refuse_without_pmix(wanted, slurm_text.mpi_types(listed), "login")
    assert all(word in str(refused.value) for word in says)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == ExitCode.VALIDATION_ERROR


def test_pmix_is_not_refused() -> None:
    for wanted in ("pmix", "pmix_v4"):
        via_slurm.refuse_without_pmix(wanted, slurm_text.mpi_types(LISTED), "login")


def slurm(*, found: bool) -> dict[str, Any]:
    return {"plugins": [{"name": "pmix_v4", "opens": "/opt/pmix/lib/libpmix.so", "found": found, "version": "4.2.2"}]}


def test_a_node_without_the_library_cannot_be_reached_by_srun() -> None:
    whole = {f"node{n}": node(f"node{n}", slurm=slurm(found=True)) for n in (1, 2, 3)}
    assert run.srun_cannot(whole) == ""
    assert run.srun_cannot({"node1": node()}) == ""
    damaged = {name: node(name, slurm=slurm(found=False)) for name in ("node2", "node3")}
    said = run.srun_cannot({**whole, **damaged})
    assert said.startswith("node[2-3]: Slurm's plugin pmix_v4 opens /opt/pmix/lib/libpmix.so, which is missing")
    assert "restart slurmd" in said


def test_the_record_names_the_pmix_of_open_mpi() -> None:
    own = {"built_with": "internal", "own": "5.0.5"}
    site_s = {"prefix": "/opt/pmix", "library": "/opt/pmix/lib/libpmix.so.2", "version": "4.2.2"}
    external = {"built_with": "/opt/pmix", "site": site_s}
    assert run.told({"node1": node(pmix=own), "node2": node(pmix=own)}) == "internal 5.0.5"
    assert run.told({"node1": node(pmix=external)}) == "/opt/pmix 4.2.2"
    assert run.told({"node1": node()}) == ""
    both = run.told({"node1": node(pmix=own), "node2": node(pmix=external)})
    assert both == "node1: internal 5.0.5; node2: /opt/pmix 4.2.2"
    in_usr = {"built_with": "external", "site": {**site_s, "prefix": "/usr"}}
    assert run.told({"node1": node(pmix=in_usr)}) == "/usr 4.2.2"


# --- ranks that are worlds of their own -------------------------------------------------------------------------------


def outcome(*lines: str) -> JobOutcome:
    return JobOutcome(
        ending="exited",
        seconds=1.0,
        rc=0,
        argv=("srun", "--mpi=pmix"),
        lines=tuple(OutputLine("stdout", 1.0, text) for text in lines),
    )


def test_a_world_of_size_1_that_ends_with_0_is_a_fail() -> None:
    """Eight ranks by srun without PMIx, as the C program of ``hello`` printed them on nodes."""
    lines = []
    for rank, host in enumerate(name for name, count in SLOTS.items() for _ in range(count)):
        head = {"clusterctl": 1, "event": "started", "check": "hello", "rank": rank, "host": host}
        lines += [json.dumps(head), json.dumps({"rank": 0, "size": 1, "host": host, "library_version": "Open MPI v5"})]
    judgement = registry.select(["hello"])[0].judge(site("healthy-5.0.7"), outcome(*lines))
    assert judgement.verdict is Verdict.FAIL
    assert judgement.reason.startswith("each rank is a world of size 1 instead of 8: srun's PMIx ")
    assert "srun --mpi=list" in judgement.reason


@pytest.mark.parametrize("name", ["healthy-5.0.7", "killed-5.0.7", "stopped-5.0.7"])
def test_ranks_of_one_world_are_not_alone(name: str) -> None:
    assert judging.found(site(name), captured_outcome(name)) is None


@pytest.fixture(scope="module")
def rank_program() -> ModuleType:
    return load("rank_program")


def test_a_rank_notes_a_world_that_is_smaller_than_was_started(
    rank_program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    rank = rank_program.Rank(rank_program.Voice("allreduce"), rank_program.Board(), None)
    rank_program.world_problem(rank)
    assert rank.findings.wrong == 0
    rank.size = 1
    rank_program.world_problem(rank)
    assert rank.code == 1
    assert rank.findings.problems == [{"what": rank_program.WORLD, "expected": "8", "got": "1"}]
