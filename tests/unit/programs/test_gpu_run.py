"""What ``make test-gpu`` does around its GPU: refusing, choosing, planning, judging and writing."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest
from clusterctl.model.job_outcome import FlightGroup
from factory import captured_ras

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
    done = subprocess.run(  # with the standard library alone, as on a machine that has nothing of ours
        [sys.executable, "-S", str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=60, check=False
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
    for words in (
        "/a/python has no PyTorch (it did not answer)",
        "/b/python has PyTorch 2.13.0+cpu, which is no CUDA build",
        "/c/python has PyTorch 2.13.0+cu130 for CUDA 13.0, which sees no GPU",
        "/d/python has no numpy. Name another one in TEST_GPU_PYTHON",
    ):
        assert words in str(refusal.value)


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
    assert (parts["nccl-ras"].ranks, parts["nccl-ras"].watch, parts["flight-recorder"].watch) == (3, "ras", "flight")
    assert (parts["watch-names"].ranks, parts["watch-names"].watch) == (3, "late")
    two = {part.name: part for part in gpu.planned(machine(gpu, able, gpus=2))}
    assert two["watch-names"].skip.startswith("it needs three GPUs or one")
    assert parts["nccl-log"].environment["NCCL_DEBUG"] == "INFO"
    assert parts["nccl-pcie"].skip == "it needs two GPUs"
    assert (parts["nccl"].ranks, parts["nccl-shared"].ranks, parts["torchrun"].ranks) == (1, 2, 1)
    assert {name for name, part in parts.items() if "--pretend-hosts" in part.argv} == {"nccl-nic"}
    assert parts["training"].skip == "no Horovod and no mpirun here"
    old = {part.name: part for part in gpu.planned(machine(gpu, able, nccl="2.29.7"))}
    apart = {name for name, part in old.items() if "--pretend-hosts" in part.argv}
    assert apart == {"nccl-log", "nccl-shared", "nccl-nic", "nccl-ras"}
    for name in ("torchrun-shared", "watch-names"):
        assert (old[name].argv[-1], old[name].skip) == ("tests/gpu/own_host.py", "")
    assert old["torchrun-shared"].environment == {"TEST_GPU_PROGRAM": "roles/validation/files/torch_checks.py"}
    assert old["watch-names"].environment["TEST_GPU_PROGRAM"] == "tests/gpu/late_rank.py"
    assert old["torchrun-shared"].title.endswith("over the network, for NCCL 2.29.7 is older than 2.30.3")
    older = {part.name: part for part in gpu.planned(machine(gpu, able, gpus=2, nccl="2.22.3"))}
    assert older["nccl-ras"].skip == "NCCL 2.22.3 is older than 2.24"
    new = {part.name: part for part in gpu.planned(machine(gpu, dataclasses.replace(able, torch_nccl="2.30.7")))}
    assert new["torchrun-shared"].argv[-1] == "roles/validation/files/torch_checks.py"
    assert new["watch-names"].environment["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"


def test_several_gpus_have_a_rank_each_and_mpirun_starts_them_where_it_can(gpu: ModuleType, able: object) -> None:
    whole = dataclasses.replace(able, horovod=True, mpi4py=True, torch_gpus=8)
    parts = {part.name: part for part in gpu.planned(machine(gpu, whole, gpus=8, mpirun="/opt/mpi/bin/mpirun"))}
    ways, watched = ("nccl-nvlink", "nccl-pcie", "nccl-nic"), ("nccl-ras", "flight-recorder", "watch-names")
    alone = {"gpu_compute", "gpu_copies"}  # one process works with all GPUs
    assert {parts[name].ranks for name in alone} == {1}
    assert {name: part.ranks for name, part in parts.items() if name not in {"dcgm-diag", *alone}} == dict.fromkeys(
        (
            "nccl",
            "nccl-log",
            "gpu_mpi",
            "nccl-sweep",
            "torchrun",
            "horovod",
            "horovod_sweep",
            "training",
            *ways,
            *watched,
        ),
        8,
    )
    assert parts["nccl-nic"].environment["NCCL_SHM_DISABLE"] == "1"
    assert set(gpu.root_may()) <= set(parts["nccl-pcie"].environment)
    assert parts["nccl"].argv[:4] == ("/opt/mpi/bin/mpirun", "-np", "8", "--oversubscribe")
    assert "--launcher" not in parts["nccl"].argv
    assert parts["torchrun"].argv[1:3] == ("-m", "torch.distributed.run")


def test_the_gpus_themselves_are_proved_by_the_program_of_the_checks(
    gpu: ModuleType, able: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = ROOT / "tests" / "gpu" / "fake"
    library = ["-Wl,-soname,libcuda.so.1", "-o", str(tmp_path / "libcuda.so.1"), str(fake / "cuda.c")]
    subprocess.run(["cc", "-shared", "-fPIC", *library], check=True)
    for name, value in (("LD_LIBRARY_PATH", tmp_path), ("PYTHONPATH", fake / "python"), ("FAKE_GPUS", "2")):
        monkeypatch.setenv(name, str(value))
    here = machine(gpu, dataclasses.replace(able, executable=sys.executable), gpus=2)
    parts = {part.name: part for part in gpu.planned(here)}
    done = gpu.run(parts["gpu_copies"], 60.0)
    assert (done.verdict, len(done.measured)) == ("PASS", 8), done.reason
    assert [line.split(":")[0] for line in gpu.swept(dataclasses.asdict(done))[-2:]] == [
        "- copy_bandwidth copy GPU 0 to GPU 1",
        "- copy_bandwidth copy GPU 1 to GPU 0",
    ]
    small = dataclasses.replace(parts["gpu_compute"], argv=(*parts["gpu_compute"].argv, "--order", "32"))
    for fault, verdict in (("", "PASS"), ("known@1", "FAIL")):
        monkeypatch.setenv("FAKE_TORCH_FAULT", fault)
        done = gpu.run(dataclasses.replace(small, argv=(*small.argv, "--budget", "0.05")), 60.0)
        assert done.verdict == verdict, done.reason
    assert done.reason.startswith("rank 0: fp32 product of whole numbers on GPU 1 (Fake GPU, 0000:02:00.0), value 34")
    assert parts["gpu_mpi"].skip == "no mpirun that goes with this Python's mpi4py"


def test_an_open_mpi_that_was_built_without_cuda_skips_its_part(gpu: ModuleType) -> None:
    result = {"clusterctl": 1, "event": "result", "ok": True, "compared": 1, "wrong": 0, "problems": [], "figures": {}}
    lines = [json.dumps(result | {"rank": rank, "facts": {"mpi_cuda": "no"}}) for rank in range(2)]
    done = gpu.judged(gpu.Part("gpu_mpi", "GPU buffers", 2), "\n".join(lines), 0, 1.0)
    assert (done.verdict, done.reason) == ("SKIP", "this Open MPI says that it was built without CUDA")


def test_all_of_it_takes_less_than_ten_minutes(gpu: ModuleType, able: object) -> None:
    assert gpu.TOTAL_S + gpu.END_S < 600
    assert gpu.ONE_GPU_S + gpu.END_S < 240
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


DIAGNOSED = {
    "DCGM Diagnostic": {
        "test_categories": [
            {"category": "Deployment", "tests": [{"name": "software", "results": [{"status": "Pass"}]}]},
            {"category": "Hardware", "tests": [{"name": "memory", "results": [{"gpu_id": "0", "status": "Pass"}]}]},
        ]
    }
}


def test_dcgmi_is_run_where_it_is_installed(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu.dcgm_part().skip == "DCGM is not installed"
    tool = tmp_path / "dcgmi"
    tool.write_text(f"#!/bin/sh\ntest \"$*\" = 'diag -r 1 -j' && echo '{json.dumps(DIAGNOSED)}'\n")
    tool.chmod(0o755)
    done = gpu.run(gpu.dcgm_part(), 100.0)
    assert (done.verdict, done.reason) == ("PASS", "2 tests passed")


def test_the_record_does_not_name_the_kernel_of_a_site(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.platform, "release", lambda: "6.18.44-ours-v7-gpu")
    assert gpu.system().startswith(f"Linux-6.18.44-{gpu.platform.machine()}-with-")


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


# --- what the same output answers, and looks at running jobs ----------------------------------------------------------


def nccl_output(*lines: str, ranks: int = 2, **path: object) -> str:
    head = {"clusterctl": 1, "check": "nccl", "host": "gpu1"}
    facts = {"gpu": "NVIDIA H200", "nccl_diagnostics": "asked for"}
    result = {"event": "result", "ok": True, "compared": 9, "wrong": 0, "problems": [], "facts": facts, "figures": {}}
    told = {"event": "nccl_path", "network": "IB", "hcas": {"0": "mlx5_0:1/IB"}, "named": "IB", "settings": {}, **path}
    events = [head | told | {"rank": 0}, *(head | result | {"rank": rank} for rank in range(ranks))]
    return "\n".join([*lines, *(json.dumps(event) for event in events)])


def test_the_way_and_nccl_s_diagnostics_are_parts_of_their_own(
    gpu: ModuleType, able: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ROOT / "tests" / "data" / "nccl_diagnostics"
    healthy = (data / "healthy.txt").read_text(encoding="utf-8").splitlines()
    part = gpu.planned(machine(gpu, able, gpus=2))[0]
    done = gpu.judged(part, nccl_output(*healthy, ways={"P2P/CUMEM": 4}), 0, 9.0)
    path, diagnosed = done.derived
    assert (path.verdict, path.reason) == ("PASS", "NCCL goes over IB; P2P/CUMEM (4)")
    assert (diagnosed.name, diagnosed.verdict) == ("nccl-diagnostics", "PASS")
    assert diagnosed.reason == "NCCL's own diagnostics: P2P is right for 24 peer accesses, no finding of 7 checks"
    broken = (data / "link.txt").read_text(encoding="utf-8").splitlines()
    _path, diagnosed = gpu.judged(part, nccl_output(*broken), 0, 9.0).derived
    assert (diagnosed.verdict, "(write mismatch) (ranks (1, 3))" in diagnosed.reason) == ("FAIL", True)
    path, diagnosed = gpu.judged(part, nccl_output(), 0, 9.0).derived
    assert (path.verdict, diagnosed.verdict) == ("SKIP", "ERROR")
    assert [one.verdict for one in gpu.judged(part, captured("two-gpus"), 0, 9.0).derived][1] == "SKIP"
    monkeypatch.setattr(gpu, "active_ports", lambda: ("mlx5_0:1",))
    nic = {one.name: one for one in gpu.planned(machine(gpu, able, gpus=2))}["nccl-nic"]
    fell_back = nccl_output(network="Socket", ways={"NET/Socket/0": 2}, settings={"NCCL_P2P_DISABLE": "1"})
    (path,) = gpu.judged(nic, fell_back, 0, 9.0).derived
    assert path.verdict == "FAIL"
    assert path.reason.startswith("NCCL goes over sockets although mlx5_0:1 is up")
    for name in ("torchrun", "horovod"):
        whole = dataclasses.replace(able, horovod=True)
        parts = gpu.planned(machine(gpu, whole, gpus=2, mpirun="/opt/mpi/bin/mpirun"))
        (path,) = gpu.judged(next(one for one in parts if one.name == name), fell_back, 0, 9.0).derived
        assert (path.name, path.verdict) == (f"path-{name}", "FAIL")
    kept = gpu.record(machine(gpu, able), [done], gpu.datetime(2026, 2, 3, tzinfo=gpu.timezone.utc))
    assert not set(gpu.HIDDEN) & set(kept["parts"][0])


RANK = """
import os, sys, time
if os.fork():
    os.wait()
