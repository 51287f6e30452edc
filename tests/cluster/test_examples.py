"""The examples as users start them: by ``clusterctl run``, on four real nodes. TensorFlow's are in tests/tensorflow."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
from validated import CLUSTERCTL, NODES, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("stack"), pytest.mark.usefixtures("torch_litter")]

EXAMPLES = Path(__file__).parents[2] / "examples"
# Ranks of Horovod ask each other so often whether there is something to do (milliseconds); where they outnumber the
# cores by far, those who ask take the time of those who work.
PATIENT = ("-x", "HOROVOD_CYCLE_TIME=10")
TIMES_4 = ("-np", "4", *PATIENT)


class Start(Protocol):
    def __call__(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]: ...


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def write_digits(folder: Path) -> None:
    """Write MNIST's four files with ten patterns of our own and noise, which a classifier has to tell apart."""
    chance = np.random.default_rng(1)
    patterns = chance.integers(0, 200, (10, 12, 12))
    for part, number in (("train", 1600), ("t10k", 301)):
        labels = chance.integers(0, 10, number)
        images = patterns[labels] + chance.integers(0, 56, (number, 12, 12))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))


@pytest.fixture(scope="module")
def start(stack_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Run an example by its header's line, with more words before ``--`` where they begin with ``-``."""
    folder = tmp_path_factory.mktemp("copy") / "examples"
    shutil.copytree(EXAMPLES, folder)
    (folder / "digits").mkdir()
    write_digits(folder / "digits")
    copied: list[str] = ["--sync", str(folder)]  # once is enough

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [*CLUSTERCTL, "run", str(stack_cluster.box.inventory), *copied, "--timeout", "300", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        copied[:] = ["--chdir", "/home/cluster/clusterctl/examples"]
        assert done.returncode == code, f"{done.stdout}{done.stderr}"
        return done

    yield run
    for node in NODES:
        stack_cluster.on(node, "rm", "-rf", "/home/cluster/clusterctl")


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("point_to_point", "the token came back from 7 ranks with [0 1 2 3 4 5 6 7]"),
        ("broadcast", "[ 0.  1.  4.  9. 16. 25.] on each of 8 ranks"),
        ("scatter", "sums of the rows of 8 ranks: [3.0, 12.0, 21.0, 30.0, 39.0, 48.0, 57.0, 66.0]"),
        ("gather", "36 values of 8 ranks: [0 1 1 2 2 2 3 3 3 3 4 4 4 4 4 5 5 5 5 5 5 6 6 6 6 6 6 6 7 7 7 7 7 7 7 7]"),
        ("reduce", "pi from 8 ranks: 3.141592653590"),
        ("allreduce", "1 + ... + 8 on each of 8 ranks: [36. 36. 36. 36. 36.]"),
    ],
)
def test_mpi(start: Start, program: str, answer: str) -> None:
    assert start("--", "python", f"mpi/{program}.py").stdout == f"{answer}: right\n"


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        pytest.param("allreduce", "sum 10 and average 2.5 on each of 4 processes", marks=pytest.mark.long),
        pytest.param(
            "broadcast",
            "weight [-0.0043, 0.3097, -0.4752], rate 0.1 and epoch 7 on each of 4 processes",
            marks=pytest.mark.long,
        ),
        ("allgather", "10 rows on each of 4 processes, by rank [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]"),
    ],
)
def test_horovod(start: Start, program: str, answer: str) -> None:
    assert start(*TIMES_4, "--", "python", f"horovod/{program}_pytorch.py").stdout == f"{answer}: right\n"


@pytest.mark.long
def test_the_classifier_learns_and_goes_on_from_its_checkpoint(start: Start) -> None:
    words = ("--", "python", "horovod/classifier_pytorch.py", "--data", "digits", "--checkpoint", "digits/saved.pt")
    first = start(*TIMES_4, *words, "--epochs", "1").stdout
    assert re.match(r"epoch 0: loss [0-9.]+, accuracy [0-9.]+ on 301 test images\n", first)
    second = start(*TIMES_4, *words, "--epochs", "2").stdout
    assert second.startswith("epoch 1: ")
    found = re.search(r"accuracy ([0-9.]+) after 2 epochs on 4 processes\n$", second)
    assert found, second
    assert float(found[1]) > 0.95


def test_images_that_are_not_there_are_one_sentence(start: Start) -> None:
    said = start("-np", "2", "--", "python", "horovod/classifier_pytorch.py", code=1).stderr
    assert len(re.findall("scikit-learn are taken, which is not installed; set python_env_requirements", said)) == 1
    assert "Traceback" not in said


def perplexities(text: str) -> list[float]:
    return [float(line.split()[3]) for line in text.splitlines()]


@pytest.mark.long
def test_the_perplexity_of_the_language_model_is_that_of_one_process(start: Start) -> None:
    program = ("language_model/with_horovod.py", "--epochs", "2")
    alone = perplexities(start("-np", "1", "--", "python", *program).stdout)
    assert 3.35 < alone[1] < 5.5 < alone[0] < 15
    together = start(*TIMES_4, "--", "python", *program).stdout
    assert together.endswith(" on 4 rank(s)\n")
    assert perplexities(together) == pytest.approx(alone, rel=1e-8)
    torchrun = ("--launcher", "torchrun", "--nproc-per-node", "1", "--", "python", "language_model/with_ddp.py")
    assert perplexities(start(*torchrun, "--epochs", "2").stdout) == pytest.approx(alone, rel=1e-8)


@pytest.mark.long
def test_a_text_that_cannot_be_shared_out_or_read_is_one_sentence(start: Start) -> None:
    program = ("--", "python", "language_model/with_horovod.py")
    said = start("-np", "3", *program, code=1).stderr
    assert said.count("A total batch of 64 cannot be shared out evenly to 3 processes; change --batch-size.") == 1
    said = start("-np", "2", *program, "--data", "nowhere", code=1).stderr
    assert said.count("nowhere/ptb.train.txt cannot be read") == 1


@pytest.mark.long
def test_a_plain_ddp_script_under_torchrun(start: Start) -> None:
    said = start("--launcher", "torchrun", "--", "python", "torchrun/ddp.py").stdout
    found = re.search(r"^weights \[(.*)\] on each of 8 processes: right$", said, re.MULTILINE)
    assert found, said
    assert [float(word) for word in found[1].split(",")] == pytest.approx([2, -1, 0.5], abs=0.05)
