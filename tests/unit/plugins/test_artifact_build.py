"""The parts of a build that touch files and processes, on real ones."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from typing import TYPE_CHECKING

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    build_failure,
    build_files,
    build_step,
    check_process,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, forget_leftovers
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import machine
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_build

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def archive(path: Path, members: Mapping[str, str], compression: str = "bz2") -> str:
    with tarfile.open(path, f"w:{compression}") as bundle:  # type: ignore[call-overload]
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode, member.uid = len(text), 1_000_000_000, 0o444, 4711
            bundle.addfile(member, io.BytesIO(text.encode()))
    return str(path)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
def test_an_archive_is_unpacked_without_its_first_folder_and_what_is_excluded(tmp_path: Path, compression: str) -> None:
    members = {"x-1/configure": "a", "x-1/docs/html/index.html": "b", "x-1/docs/keep": "c", "x-1/src/docs/html": "d"}
    where = archive(tmp_path / "x.tar", members, compression)
    build_files.unpack(where, tmp_path / "out", 1, ["docs/html"])
    assert names(tmp_path / "out") == ["configure", "docs/keep", "src/docs/html"]
    state = (tmp_path / "out" / "configure").stat()
    assert (state.st_mtime, state.st_uid, state.st_mode & 0o700) == (1_000_000_000, os.getuid(), 0o600)


def test_a_zip_is_unpacked_as_well(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as bundle:
        bundle.writestr("x-1/a/b", "text")
    build_files.unpack(str(tmp_path / "x.zip"), tmp_path / "out", 1, [])
    assert names(tmp_path / "out") == ["a/b"]


def test_a_path_that_leads_out_is_refused(tmp_path: Path) -> None:
    where = archive(tmp_path / "x.tar.bz2", {"x-1/../../evil": "a"})
    with pytest.raises(ArtifactError, match="leads out of it"):
        build_files.unpack(where, tmp_path / "deep" / "out", 1, [])
    assert not (tmp_path / "evil").exists()


def test_an_archive_whose_first_bytes_are_cut_off_is_damaged(tmp_path: Path) -> None:
    """Python's reader ends with a TypeError here."""
    pack = tmp_path / "x.tar.gz"
    pack.write_bytes(b"\x1f\x8b\x08\x04" + bytes(6))
    with pytest.raises(tarfile.ReadError):
        build_files.unpack(str(pack), tmp_path / "out", 0, [])


def test_a_pipe_whose_reader_left_is_noticed() -> None:
    reading, writing = os.pipe()
    assert not build_step.channel_is_gone(writing)
    os.close(reading)
    assert build_step.channel_is_gone(writing)
    os.close(writing)


def test_a_terminal_whose_other_end_left_is_noticed() -> None:
    master, terminal = os.openpty()
    assert not build_step.channel_is_gone(terminal)
    os.close(master)
    assert build_step.channel_is_gone(terminal)
    os.close(terminal)


