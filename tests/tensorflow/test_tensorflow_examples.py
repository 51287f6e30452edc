"""TensorFlow's examples as users start them, on two nodes that have TensorFlow and scikit-learn.

Not part of ``make test``: without a cache, Horovod is compiled once more, which takes minutes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from clusterctl import sandbox as sandboxes

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
EXAMPLES = Path(__file__).parents[2] / "examples"
VARIABLES = {
    "python_env_framework": "tensorflow",
    "python_env_requirements": ["scikit-learn"],
    "nccl_install": "never",
}
RANKS = 4
QUIET = ("-x", "TF_CPP_MIN_LOG_LEVEL=2", "-x", "HOROVOD_CYCLE_TIME=10")


class Start(Protocol):
    def __call__(self, *words: str, ranks: int = RANKS, code: int = 0) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Run an example by its header's line."""
    name = f"tensorflow-{os.getpid()}"
    try:
        box = sandboxes.up(sandboxes.SandboxSpec(name=name, nodes=2))
        variables = box.inventory.parent / "group_vars" / "all.yml"
        variables.parent.mkdir()
        variables.write_text(json.dumps(VARIABLES), encoding="utf-8")
        command = [CLUSTERCTL, "provision", "--yes", "--no-validate", str(box.inventory)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-6000:]

        def run(*words: str, ranks: int = RANKS, code: int = 0) -> subprocess.CompletedProcess[str]:
            command = [CLUSTERCTL, "run", str(box.inventory), "--sync", str(EXAMPLES), "-np", str(ranks), *QUIET]
            done = subprocess.run([*command, "--", "python", *words], capture_output=True, text=True, check=False)
            assert done.returncode == code, f"{done.stdout}{done.stderr}"
            return done

        yield run
    finally:
        sandboxes.down(name)


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("allreduce", "sum 10 and average 2.5 on each of 4 processes"),
        ("broadcast", "weight [0.25 0.25], momentum [-0.25 -0.25] and epoch 7 on each of 4 processes"),
        ("allgather", "10 rows on each of 4 processes, by rank [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]"),
    ],
)
def test_horovod(start: Start, program: str, answer: str) -> None:
    assert start(f"horovod/{program}_tensorflow.py").stdout == f"{answer}: right\n"


def test_the_classifier_learns_and_goes_on_from_its_checkpoint(start: Start) -> None:
    words = ("horovod/classifier_tensorflow.py", "--checkpoint", "/tmp/classifier")  # noqa: S108 - on the node
    first = start(*words, "--epochs", "2").stdout
    assert re.match(r"epoch 0: loss [0-9.]+, accuracy [0-9.]+\nepoch 1: ", first)
    second = start(*words, "--epochs", "5").stdout
    assert second.startswith("epoch 2: ")
    found = re.search(r"accuracy ([0-9.]+) after 5 epochs on 4 processes\n$", second)
    assert found, second
    assert float(found[1]) > 0.93


def test_images_that_are_not_there_are_one_sentence(start: Start) -> None:
    said = start("horovod/classifier_tensorflow.py", "--data", "nowhere", ranks=2, code=1).stderr
    assert len(re.findall("nowhere has no train-images-idx3-ubyte .*; --data takes a folder", said)) == 1
    assert "Traceback" not in said
