"""The probe: whole records from this very machine, parsers against captured files, and holes instead of crashes."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact, node_record_gate
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import (
    artifacts,
    gpu,
    libraries,
    network,
    parameters,
    path_state,
    processes,
    reading,
    record,
    ssh,
    users,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import (
    machine as node_machine,
)
from clusterctl.model.facts import NodeFacts
from clusterctl.remote import python as remote_python
from clusterctl.remote.facts import JOB_LOOK, NODE_PROBE
from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import RunModule

DATA = Path(__file__).resolve().parents[2] / "data" / "node_probe"


def captured(name: str) -> str:
    return (DATA / name).read_text()


def piped(request: dict[str, Any], *session: str, python: str = sys.executable) -> dict[str, Any]:
    """Run the probe the way it runs over ssh."""
    program = remote_python.program(NODE_PROBE)
    argv = program.argv(python, *session)
    done = subprocess.run(argv, input=program.data + json.dumps(request).encode(), capture_output=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_files_of_a_job_are_told_with_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, mode in (("run.sh", 0o755), ("data", 0o644)):
        (tmp_path / name).touch(mode)
    asked = {"names": ["sh", "./run.sh", "./data", "./missing", "missing"], "directory": str(tmp_path)}
    program = remote_python.program(NODE_PROBE, (JOB_LOOK,))
    request = json.dumps({"job_look": asked}).encode()
    done = subprocess.run(program.argv(sys.executable), input=program.data + request, capture_output=True, check=True)
    told = NodeFacts.model_validate(node_record_gate.passed(json.loads(done.stdout))).job_look
    assert told is not None
    assert (told.found, told.runs) == ((True, True, True, False, False), (True, True, False, False, False))
    assert (told.folder, told.has_folder, told.memory.uid) == (str(tmp_path), True, os.getuid())
    assert piped({})["job_look"] is None

    folder = str(tmp_path)  # of a file system that does not answer: a look of its own says so after its time
    monkeypatch.setattr(record, "frozen_paths", lambda paths, *_: {folder} & set(paths))
    assert record.collect({"job_look": asked})["job_look"] is None


@pytest.mark.parametrize("directory", ["", "jobs", "./jobs/"])
def test_no_file_of_a_job_is_looked_for_in_a_home_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, directory: str
) -> None:
    """A relative folder of --chdir counts from the home."""
    monkeypatch.setattr(record.users, "uid_and_home", lambda: (os.getuid(), str(tmp_path)))
    monkeypatch.setattr(
        record, "frozen_paths", lambda paths, *_: {one for one in paths if one.startswith(str(tmp_path))}
    )
    asked = {"names": ["sh"], "directory": directory}
    assert record.collect({"job_look": asked})["job_look"] is None


def test_a_dev_null_that_the_user_cannot_open_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells and ssh fail then, and much else goes on: a validation passed on such a node."""
    denied = os.devnull
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, *given, **more: path != denied and access(path, *given, **more))
    assert "session: no permission for '/dev/null'" in record.collect({})["problems"]


def test_the_record_of_this_machine_is_whole() -> None:
    found = piped({})
    assert found["problems"] == []
    facts = NodeFacts.model_validate(found)
    assert facts.hostname == os.uname().nodename
    assert facts.kernel == os.uname().release
    assert facts.cores >= 1
    assert facts.memory_bytes > 1 << 27
    assert {disk.path for disk in facts.disk} == {"/usr/local", "/var/tmp"}  # noqa: S108 - names in a record
    assert "127.0.0.1" in {entry.address for one in facts.interfaces for entry in one.addresses}
    assert re.fullmatch(r"[a-z]+-[\d.]+-\w+-glibc[\d.]+-py3\.\d+(-cuda\d+)?", facts.platform)


def test_it_runs_in_the_four_ways_with_one_answer(run_module: RunModule, tmp_path: Path) -> None:
    request = {"watch": [{"path": str(tmp_path), "kind": "dir"}], "artifacts": []}
    over_ssh = piped(request)
    by_hand = [sys.executable, "-m", "node_look.record", json.dumps(request)]
    as_program = json.loads(subprocess.check_output(by_hand, cwd=content.root() / "plugins" / "module_utils"))
    as_module = run_module("node_facts", **request)["node"]
    imported = record.collect(request)
    assert {told["platform"] for told in (over_ssh, as_program, as_module, imported)} == {over_ssh["platform"]}
    assert over_ssh["watch"] == as_program["watch"] == as_module["watch"] == imported["watch"] != []
    assert set(over_ssh) == set(as_module)


def sources() -> list[str]:
    folder = content.root() / "plugins" / "module_utils" / "node_look"
    return [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))]


def test_it_needs_only_the_oldest_python_that_is_promised() -> None:
    """Nothing newer than Python 3.9 in the grammar; where such an interpreter is installed, it runs the probe."""
    for source in sources():
        ast.parse(source, feature_version=(3, 9))
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for python in sorted(root.glob("versions/3.9.*/bin/python3")):
        assert piped({}, python=str(python))["problems"] == []


def test_only_the_standard_library_is_imported() -> None:
    modules = re.findall(r"^\s*(?:import|from) (\w+)", "\n".join(sources()), flags=re.MULTILINE)
    assert {"json", "socket"} <= set(modules) <= sys.stdlib_module_names


def test_a_section_that_fails_leaves_a_hole_and_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise PermissionError(13, "no one may look")

    monkeypatch.setattr(os, "statvfs", broken)
    found = record.collect({})
    assert found["disk"] == []
    assert found["shm_bytes"] == 0
    assert found["scratch"] == []
    words = "PermissionError: [Errno 13] no one may look"
    assert found["problems"] == [f"prefix: {words}", f"storage: {words}", f"scratch: {words}"]
    assert NodeFacts.model_validate(found).cores >= 1


def test_every_section_has_a_fallback_of_its_own_shape() -> None:
    for name, answer, fallback in record.sections({}, users.Session()):
        assert set(answer()) == set(fallback), name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes a user without a question")