else:
    print("up", flush=True)
    {body}
    time.sleep(60)
"""


def launcher(folder: Path, ranks: int, body: str = "") -> tuple[str, ...]:
    """Return the argv of a launcher whose ranks are two processes each, as those of ``nccl_checks.py`` are."""
    rank = folder / "nccl_checks.py"
    rank.write_text(RANK.format(body=body), encoding="utf-8")
    code = (
        "import os, subprocess, sys; "
        f"ranks = [subprocess.Popen([sys.executable, {str(rank)!r}], env={{**os.environ, 'RANK': str(n)}}) "
        f"for n in range({ranks})]; [one.wait() for one in ranks]"
    )
    return (sys.executable, "-c", code)


class Ras:
    """Answers as NCCL's RAS does: once a worker is stopped, with the process that does not answer."""

    def __init__(self, gpu: ModuleType, *, knows: bool = True) -> None:
        self.gpu, self.knows = gpu, knows
        self.ears = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        captured = captured_ras("stopped")
        well, silent = captured.answers
        while True:
            try:
                line, _where = self.ears.accept()
            except OSError:
                return
            with line:
                assert line.recv(99) == b"verbose status\n"
                workers = self.gpu.gpu_watch.workers_of(os.getpid(), "nccl_checks.py").values()
                stopped = [pid for pid in workers if "State:\tT" in Path(f"/proc/{pid}/status").read_text()]
                text = silent if stopped and self.knows else well
                process = stopped[0] if stopped else 0
                line.sendall(text.replace(f"rocess {captured.process} ", f"rocess {process} ").encode())


