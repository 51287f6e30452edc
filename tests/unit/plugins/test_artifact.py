"""What an artifact is: keys, manifests, markers, and what ldd and a build say."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact, build_user, command, library_closure
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import artifacts
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_check
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import artifact_staging
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes import cuda
from ansible_collections.clusterctl.hpc.plugins.plugin_utils.recipes.model import Host, Settings, builders

DATA = Path(__file__).resolve().parents[2] / "data" / "artifact"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "demo-1.0-0123456789abcdef"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "libdemo.so.1").write_bytes(b"library")
    (folder / "lib" / "libdemo.so").symlink_to("libdemo.so.1")
    manifest = artifact.manifest_bytes(artifact.make_manifest(str(folder)))
    (folder / artifact.MANIFEST).write_bytes(manifest)
    digest = hashlib.sha256(manifest).hexdigest()
    marker = artifact.marker_bytes("demo", "1.0", "0123456789abcdef", {"a": 1}, digest)
    (folder / artifact.MARKER).write_bytes(marker)
    return folder


def state(tree: Path, *, content: bool = False) -> artifact.TreeState:
    return artifact.inspect_tree(str(tree), "demo", "1.0", "0123456789abcdef", content=content)


def test_a_key_depends_on_values_and_not_on_their_order() -> None:
    key = artifact.artifact_key({"a": 1, "b": ["x", "y"]})
    assert key == artifact.artifact_key({"b": ("x", "y"), "a": 1})
    assert key != artifact.artifact_key({"a": 1, "b": ["y", "x"]})
    assert len(key) == 16


def test_a_whole_tree_is_whole(tree: Path) -> None:
    found = state(tree, content=True)
    assert (found.present, found.ok, found.files) == (True, True, 3)
    (tree / "lib" / "__pycache__").mkdir()
    assert state(tree).ok, "what is there besides is nobody's harm"


def test_every_kind_of_damage_has_its_own_phrase(tree: Path) -> None:
    library = tree / "lib" / "libdemo.so.1"
    library.write_bytes(b"another")
    assert state(tree).ok, "equal size: only reading the content tells"
    assert state(tree, content=True).problem == "lib/libdemo.so.1 (content)"
    library.write_bytes(b"lib")
    assert state(tree).problem == "lib/libdemo.so.1 (size 3, was 7)"
    library.unlink()
    assert state(tree).problem == "lib/libdemo.so.1 (missing)"
    library.mkdir()
    assert state(tree).problem == "lib/libdemo.so.1 (of another kind)"
    (tree / "lib" / "libdemo.so").unlink()
    (tree / "lib" / "libdemo.so").symlink_to("elsewhere")
    assert state(tree).problem == "lib/libdemo.so (leads elsewhere)"
    (tree / artifact.MANIFEST).write_bytes(b"{}")
    assert state(tree).problem == "its manifest is not the one its marker names"
    (tree / artifact.MANIFEST).unlink()
    assert state(tree).problem == "its manifest is missing"
    (tree / artifact.MARKER).write_text("{")
    assert state(tree).problem == "its marker is not readable"
    (tree / artifact.MARKER).unlink()
    assert state(tree).problem == "its marker is missing, so an install did not finish"


def test_a_changed_byte_in_a_large_file_is_found_as_well(tree: Path) -> None:
    for number in range(3):
        (tree / f"large{number}").write_bytes(bytes(2 << 20))
    entries = artifact.make_manifest(str(tree))
    assert artifact.deviation(str(tree), entries, content=True) is None
    with (tree / "large1").open("r+b") as stream:
        stream.seek(1 << 20)
        stream.write(b"x")
    assert artifact.deviation(str(tree), entries) is None, "its size is what it was"
    assert artifact.deviation(str(tree), entries, content=True) == "large1 (content)"


def test_a_marker_of_another_build_is_no_marker(tree: Path) -> None:
    assert artifact.inspect_tree(str(tree), "demo", "1.0", "f" * 16).problem == "its marker names another build"
    assert not artifact.inspect_tree(str(tree.parent / "absent"), "demo", "1.0", "f" * 16).present


def test_a_manifest_refuses_what_cannot_be_packed(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    with pytest.raises(artifact.ArtifactError, match="pipe is not a file, link or folder"):
        artifact.make_manifest(str(tree))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"schema": 1}', b'{"schema": 2, "files": []}', b'{"schema": 1, "files": [[1]]}']
)
def test_a_strange_manifest_is_not_read(data: bytes) -> None:
    with pytest.raises(artifact.ArtifactError):
        artifact.parse_manifest(data)


def test_what_ldd_misses_is_named_with_the_file_that_needs_it() -> None:
    found = library_closure.parse_ldd((DATA / "ldd-missing.txt").read_text())
    assert found == [
        library_closure.Missing("libc.so.6 (GLIBC_2.38)", "/opt/demo/bin/newer"),
        library_closure.Missing("libextra.so", "/opt/demo/lib/libdemo.so"),
    ]


def test_a_library_of_the_tree_itself_counts_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = (DATA / "ldd-missing.txt").read_text()
    monkeypatch.setattr(build_user, "closed_above", lambda _folder: "")
    (tmp_path / "package.libs").mkdir()
    (tmp_path / "package.libs" / "libextra.so").write_bytes(b"")
    (tmp_path / "program").write_bytes(Path("/usr/bin/python3").read_bytes())

    monkeypatch.setattr(library_closure.command, "run", lambda *_given, **_more: command.Done(0, said, ""))
    names = [item.library for item in library_closure.ask_loader(str(tmp_path), []).missing]
    assert names == ["libc.so.6 (GLIBC_2.38)", "libextra.so"]
    within = library_closure.ask_loader(str(tmp_path), [], within=True).missing
    assert [item.library for item in within] == ["libc.so.6 (GLIBC_2.38)"]


def test_only_programs_and_libraries_are_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_user, "closed_above", lambda _folder: "")
    python = Path(os.path.realpath("/usr/bin/python3"))
    (tmp_path / "program").write_bytes(python.read_bytes())
    (tmp_path / "link").symlink_to("program")
    (tmp_path / "text").write_text("no program")
    (tmp_path / "object.o").write_bytes(b"\x7fELF" + bytes(12) + b"\x01\x00")
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    assert library_closure.elf_files(str(tmp_path)) == [str(tmp_path / "program")]
    assert library_closure.ask_loader(str(tmp_path), ["lib"]).missing == []


@pytest.mark.parametrize(
    ("log", "step", "expected"),
    [
        ("configure.txt", "configure", "configure: 44 checks, now for sys/time.h"),
        ("make.txt", "make", "make: 65 files, now utils/lstopo"),
    ],
)
def test_progress_says_where_a_build_is(log: str, step: str, expected: str) -> None:
    text = (DATA / log).read_text()
    progress = artifact.Progress(step)
    for start in range(0, len(text), 7):  # output comes in pieces that end anywhere
        progress.feed(text[start : start + 7])
    assert progress.line() == expected


def test_progress_without_any_known_line_shows_the_last_one() -> None:
    progress = artifact.Progress("fetch")
    assert progress.line() == "fetch: started"
    progress.feed("x" * 100 + "\n")
    assert progress.line() == "fetch: " + "x" * 59 + "…"


@pytest.mark.parametrize(("asked", "cores", "gib", "jobs"), [(0, 8, 16, 8), (0, 64, 4, 4), (0, 2, 0, 1), (3, 2, 1, 3)])
def test_jobs_are_bounded_by_memory(asked: int, cores: int, gib: int, jobs: int) -> None:
    assert artifact.jobs_for(asked, cores, gib << 30, 1 << 30) == jobs


MEMBERS: list[dict[str, Any]] = [
    {"name": "a", "platform": "p", "provides": ["libcuda"]},
    {"name": "b", "platform": "q"},
    {"name": "c", "platform": "p", "provides": ["libcuda", "cuda_toolkit"]},
]


def order(members: list[dict[str, Any]], wanted: str = "", turn: str = "") -> str:
    """Return the hosts that can build, the preferred one first."""
    hosts = [Host(one["name"], {"platform": "p", **one}, {}, Settings({})) for one in members]
    return "".join(host.name for host in builders(hosts, wanted, turn))


def test_the_first_host_builds_or_the_one_that_the_user_names() -> None:
    hosts = [{"name": "a"}, {"name": "c"}]
    assert order(hosts) == "ac", "the second one where the first one is lost"
    assert order(hosts, "c") == "ca"
    assert order(hosts, "b") == "ac", "a host of another platform cannot build"
    assert order([]) == ""


def test_builds_that_need_nothing_of_each_other_go_to_different_hosts_with_room() -> None:
    hosts = [{"name": name, "builds": name not in "ac", "trees": []} for name in "abcd"]
    turns = ("openmpi", "python_env", "nccl", "mpi4py", "horovod")
    assert [order(hosts, turn=name) for name in turns] == ["abd", "bda", "dab", "abd", "bda"]
    assert order(hosts, "c", "nccl") == "cdab", "the user's choice"
    assert order(hosts[:1], turn="nccl") == "a", "the only host"
    assert order([{"name": "a"}, {"name": "c"}], turn="nccl") == "ac", "the third of two hosts"
    assert order([{"name": "a"}, {"name": "c"}], turn="python_env") == "ca", "an older run does not tell its room"


def test_what_a_host_has_is_packed_and_not_built_beside() -> None:
    hosts = [{"name": "a", "trees": ["python_env"]}, {"name": "b", "trees": []}]
    assert order(hosts, turn="python_env") == "ab"
    assert order(hosts, turn="horovod") == "ba"


def test_a_build_relies_on_what_all_have() -> None:
    assert cuda.offered(MEMBERS, "p", "c")
    assert not cuda.offered(MEMBERS, "p", "a"), "no toolkit where it would be built"
    assert not cuda.offered(MEMBERS, "q", "b")
    assert not cuda.offered(MEMBERS, "r", "")


# --- A proof is believed as long as nothing that it depended on is another one, and a failure is never remembered ---


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(artifact_check, "_PROOFS", str(tmp_path / "proofs"))
    for name in ("demo", "library"):
        (tmp_path / f"{name}-1").mkdir()
        (tmp_path / name).symlink_to(f"{name}-1")
    return {
        "name": "demo",
        "link": str(tmp_path / "demo"),
        "stands_on": [str(tmp_path / "library")],
        "environment": {},
        "checks": [{"argv": ["true"], "expect": []}],
    }


def test_what_was_proved_is_not_proved_again(asked: dict[str, Any]) -> None:
    digest = artifact_check.circumstances(asked)
    assert artifact_check.recall("demo", digest) is None
    artifact_check.remember("demo", digest, ["said"])
    assert artifact_check.recall("demo", artifact_check.circumstances(asked)) == ["said"]


@pytest.mark.parametrize("name", ["demo", "library"])
def test_another_version_is_proved(asked: dict[str, Any], tmp_path: Path, name: str) -> None:
    artifact_check.remember("demo", artifact_check.circumstances(asked), ["said"])
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(f"{name}-2")
    assert artifact_check.recall("demo", artifact_check.circumstances(asked)) is None


@pytest.mark.parametrize("change", [{"environment": {"A": "1"}}, {"checks": [{"argv": ["false"], "expect": []}]}])
def test_another_question_is_asked(asked: dict[str, Any], change: dict[str, Any]) -> None:
    artifact_check.remember("demo", artifact_check.circumstances(asked), ["said"])
    assert artifact_check.recall("demo", artifact_check.circumstances({**asked, **change})) is None


def test_a_damaged_proof_is_none(asked: dict[str, Any], tmp_path: Path) -> None:
    digest = artifact_check.circumstances(asked)
    artifact_check.remember("demo", digest, ["said"])
    (proof,) = (tmp_path / "proofs").iterdir()
    proof.write_text("{", encoding="utf-8")
    assert artifact_check.recall("demo", digest) is None


def test_a_write_into_a_file_of_the_artifact_ends_the_proof(asked: dict[str, Any], tmp_path: Path) -> None:
    tree = tmp_path / "library-1"
    library = tree / "libdemo.so"
    library.write_bytes(b"library")
    (tree / artifact.MANIFEST).write_bytes(artifact.manifest_bytes(artifact.make_manifest(str(tree))))
    (tree / "__pycache__").mkdir()
    artifact_check.remember("demo", artifact_check.circumstances(asked), ["said"])
    (tree / "__pycache__" / "x.pyc").touch()
    assert artifact_check.recall("demo", artifact_check.circumstances(asked)) == ["said"]
    status = library.stat()
    library.write_bytes(b"librarY")
    os.utime(library, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert library.stat().st_mtime_ns == status.st_mtime_ns
    assert artifact_check.recall("demo", artifact_check.circumstances(asked)) is None


def test_a_failed_proof_leaves_out_only_what_stands_on_it(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[str] = []

    def run_checks(one: dict[str, Any]) -> list[str]:
        ran.append(one["name"])
        if one["name"] == "library":
            raise artifact_check.CheckFailedError("library: 'x' ended with 1")
        return ["said"]

    monkeypatch.setattr(artifact_check, "run_checks", run_checks)
    library = {**asked, "name": "library", "link": str(tmp_path / "library"), "stands_on": []}
    deep = {**asked, "name": "deep", "link": str(tmp_path / "deep"), "stands_on": [asked["link"]]}
    other = {**asked, "name": "other", "link": str(tmp_path / "other"), "stands_on": [str(tmp_path / "other")]}
    answers = artifact_check.prove_all([library, asked, deep, other], keep=True)
    assert ran == ["library", "other"]
    assert answers == {
        "library": {"failed": True, "msg": "library: 'x' ended with 1"},
        "demo": {"left_out": "library"},
        "deep": {"left_out": "library"},
        "other": {"outputs": ["said"], "proved_before": False},
    }
    assert artifact_check.prove_all([other], keep=True)["other"]["proved_before"]


# --- when a host need not be asked for the state of an artifact before it gets its pack ---


BASE = {"name": "openmpi", "version": "5.0.7", "key": "0123456789abcdef"}
TREE = "openmpi-5.0.7-0123456789abcdef"
FRESH: dict[str, Any] = {"prefix": {"path": "/usr/local", "trees": []}, "tools": {"zstd": False, "libzstd": True}}


@pytest.mark.parametrize(
    ("change", "asks"),
    [
        ({}, False),
        ({"prefix": {"path": "/usr/local", "trees": ["openmpi-5.0.6-0123456789abcdef"]}}, False),
        ({"prefix": {"path": "/usr/local", "trees": [TREE]}}, True),
        ({"prefix": {"path": "/usr/local", "trees": None}}, True),
        ({"prefix": {"path": "/opt/cluster", "trees": []}}, True),
        ({"prefix": None}, True),
        ({"tools": {}}, True),
        ({"tools": {"zstd": True}}, False),
    ],
)
def test_a_host_is_asked_unless_its_facts_rule_the_artifact_out(change: dict[str, Any], asks: bool) -> None:
    said = artifact_staging.lacks_tree(BASE, FRESH | change)
    assert (said is None) is asks
    if said:
        assert said == {"needs_pack": True, "needs_link": True, "lost": [], "needs_packages": [], "zstd": True}


def test_without_facts_a_host_is_asked() -> None:
    assert artifact_staging.lacks_tree(BASE, {}) is None


def test_the_probe_names_the_folders_of_artifacts_whole_or_not(tmp_path: Path) -> None:
    for name in (TREE, "bin", "openmpi-notes", f".{TREE}.x"):
        (tmp_path / name).mkdir()
    assert artifacts.installed_trees(str(tmp_path)) == [TREE]
    assert artifacts.has_software(str(tmp_path)) is False
    (tmp_path / TREE / artifacts.MARKER).write_text("{}", encoding="utf-8")
    assert artifacts.has_software(str(tmp_path)) is True
