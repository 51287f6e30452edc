"""What the check of an installed Horovod makes of real output, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
DATA = REPOSITORY / "tests/data/horovod"


def load(name: str) -> Any:
    loader = SourceFileLoader(name, str(REPOSITORY / "roles/horovod/files/clusterctl-horovod-check"))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


horovod_check = load("horovod_check")
SAID = (DATA / "check-build.txt").read_text()
LDD = (DATA / "ldd.txt").read_text()


def promise(**changes: Any) -> dict[str, Any]:
    return {
        "framework": "pytorch",
        "controllers": ["MPI", "Gloo"],
        "operations": ["MPI", "Gloo"],
        "openmpi_key": "",
        "nccl": "/usr/local/nccl",
        "nccl_key": "",
        "folder": "",
        "taken": False,
        **changes,
    }


def test_what_check_build_ticks_is_read() -> None:
    assert horovod_check.built_in(SAID) == {
        "frameworks": ["PyTorch"],
        "controllers": ["Gloo", "MPI"],
        "operations": ["Gloo", "MPI"],
    }
    horovod_check.compare_build(promise(), SAID)


@pytest.mark.parametrize(
    ("changes", "said", "sentence"),
    [
        ({"framework": "tensorflow"}, SAID, "have the frameworks TensorFlow, and horovodrun --check-build names"),
        ({"operations": ["MPI", "Gloo", "NCCL"]}, SAID, "tensor operations Gloo, MPI, NCCL, and .* names Gloo, MPI"),
        ({"controllers": ["MPI"]}, SAID, "the controllers MPI, and .* names Gloo, MPI"),
        ({}, SAID.replace("[X]", "[ ]"), "the frameworks PyTorch, and .* names none"),
        ({}, "Traceback:\nImportError: no torch\n", "names no Frameworks; it said: ImportError: no torch"),
        ({}, "", "names no Frameworks; it said: nothing"),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], said: str, sentence: str) -> None:
    with pytest.raises(horovod_check.WrongError, match=sentence):
        horovod_check.compare_build(promise(**changes), said)


def test_a_horovod_of_the_user_may_have_more_than_was_asked_for() -> None:
    horovod_check.compare_build(promise(controllers=["MPI"], operations=["MPI"], taken=True), SAID)
    with pytest.raises(horovod_check.WrongError, match=r"tensor operations MPI, NCCL, and .* names Gloo, MPI"):
        horovod_check.compare_build(promise(controllers=["MPI"], operations=["MPI", "NCCL"], taken=True), SAID)


def test_what_the_loader_finds_is_read() -> None:
    libraries = horovod_check.resolved(LDD + "\tlibnccl.so.2 => not found\n")
    assert libraries["libmpi.so.40"] == "/usr/local/openmpi/lib/libmpi.so.40"
    assert libraries["libtorch_cpu.so"].endswith("/torch/lib/libtorch_cpu.so")
    assert libraries["libnccl.so.2"] == ""
    assert "linux-vdso.so.1" not in libraries


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with artifacts below, whose ``ldd`` is what the test writes to the file ``said``."""
    for name, library in (("openmpi", "libmpi.so.40"), ("nccl", "libnccl.so.2"), ("other", "libmpi.so.40")):
        (tmp_path / name / "lib").mkdir(parents=True)
        (tmp_path / name / "lib" / library).touch()
        (tmp_path / name / ".clusterctl.json").write_text(json.dumps({"key": f"key of {name}"}))
    real = horovod_check.subprocess.run

    def run(argv: list[str], **options: Any) -> Any:
        assert argv[0] == "ldd"
        return real(["cat", str(tmp_path / "said")], **{**options, "env": os.environ})

    monkeypatch.setattr(horovod_check.subprocess, "run", run)
    return tmp_path


def linked(folder: Path, *names: str) -> str:
    return "".join(f"\t{name} => {folder}/{place} (0x00007f)\n" for place in names for name in [Path(place).name])


def check(folder: Path, ldd: str, **changes: Any) -> None:
    (folder / "said").write_text(ldd)
    wanted = promise(openmpi_key="key of openmpi", nccl=str(folder / "nccl"), **changes)
    horovod_check.check_libraries(wanted, "mpi_lib.so")


NCCL = {"operations": ["MPI", "Gloo", "NCCL"], "nccl_key": "key of nccl"}


def test_the_cluster_s_own_libraries_pass(libraries: Path) -> None:
    check(libraries, linked(libraries, "openmpi/lib/libmpi.so.40"))
    check(libraries, linked(libraries, "openmpi/lib/libmpi.so.40", "nccl/lib/libnccl.so.2"), **NCCL)
    without_driver = linked(libraries, "openmpi/lib/libmpi.so.40") + "\tlibcuda.so.1 => not found\n"
    check(libraries, without_driver)
    through_the_framework = linked(libraries, "openmpi/lib/libmpi.so.40", "torch/lib/libnccl.so.2")
    check(libraries, through_the_framework)


def test_a_host_without_an_nccl_of_its_own_runs_on_the_framework_s(libraries: Path) -> None:
    ldd = linked(libraries, "openmpi/lib/libmpi.so.40") + "\tlibnccl.so.2 => /opt/torch/libnccl.so.2 (0x0)\n"
    with pytest.raises(horovod_check.WrongError, match=r"/opt/torch/libnccl.so.2, which is no build of the cluster"):
        check(libraries, ldd, **NCCL)
    (libraries / "nccl").rename(libraries / "gone")
    check(libraries, ldd, **NCCL)


@pytest.mark.parametrize(
    ("places", "changes", "sentence"),
    [
        (["other/lib/libmpi.so.40"], {}, "libmpi.so.40, which is of build key of other, not of the installed Open MPI"),
        ([], {}, "was not linked with Open MPI"),
        (["openmpi/lib/libmpi.so.40"], NCCL, "was not linked with NCCL"),
    ],
)
def test_a_wrong_library_is_named(libraries: Path, places: list[str], changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(horovod_check.WrongError, match=sentence):
        check(libraries, linked(libraries, *places), **changes)


def test_a_missing_library_is_named(libraries: Path) -> None:
    with pytest.raises(horovod_check.WrongError, match=re.escape("mpi_lib.so lacks libtorch.so")):
        check(libraries, linked(libraries, "openmpi/lib/libmpi.so.40") + "\tlibtorch.so => not found\n")


def test_a_horovod_of_the_user_may_leave_libraries_to_its_framework(libraries: Path) -> None:
    its = linked(libraries, "openmpi/lib/libmpi.so.40") + "\tlibtensorflow_framework.so.2 => not found\n"
    check(libraries, its, taken=True)
    with pytest.raises(horovod_check.WrongError, match="was not linked with Open MPI"):
        check(libraries, "", taken=True)


def test_horovodrun_runs_in_this_process(tmp_path: Path) -> None:
    program, own = tmp_path / "horovodrun", list(sys.argv)
    program.write_text(
        f"import sys\nif __name__ == '__main__' and sys.argv[1:] == ['--check-build']:\n"
        f"    print(open('{DATA}/check-build.txt').read())\n    sys.exit(0)\n"
    )
    assert horovod_check.built_in(horovod_check.said_by(str(program)))["frameworks"] == ["PyTorch"]
    assert sys.argv == own


def test_a_python_without_horovod_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert horovod_check.main([json.dumps(promise())]) == 1
    said = capsys.readouterr().err
    assert said.startswith("On ")
    assert said.count("\n") == 1
    assert f"{sys.executable} cannot import Horovod with PyTorch: No module named 'horovod'." in said