@pytest.mark.parametrize("changer", ["su", "sudo"])
def test_the_session_is_told_past_what_replaces_the_environment(changer: str) -> None:
    if shutil.which(changer) is None:
        pytest.skip("sudo is not installed; su is the same to the probe")
    program = remote_python.program(NODE_PROBE)
    words = program.argv(sys.executable, "/session/bin", "/lib64")
    argv = ["sudo", "-n", "--", *words] if changer == "sudo" else ["su", "-", "-c", shlex.join(words)]
    done = subprocess.run(argv, input=program.data + b"{}", capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert found["environment"] == {"PATH": "/session/bin", "LD_LIBRARY_PATH": "/lib64"}


# --- path states ---


def test_the_state_of_each_kind_of_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("nowhere")
    state = path_state.watch_state(f"{tmp_path}/file")
    assert (state["kind"], state["mode"], state["sha256"]) == ("file", "0640", hashlib.sha256(b"x").hexdigest())
    link = path_state.watch_state(f"{tmp_path}/link", "file")
    assert link == {"path": f"{tmp_path}/link", "kind": "link", "target": "nowhere"}
    assert path_state.watch_state(f"{tmp_path}/none/of/it") == {"path": f"{tmp_path}/none/of/it", "kind": "absent"}
    assert set(path_state.watch_state(str(tmp_path))) == {"path", "kind", "mode", "owner", "group"}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    folder = tmp_path / "demo-1.0-k"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib").chmod(0o755)
    (folder / "lib/libdemo.so.1").write_bytes(b"library")
    (folder / "lib/libdemo.so.1").chmod(0o644)
    (folder / "lib/libdemo.so").symlink_to("libdemo.so.1")
    manifest = artifact.manifest_bytes(artifact.make_manifest(str(folder)))
    (folder / artifact.MANIFEST).write_bytes(manifest)
    digest = hashlib.sha256(manifest).hexdigest()
    (folder / artifact.MARKER).write_bytes(
        artifact.marker_bytes("demo", "1.0", "k", {"version": "1.0", "secret": "not asked for"}, digest)
    )
    (tmp_path / "demo").symlink_to("demo-1.0-k")
    return tmp_path / "demo"


@pytest.mark.parametrize(
    ("text", "version"),
    [("#define CUDA_VERSION 12080\n", "12.8"), ("/* */\n#define CUDA_VERSION 13000\r\n", "13.0"), ("nothing", "")],
)
def test_a_toolkit_without_a_version_file_is_told_by_its_header(text: str, version: str) -> None:
    assert gpu.header_cuda_version(text) == version


def test_the_probe_reads_what_the_artifact_modules_write(installed: Path) -> None:
    assert (artifacts.MARKER, artifacts.MANIFEST) == (artifact.MARKER, artifact.MANIFEST)
    asked = [{"name": "demo", "link": str(installed), "inputs": ["version", "unknown"]}]
    found = record.collect({"artifacts": asked})["artifacts"]
    target = str(installed.resolve())
    whole = {"name": "demo", "link": str(installed), "target": target, "version": "1.0", "key": "k", "linked": True}
    assert found == [{**whole, "ok": True, "problem": "", "inputs": {"version": "1.0"}}]
    seen = artifact.inspect_tree(target, "demo", "1.0", "k")
    state = path_state.watch_state(target, "artifact")
    assert state == {
        "path": target,
        "kind": "artifact",
        "marker_sha256": seen.marker_sha256,
        "files": seen.files,
    }


def test_a_record_looks_at_each_file_of_an_artifact_once(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    lstat = os.lstat

    def noted(path: str, **options: Any) -> os.stat_result:
        seen.append(str(path))
        return lstat(path, **options)

    monkeypatch.setattr(os, "lstat", noted)
    library = str(installed.resolve() / "lib/libdemo.so.1")
    entry = {"path": str(installed), "kind": "artifact"}
    found = record.collect({"artifacts": [{"name": "demo", "link": str(installed)}], "watch": [entry]})
    assert found["artifacts"][0]["ok"]
    assert found["watch"][0]["kind"] == "artifact"
    assert seen.count(library) == 1


def test_a_corruption_of_equal_size_and_time_is_seen_in_its_slice(installed: Path) -> None:
    library = installed / "lib/libdemo.so.1"
    whole, status = path_state.watch_state(str(installed), "artifact"), library.stat()
    library.write_bytes(b"librarY")
    os.utime(library, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path_state.watch_state(str(installed), "artifact") == whole, "a quick look reads no content"
    found = {}
    for number in range(artifacts.SLICES):
        found[number] = path_state.watch_states([whole], artifacts.Verifier([number]))[0]["files"]
    named = "1 of 3 files are missing or changed, first lib/libdemo.so.1 (content)"
    assert [number for number in found if found[number] == named] == [artifacts.slice_of("lib/libdemo.so.1")]
    assert path_state.watch_states([whole], artifacts.Verifier(list(range(artifacts.SLICES))))[0]["files"] == named
    problem = artifact.inspect_tree(str(installed.resolve()), "demo", "1.0", "k", content=True).problem
    assert "lib/libdemo.so.1" in problem, "provision with the same question repairs it"


def test_a_file_of_another_user_in_an_artifact_is_noticed(installed: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(installed / "lib/libdemo.so.1", 65534, 65534)
    assert "(owner nobody)" in path_state.watch_state(str(installed), "artifact")["files"]
    seen = artifact.inspect_tree(str(installed.resolve()), "demo", "1.0", "k")
    assert seen.problem == "lib/libdemo.so.1 (owner nobody)"


def test_of_a_users_file_only_our_block_is_watched(tmp_path: Path) -> None:
    keys = tmp_path / "authorized_keys"
    block = "# BEGIN clusterctl ssh_mesh\nssh-ed25519 A\n# END clusterctl ssh_mesh\n"
    keys.write_text(f"ssh-rsa mine\n{block}")
    before = path_state.watch_state(str(keys), "block", "ssh_mesh")
    assert (before["kind"], before["marker"]) == ("block", "ssh_mesh")
    keys.write_text(f"ssh-rsa mine\nssh-rsa another of mine\n{block}# the end\n")
    assert path_state.watch_states([before]) == [before]
    keys.write_text(block.replace("A", "B"))
    assert path_state.watch_states([before]) != [before]
    keys.write_text(f"ssh-rsa mine\n{block}")
    keys.chmod(0o666)
    assert path_state.watch_states([before])[0]["mode"] == "0666"
    keys.unlink()
    assert path_state.watch_states([before])[0]["kind"] == "absent"


def test_a_library_and_its_entry_in_the_loaders_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    path = next(line.rpartition(" => ")[2] for line in names.splitlines() if "libc.so.6" in line)
    monkeypatch.setattr(libraries, "LIBRARY_CACHE", "/etc/ld.so.cache")
    for kind in ("library", "loader"):
        assert path_state.watch_state(path, kind)["kind"] == kind
    assert path_state.watch_state(f"{tmp_path}/libc.so.6", "library")["kind"] == "absent"
    stale = tmp_path / "ld.so.cache"
    (tmp_path / "empty.conf").touch()
    subprocess.run(["/sbin/ldconfig", "-X", "-N", "-C", str(stale), "-f", str(tmp_path / "empty.conf")], check=True)
    monkeypatch.setattr(libraries, "LIBRARY_CACHE", str(stale))
    assert path_state.watch_state(path, "loader")["kind"] == "absent"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda tree: (tree / "lib/libdemo.so.1").unlink(), "1 of 3 files are missing or changed, first lib/libdemo"),
        (lambda tree: (tree / "lib/libdemo.so.1").write_bytes(b"short"), "first lib/libdemo.so.1"),
        (lambda tree: (tree / "lib/libdemo.so.1").chmod(0o666), "lib/libdemo.so.1 (mode 0666, was 0644)"),
        (lambda tree: (tree / "lib").chmod(0o777), "lib (mode 0777, was 0755)"),
        (lambda tree: (tree / artifact.MANIFEST).unlink(), "is missing"),
        (lambda tree: (tree / artifact.MANIFEST).write_text("[]"), "not the one that the marker names"),
        (lambda tree: (tree / artifact.MARKER).unlink(), "never finished"),
        (lambda tree: (tree / artifact.MARKER).write_text("{"), "cannot be read"),
    ],
)
def test_a_damaged_artifact_is_noticed(installed: Path, damage: Any, words: str) -> None:
    before = path_state.watch_state(str(installed), "artifact")
    damage(installed)
    found = record.collect({"artifacts": [{"name": "demo", "link": str(installed)}]})["artifacts"][0]
    assert found["ok"] is False
    assert words in found["problem"]
    assert path_state.watch_state(str(installed), "artifact") != before


# --- libraries ---


SONAME = "libnccl.so.2"
NCCL_SOURCE = "int ncclGetVersion(int *code) { *code = 22907; return 0; }\n"
STRANGE = "#include <unistd.h>\n__attribute__((constructor)) static void hang(void) { sleep(60); }\n" + NCCL_SOURCE


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Look for artifacts, and for the loader's cache, where this machine's own are not."""
    monkeypatch.setattr(artifacts, "DEFAULT_PREFIX", str(tmp_path / "local"))
    monkeypatch.setattr(libraries, "LIBRARY_CACHE", str(tmp_path / "ld.so.cache"))
    return tmp_path


def elf(path: Path, machine: int = 0) -> Path:
    """Write as much of a library as the loader looks at before it takes a file."""
    head = bytearray(Path("/proc/self/exe").read_bytes()[:64])
    if machine:
        head[18:20] = machine.to_bytes(2, sys.byteorder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head)
    return path


def compiled(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    argv = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{SONAME}", "-x", "c", "-", "-o", str(path)]
    subprocess.run(argv, input=source.encode(), check=True)
    return path


def looked_up(library_path: str, *also: str) -> dict[str, Any]:
    (found,) = libraries.libraries([{"soname": SONAME, "also": list(also)}], library_path, artifacts.DEFAULT_PREFIX)[
        "libraries"
    ]
    return dict(found)


@pytest.mark.parametrize("form", ["new", "compat"])
def test_a_captured_cache_gives_paths_in_the_loaders_order(form: str) -> None:
    data = (DATA / f"ld.so.cache.{form}.bin").read_bytes()
    folders = ["/opt/vendor/lib", "/usr/local/nccl/lib"]
    expected = folders if form == "new" else folders[::-1]  # the folders stood the other way round in ld.so.conf.d
    assert libraries.read_library_cache(data, SONAME) == [f"{folder}/{SONAME}" for folder in expected]
    assert libraries.read_library_cache(data, "libc.so.6") == ["/lib/x86_64-linux-gnu/libc.so.6"]
    assert libraries.read_library_cache(data, "nccl.so.2") == libraries.read_library_cache(data, "libnccl.so") == []
    assert libraries.read_library_cache(b"ld.so-1.7.0", SONAME) == []


def test_what_only_special_processors_may_take_is_passed_over() -> None:
    names = [SONAME, f"/v3/{SONAME}", f"/v1/{SONAME}"]
    at = [48 + 2 * 24 + sum(len(name) + 1 for name in names[:count]) for count in range(3)]
    entries = ((0x303, at[0], at[1], 0, (1 << 62) + 1), (0x303, at[0], at[2], 0, 0))
    head = b"glibc-ld.so.cache1.1" + struct.pack("=I24x", len(entries))
    body = b"".join(struct.pack("=iIIIQ", *entry) for entry in entries)
    data = head + body + b"".join(name.encode() + b"\0" for name in names)
    assert libraries.read_library_cache(data, SONAME) == [f"/v1/{SONAME}"]


def test_the_path_comes_before_the_cache_and_files_of_other_machines_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "ld.so.cache").write_bytes((DATA / "ld.so.cache.new.bin").read_bytes())
    elf(tmp_path / "arm" / SONAME, machine=0xB7)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / SONAME).write_text("GROUP ( libnccl_static.a )\n")
    real = elf(tmp_path / "real" / "libnccl.so.2.29.7")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / SONAME).symlink_to(real)
    elf(tmp_path / "third" / "libnccl.so.2.18.3").rename(tmp_path / "third" / SONAME)
    found = looked_up(f":{tmp_path}/arm:{tmp_path}/text/:relative;{tmp_path}/second:{tmp_path}/third", str(real))
    assert {key: found[key] for key in ("path", "real", "version", "via")} == {
        "path": f"{tmp_path}/second/{SONAME}",
        "real": str(real),
        "version": "2.29.7",
        "via": "LD_LIBRARY_PATH",
    }
    assert [(entry["path"], entry["version"], entry["via"]) for entry in found["others"]] == [
        (f"{tmp_path}/third/{SONAME}", "", "LD_LIBRARY_PATH"),
        (str(real), "2.29.7", "asked for"),
    ]


def test_the_real_loader_takes_the_same_file(tmp_path: Path) -> None:
    elf(tmp_path / "arm" / SONAME, machine=0xB7)
    compiled(tmp_path / "one" / "libnccl.so.2.29.7", NCCL_SOURCE)
    (tmp_path / "one" / SONAME).symlink_to("libnccl.so.2.29.7")
    compiled(tmp_path / "two" / SONAME, NCCL_SOURCE)
    program = f"import ctypes; ctypes.CDLL('{SONAME}'); print(open('/proc/self/maps').read())"
    for folders in (("arm", "one", "two"), ("two", "one")):
        path = ":".join(f"{tmp_path}/{folder}" for folder in folders)
        mapped = subprocess.check_output([sys.executable, "-c", program], env={"LD_LIBRARY_PATH": path}, text=True)
        assert looked_up(path)["real"] in mapped


def test_what_no_loader_would_find_is_told_apart(tmp_path: Path) -> None:
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    inside = elf(site / "nvidia" / "nccl" / "lib" / SONAME)
    (site / "nvidia_nccl_cu13-2.30.7.dist-info").mkdir()
    found = looked_up("", f"{tmp_path}/env/lib/python3*/site-packages/nvidia/nccl/lib/{SONAME}")
    assert (found["path"], found["via"]) == ("", "")
    assert found["others"] == [{"path": str(inside), "real": str(inside), "version": "2.30.7", "via": "asked for"}]
    assert looked_up(str(inside.parent))["version"] == "2.30.7"


def test_a_file_in_an_artifact_has_the_artifacts_version_unless_it_only_lies_in_a_foreign_one(tmp_path: Path) -> None:
    for name, version in (("nccl", "2.32.3"), ("python_env", "3.11")):
        folder = elf(tmp_path / "local" / f"{name}-{version}-k" / "lib" / SONAME).parent
        (folder.parent / artifact.MARKER).write_bytes(artifact.marker_bytes(name, version, "k", {}, "0" * 64))
        found = looked_up(str(folder))
        assert found["version"] == ("2.32.3" if name == "nccl" else "")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can read, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="clusterctl-open-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_library_that_nothing_else_names_is_asked_in_another_process(open_folder: Path) -> None:
    path = compiled(open_folder / "lib" / SONAME, NCCL_SOURCE)
    assert looked_up(str(path.parent))["version"] == "2.29.7"
    assert str(path) not in Path("/proc/self/maps").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to lose")
def test_root_runs_no_library_of_a_sessions_path(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library tells whose rights it has."""
    monkeypatch.delenv("SUDO_UID", raising=False)
    told = "int getuid(void); int ncclGetVersion(int *code) { *code = getuid() ? 22907 : 1; return 0; }\n"
    path = compiled(open_folder / "lib" / SONAME, told)
    assert looked_up(str(path.parent))["version"] == "2.29.7"


def test_a_library_that_hangs_costs_a_bounded_time(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_NCCL_ANSWER_S", 0.3)
    path = compiled(open_folder / "lib" / SONAME, STRANGE)
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text().split()
    began = time.monotonic()
    found = looked_up(str(path.parent))
    assert time.monotonic() - began < 3
    assert (found["path"], found["version"]) == (str(path), "")
    assert set(children.read_text().split()) <= set(before)


@pytest.mark.parametrize(("code", "release"), [(22907, "2.29.7"), (23203, "2.32.3"), (2804, "2.8.4"), (0, "")])
def test_version_codes(code: int, release: str) -> None:
    assert libraries.nccl_release(code) == release


def test_nothing_is_looked_for_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", None)
    assert record.collect({})["libraries"] == []


def test_names_are_looked_up_as_a_program_would() -> None:
    own, local, none = record.collect({"resolve": ["localhost", "no-such-host.invalid"]})["names"]
    assert own["name"] == socket.gethostname()
    assert "127.0.0.1" in local["addresses"] or "::1" in local["addresses"]
    assert none["addresses"] == []
    assert none["problem"]


def test_a_resolver_that_hangs_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang_on_the_second(name: str) -> dict[str, Any]:
        time.sleep(60 if name == "second" else 0)
        return {"addresses": ["192.0.2.1"], "problem": ""}

    monkeypatch.setattr(network, "_addresses_of", hang_on_the_second)
    monkeypatch.setattr(network, "_ANSWER_OF_NAMES_S", 0.5)
    _, first, second = record.collect({"resolve": ["first", "second"]})["names"]
    assert first["addresses"] == ["192.0.2.1"]
    assert second == {"name": "second", "addresses": [], "problem": "no answer within 0.5 s"}


def test_a_rank_whose_launcher_is_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_a_child = (
        "import subprocess; "
        "print(subprocess.Popen(['sleep', '61'], stdout=subprocess.DEVNULL, start_new_session=True).pid)"
    )
    environment = {**os.environ, "PMIX_RANK": "3"}
    done = subprocess.run([sys.executable, "-c", leave_a_child], env=environment, stdout=subprocess.PIPE, check=True)
    pid = int(done.stdout)
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().split()[3]
        reaper = Path(f"/proc/{parent}/comm").read_text().strip()
        monkeypatch.setattr(processes, "_REAPERS", {reaper})  # in a container it may be any program
        found = {entry["pid"]: entry for entry in record.collect({"leftovers": True})["leftovers"]}
    finally:
        os.kill(pid, signal.SIGKILL)
    assert (found[pid]["command"], found[pid]["why"]) == ("sleep 61", "its launcher is gone")
    assert record.collect({})["leftovers"] == []


def test_a_rank_with_a_launcher_is_none_of_them() -> None:
    with subprocess.Popen(["sleep", "61"], env={**os.environ, "PMIX_RANK": "3"}) as rank:
        found = [entry["pid"] for entry in record.collect({"leftovers": True})["leftovers"]]
        rank.kill()
    assert rank.pid not in found


def test_a_process_that_uses_an_artifact_is_found(tmp_path: Path) -> None:
    tree = tmp_path / "demo-1-0123456789abcdef"
    (tree / "bin").mkdir(parents=True)
    (tree / artifacts.MARKER).write_text("{}", encoding="utf-8")
    (tmp_path / "demo").symlink_to(tree.name)
    shutil.copy(shutil.which("sleep") or "", tree / "bin" / "sleep")
    with (
        subprocess.Popen([f"{tmp_path}/demo/bin/sleep", "61"]) as mapped,
        subprocess.Popen(["sleep", "62"], env={**os.environ, "OMPI_COMM_WORLD_RANK": "0"}) as rank,
        subprocess.Popen(["sleep", "63"]) as neither,
    ):
        time.sleep(0.2)
        found = {entry["pid"]: entry for entry in record.collect({"busy": True, "prefix": str(tmp_path)})["busy"]}
        for process in (mapped, rank, neither):
            process.kill()
    assert (found[mapped.pid]["rank"], found[mapped.pid]["trees"]) == (False, [str(tree)])
    assert found[mapped.pid]["command"].endswith("/demo/bin/sleep 61")
    assert (found[rank.pid]["rank"], found[rank.pid]["trees"]) == (True, [])
    assert neither.pid not in found
    assert record.collect({})["busy"] == []


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="root gives up a capability with setpriv")
def test_root_without_the_right_to_trace_finds_the_ranks_of_others() -> None:
    # Those that a container lacks; each of the three lets root read the environment of a foreign process.
    rights = "-sys_ptrace,-sys_admin,-perfmon"
    fewer = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]
    probe = [sys.executable, "-B", "-m", "node_look.record", json.dumps({"busy": True})]
    with subprocess.Popen(["sleep", "61"], env={"PMIX_RANK": "3"}, user=65534, group=65534, extra_groups=[]) as rank:
        environ = f"/proc/{rank.pid}/environ"
        plain = subprocess.run([*fewer, "cat", environ], capture_output=True, check=False)
        done = subprocess.run(
            [*fewer, *probe], capture_output=True, check=True, cwd=content.root() / "plugins/module_utils"
        )
        rank.kill()
    assert plain.returncode == 1, "root may not read it as root"
    found = {entry["pid"]: entry["rank"] for entry in json.loads(done.stdout)["busy"]}
    assert found.get(rank.pid) is True