def test_the_whole_family_of_a_step_is_ended_even_when_it_does_not_listen() -> None:
    stubborn = "trap '' TERM; sleep 456 & echo started; wait; sleep 456"
    process = subprocess.Popen(["sh", "-c", stubborn], start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    build_step.end_group(process)
    assert process.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    process.stdout.close()


def test_the_last_lines_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert build_failure.last_lines(log, 2) == "line 9998\nline 9999"


def test_only_our_own_old_leftovers_are_removed(tmp_path: Path) -> None:
    old = time.time() - 100_000
    for name in ("clusterctl-push-0123456789abcdef-x", "clusterctl-demo-abcdefgh", "clusterctl-mine", "other"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (old, old))
    (tmp_path / "clusterctl-demo-ABCDEFGH").mkdir()
    forget_leftovers(str(tmp_path), ["clusterctl-push-????????????????-*", "clusterctl-demo-????????"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clusterctl-demo-ABCDEFGH", "clusterctl-mine", "other"]


def test_a_check_past_its_time_is_ended_with_its_children() -> None:
    began = time.monotonic()
    code, output = check_process.run_check(
        ["sh", "-c", "echo here; sleep 654 & sleep 654"], {"PATH": os.environ["PATH"]}, 1
    )
    assert (code, output) == (124, "here\n")
    assert time.monotonic() - began < 10
    assert check_process.run_check([sys.executable, "-c", "raise SystemExit(3)"], {}, 10)[0] == 3
    assert check_process.run_check([sys.executable, "-", "x"], {}, 10, "import sys; print(sys.argv)") == (
        0,
        "['-', 'x']\n",
    )


def test_a_signal_is_no_ordinary_exception() -> None:
    with pytest.raises(build_step.Abandoned):
        build_step.abandon(signal.SIGTERM, None)
    assert not issubclass(build_step.Abandoned, Exception)


def meminfo(folder: Path, available_kb: int, group: str = "/") -> Path:
    (folder / "self").mkdir(parents=True, exist_ok=True)
    (folder / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable:  {available_kb} kB\n")
    (folder / "self/cgroup").write_text(f"0::{group}\n")
    return folder


def limited(folder: Path, limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(limit)
    (folder / "memory.current").write_text(str(used))
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\nactive_file 0\n")


def test_the_memory_that_a_build_may_take_is_what_the_kernel_and_every_limit_leave(tmp_path: Path) -> None:
    proc, groups = meminfo(tmp_path / "proc", 4_000_000, "/a/b"), tmp_path / "groups"
    assert machine.available_memory_bytes(str(proc), str(groups)) == 4_096_000_000
    limited(groups / "a/b", "max", 0, 0)
    (groups / "cgroup.controllers").touch()  # as where the second version is mounted
    assert machine.available_memory_bytes(str(proc), str(groups)) == 4_096_000_000
    limited(groups / "a", "3000000000", used=2_500_000_000, cached=700_000_000)
    assert machine.available_memory_bytes(str(proc), str(groups)) == 1_200_000_000
    limited(groups / "a/b", "100", used=500, cached=0)
    assert machine.available_memory_bytes(str(proc), str(groups)) == 0


def test_limits_of_the_first_version_of_control_groups_count_as_well(tmp_path: Path) -> None:
    proc, groups = meminfo(tmp_path / "proc", 4_000_000, "/"), tmp_path / "groups"
    (proc / "self/cgroup").write_text("12:cpu,cpuacct:/a\n11:memory:/of/the/host\n1:name=systemd:/a\n0::/a\n")
    container = groups / "memory"
    container.mkdir(parents=True)
    (container / "memory.limit_in_bytes").write_text("9223372036854771712\n")  # no limit
    (container / "memory.usage_in_bytes").write_text("2500000000\n")
    (container / "memory.stat").write_text(
        "inactive_file 1\ntotal_inactive_file 500000000\ntotal_active_file 200000000\n"
    )
    assert machine.available_memory_bytes(str(proc), str(groups)) == 4_096_000_000
    (container / "memory.limit_in_bytes").write_text("3000000000\n")
    assert machine.available_memory_bytes(str(proc), str(groups)) == 1_200_000_000


def test_the_memory_of_this_very_machine_is_known() -> None:
    assert 0 < machine.available_memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Module:
    """What a build reads of an Ansible module."""

    def __init__(self, folder: Path, **changes: object) -> None:
        text = {"name": "demo", "version": "1", "key": "k", "prefix": "/usr/local/demo", "host": "node1"}
        folders = dict.fromkeys(("root", "log_dir", "work_dir"), str(folder))
        numbers = {"needs_bytes": 0, "jobs": 0, "memory_per_job_bytes": 1 << 30}
        self.params = {
            **text,
            **folders,
            **numbers,
            "memory_strict": False,
            "fresh": False,
            "steps": [],
            "files": [],
            **changes,
        }


def a_build(folder: Path, **changes: object) -> artifact_build.Build:
    return artifact_build.Build(Module(folder, **changes))  # type: ignore[arg-type] # the parameters are all it reads


def test_compilers_are_as_many_as_the_available_memory_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 2_500_000_000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert a_build(tmp_path, memory_per_job_bytes=1_000_000_000).jobs == 2
    assert a_build(tmp_path, memory_per_job_bytes=9_000_000_000).jobs == 1
    assert a_build(tmp_path, memory_per_job_bytes=1_000_000_000, jobs=5).jobs == 5


def test_a_builder_without_the_memory_for_one_compiler_is_refused_before_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 900_000_000)
    a_build(tmp_path, memory_per_job_bytes=2_400_000_000).inspect()
    with pytest.raises(ArtifactError) as refused:
        a_build(tmp_path, memory_per_job_bytes=2_400_000_000, memory_strict=True).inspect()
    assert str(refused.value) == (
        "node1: free some memory there or name another host (demo_builder): building demo 1 needs 2.4 GB for one"
        " compiler, and 0.9 GB are available."
    )


def failing(folder: Path, log: str, *, speaks: bool = False) -> str:
    """Return the message of a step that wrote ``log`` and ended with 1, after another one that wrote an error."""
    build = a_build(folder)
    earlier = "old: error: of an earlier step\n"
    build.log.write_text(earlier + log)
    return str(build_failure.step_failed(build.site, "compile", 1, len(earlier), speaks=speaks))


def test_a_step_that_speaks_gives_the_message(tmp_path: Path) -> None:
    message = failing(tmp_path, "noise\nInstall g++ on the builder: it is not there.\n", speaks=True)
    assert message == (
        "node1: Install g++ on the builder: it is not there."
        f" (Before building demo 1; the log is {tmp_path}/demo-1-k.log@LOG@.)"
    )


def test_the_first_error_is_named_when_the_last_lines_do_not_show_it(tmp_path: Path) -> None:
    noise = "".join(f"make: line {number}\n" for number in range(50))
    message = failing(tmp_path, f"x.cc:1:2: fatal error: nccl.h: No such file\n{noise}x.cc: error: the second\n")
    assert "ended with 1, its first error is 'x.cc:1:2: fatal error: nccl.h: No such file'; the whole log" in message
    assert "its first error" not in failing(tmp_path, "x.cc: error: the only one\n")


def test_a_compiler_that_was_killed_is_a_matter_of_memory(tmp_path: Path) -> None:
    noise = "make: line\n" * 50
    message = failing(tmp_path, f"g++: fatal error: Killed signal terminated program cc1plus\n{noise}")
    assert message.startswith("node1: free some memory there, set demo_make_jobs to less than ")
    assert "a compiler was killed while building demo 1" in message
