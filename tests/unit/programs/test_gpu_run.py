"""What ``make test-gpu`` does around its GPU: refusing, choosing, planning, judging and writing."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "gpu" / "gpu_run.py"
DATA = ROOT / "tests" / "data" / "gpu"


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_run", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_run"] = module  # dataclasses look there
    before = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


@pytest.fixture(scope="module")
def able(gpu: ModuleType) -> object:
    found = {"torch": "2.13.0+cu130", "torch_cuda": "13.0", "torch_gpus": 1, "torch_nccl": "2.29.7", "numpy": True}
    return gpu.Interpreter("/opt/able/bin/python", "3.12.3", **found)


def machine(gpu: ModuleType, interpreter: object, gpus: int = 1, nccl: str = "2.32.3", mpirun: str = "") -> object:
    return gpu.Machine(("NVIDIA H200",) * gpus, "13.0", interpreter, nccl, "/opt/libnccl.so.2", mpirun)


def test_without_a_gpu_it_says_so_in_one_sentence_and_ends_with_3(tmp_path: Path) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TEST_GPU_OUT": str(tmp_path)}  # also where there is one
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith("This machine has no GPU that can be used: ")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_make_test_gpu_is_no_part_of_make_test() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "\ntest-gpu:  ##" in makefile
    assert "gpu" not in makefile.rpartition("\ntest:")[2].partition("##")[0]


def test_the_first_interpreter_that_can_is_taken(gpu: ModuleType, able: object) -> None:
    bare, cpu = gpu.Interpreter("/a/python"), gpu.Interpreter("/b/python", torch="2.13.0+cpu", numpy=True)
    assert gpu.chosen([bare, cpu, able]) is able
    blind = dataclasses.replace(able, executable="/c/python", torch_gpus=0)
    without_numpy = dataclasses.replace(able, executable="/d/python", numpy=False)
    with pytest.raises(gpu.Refusal) as refusal:
        gpu.chosen([bare, cpu, blind, without_numpy])
    assert str(refusal.value) == (
        "There is a GPU, but no Python to use it: /a/python has no PyTorch (it did not answer); /b/python has PyTorch "
        "2.13.0+cpu, which is no CUDA build; /c/python has PyTorch 2.13.0+cu130 for CUDA 13.0, which sees no GPU; "
        "/d/python has no numpy. Name another one in TEST_GPU_PYTHON."
    )


def test_an_interpreter_is_asked_what_it_has(gpu: ModuleType, tmp_path: Path) -> None:
    found = gpu.asked(sys.executable)
    assert found.python == ".".join(str(part) for part in sys.version_info[:3])
    assert gpu.asked(str(tmp_path / "none")).lack.startswith("has no PyTorch (FileNotFoundError")
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no such thing' >&2\nexit 7\n")
    broken.chmod(0o755)
    assert gpu.asked(str(broken)).lack == "has no PyTorch (no such thing)"


def test_a_library_that_was_named_and_does_not_load_is_refused(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TEST_GPU_NCCL", str(tmp_path / "libnccl.so.2"))
    with pytest.raises(gpu.Refusal, match=r"^TEST_GPU_NCCL=.*NCCL does not load: .*cannot open shared object file"):
        gpu.nccl_of(gpu.Interpreter(sys.executable))


def test_one_gpu_is_shared_as_its_nccl_allows(gpu: ModuleType, able: object) -> None:
    parts = {part.name: part for part in gpu.planned(machine(gpu, able))}
    assert list(parts) == [
        "nccl",
        "nccl-shared",
        "nccl-sweep",
        "torchrun",
        "torchrun-shared",
        "horovod",
        "horovod_sweep",
        "training",
        "nccl-nvlink",
        "nccl-pcie",
        "nccl-nic",
        "dcgm-diag",
    ]
    assert parts["nccl-nic"].skip == "it needs two GPUs"
    assert (parts["nccl"].ranks, parts["nccl-shared"].ranks, parts["torchrun"].ranks) == (1, 2, 1)
    assert "--pretend-hosts" not in parts["nccl-shared"].argv
    assert parts["torchrun-shared"].skip == "PyTorch's NCCL 2.29.7 refuses that; 2.30.3 and later allow it"
    assert parts["training"].skip == "no Horovod and no mpirun here"
    old = {part.name: part for part in gpu.planned(machine(gpu, able, nccl="2.29.7"))}
    assert "--pretend-hosts" in old["nccl-shared"].argv
    new = {part.name: part for part in gpu.planned(machine(gpu, dataclasses.replace(able, torch_nccl="2.30.7")))}
    assert (new["torchrun-shared"].skip, new["torchrun-shared"].ranks) == ("", 2)


def test_several_gpus_have_a_rank_each_and_mpirun_starts_them_where_it_can(gpu: ModuleType, able: object) -> None:
    whole = dataclasses.replace(able, horovod=True, mpi4py=True, torch_gpus=8)
    parts = {part.name: part for part in gpu.planned(machine(gpu, whole, gpus=8, mpirun="/opt/mpi/bin/mpirun"))}
    ways = ("nccl-nvlink", "nccl-pcie", "nccl-nic")
    assert {name: part.ranks for name, part in parts.items() if name != "dcgm-diag"} == dict.fromkeys(
        ("nccl", "nccl-sweep", "torchrun", "horovod", "horovod_sweep", "training", *ways), 8
    )
    assert parts["nccl-nic"].environment["NCCL_SHM_DISABLE"] == "1"
    assert set(gpu.root_may()) <= set(parts["nccl-pcie"].environment)
    assert parts["nccl"].argv[:4] == ("/opt/mpi/bin/mpirun", "-np", "8", "--oversubscribe")
    assert "--launcher" not in parts["nccl"].argv
    assert parts["torchrun"].argv[1:3] == ("-m", "torch.distributed.run")


def test_all_of_it_takes_less_than_ten_minutes(gpu: ModuleType, able: object) -> None:
    assert gpu.TOTAL_S + gpu.END_S < 600
    late = gpu.run(gpu.planned(machine(gpu, able))[0], 3.0)
    assert (late.verdict, late.reason) == ("SKIP", "no time was left")


def test_a_part_that_does_not_end_is_ended(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LEAST_S", 0.0)
    monkeypatch.setattr(gpu, "END_S", 0.5)
    loop = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    done = gpu.run(gpu.Part("loop", "a loop", 1, (sys.executable, "-c", loop), {}, 1.0), 60.0)
    assert done.verdict == "ERROR"
    assert done.reason == "it did not end within 2 s without a result of rank 0, last heard of in its start: up"
    assert done.seconds < 10


def test_a_worker_of_torch_checks_is_heard(gpu: ModuleType) -> None:
    part = gpu.Part("torchrun", "training", 2, ("true",), {}, 9.0, ("--backend", "nccl"))
    with gpu.listener(part) as environment:
        handover = json.loads(environment["CLUSTERCTL_TORCH_WORKER"])
        assert handover["options"] == ["--backend", "nccl"]
        sender = "import json, os, socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); "
        sender += "[s.sendto(b'0', json.loads(os.environ['CLUSTERCTL_TORCH_WORKER'])['socket']) for _ in range(2000)]"
        subprocess.run([sys.executable, "-c", sender], env={**os.environ, **environment}, timeout=20, check=True)


def captured(name: str) -> str:
    """Return what a part printed; the first line of the file says where it came from."""
    return (DATA / f"{name}.log").read_text(encoding="utf-8").partition("\n")[2]


@pytest.mark.parametrize(
    ("name", "code", "verdict", "words"),
    [
        ("shared", 0, "PASS", "2 ranks on 1 GPU: bus bandwidth is not meaningful and left out"),
        ("wrong", 1, "FAIL", "rank 1: reduce to rank 1 i4[1], value 0 (1 of 1 wrong): expected 3, got 4"),
        ("gloo", 0, "PASS", "2 ranks, "),
        ("no-gpu", 1, "FAIL", "rank 0: import torch: expected an answer, got RuntimeError: torch finds no GPU"),
    ],
)
def test_what_was_printed_is_judged(gpu: ModuleType, name: str, code: int, verdict: str, words: str) -> None:
    done = gpu.judged(gpu.Part(name, name, 2), captured(name), code, 9.0)
    assert done.verdict == verdict
    assert words in done.reason


def swept(*ways: str) -> str:
    head = {"clusterctl": 1, "check": "nccl_sweep", "host": "gpu1"}
    result = {"event": "result", "ok": True, "compared": 9, "wrong": 0, "problems": [], "facts": {}, "figures": {}}
    time = {"quantity": "time", "unit": "s", "operation": "allreduce", "bytes": 1 << 30, "samples": [0.02]}
    path = {"event": "nccl_path", "ways": dict.fromkeys(ways, 2)} if ways else {"event": "waiting"}
    events = [head | path | {"rank": 0}, head | time | {"event": "measured", "rank": 0}]
    events += [head | result | {"rank": rank} for rank in range(2)]
    return "\n".join(json.dumps(event) for event in events)


@pytest.mark.parametrize(
    ("part", "ways", "verdict", "words"),
    [
        ("nccl-nvlink", ("P2P/CUMEM", "P2P/IPC/read"), "PASS", "2 ranks, 18 values right"),
        ("nccl-nvlink", ("NET/Socket/0",), "SKIP", "its connections took NET/Socket/0, so this way was not measured"),
        ("nccl-pcie", ("SHM/direct/direct",), "PASS", "2 ranks"),
        ("nccl-nic", ("NET/IB/0/GDRDMA", "SHM/direct/direct"), "SKIP", "its connections took SHM/direct/direct, so"),
        ("nccl-nic", (), "SKIP", "NCCL's log names no way, so this way was not measured alone"),
    ],
)
def test_a_way_counts_only_where_nccl_s_log_says_that_it_was_taken(
    gpu: ModuleType, able: object, part: str, ways: tuple[str, ...], verdict: str, words: str
) -> None:
    parts = {one.name: one for one in gpu.planned(machine(gpu, able, gpus=2))}
    done = gpu.judged(parts[part], swept(*ways), 0, 9.0)
    assert (done.verdict, done.took) == (verdict, ways)
    assert done.reason.startswith(words)
    failed = gpu.judged(parts[part], swept(*ways), 1, 9.0)
    assert failed.verdict == "FAIL", "a wrong end is no skip"


def test_the_slow_way_stands_in_a_table(gpu: ModuleType, able: object) -> None:
    parts = {one.name: one for one in gpu.planned(machine(gpu, able, gpus=2))}
    both = {"nccl-nvlink": "P2P/CUMEM", "nccl-nic": "NET/IB/0/GDRDMA"}
    done = [gpu.judged(parts[name], swept(way), 0, 9.0) for name, way in both.items()]
    when = gpu.datetime(2026, 2, 3, tzinfo=gpu.timezone.utc)
    text = gpu.page(gpu.record(machine(gpu, able, gpus=2), done, when))
    assert "| nccl-nvlink | P2P/CUMEM | 1073741824 | 53.69 |" in text
    assert "| nccl-nic | NET/IB/0/GDRDMA | 1073741824 | 53.69 |" in text
    assert "## Ways" not in gpu.page(gpu.record(machine(gpu, able, gpus=2), done[:1], when))


DIAGNOSED = {
    "DCGM Diagnostic": {
        "test_categories": [
            {"category": "Deployment", "tests": [{"name": "software", "results": [{"status": "Pass"}]}]},
            {"category": "Hardware", "tests": [{"name": "memory", "results": [{"gpu_id": "0", "status": "Pass"}]}]},
        ]
    }
}


@pytest.mark.parametrize(
    ("output", "verdict", "reason"),
    [
        (json.dumps(DIAGNOSED), "PASS", "2 tests passed"),
        (json.dumps(DIAGNOSED).replace('"Pass"', '"Skip"', 1), "PASS", "1 tests passed, 1 did not run"),
        (
            "a banner\n" + json.dumps(DIAGNOSED).replace('"Pass"}]}]}]', '"Fail"}]}]}]'),
            "FAIL",
            "these tests failed: memory on GPU 0 (no reason was given)",
        ),
        ("Error: unable to connect", "ERROR", "it gave no readable answer (code 0): Error: unable to connect"),
        ("", "ERROR", "it gave no readable answer (code 0)"),
        ('{"status": 7}', "ERROR", 'it gave no readable answer (code 0): {"status": 7}'),
    ],
)
def test_nvidia_s_own_diagnostics_are_read_in_any_form(gpu: ModuleType, output: str, verdict: str, reason: str) -> None:
    """The JSON is composed: DCGM's reference of dcgmi diag says that its form is not fixed."""
    done = gpu.judged(gpu.Part("dcgm-diag", "dcgm", argv=("dcgmi",), reads="dcgm"), output, 0, 1.0)
    assert (done.verdict, done.reason) == (verdict, reason)