def test_memory_of_a_gpu_in_the_maps_of_a_process_shows_that_it_computes_there() -> None:
    line = "7f1c40000000-7f1c40200000 rw-s 00000000 00:06 473                        "
    assert processes.uses_gpu(f"{line}/dev/nvidia0\n")
    assert processes.uses_gpu(f"{line}/dev/nvidia-uvm\n")
    assert not processes.uses_gpu(f"{line}/dev/nvidiactl\n")
    assert not processes.uses_gpu(f"{line}/usr/lib/libcuda.so.1\n")


def test_the_fabric_s_record_is_read_and_a_damaged_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "fabric.json"
    monkeypatch.setattr(network, "_FABRIC", str(place))
    assert record.collect({})["fabric"] is None
    chosen = {"cidrs": ["10.0.0.0/24"], "interface": "eth0", "address": "10.0.0.5"}
    place.write_text(json.dumps({"schema_version": 1, **chosen}))
    assert record.collect({})["fabric"] == {**chosen, "proven": []}
    place.write_text(json.dumps({"schema_version": 1, **chosen, "proven": ["node2"]}))
    assert record.collect({})["fabric"] == {**chosen, "proven": ["node2"]}
    place.write_text("{")
    told = record.collect({})
    assert told["fabric"] is None
    assert any(problem.startswith("fabric: ") for problem in told["problems"])


