from __future__ import annotations

import subprocess

import pytest
from clusterctl.launch import compose, mpirun, torchrun
from clusterctl.model.layout import DEFAULT_LAYOUT
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
    line = mpirun.argv(launch("4.1.8", mca={**MCA, "orte_abort_timeout": "3"}, exported=("NCCL_DEBUG",)))
    assert " ".join(line) == (
        "/usr/local/openmpi/bin/mpirun -H node1:2,node2:2 -np 4 --bind-to none --map-by slot "
        "-x CLUSTERCTL_JOB -x NCCL_DEBUG --mca mpi_yield_when_idle 1 --mca orte_abort_timeout 3 "
        "--mca clusterctl_job run-1-abc true"
    )


def test_the_line_for_open_mpi_5_0_gives_the_runtime_its_own_option() -> None:
    line = mpirun.argv(launch("5.0.7", mca={**MCA, "prte_if_include": "eth0"}))
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


# --- horovodrun ---


def test_horovodrun_has_ranks_share_slots_on_purpose() -> None:
    for version, words in (
        ("5.0.7", "--binding-args=--bind-to none --map-by slot:OVERSUBSCRIBE"),
        ("4.1.4", "--mpi-args=--oversubscribe"),
    ):
        line = compose.argv(mpirun.MpirunLaunch(version, {"a": 1}, ("x",), ranks=2, oversubscribe=True), "horovodrun")
        assert words in line


@pytest.mark.parametrize(("version", "word"), [("5.0.7", "package"), ("4.1.4", "socket")])
def test_horovodrun_places_ranks_as_asked(version: str, word: str) -> None:
    launch = mpirun.MpirunLaunch(version, {"a": 2}, ("x",), bind=mpirun.Bind.CORE, map_by=mpirun.MapBy.SOCKET)
    line = compose.argv(launch, "horovodrun")
    assert f"--binding-args=--bind-to core --map-by {word}" in line


# --- environment ---


def test_the_callers_nccl_variables_and_values_go_along() -> None:
    caller = {"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring", "SEED": "7", "OTHER": "x"}
    words = compose.of_job(("NCCL_DEBUG=INFO", "SEED", "HERE", "TEXT=a b;c"), caller)
    assert [variable.word for variable in words] == [
        *("PATH", "LD_LIBRARY_PATH", "NCCL_DEBUG=INFO", "NCCL_ALGO=Ring", "SEED=7", "HERE", "TEXT")
    ]
    assert compose.beside(words) == {"TEXT": "a b;c"}


# --- hostfile ---


def test_the_launch_node_comes_first() -> None:
    slots = mpirun.ordered({"node1": 2, "node2": 1, "node3": 4}, "node2")
    assert mpirun.words(slots) == "node2:1,node1:2,node3:4"
    assert mpirun.placement(slots) == ("node2", "node1", "node1", "node3", "node3", "node3", "node3")


# --- torchrun ---


def test_unlike_nodes_have_torchruns_of_their_own_size() -> None:
    spec = torchrun.Torchrun(2, 1, ("train.py", "--nproc-per-node=4"), master_addr="fd00::1", master_port=29500)
    words = torchrun.under_mpirun(spec, (4, 2))
    script, *rest = words[2:]
    assert rest[:3] == ["sh", DEFAULT_LAYOUT.python, "4,2"]
    for rank, count in ((0, 4), (1, 2)):
        shown = subprocess.run(
            ["sh", "-c", script.replace('exec "$python"', 'echo "$python"'), *rest],
            env={"OMPI_COMM_WORLD_RANK": str(rank)}, capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        assert shown[3:5] == [f"--node-rank={rank}", f"--nproc-per-node={count}"]
        assert shown[-3:] == ["--", "train.py", "--nproc-per-node=4"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (("train.py", "-n", "3"), ["--", "train.py", "-n", "3"]),
        (("python", "train.py"), ["--", "train.py"]),
        (("python3", "-m", "package.train", "x"), ["--module", "--", "package.train", "x"]),
        (("-m", "package.train"), ["--module", "--", "package.train"]),
        (("python", "-u", "train.py"), ["--no-python", "--", DEFAULT_LAYOUT.python, "-u", "train.py"]),
        (("/opt/conda/bin/python", "train.py"), ["--no-python", "--", "/opt/conda/bin/python", "train.py"]),
        (("./train.sh",), ["--no-python", "--", "./train.sh"]),
    ],
)
def test_torchrun_takes_scripts_modules_and_commands(program: tuple[str, ...], words: list[str]) -> None:
    line = torchrun.argv(torchrun.Torchrun(1, 2, program))
    assert line[3:] == ["--nnodes=1", "--nproc-per-node=2", "--standalone", *words]


def test_torchruns_rendezvous() -> None:
    spec = torchrun.Torchrun(2, 4, ("a.py",), master_addr="fd00::1", master_port=5, rdzv_id="job")
    assert torchrun.argv(spec)[5:8] == ["--rdzv-backend=c10d", "--rdzv-endpoint=[fd00::1]:5", "--rdzv-id=job"]
    for changed, words in (
        ({"master_addr": "-x"}, "neither a name nor an address"),
        ({"master_port": 0}, "port 0 is not valid"),
        ({"master_addr": ""}, "need a place to meet"),
        ({"node_rank": 2}, "Node rank 2 does not exist"),
        ({"nnodes": 0}, "one node and one process at least"),
        ({"rdzv_id": "a b"}, "is not a valid name"),
        ({"program": ("--rdzv-id",)}, "is an option"),
        ({"program": ()}, "has no program"),
    ):
        with pytest.raises(ConfigError, match=words):
            torchrun.argv(torchrun.Torchrun(**{**spec.__dict__, **changed}))
