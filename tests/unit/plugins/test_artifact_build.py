"""The parts of a build that touch files and processes, on real ones."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import build_files, build_user
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, forget_leftovers, sha256_of
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import machine
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_build
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import artifact_building
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.artifact_building import BuildingAction
from wheel_files import make_wheel


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


@pytest.mark.parametrize("opened", [os.pipe, os.openpty], ids=["pipe", "terminal"])
def test_a_channel_whose_other_end_left_is_noticed(opened: Callable[[], tuple[int, int]]) -> None:
    reading, writing = opened()
    assert not build_user.channel_is_gone(writing)
    os.close(reading)
    assert build_user.channel_is_gone(writing)
    os.close(writing)


def test_the_whole_family_of_a_step_is_ended_even_when_it_does_not_listen() -> None:
    stubborn = "trap '' TERM; sleep 456 & echo started; wait; sleep 456"
    process = subprocess.Popen(["sh", "-c", stubborn], start_new_session=True, stdout=subprocess.PIPE)
    process.stdout.readline()
    build_user.end_group(process)
    assert process.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    process.stdout.close()


def test_the_last_lines_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert build_files.last_lines(log, 2) == "line 9998\nline 9999"


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
    done = build_user.run_check(["sh", "-c", "echo here; sleep 654 & sleep 654"], {"PATH": os.environ["PATH"]}, 1)
    assert (done.status, done.output) == (124, "here\n")
    assert time.monotonic() - began < 10
    assert build_user.run_check([sys.executable, "-c", "raise SystemExit(3)"], {}, 10).status == 3
    done = build_user.run_check([sys.executable, "-", "x"], {}, 10, "import sys; print(sys.argv)")
    assert done == (0, "['-', 'x']\n", "")


def test_a_signal_is_no_ordinary_exception() -> None:
    with pytest.raises(build_user.Abandoned):
        build_user.abandon(signal.SIGTERM, None)
    assert not issubclass(build_user.Abandoned, Exception)


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
    said = str(refused.value)
    assert said.startswith("node1: free some memory there or name another host (demo_builder): ")
    assert "needs 2.4 GB for one compiler, and 0.9 GB are available" in said


def failing(folder: Path, log: str, *, speaks: bool = False) -> str:
    """Return the message of a step that wrote ``log`` and ended with 1, after another one that wrote an error."""
    build = a_build(folder)
    earlier = "old: error: of an earlier step\n"
    build.log.write_text(earlier + log)
    return str(build_files.step_failed(build.site, "compile", 1, len(earlier), speaks=speaks))


def test_a_step_that_speaks_gives_the_message(tmp_path: Path) -> None:
    message = failing(tmp_path, "noise\nInstall g++ on the builder: it is not there.\n", speaks=True)
    assert message.startswith("node1: Install g++ on the builder: it is not there. (")
    assert f"{tmp_path}/demo-1-k.log@LOG@" in message


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


# --- A source archive that root unpacks changes nothing outside of its folder ---


_LINK, _TWIN, _FOLDER, _FILE = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.REGTYPE
# A link whose end is inside as long as 'a' and 'b' are missing; as links they lead it out.
_LATER = [("l", _LINK, "a/b/../../outside"), ("a", _LINK, "."), ("b", _LINK, ".")]
_TWICE = [("outside", _FOLDER, ""), ("x", _FOLDER, ""), ("x/y", _FOLDER, ""), ("x/y/l", _LINK, "../../outside")]
ARCHIVES = {
    "a second name through a link": [*_LATER, ("twin", _TWIN, "l/f"), ("twin", _FILE, "new")],
    "a file through a link": [*_LATER, ("l/f", _FILE, "new")],
    "a file in place of a link": [("l", _LINK, "a/b/../../outside/f"), *_LATER[1:], ("l", _FILE, "new")],
    "a folder in place of a link": [*_LATER, ("l", _FOLDER, "")],
    "a second name of a link, at another depth": [*_TWICE, ("l", _TWIN, "x/y/l"), ("l/f", _FILE, "new")],
}


def packed(path: Path, members: list[tuple[str, bytes, str]]) -> Path:
    """Write an archive; the third word is a file's content, or where a link leads."""
    with tarfile.open(path, "w:gz") as bundle:
        for name, kind, word in members:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, 0o777
            member.linkname = "" if kind == _FILE else word
            member.size = len(word) if kind == _FILE else 0
            bundle.addfile(member, io.BytesIO(word.encode()))
    return path