def test_an_artifact_that_is_not_there_is_named() -> None:
    found = record.collect({"artifacts": [{"name": "demo", "link": "/no/such"}]})["artifacts"][0]
    assert (found["ok"], found["problem"]) == (False, "/no/such does not exist")


# --- parsers ---


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("debian11", ("debian", "11", "Debian", "11")),
        ("debian12", ("debian", "12", "Debian", "12")),
        ("debian-testing", ("debian", "forky", "Debian", "forky")),
        ("rocky9", ("rocky", "9.6", "RedHat", "9")),
        ("leap15", ("opensuse-leap", "15.6", "Suse", "15")),
        ("ubuntu1804", ("ubuntu", "18.04", "Debian", "18")),
    ],
)
def test_os_release(name: str, expected: tuple[str, ...]) -> None:
    release = node_machine.read_os_release(captured(f"os-release.{name}.txt"))
    assert (release["id"], release["version_id"], release["family"], release["major"]) == expected


def test_platform_of_a_point_release_is_that_of_its_major_on_enterprise_linux() -> None:
    facts = {
        "distribution": node_machine.read_os_release(captured("os-release.rocky9.txt")),
        "machine": "x86_64",
        "glibc": "2.34",
        "python": {"version": "3.9.21"},
        "cuda": {"major": 12},
    }
    assert record.platform_id(facts) == "rocky-9-x86_64-glibc2.34-py3.9-cuda12"