@pytest.mark.parametrize(
    ("ranks", "knows", "verdict", "words"),
    [
        (4, True, "PASS", "rank 3, which was stopped, does not answer NCCL's RAS"),
        (2, True, "PASS", "RAS names the process of rank 1, which was stopped; of two ranks none is blamed"),
        (2, False, "FAIL", "RAS answers, and rank 1, which was stopped, is not named"),
    ],
)
def test_ras_is_asked_while_a_rank_is_stopped(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, knows: bool, verdict: str, words: str
) -> None:
    monkeypatch.setattr(gpu.gpu_watch, "SETTLE_S", 0.3)
    monkeypatch.setattr(gpu, "LOOK_S", 20.0 if knows else 4.0)
    server = Ras(gpu, knows=knows)
    with server.ears:
        environment = {"NCCL_RAS_ADDR": f"localhost:{server.ears.getsockname()[1]}"}
        part = gpu.Part("nccl-ras", "ras", ranks, launcher(tmp_path, ranks), environment, 60.0, watch="ras")
        done = gpu.run(part, 60.0)
    assert (done.verdict, done.reason) == (verdict, words)
    assert done.lines, "the words of RAS are kept"
    ((name, text),) = done.files
    kept = json.loads(text)
    assert (name, kept["culprit"], sorted(kept["processes"])) == (
        "nccl-ras-stopped.json",
        ranks - 1,
        [str(rank) for rank in range(ranks)],
    )
    assert len(kept["answers"]) == 2, "before and after"
    assert not gpu.gpu_watch.workers_of(os.getpid(), "nccl_checks.py"), "nobody is left behind"