@pytest.mark.parametrize("is_filtered", [True, False], ids=["filter", "old Python"])
@pytest.mark.parametrize("name", ARCHIVES)
def test_no_member_reaches_a_file_outside_of_the_folder(
    name: str, is_filtered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_filtered:
        monkeypatch.delattr(tarfile, "tar_filter", raising=False)
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    (outside / "f").write_text("old")
    archive = packed(tmp_path / "source.tar.gz", ARCHIVES[name])
    with contextlib.suppress(ArtifactError, tarfile.TarError):
        build_files.unpack(str(archive), tmp_path / "work" / "source", 0, [])
    assert (outside / "f").read_text() == "old"
    assert outside.stat().st_mode & 0o777 == 0o700


def test_links_and_second_names_within_the_folder_are_unpacked(tmp_path: Path) -> None:
    members = [
        ("top", _FOLDER, ""),
        ("top/lib", _FOLDER, ""),
        ("top/lib/x.so.1", _FILE, "one"),
        ("top/lib/x.so", _LINK, "x.so.1"),
        ("top/lib64", _LINK, "lib"),
        ("top/twin", _TWIN, "top/lib/x.so.1"),
    ]
    build_files.unpack(str(packed(tmp_path / "source.tar.gz", members)), tmp_path / "work", 1, [])
    assert [(tmp_path / "work" / name).read_text() for name in ("lib64/x.so", "twin")] == ["one", "one"]


def test_a_file_of_a_build_goes_through_no_link_of_an_archive(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    work = tmp_path / "one" / "work"
    work.mkdir(parents=True)
    archive = packed(tmp_path / "source.tar.gz", _LATER)
    patch = tmp_path / "patch"
    patch.write_text("new")
    files = [
        {"path": str(path), "sha256": sha256_of(path), "size": path.stat().st_size, "unpack": is_archive, **rest}
        for path, is_archive, rest in (
            (archive, True, {"dest": "source", "strip": 0, "exclude": []}),
            (patch, False, {"dest": "source/l/patch"}),
        )
    ]
    (tmp_path / "one" / "outside").mkdir()
    with pytest.raises(ArtifactError, match="link"):
        build_files.bring(files, work, "demo 1.0", lambda _line: None)
    assert not list((tmp_path / "one" / "outside").iterdir())


class _Copying(BuildingAction):
    """The controller's part of a build, whose copies to the host go to a folder of this machine."""

    def __init__(self, host: Path) -> None:
        self.host, self._warnings = host, []

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        raise NotImplementedError

    def _push(self, local: Path, folder: str) -> str:
        place = Path(folder) / f"{len(list(self.host.iterdir()))}-{local.name}"
        shutil.copy(local, place)
        return str(place)


@pytest.mark.parametrize("large", [False, True])
def test_small_wheels_travel_together_and_arrive_under_their_names(
    large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, host, work = tmp_path / "given", tmp_path / "host", tmp_path / "work"
    host.mkdir()
    monkeypatch.setattr(artifact_building.C, "DEFAULT_LOCAL_TMP", str(tmp_path))
    wheels = [make_wheel(given, name, "1.0") for name in ("one", "two", "three")]
    if large:
        monkeypatch.setattr(artifact_building, "_SMALL", max(path.stat().st_size for path in wheels) - 1)
    wanted = {"name": "x", "platform": "debian-12-x86_64-glibc2.36-py3.11", "requirements": ["one", "two", "three"]}
    item = {"wheels": {**wanted, "wheel_dir": str(given), "variable": "python_env_requirements"}, "dest": "wheels"}
    pushed: list[str] = []
    arguments = {"files": [item], "cache_dir": str(tmp_path / "cache"), "name": "x"}
    brought = _Copying(host)._bring_files(arguments, "node1", str(host), pushed)  # noqa: SLF001
    assert len(pushed) == len(brought) == (2 if large else 1)
    assert not list(tmp_path.glob("*.zip"))
    files = [{"unpack": False, "strip": 1, "exclude": [], **one} for one in brought]
    build_files.bring(files, work, "x 1.0", lambda _text: None)
    assert names(work) == sorted(f"wheels/{path.name}" for path in wheels)
    assert all((work / "wheels" / path.name).read_bytes() == path.read_bytes() for path in wheels)
    assert not list(host.iterdir())