def test_dcgmi_is_run_where_it_is_installed(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu.dcgm_part().skip == "DCGM is not installed"
    tool = tmp_path / "dcgmi"
    tool.write_text(f"#!/bin/sh\ntest \"$*\" = 'diag -r 1 -j' && echo '{json.dumps(DIAGNOSED)}'\n")
    tool.chmod(0o755)
    done = gpu.run(gpu.dcgm_part(), 100.0)
    assert (done.verdict, done.reason) == ("PASS", "2 tests passed")


def test_the_record_has_the_places_of_cores_and_devices_and_no_serial_number(gpu: ModuleType) -> None:
    found = gpu.topology()
    assert found["numa"][0]["cores"]
    assert not [name for one in (*found["gpus"], *found["rdma"]) for name in one if "uuid" in name or "guid" in name]


def test_a_rank_without_a_result_fails_though_the_others_are_right(gpu: ModuleType) -> None:
    lines = [line for line in captured("shared").splitlines() if not ('"result"' in line and '"rank": 1' in line)]
    done = gpu.judged(gpu.Part("nccl", "nccl", 2), "\n".join(lines), 0, 9.0)
    assert done.verdict == "FAIL"
    assert "without a result of rank 1" in done.reason
    assert gpu.judged(gpu.Part("nccl", "nccl", 2), captured("shared"), 5, 9.0).verdict == "FAIL"
    assert gpu.judged(gpu.Part("nccl", "nccl", 2), "", 0, 9.0).verdict == "ERROR"


def test_what_is_kept_has_hardware_versions_figures_and_no_name_of_the_machine(
    gpu: ModuleType, able: object, tmp_path: Path
) -> None:
    when = gpu.datetime(2026, 2, 3, 4, 5, 6, tzinfo=gpu.timezone.utc)
    parts = [
        gpu.judged(gpu.Part("nccl", "NCCL", 2), captured("two-gpus"), 0, 33.3),
        gpu.judged(gpu.Part("torchrun", "DDP", 2), captured("gloo"), 0, 4.4),
        gpu.run(gpu.Part("training", "training", skip="no Horovod here"), 99.0),
    ]
    page = gpu.keep(gpu.record(machine(gpu, able, gpus=2), parts, when), tmp_path)
    assert page == tmp_path / "gpu-2026-02-03-nvidia-h200.md"
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# 2 x NVIDIA H200, 2026-02-03: PASS\n")
    assert "- Python 3.12.3, PyTorch 2.13.0+cu130 (CUDA 13.0, NCCL 2.29.7)" in text
    assert "| training: training | SKIP | 0 | no Horovod here |" in text
    found = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert found["versions"]["nccl"] == "2.32.3"
    figures = found["parts"][0]["ranks"][0]["figures"]
    time_us, bus = figures["allreduce_4KiB_us"], figures["allreduce_4KiB_bus_bytes_per_s"]
    assert f"| allreduce | 4KiB | {time_us:g} | {bus / 1e9:.4g} |" in text
    assert "- loss: " in text
    assert not [rank for part in found["parts"] for rank in part["ranks"] if "host" in rank]


def test_a_sweep_is_kept_with_every_sample_and_told_as_a_table(gpu: ModuleType, able: object, tmp_path: Path) -> None:
    head = {"clusterctl": 1, "check": "nccl_sweep", "host": "gpu1"}
    time = {"event": "measured", "rank": 0, "quantity": "time", "unit": "s", "better": "lower", "backend": "nccl"}
    clock = {"event": "measured", "rank": 0, "quantity": "gpu_clock", "unit": "Hz", "operation": "gpu 0"}
    result = {"event": "result", "ok": True, "compared": 9, "wrong": 0, "problems": [], "facts": {}, "figures": {}}
    events = [
        head | time | {"operation": "allreduce", "bytes": 1 << 30, "samples": [0.004, 0.0041, 0.0042]},
        head | time | {"operation": "alltoall", "bytes": 4096, "samples": [1e-5]},
        head | clock | {"samples": [1.98e9, 1.755e9]},
        *(head | result | {"rank": rank} for rank in range(2)),
    ]
    done = gpu.judged(gpu.Part("nccl-sweep", "NCCL", 2), "\n".join(json.dumps(event) for event in events), 0, 9.0)
    assert done.verdict == "PASS"
    when = gpu.datetime(2026, 2, 3, tzinfo=gpu.timezone.utc)
    text = gpu.keep(gpu.record(machine(gpu, able, gpus=2), [done], when), tmp_path).read_text(encoding="utf-8")
    assert "| allreduce | 1073741824 | 4100 | 261.9 | 3 |" in text
    assert "| alltoall | 4096 | 10 | 0.2048 | 1 |" in text
    assert "- gpu_clock gpu 0: 1.868e+09 Hz (2 samples)" in text
    kept = json.loads((tmp_path / "gpu-2026-02-03-nvidia-h200.json").read_text(encoding="utf-8"))
    assert kept["parts"][0]["measured"][0]["samples"] == [0.004, 0.0041, 0.0042]
    assert "host" not in kept["parts"][0]["measured"][0]
