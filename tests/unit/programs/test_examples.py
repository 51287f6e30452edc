"""What can be said of the examples without a cluster; that they give right answers is in tests/cluster."""

from __future__ import annotations

import ast
import gzip
import importlib.util
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "examples").rglob("*.py"))
SHARED = ("digits.py", "language_model.py")
PROGRAMS = [path for path in FILES if path.name not in SHARED]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_first_lines_say_how_to_start_it(path: Path) -> None:
    words = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n")
    lines = [line.strip() for line in words if line.strip().startswith("clusterctl run ")]
    assert len(lines) == 1
    options, program = lines[0].split(" -- ")
    assert options.endswith(" --sync examples")
    assert program.split()[-1] == str(path.relative_to(ROOT / "examples"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_knows_nothing_of_clusterctl_and_is_readable_to_the_oldest_python(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 9))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in imported if name.startswith("clusterctl")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_table_names_it(path: Path) -> None:
    assert f"]({path.relative_to(ROOT / 'examples')})" in (ROOT / "examples/README.md").read_text("utf-8")


@pytest.fixture
def digits() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits", ROOT / "examples/horovod/digits.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def idx(values: np.ndarray[Any, Any]) -> bytes:
    return struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, number in (("train", 6), ("t10k", 2)):
        images = np.arange(number * 12).reshape(number, 3, 4)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(number) % 10)))
    return tmp_path


def alone(problem: str | None) -> list[str | None]:
    return [problem]


def test_idx_files_are_read_packed_or_not(digits: ModuleType, folder: Path) -> None:
    images, labels, test_images, test_labels = digits.load(str(folder), 0, alone)
    assert (images.shape, images.dtype, test_images.shape) == ((6, 3, 4), np.float32, (2, 3, 4))
    assert images[5, 2, 3] == np.float32(71 / 255)
    assert (labels.tolist(), test_labels.tolist()) == ([0, 1, 2, 3, 4, 5], [0, 1])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("train-images-idx3-ubyte", None, "has no train-images-idx3-ubyte (nor train-images-idx3-ubyte.gz); --data"),
        ("train-images-idx3-ubyte", b"", "train-images-idx3-ubyte is no idx file of bytes in 3 dimensions"),
        ("train-images-idx3-ubyte", idx(np.zeros((6, 3, 4)))[:-1], "is damaged (71 bytes, where its header"),
        ("t10k-labels-idx1-ubyte.gz", b"no gzip", "t10k-labels-idx1-ubyte.gz is damaged ("),
        ("t10k-labels-idx1-ubyte.gz", gzip.compress(bytes(999))[:-9], "t10k-labels-idx1-ubyte.gz is damaged ("),
        ("t10k-labels-idx1-ubyte.gz", gzip.compress(idx(np.zeros(3))), "has 2 images and 3 labels named t10k-*."),
        ("train-images-idx3-ubyte", idx(np.zeros((6, 12))), "train-images-idx3-ubyte is no idx file"),
    ],
    # Named, since gzip writes the time of day into its bytes, and the workers must collect the same names.
    ids=["missing", "empty", "short", "no gzip", "short gzip", "other number", "other shape"],
)
def test_a_file_that_is_missing_or_damaged_is_named(
    digits: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, says: str
) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        digits.load(str(folder), 3, alone)
    assert ended.value.code == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("rank 3 on ")
    assert says in said


def test_one_process_speaks_for_all_that_cannot_read(
    digits: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        digits.load(str(folder), 1, lambda problem: ["rank 0 on node1: no such folder", problem])
    assert (ended.value.code, capsys.readouterr().err) == (1, "")


def test_scikit_learn_that_is_not_there_is_no_traceback(
    digits: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SystemExit):
        digits.load(None, 0, alone)
    assert "python_env_requirements: [scikit-learn]" in capsys.readouterr().err
