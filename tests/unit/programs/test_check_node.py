"""check_node.py: decisions on data, and the program itself as it lies on a node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import node_programs
import pytest
import yaml
from clusterctl.support import content

ROOT = content.root()
VARIABLES = yaml.safe_load((ROOT / "roles/validation/vars/main.yml").read_text(encoding="utf-8"))
ARTIFACTS = '    yield f"the artifacts in {ROOT}", artifacts\n'  # the look that this machine cannot pass
rules = content.module_util("fitness_rules")
program = node_programs.load("check_node")


def artifact(name: str, problem: str = "") -> dict[str, Any]:
    return {"name": name, "link": f"/usr/local/{name}", "ok": not problem, "problem": problem}


def folder(**differs: Any) -> dict[str, Any]:
    plain = {"path": "/tmp", "exists": True, "free_bytes": 1 << 30, "total_bytes": 1 << 31, "free_inodes": 9999}  # noqa: S108
    return {**plain, "read_only": False, "writable": True, "blocked": [], **differs}


def test_an_artifact_that_jobs_need_must_be_whole_and_an_extra_one_may_be_missing() -> None:
    whole = [artifact(name) for name in rules.NEEDED]
    lacking = artifact("horovod", "/usr/local/horovod does not exist")
    assert rules.artifacts([*whole, lacking]) == []
    ((cause, cure),) = rules.artifacts([*whole[1:], artifact("openmpi", "lib/libmpi.so is missing"), lacking])
    assert "Open MPI: lib/libmpi.so is missing" in cause
    assert "clusterctl provision" in cure
    assert rules.artifacts([*whole, artifact("nccl", "/usr/local/nccl leads nowhere")])


@pytest.mark.parametrize(
    ("differs", "cause"),
    [
        ({"exists": False}, "does not exist"),
        ({"read_only": True}, "is read-only"),
        ({"writable": False}, "not writable"),
        ({"free_bytes": 1 << 20}, "is full (1 of"),
        ({"free_bytes": 1 << 15, "total_bytes": 1 << 16}, "has 64 KiB in all"),
        ({"free_inodes": 3}, "3 inodes"),
        ({"blocked": ["/tmp/ompi.node1.1000"]}, "ompi.node1.1000 belongs to another user"),  # noqa: S108
    ],
)
def test_a_folder_that_a_launch_cannot_write_to_is_named_with_its_cure(differs: dict[str, Any], cause: str) -> None:
    assert rules.scratch(folder()) == []
    ((found, cure),) = rules.scratch(folder(**differs))
    assert cause in found
    assert "/tmp" in cure  # noqa: S108


def test_a_gpu_that_is_gone_or_lost_its_driver_is_named_by_its_bus() -> None:
    before = [{"bus": "0000:01:00.0", "driver": "nvidia"}, {"bus": "0000:02:00.0", "driver": "nvidia"}]
    assert rules.gpus(before, before) == []
    assert rules.gpus([], before) == []
    ((gone, _),) = rules.gpus(before, before[:1])
    assert "1 of 2 GPUs are gone" in gone
    assert "0000:02:00.0" in gone
    ((loose, _),) = rules.gpus(before, [before[0], {"bus": "0000:02:00.0", "driver": ""}])
    assert "no driver (0000:02:00.0)" in loose


def test_a_small_memlock_matters_where_rdma_is_in_use() -> None:
    active = [{"ports": [{"state": "ACTIVE"}]}]
    assert rules.memlock(65536, [{"ports": [{"state": "DOWN"}]}]) == ("", "")
    assert rules.memlock(None, active) == ("", "")
    assert "64 KiB" in rules.memlock(65536, active)[0]


def test_sshd_is_found_by_its_port_in_the_kernels_tables() -> None:
    head = "  sl  local_address rem_address   st\n"
    here = head + "   0: 00000000:0016 00000000:0000 0A 00000000:00000000\n"
    busy = head + "   0: 0100007F:0016 0100007F:9C40 01 00000000:00000000\n"
    assert rules.listener(22, [head, here]) == ("", "")
    assert "port 22" in rules.listener(22, [busy, ""])[0]
    assert "port 2222" in rules.listener(2222, [here])[0]


def test_a_line_names_the_node_its_causes_and_their_cures() -> None:
    assert program.line("node1", [], "", 0.1).startswith("node1: fit")
    found = [("it is\nfull", "free space"), ("a", "b"), ("c", "d"), ("e", "f")]
    assert program.line("node1", found, "", 0.1) == "node1: it is full; free space | a; b | c; d | and 1 more"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The program with all that the role puts beside it."""
    shutil.copy(ROOT / "roles/validation/files/check_node.py", tmp_path)
    for name in VARIABLES["__validation_shared"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "plugins/module_utils" / name, tmp_path / name)
    (tmp_path / "node.json").write_text(json.dumps({"gpus": []}))
    return tmp_path