def answer_late(gpu: ModuleType, ears: socket.socket, asked: list[bytes]) -> None:
    """Answer once as NCCL's RAS does of a job whose last rank of three has launched less."""
    with ears.accept()[0] as line:
        asked.append(line.recv(99))
        ranks = gpu.gpu_watch.workers_of(os.getpid(), "nccl_checks.py")
        late = captured_ras("late")
        line.sendall(late.answers[0].replace(f"process {late.process} ", f"process {ranks[2]} ").encode())


LATE = """
    import pickle
    pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + os.environ["RANK"] + ".pipe"
    os.mkfifo(pipe)
    while True:
        open(pipe, "rb").read(1)
        entries = [
            {"process_group": ("0", "default_pg"), "profiling_name": "nccl:all_reduce", "collective_seq_id": number,
             "state": "completed" if number < 9 else "started", "retired": number < 9, "input_sizes": [[4]]}
            for number in range(1, 9 if int(os.environ["RANK"]) == LATE else 10)
        ]
        with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + os.environ["RANK"], "wb") as file:
            pickle.dump({"version": "2.10", "entries": entries}, file, protocol=2)
"""


@pytest.mark.parametrize(("late", "verdict"), [(2, "PASS"), (-1, "FAIL")])
def test_the_rank_that_stays_away_is_named_by_the_records(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int, verdict: str
) -> None:
    monkeypatch.setattr(gpu, "LEAST_S", 0.0)
    monkeypatch.setattr(gpu.gpu_watch, "SETTLE_S", 0.5)
    body = LATE.replace("LATE", repr(late))
    seconds = 60.0 if verdict == "PASS" else 4.0
    environment = gpu.gpu_watch.flight_environment(gpu.JOB, "2.13.0")
    monkeypatch.setattr(gpu, "LATE_RANK", "nccl_checks.py")
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as ears:
        threading.Thread(target=answer_late, args=(gpu, ears, asked), daemon=True).start()
        environment["NCCL_RAS_ADDR"] = f"localhost:{ears.getsockname()[1]}"
        part = gpu.Part("watch", "watch", 3, launcher(tmp_path, 3, body), environment, seconds, watch="late")
        done = gpu.run(part, 60.0)
    assert asked == [b"verbose status\n"]
    assert dict(done.files).keys() == {"flight-late_0", "flight-late_1", "flight-late_2"}
    (by_ras,) = done.derived
    assert (by_ras.name, by_ras.verdict) == ("watch-ras", "PASS")
    assert by_ras.reason == "rank 2, which stays away, has not launched AllReduce #9, by NCCL's RAS"
    assert [name for name, _text in by_ras.files] == ["nccl-ras-late.json"]
    told = {"PASS": "rank 2, which stays away, has not called all_reduce #9", "FAIL": " of 3 ranks do not name rank 2"}
    assert (done.verdict, done.reason.endswith(told[verdict])) == (verdict, True), done.reason