def test_ipv4_routes() -> None:
    assert network.read_ipv4_routes(captured("route.txt")) == [
        {"family": 4, "destination": "0.0.0.0/0", "gateway": "10.66.0.1", "interface": "eth0", "metric": 100},
        {"family": 4, "destination": "10.66.0.0/24", "gateway": None, "interface": "eth0", "metric": 0},
    ]


def test_a_route_that_leads_nowhere_has_no_interface_and_is_left_out() -> None:
    """Calico and other networks of containers put a blackhole route on every node."""
    text = captured("route.txt") + "*\t10005A0A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n"
    assert network.read_ipv4_routes(text) == network.read_ipv4_routes(captured("route.txt"))


def test_ipv6_addresses_that_will_be_gone_are_told_and_a_duplicate_is_left_out() -> None:
    found = network.read_ipv6_addresses(captured("if_inet6.txt"))
    assert [entry["address"] for name, entry in found if name == "ve0" and not entry.get("temporary")] == [
        "fd00:7::63:ff:fe00:b",
        "fe80::63:ff:fe00:b",
    ]
    assert [entry["address"] for _, entry in found if entry.get("temporary")] == [
        "fd00:7::c",
        "fd00:7::a0ae:f3a0:9764:2e0a",
    ]


def test_ipv6_routes_without_loopback_and_multicast() -> None:
    found = network.read_ipv6_routes(captured("ipv6_route.txt"))
    assert [route["destination"] for route in found] == ["fe80::/64", "fe80::f40f:fff:fe07:2524/128"]


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("nvidia-version.open.txt", "580.95.05"),
        ("nvidia-version.proprietary.txt", "515.76"),
        ("../gpu_h200/proc/driver/nvidia/version", "580.159.04"),
    ],
)
def test_driver_version(name: str, version: str) -> None:
    assert gpu.driver_version(captured(name)) == version


