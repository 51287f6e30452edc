from __future__ import annotations

import pytest
from clusterctl.launch import mpirun
from clusterctl.support.errors import ConfigError

SLOTS = {"node1": 2, "node2": 2}


MCA = {"mpi_yield_when_idle": "1"}


def launch(version: str, **changed: object) -> mpirun.MpirunLaunch:
    given = {
        "version": version,
        "slots": SLOTS,
        "program": ("true",),
        "job": "run-1-abc",
    }
    return mpirun.MpirunLaunch(**{**given, **changed})  # type: ignore[arg-type]


def test_the_line_for_open_mpi_4_1() -> None:
    line = mpirun.argv(launch("4.1.8", mca=MCA, runtime_mca={"orte_abort_timeout": "3"}, exported=("NCCL_DEBUG",)))
    assert " ".join(line) == (
        "/usr/local/openmpi/bin/mpirun -H node1:2,node2:2 -np 4 --bind-to none --map-by slot "
        "-x CLUSTERCTL_JOB -x NCCL_DEBUG --mca mpi_yield_when_idle 1 --mca orte_abort_timeout 3 "
        "--mca clusterctl_job run-1-abc true"
    )


def test_the_line_for_open_mpi_5_0_gives_the_runtime_its_own_option() -> None:
    line = mpirun.argv(launch("5.0.7", mca=MCA, runtime_mca={"prte_if_include": "eth0"}))
    assert " ".join(line) == (
        "/usr/local/openmpi/bin/mpirun -H node1:2,node2:2 -np 4 --bind-to none --map-by slot "
        "-x CLUSTERCTL_JOB --mca mpi_yield_when_idle 1 --prtemca prte_if_include eth0 "
        "--prtemca clusterctl_job run-1-abc true"
    )


@pytest.mark.parametrize("version", ["4.1.8", "5.0.7"])
def test_one_process_a_node_whatever_its_slots(version: str) -> None:
    line = " ".join(mpirun.argv(launch(version, per_node=True)))
    assert "-np 2 --bind-to none --map-by ppr:1:node -x" in line
    with pytest.raises(ConfigError, match="3 ranks do not fit on 2 nodes, one on each"):
        mpirun.argv(launch(version, per_node=True, ranks=3))


@pytest.mark.parametrize(
    ("version", "words"), [("4.1.8", "--map-by slot --oversubscribe"), ("5.0.11", "--map-by slot:OVERSUBSCRIBE")]
)
def test_more_ranks_than_slots_only_on_purpose(version: str, words: str) -> None:
    with pytest.raises(ConfigError, match="5 ranks do not fit into 4 slots"):
        mpirun.argv(launch(version, ranks=5))
    assert words in " ".join(mpirun.argv(launch(version, ranks=5, oversubscribe=True)))


@pytest.mark.parametrize("version", ["4.1.4", "4.1.8", "5.0.7", "5.0.11", "5.1.0rc2"])
def test_oversubscription_is_never_asked_for_by_default(version: str) -> None:
    assert "oversubscribe" not in " ".join(mpirun.argv(launch(version))).lower()


@pytest.mark.parametrize("version", ["", "4.0.7", "3.1.6", "6.0.0", "five", "5.0.7; rm -rf /"])
def test_a_series_that_nobody_has_tried_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match="of no series that clusterctl can launch"):
        mpirun.argv(launch(version))


def test_an_option_in_place_of_a_variable_is_refused() -> None:
    with pytest.raises(ConfigError, match="not the name of an environment variable"):
        mpirun.argv(launch("5.0.7", exported=("--mca",)))


def test_root_is_allowed_only_when_it_is_root() -> None:
    assert mpirun.environment("5.0.7", "cluster") == {}
    assert mpirun.environment("4.1.8", "root") == {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    assert mpirun.environment("5.0.7", "root")["PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("4.1.4", "--bind-to socket --map-by numa --oversubscribe "),
        ("5.0.7", "--bind-to package --map-by numa:OVERSUBSCRIBE "),
    ],
)
def test_ranks_are_placed_and_kept_as_asked(version: str, words: str) -> None:
    launch = mpirun.MpirunLaunch(
        version, {"a": 1}, ("x",), ranks=2, oversubscribe=True, bind=mpirun.Bind.SOCKET, map_by=mpirun.MapBy.NUMA
    )
    assert words in f"{' '.join(mpirun.argv(launch))} "