TOPO = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\tSYS\t0-3,8-11\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tPIX\t4-7,12-15\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS
NIC1\tSYS\tPIX\tSYS\t X

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""


def placed_by_sys(*, first: str = "mlx5_0") -> dict[str, object]:
    other = {"mlx5_0": "mlx5_1", "mlx5_1": "mlx5_0"}[first]
    return {
        "numa": [{"number": 0, "cores": ["0,8", "1,9", "2,10", "3,11"]}, {"number": 1, "cores": ["4,12", "5,13"]}],
        "gpus": [
            {"bus": "0000:1b:00.0", "name": "NVIDIA H100", "numa": 0, "pci_path": ["a", "sw0", "g0"]},
            {"bus": "0000:43:00.0", "name": "NVIDIA H100", "numa": 1, "pci_path": ["b", "sw1", "g1"]},
        ],
        "rdma": [
            {"name": first, "numa": 0, "pci_path": ["a", "sw0", "n0"]},
            {"name": other, "numa": 1, "pci_path": ["b", "sw1", "n1"]},
        ],
    }


def test_a_group_of_a_record_has_each_field_that_the_judge_reads(gpu: ModuleType) -> None:
    words = {"group": "0", "last": 3}
    assert vars(gpu.gpu_watch.group_of(words)) == FlightGroup.model_validate(words).model_dump()


def test_the_table_of_a_machine_with_one_gpu_is_read(gpu: ModuleType) -> None:
    data = ROOT / "tests" / "data" / "gpu_h200"
    table = (data / "topo-m.txt").read_text(encoding="utf-8")
    (row,) = gpu.gpu_watch.topo(table)
    assert (row["GPU0"], row["CPU Affinity"]) == ("X", "0-15")
    kept = json.loads((ROOT / "docs" / "measured" / "gpu-2026-11-27-nvidia-h200.json").read_text(encoding="utf-8"))
    seen = gpu.gpu_watch.affinity(table, kept["machine"]["topology"])
    assert (seen.verdict, seen.reason.partition(":")[0]) == ("PASS", "1 GPU")


def test_the_places_of_sys_are_held_against_those_of_the_driver(gpu: ModuleType) -> None:
    """The table is composed as nvidia-smi(1) has it, with tabs and an underlined head."""
    seen = gpu.gpu_watch.affinity(TOPO, placed_by_sys())
    assert (seen.verdict, seen.reason.partition(":")[0]) == ("PASS", "2 GPUs")
    seen = gpu.gpu_watch.affinity(TOPO, placed_by_sys(first="mlx5_1"))
    assert seen.verdict == "FAIL"
    assert seen.reason.startswith("GPU0: mlx5_1 counts as nearest, and is SYS where another one is PIX; GPU1: mlx5_0")
    seen = gpu.gpu_watch.affinity(TOPO.replace("0-3,8-11", "4-7"), placed_by_sys())
    assert seen.reason == "GPU0: the driver tells cores 4-7, /sys those of NUMA node 0"
    one = {**placed_by_sys(), "gpus": []}
    assert gpu.gpu_watch.affinity(TOPO, one).reason == "nvidia-smi tells 2 GPUs, and /sys 0"
    assert gpu.gpu_watch.affinity("FileNotFoundError: nvidia-smi\n", one).verdict == "SKIP"


