from __future__ import annotations

import subprocess

import pytest
from clusterctl.launch import torchrun
from clusterctl.model.layout import DEFAULT_LAYOUT
from clusterctl.support.errors import ConfigError


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