@pytest.mark.parametrize(
    ("version", "major"), [("580.95.05", 13), ("570.124.06", 12), ("525.60.13", 12), ("515.76", 11), ("390.157", None)]
)
def test_the_newest_cuda_of_a_driver(version: str, major: int | None) -> None:
    assert gpu.driver_cuda(version) == major


@pytest.mark.parametrize(
    ("name", "model", "uuid"),
    [
        ("stack/gpu-information.txt", "NVIDIA L4", "GPU-00000000-0000-0000-0000-000000000000"),
        (
            "gpu_h200/proc/driver/nvidia/gpus/0000:00:06.0/information",
            "NVIDIA H200",
            "GPU-00000000-0000-0000-0000-000000000001",
        ),
    ],
)
def test_what_the_driver_tells_of_a_gpu(name: str, model: str, uuid: str) -> None:
    text = (DATA.parent / name).read_text()
    assert gpu.read_gpu_information(text) == {"name": model, "uuid": uuid, "minor": "0"}


def test_addresses_agree_with_ip() -> None:
    listed = json.loads(subprocess.check_output(["ip", "-j", "addr"]))
    ours = {
        (one["name"], entry["address"], entry["prefix"])
        for one in record.collect({})["interfaces"]
        for entry in one["addresses"]
    }
    theirs = {
        (one["ifname"], entry["local"], entry["prefixlen"])
        for one in listed
        for entry in one["addr_info"]
        if "local" in entry
    }
    # Other tests start and stop containers meanwhile, whose interfaces on this machine come and go.
    assert ("lo", "127.0.0.1", 8) in ours & theirs
    assert {entry for entry in ours ^ theirs if not entry[0].startswith(("veth", "podman"))} == set()


def test_sshd_configuration(tmp_path: Path) -> None:
    (tmp_path / "one.conf").write_text("Port 2222\n")
    (tmp_path / "sshd_config").write_text(
        f"# Port 1\nInclude {tmp_path}/*.conf\nHostKey /etc/ssh/a\nPort=22\nallowusers a b\n"
        "Match User x\nMaxSessions 9\n"
    )
    found = ssh.read_sshd_config(str(tmp_path / "sshd_config"))
    block = ["match User x", "maxsessions 9"]
    assert found == {"port": ["2222", "22"], "hostkey": ["/etc/ssh/a"], "allowusers": ["a b"], "match": block}


def test_environment_file_as_pam_reads_it() -> None:
    text = "# c\nA=1\nexport B='two words' # note\nC=\"x\ny\nD\n"
    assert reading.read_environment_file(text) == {"A": "1", "B": "two words", "C": "x"}


# --- what a launch needs ---


def control_groups(tmp_path: Path, files: dict[str, str], own: str) -> dict[str, Any]:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "own").write_text(own, encoding="utf-8")
    found: dict[str, Any] = node_machine.cpu_quota(str(tmp_path), str(tmp_path / "own"))["cpu_quota"]
    return found


def test_the_tightest_quota_of_all_groups_above_a_session_counts(tmp_path: Path) -> None:
    files = {
        "cgroup.controllers": "cpu",
        "user.slice/cpu.max": "150000 100000\n",
        "user.slice/cpu.stat": "usage_usec 9\nnr_periods 7\nnr_throttled 3\nthrottled_usec 4100000\n",
        "user.slice/session.scope/cpu.max": "max 100000\n",
    }
    assert control_groups(tmp_path, files, "0::/user.slice/session.scope\n") == {
        "group": f"{tmp_path}/user.slice",
        "cores": 1.5,
        "throttled_periods": 3,
        "throttled_s": 4.1,
    }


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
def test_a_quota_of_the_older_control_groups_is_read_where_a_container_sees_it(tmp_path: Path, folder: str) -> None:
    files = {
        f"{folder}/cpu.cfs_quota_us": "10000",
        f"{folder}/cpu.cfs_period_us": "100000",
        f"{folder}/cpu.stat": "nr_periods 50\nnr_throttled 41\nthrottled_time 4100000000\n",
    }
    found = control_groups(tmp_path, files, f"3:{folder}:/machine/of/the/host\n2:cpuset:/x\n0::/x\n")
    assert (found["cores"], found["throttled_periods"], found["throttled_s"]) == (0.1, 41, 4.1)


def test_a_group_without_a_quota_limits_nothing(tmp_path: Path) -> None:
    unlimited = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
    assert control_groups(tmp_path, unlimited, "1:cpu:/\n")["cores"] is None
    assert control_groups(tmp_path, {}, "")["cores"] is None