# --- capture ----------------------------------------------------------------------------------------------------------

UUID, SERIAL, BOARD = "GPU-1b2c3d4e-1111-2222-3333-0123456789ab", "1650522003421", "HGX-77-Q12"
DIE = "0x1b2c3d4e5f607182"
SMI = f"""#!/bin/sh
case "$*" in
"-q -x") printf '<gpu><serial>{SERIAL}</serial><uuid>{UUID}</uuid><fabric><cluster_uuid>N/A</cluster_uuid></fabric>'
         printf '<pdi>{DIE}</pdi>'
         printf '<process_name>/home/anna/train.py</process_name><vbios_version>96.00.74.00.01</vbios_version></gpu>' ;;
-L) echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: {UUID})' ;;
"nvlink -e") echo 'no links' >&2; exit 6 ;;
*) echo "GPU 0: serial {SERIAL}" ;;
esac
"""


def test_what_is_captured_has_no_secret_and_each_value_is_replaced_by_one_other(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(SMI, encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    host = socket.gethostname()
    hardware = {
        "parts": [["gpu", "0000:1b:00.0", "NVIDIA H100", UUID, ""], ["board", "", "HGX", BOARD, ""]],
        "readings": [
            ["rdma", "mlx5_0", "node_guid", "b8ce:f603:0012:3456"],
            ["net", "eth0", "address", "b8:ce:f6:12:34:56"],
        ],
        "gid": "0000:0000:0000:0000:0000:ffff:c0a8:1707",
    }
    log = f"{host}:4711:4790 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:192.168.23.7<0>\n"
    log += "NCCL version 2.32.3+cuda13.0 driver 580.95.05 0000:3b:00.0 127.0.0.1 fe80::bace:f6ff:fe12:3456\n"
    files = gpu.gpu_capture.captured({"nccl-log.log": log}, record=lambda _request: hardware)
    place = gpu.gpu_capture.keep(files, tmp_path / "kept", "2026-02-03")
    texts = {path.name: path.read_text(encoding="utf-8") for path in place.rglob("*") if path.is_file()}
    whole = "\n".join(texts.values())
    secrets = (
        UUID,
        SERIAL,
        BOARD,
        DIE,
        "b8ce",
        "b8:ce",
        "192.168",
        "c0a8",
        "anna",
        "fe12",
        *([host] if len(host) > 1 else []),
    )
    assert not [secret for secret in secrets if secret in whole]
    other = "GPU-00000000-0000-0000-0000-000000000001"
    assert all(other in texts[name] for name in ("nvidia-smi-q-x.xml", "nvidia-smi-L.txt", "node_hardware.json"))
    assert "<serial>0000000000001</serial>" in texts["nvidia-smi-q-x.xml"] or "<serial>0000000000002</serial>" in whole
    assert "<cluster_uuid>N/A</cluster_uuid>" in texts["nvidia-smi-q-x.xml"]
    assert "<vbios_version>96.00.74.00.01</vbios_version>" in texts["nvidia-smi-q-x.xml"], "a version is no address"
    assert texts["nvlink-e.txt"] == "no links\n(code 6)\n"
    assert texts["nccl-log.log"].startswith(
        "node1:4711:4790 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"
    )
    assert "2.32.3+cuda13.0 driver 580.95.05 0000:3b:00.0 127.0.0.1" in texts["nccl-log.log"]
    assert "| `nvlink-s.txt` | `nvidia-smi nvlink -s` |" in texts["README.md"]


def test_the_record_has_no_name_of_the_host_though_a_part_printed_it(
    gpu: ModuleType, able: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "thehost:769:769 [0] NCCL INFO Ring 18 : 0 -> 0 -> 0"
    monkeypatch.setattr(gpu, "gpus_here", lambda: (("NVIDIA H200",), "13.0"))
    monkeypatch.setattr(gpu, "asked", lambda _python: able)
    monkeypatch.setattr(gpu, "nccl_of", lambda _interpreter: ("2.28.9", "/opt/libnccl.so.2"))
    monkeypatch.setattr(gpu, "mpirun_of", lambda _interpreter: "")
    monkeypatch.setattr(gpu, "planned", lambda _machine: [gpu.Part("nccl", "NCCL")])
    monkeypatch.setattr(gpu, "run", lambda part, _left: gpu.Done(part.name, part.title, "PASS", "", lines=(line,)))
    monkeypatch.setattr(gpu.gpu_capture.socket, "gethostname", lambda: "thehost")
    monkeypatch.setenv("TEST_GPU_OUT", str(tmp_path))
    assert gpu.main() == 0
    (kept,) = tmp_path.glob("*.json")
    assert line.replace("thehost", "node1") in kept.read_text(encoding="utf-8")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "thehost" in path.read_text()]


def test_a_rank_that_shares_a_gpu_becomes_a_host_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, sys; print(os.environ['NCCL_HOSTID'], os.environ['RANK'], sys.argv[1:])")
    wrapper = ROOT / "tests" / "gpu" / "own_host.py"
    environment = {**os.environ, "RANK": "2", "TEST_GPU_PROGRAM": str(program)}
    done = subprocess.run([sys.executable, str(wrapper)], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "clusterctl-2 2 []\n"


def test_a_flight_record_is_kept_as_a_record_and_names_no_folder_and_no_host(gpu: ModuleType) -> None:
    frames = [{"name": "main", "filename": "/home/anna/train.py", "line": 3}]
    frames.append({"name": "wrapper", "filename": "/opt/v/lib/python3.12/site-packages/torch/c10d.py", "line": 83})
    entry = {"frames": frames, "process_group": ("0", "thehost"), "collective_seq_id": 7, "state": "started"}
    data = pickle.dumps({"version": "2.10", "entries": [entry]}, protocol=2)
    hidden = gpu.gpu_capture.Masks(("thehost",)).hidden_record(data)
    (kept,) = gpu.gpu_capture.flight_record.plain(hidden)["entries"]
    assert [frame["filename"] for frame in kept["frames"]] == ["train.py", "torch/c10d.py"]
    assert (kept["process_group"], kept["collective_seq_id"], kept["state"]) == (("0", "node1"), 7, "started")
    assert gpu.gpu_capture.Masks(()).hidden_record(b"\0broken thehost").startswith(b"invalid load key")


@pytest.mark.parametrize("builder", ["anna@build7.site.example", "nixbld@", "dvs-builder@U22-I3-AE18-23-2"])
def test_who_built_the_driver_is_hidden(gpu: ModuleType, builder: str) -> None:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  ({})  \n"
    assert gpu.gpu_capture.Masks(()).hidden(version.format(builder)) == version.format("builder@host")


def test_devices_of_pci_are_captured_with_the_bridges_above_them(gpu: ModuleType, tmp_path: Path) -> None:
    bridge = tmp_path / "devices" / "pci0000:1a" / "0000:1a:01.0"
    card, disk = bridge / "0000:1b:00.0", bridge / "0000:1c:00.0"
    for place, kind in ((bridge, "0x060400"), (card, "0x030200"), (disk, "0x010802")):
        place.mkdir(parents=True, exist_ok=True)
        for name, text in {"vendor": "0x10de", "class": kind, "numa_node": "0", "vpd": "SERIAL"}.items():
            (place / name).write_text(f"{text}\n", encoding="utf-8")
    bus = tmp_path / "bus"
    bus.mkdir()
    for place in (bridge, card, disk):
        (bus / place.name).symlink_to(place)
    found = gpu.gpu_capture.pci_files(bus)
    assert found["bus/pci/devices/0000:1b:00.0/numa_node"] == "0\n"
    assert found["bus/pci/devices/0000:1a:01.0/class"] == "0x060400\n"
    assert found["bus/pci/devices/0000:1b:00.0.path"].endswith("pci0000:1a/0000:1a:01.0/0000:1b:00.0\n")
    assert not [name for name in found if "vpd" in name or "1c:00" in name]