def ran(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", "-S", str(folder / "check_node.py"), "--quick", "--node", "node7", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def patched(folder: Path, old: str, new: str) -> None:
    path = folder / "check_node.py"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_every_look_works_with_the_files_that_the_role_installs(installed: Path) -> None:
    done = ran(installed)
    assert done.returncode in {0, 10}, done.stderr
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("node7: ")
    assert list(installed.rglob("__pycache__")) == []
    assert "failed" not in done.stdout  # "the look at X failed" of a module that is missing
    assert done.stderr == ""


def test_a_cache_without_the_library_that_the_loader_should_find_is_named(installed: Path) -> None:
    library, conf = installed / "libnccl.so.2", installed / "nccl.conf"
    conf.write_text(f"# clusterctl: the cluster's NCCL\n{installed}\n")
    patched(installed, ARTIFACTS, "")
    patched(installed, '"/etc/ld.so.conf.d/nccl.conf"', repr(str(conf)))
    assert "lacks" not in ran(installed).stdout
    library.touch()
    assert f"/etc/ld.so.cache lacks {library}; run 'ldconfig'" in ran(installed).stdout


def test_a_node_without_the_record_of_a_provision_is_not_fit(installed: Path) -> None:
    (installed / "node.json").unlink()
    done = ran(installed)
    assert done.returncode == 10
    assert "not provisioned" in done.stdout
    assert "clusterctl provision" in done.stdout


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("time.sleep(60)", "gave no answer within 3 s"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by signal 11"),
        ("os._exit(0)", "was ended early"),
        ("raise OSError('broken')", "the look at sshd failed: OSError: broken"),
    ],
)
def test_a_look_that_hangs_or_dies_is_named_and_the_program_ends(installed: Path, act: str, words: str) -> None:
    patched(installed, ARTIFACTS, "")
    patched(
        installed,
        "    if not any(map(os.path.exists, MESH)):",
        f"    {act}\n    if not any(map(os.path.exists, MESH)):",
    )
    began = time.monotonic()
    done = ran(installed, "--deadline", "3" if "sleep" in act else "30")
    assert time.monotonic() - began < 20
    assert done.returncode == 10
    assert "sshd" in done.stdout
    assert words in done.stdout


@pytest.mark.programs
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_no_library_is_loaded_as_root(installed: Path) -> None:
    """Loading a library runs code of it."""
    with tempfile.TemporaryDirectory() as place:  # where every user may look
        library = Path(place, "openmpi/lib/libmpi.so")
        library.parent.mkdir(parents=True)
        Path(place, "told").touch()
        for path in (place, f"{place}/openmpi", f"{place}/openmpi/lib", f"{place}/told"):
            os.chmod(path, 0o777)  # noqa: PTH101, S103
        source = f"""#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void told(void)
{{ FILE *file = fopen("{place}/told", "w"); if (file) {{ fprintf(file, "%d", geteuid()); fclose(file); }} }}
"""
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"], input=source, text=True, check=True
        )
        patched(installed, "ROOT = os.path.dirname(os.path.dirname(FOLDER))", f"ROOT = {place!r}")
        ran(installed)
        assert Path(place, "told").read_text() == "65534"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_job_user_of_the_scheduler_is_the_one_who_must_be_able_to_write(installed: Path) -> None:
    patched(installed, ARTIFACTS, "")
    argv = [sys.executable, "-I", "-S", str(installed / "check_node.py"), "--quick"]
    with tempfile.TemporaryDirectory() as closed:  # where every user may look
        os.chmod(closed, 0o755)  # noqa: PTH101, S103
        for uid, told in (("", False), ("65534", True)):
            environment = {"TMPDIR": closed, "PATH": os.environ["PATH"], "SLURM_JOB_UID": uid}
            done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, timeout=60)
            assert (f"{closed} is not writable" in done.stdout) == told, done.stdout


@pytest.mark.parametrize(("times", "code", "words"), [(9, 11, "node7: unknown: the look at sshd"), (1, None, "")])
def test_a_look_that_is_killed_is_tried_again_and_then_unknown(
    installed: Path, times: int, code: int | None, words: str
) -> None:
    patched(installed, ARTIFACTS, "")
    log = str(installed / "turns")
    act = f"open({log!r}, 'a').write('x')\n    if len(open({log!r}).read()) <= {times}: os.kill(os.getpid(), 9)"
    patched(
        installed,
        "    if not any(map(os.path.exists, MESH)):",
        f"    {act}\n    if not any(map(os.path.exists, MESH)):",
    )
    done = ran(installed)
    assert (installed / "turns").read_text() == "xx"
    assert done.stdout.startswith(words)
    assert ("unknown" in done.stdout) == (code == 11)
    assert done.returncode == code or (code is None and done.returncode in {0, 10})


@pytest.mark.programs
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_jobs_user_cannot_kill_the_look_that_acts_as_this_user(installed: Path) -> None:
    patched(installed, ARTIFACTS, "")
    patched(installed, '    yield "the libraries", libraries\n', "")  # that one acts as nobody
    place = installed / "node_look/machine.py"
    text = place.read_text(encoding="utf-8")
    place.write_text(text.replace("    chosen = next", "    __import__('time').sleep(1)\n    chosen = next", 1))
    killer = f"""
import glob, os, time
until, killed = time.monotonic() + 4, 0
while time.monotonic() < until:
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            if {str(installed)!r}.encode() in open(path, "rb").read() and int(path.split("/")[2]) != os.getpid():
                os.kill(int(path.split("/")[2]), 9)
                killed += 1
        except OSError:
            pass
    time.sleep(0.02)
print(killed)
"""
    argv = ["/usr/bin/python3", "-I", "-c", killer]
    with subprocess.Popen(argv, user=65534, group=65534, extra_groups=[], stdout=subprocess.PIPE) as process:
        done = ran(installed, "--user", "65534")
        assert process.communicate()[0] == b"0\n"
    assert "signal" not in done.stdout