def test_settings_inside_and_outside_of_our_blocks() -> None:
    text = (
        "# btl = x\nbtl = self\n# BEGIN clusterctl fabric\na = 1\nb=2=3\n# END clusterctl fabric\nNCCL_X=y\nnothing\n"
    )
    assert parameters.read_settings(text) == ({"a": "1", "b": "2=3"}, [("btl", "self"), ("NCCL_X", "y")])


def test_settings_are_found_in_every_place_and_nothing_else_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = tmp_path / "home", tmp_path / "ucx"
    for path, text in (
        (home / ".bashrc", "export NCCL_DEBUG=INFO OMPI_TOKENS=3\nexport AWS_SECRET=hidden\nUCX_TLS=rc\n"),
        (home / ".openmpi" / "mca-params.conf", "btl = ^tcp\n"),
        (home / ".nccl.conf", "NCCL_ALGO=Ring\n"),
        (home / "my-nccl.conf", "NCCL_ALGO=Tree\nPASSWORD=hidden\n"),
        (home / "ucx.conf", "UCX_TLS=ud\nSECRET=hidden\n[Fujitsu]\nUCX_TLS=tcp\n"),
        (folder / "ucx.conf", "UCX_LOG_LEVEL=info\n"),
        (tmp_path / "environment", "NCCL_DEBUG=WARN\nGITHUB_TOKEN=hidden\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(parameters, "_ENVIRONMENT", str(tmp_path / "environment"))
    given = {"/etc/security/pam_env.conf": ({"OMPI_TOKENS": "5"}, {"OMPI_TOKENS": {"5"}})}
    monkeypatch.setattr(parameters, "login_files", lambda *_given: given)
    variables = {
        "NCCL_DEBUG": "INFO",
        "OMPI_TOKENS": "4",
        "OPAL_PREFIX": "/opt",
        "NCCL_CONF_FILE": f"{home}/my-nccl.conf",
        "UCX_CONFIG_DIR": str(folder),
        "MY_PASSWORD": "hidden",
    }
    looked = parameters.parameters(variables, str(home), None, "/nowhere")
    assert next(entry["path"] for entry in looked["parameter_files"]) == "/etc/clusterctl/fabric.json"
    found = looked["parameters"]
    told = {
        (one["name"], one["value"], one["source"].removeprefix(f"{tmp_path}/"), one.get("in_session", True))
        for one in found
    }
    assert told >= {
        ("NCCL_DEBUG", "INFO", "home/.bashrc", True),
        ("NCCL_DEBUG", "WARN", "environment", False),
        ("OMPI_TOKENS", "4", "environment", True),
        ("OPAL_PREFIX", "/opt", "environment", True),
        ("btl", "^tcp", "home/.openmpi/mca-params.conf", True),
        ("OMPI_TOKENS", "3", "home/.bashrc", False),
        ("OMPI_TOKENS", "5", "/etc/security/pam_env.conf", False),
        ("NCCL_ALGO", "Tree", "home/my-nccl.conf", True),
        ("UCX_TLS", "ud", "home/ucx.conf", True),
        ("UCX_LOG_LEVEL", "info", "ucx/ucx.conf", True),
    }
    assert "hidden" not in json.dumps(found)
    assert not {entry[:2] for entry in told} & {("NCCL_ALGO", "Ring"), ("UCX_TLS", "tcp"), ("UCX_TLS", "rc")}


@pytest.mark.parametrize(
    ("text", "always", "maybe"),
    [
        ("export NCCL_A=1", {"NCCL_A": "1"}, {"NCCL_A": {"1"}}),
        ('  export NCCL_A="1 2"', {}, {"NCCL_A": {"1 2"}}),
        ("export NCCL_A=1\nexport NCCL_A=2", {}, {"NCCL_A": {"1", "2"}}),
        ("declare -x NCCL_A=1 # NCCL_A=3", {"NCCL_A": "1"}, {"NCCL_A": {"1"}}),
        ("export NCCL_A=$B\nexport NCCL_A=`b`", {}, {}),
        ("NCCL_A=1 mpirun\n# export NCCL_A=1\nexport TOKEN=x", {}, {}),
        ("export NCCL_A='1", {}, {}),
        ("test -d /x && export NCCL_A=1", {}, {}),
        ("export NCCL_A=1 && true", {}, {}),
        ("# BEGIN clusterctl x\nexport NCCL_A=1\n# END clusterctl x", {}, {}),
    ],
)
def test_exports_of_start_up_files(text: str, always: dict[str, str], maybe: dict[str, set[str]]) -> None:
    assert parameters.exports(text, lambda name: name.startswith("NCCL_")) == (always, maybe)


def test_start_up_files_of_the_system_and_of_a_home_are_read(tmp_path: Path) -> None:
    for path, text in (("etc/profile.d/nccl.sh", "export NCCL_A=1"), ("etc/profile.d/x.csh", "export NCCL_B=1")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    found = parameters.shell_files("", None, lambda name: name.startswith("NCCL_"), str(tmp_path))
    assert found == {"/etc/profile.d/nccl.sh": ({"NCCL_A": "1"}, {"NCCL_A": {"1"}})}


def test_what_pam_and_the_ssh_daemon_give_to_a_session_is_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    files = {
        "etc/security/pam_env.conf": '# NCCL_A DEFAULT=0\nNCCL_A DEFAULT=1\nNCCL_B DEFAULT=1 OVERRIDE="a b"\n'
        "NCCL_C DEFAULT=@{HOME}\nTOKEN DEFAULT=hidden\nNCCL_D DEFAULT='\nNCCL_E DEFAULT=\n",
        "home/.pam_environment": "NCCL_A DEFAULT=2\n",
        "home/.ssh/environment": "# NCCL_A=0\nNCCL_A=3\nTOKEN=hidden\n",
        "etc/ssh/sshd_config": 'SetEnv NCCL_A=4 NCCL_B="x y" TOKEN=hidden\nSetEnv NCCL_F=5\n',
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")

    def read() -> dict[str, Any]:
        found = parameters.login_files(str(home), None, lambda name: name.startswith("NCCL_"), str(tmp_path))
        return {path.removeprefix(f"{tmp_path}"): entry for path, entry in found.items()}

    without = {
        "/etc/security/pam_env.conf": ({"NCCL_A": "1", "NCCL_B": "a b"}, {"NCCL_A": {"1"}, "NCCL_B": {"a b"}}),
        "/home/.pam_environment": ({"NCCL_A": "2"}, {"NCCL_A": {"2"}}),
        "/etc/ssh/sshd_config": (
            {"NCCL_A": "4", "NCCL_B": "x y"},
            {"NCCL_A": {"4"}, "NCCL_B": {"x y"}, "NCCL_F": {"5"}},
        ),
    }
    assert read() == without
    with (tmp_path / "etc/ssh/sshd_config").open("a", encoding="utf-8") as config:
        config.write("PermitUserEnvironment yes\n")
    assert read() == without | {"/home/.ssh/environment": ({"NCCL_A": "3"}, {"NCCL_A": {"3"}})}


def test_start_up_files_of_csh_are_read_for_its_users(tmp_path: Path) -> None:
    for path, text in (
        ("etc/csh.cshrc", "setenv NCCL_A 1\nsetenv NCCL_B $A\nif (1) setenv NCCL_C 1\n"),
        ("etc/profile.d/nccl.csh", 'setenv NCCL_D "1 2";'),
        ("home/.tcshrc", "if (1) then\n  setenv NCCL_E 1\nendif\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    own = pwd.getpwuid(os.geteuid())
    users = [pwd.struct_passwd((*own[:6], shell)) for shell in ("/bin/tcsh", "/bin/bash")]
    found = [
        parameters.shell_files(f"{tmp_path}/home", user, lambda name: name.startswith("NCCL_"), str(tmp_path))
        for user in users
    ]
    assert found == [
        {
            "/etc/csh.cshrc": ({"NCCL_A": "1"}, {"NCCL_A": {"1"}}),
            "/etc/profile.d/nccl.csh": ({"NCCL_D": "1 2"}, {"NCCL_D": {"1 2"}}),
            f"{tmp_path}/home/.tcshrc": ({}, {"NCCL_E": {"1"}}),
        },
        {},
    ]


def test_the_programs_of_a_launch_are_found_as_a_session_finds_them(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "mpirun").write_text("#!/bin/sh\n", encoding="utf-8")
    (foreign / "mpirun").chmod(0o755)
    own = tmp_path / "local" / "openmpi" / "bin"  # see the fixture elsewhere
    own.mkdir(parents=True)
    for name, mode in (("mpirun", 0o755), ("prted", 0o644)):
        (own / name).write_text("", encoding="utf-8")
        (own / name).chmod(mode)
    found = {one["name"]: one for one in users.programs(f"rel:{foreign}/:{own}", str(own))["launch"]}
    assert (found["mpirun"]["path"], found["mpirun"]["own_state"]) == (f"{foreign}/mpirun", "ok")
    assert (found["prted"]["path"], found["prted"]["own_state"]) == ("", "not executable")
    assert found["orted"]["own_state"] == "missing"


def test_folders_for_temporary_files_are_looked_at_without_a_trace(tmp_path: Path) -> None:
    before = list(tmp_path.iterdir())
    chosen, usual, shared = node_machine.scratch({"TMPDIR": f"{tmp_path}/", "TMP": "/no"}, os.getuid())["scratch"]
    assert (chosen["path"], usual["path"], shared["path"]) == (str(tmp_path), "/tmp", "/dev/shm")  # noqa: S108
    assert chosen["exists"]
    assert chosen["free_bytes"] > 0
    assert (chosen["read_only"], chosen["writable"], chosen["blocked"]) == (False, True, [])
    assert list(tmp_path.iterdir()) == before
    (missing, *_) = node_machine.scratch({"TMPDIR": f"{tmp_path}/none"}, os.getuid())["scratch"]
    assert not missing["exists"]


def test_an_artifact_link_that_became_a_folder_is_told(installed: Path) -> None:
    asked = [{"name": "demo", "link": str(installed)}]
    assert record.collect({"artifacts": asked})["artifacts"][0]["linked"] is True
    target = installed.resolve()
    installed.unlink()
    target.rename(installed)
    assert record.collect({"artifacts": asked})["artifacts"][0]["linked"] is False


@pytest.mark.parametrize(
    ("startup", "least", "most"),
    [("sleep 2", 1.8, 20.0), ("i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done", 0.01, 1.0), (":", 0.01, 1.0)],
    ids=["waits", "computes", "quick"],
)
def test_a_session_that_waits_is_told_and_one_that_computes_is_not(
    tmp_path: Path, startup: str, least: float, most: float
) -> None:
    """A shell by the name of sshd starts the shell that stands for the user's, whose start-up file does something."""
    shutil.copy("/bin/sh", tmp_path / "sshd-session")
    program = remote_python.program(NODE_PROBE)
    words = shlex.join(program.argv(sys.executable, "/bin", "/lib64"))
    argv = [str(tmp_path / "sshd-session"), "-c", f"sh -c {shlex.quote(f'{startup}; exec {words}')}; true"]
    done = subprocess.run(argv, input=program.data + b"{}", capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert least <= found["session_start_s"] <= most, found["problems"]


def test_limits_of_a_session_and_of_a_process_above_it_are_the_same() -> None:
    """Behind sudo, those of the process above count."""
    session = users.Session()
    session.limits_pid = None
    own = session.limits()
    assert own.keys() == {"memlock", "nofile", "nproc", "as", "data", "fsize", "cpu"}
    session.limits_pid = os.getpid()
    assert session.limits() == own
    limited = ["prlimit", "--fsize=4096:", "--cpu=600:", "sleep", "60"]
    with subprocess.Popen(limited) as process:
        while Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8") != "sleep\n":
            time.sleep(0.05)
        session.limits_pid = process.pid
        found = session.limits()
        process.kill()
    assert (found["fsize"]["soft"], found["cpu"]["soft"]) == (4096, 600)
