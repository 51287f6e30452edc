"""Which NCCL a platform gets, what is refused in words, and how the builder lays it out."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import file_stage
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import libraries, path_state
from ansible_collections.clusterctl.hpc.plugins.modules import nccl_report, nccl_system
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import nccl

if TYPE_CHECKING:
    from conftest import RunModule

FILES = Path(__file__).parents[3] / "roles" / "nccl" / "files"
HEADER = "#define NCCL_MAJOR 2\n#define NCCL_MINOR {minor}\n#define NCCL_PATCH {patch}\n"
TREE = "NCCL_MAJOR   := 2\nNCCL_MINOR   := 29\nNCCL_PATCH   := 7\nNCCL_SUFFIX  :=\n"
PLATFORM = "debian-12-x86_64-glibc2.36-py3.11"
SUM = "a" * 64


def member(
    name: str, *, platform: str = PLATFORM, driver: str = "", toolkit: str = "", gpus: int = 0
) -> dict[str, Any]:
    # the first branch of each major, as NVIDIA's table of minor version compatibility has it
    major = next((cuda for branch, cuda in ((580, 13), (525, 12)) if int(driver.partition(".")[0] or 0) >= branch), 0)
    return {
        "name": name,
        "platform": platform,
        "gpus": gpus,
        "cuda": {"driver_major": major, "driver_version": driver, "toolkit_version": toolkit},
    }


def framework(version: str = "2.28.9", cuda: str = "13") -> dict[str, dict[str, str]]:
    return {PLATFORM: {"name": "pytorch", "version": "2.13.0", "cuda": cuda, "nccl": version, "sha256": SUM}}


CPU = [member("node1"), member("node2")]
OLD = [member("node1", driver="550.54.15", gpus=1), member("node2", driver="580.65.06", gpus=1)]


def planned(*, members: list[dict[str, Any]] = CPU, frameworks: Any = None, **wish: str) -> nccl.PlatformPlan:
    return nccl.plan(nccl.Options(**wish), members, frameworks or {})[PLATFORM]


# --- version ---


def test_the_default_where_nobody_says_anything() -> None:
    assert planned() == nccl.PlatformPlan("2.32.3", "13", ("node1", "node2"))
    assert planned().requirement == "nvidia-nccl-cu13==2.32.3"


def test_the_frameworks_version_is_taken_where_it_decides() -> None:
    assert planned(frameworks=framework()).version == "2.28.9"
    assert planned(frameworks=framework(), align="cluster").version == "2.32.3"
    assert planned(frameworks=framework(), align="report", version="2.30.7").version == "2.30.7"
    assert planned(frameworks=framework("")).version == "2.32.3"
    assert planned(frameworks=framework(), version="2.28.9").version == "2.28.9"


@pytest.mark.parametrize(
    ("wish", "frameworks", "words"),
    [
        ({"version": "2.30.7"}, framework(), "the framework brings NCCL 2.28.9 and nccl_align is 'framework'"),
        ({"version": "latest"}, {}, "nccl_version is 'latest', which is no release"),
        ({"version": "2.30.7; rm"}, {}, "which is no release"),
        ({"source": "packages"}, {}, "name the release that your package manager offers"),
        ({"source": "conda"}, {}, "nccl_source is 'conda'; set it to wheel, archive, packages or build"),
        ({"align": "none"}, {}, "nccl_align is 'none'"),
        ({"install": "yes"}, {}, "nccl_install is 'yes'"),
        ({"cuda": "12; rm"}, {}, "is no major version of CUDA"),
        (
            {"source": "archive", "archive": "/srv/nccl_2.30.7-1+cuda13.0_x86_64.txz", "cuda": "12"},
            {},
            "13 by its name",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(wish: dict[str, str], frameworks: Any, words: str) -> None:
    with pytest.raises(nccl.NcclError) as refused:
        planned(frameworks=frameworks, **wish)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


# --- CUDA ---


@pytest.mark.parametrize(
    ("members", "frameworks", "wish", "cuda"),
    [
        ([member("a", toolkit="12.9")], {}, {}, "12"),
        ([member("a", driver="550.54", toolkit="13.0")], {}, {}, "12"),
        ([member("a", driver="580.65"), member("b", driver="535.1")], {}, {"cuda": ""}, "12"),
        ([member("a")], framework(cuda="12"), {}, "12"),
        ([member("a", driver="580.65")], framework(cuda="12"), {}, "12"),
        ([member("a", driver="580.65")], framework(cuda="12"), {"align": "cluster"}, "13"),
        ([member("a", driver="550.54")], framework(cuda="13"), {}, "12"),
        ([member("a", toolkit="13.0")], {}, {"cuda": "12.4"}, "12"),
        ([member("a")], {}, {"source": "archive", "archive": "https://x/nccl_2.21.5-1%2Bcuda12.4_x86_64.txz"}, "12"),
    ],
)
def test_cuda_follows_what_the_hosts_can_run(
    members: list[dict[str, Any]], frameworks: Any, wish: dict[str, str], cuda: str
) -> None:
    assert planned(members=members, frameworks=frameworks, **wish).cuda == cuda


def test_a_platform_whose_framework_has_no_cuda_takes_that_of_the_others() -> None:
    # PyTorch 2.8.0 of the common index is for CUDA 12 on x86_64, and without CUDA on aarch64
    arm = PLATFORM.replace("x86_64", "aarch64")
    frameworks = framework("2.27.3", "12") | {arm: {"name": "pytorch", "version": "2.8.0", "cuda": "", "nccl": ""}}
    found = nccl.plan(nccl.Options(), [*CPU, member("node3", platform=arm)], frameworks)
    assert {one.requirement for one in found.values()} == {"nvidia-nccl-cu12==2.27.3"}


def test_a_driver_that_is_too_old_is_named_with_its_host() -> None:
    with pytest.raises(nccl.NcclError) as refused:
        planned(members=OLD, cuda="13")
    assert "driver of node1 (550.54.15, up to CUDA 12): set nccl_cuda to '12', or install" in str(refused.value)


def test_hosts_that_get_none_are_left_out() -> None:
    mixed = [member("node1", driver="580.65", gpus=1), member("node2")]
    assert planned(members=mixed, install="gpu").hosts == ("node1",)
    assert nccl.plan(nccl.Options(install="gpu"), CPU, {}) == {}
    assert nccl.plan(nccl.Options(install="never", cuda="13"), OLD, {}) == {}


# --- archives ---


def archive(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:xz") as bundle:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"nccl_2.30.7/{name}")
            entry.size = len(text)
            bundle.addfile(entry, io.BytesIO(text.encode()))
    return path


BUILT = {"include/nccl.h": HEADER.format(minor=30, patch=7), "lib/libnccl.so.2.30.7": "elf"}
SOURCES = {"makefiles/version.mk": TREE, "src/nccl.h.in": "#define NCCL_MAJOR ${nccl:Major}"}


def test_an_archive_tells_its_kind_and_version(tmp_path: Path) -> None:
    assert nccl.look_into(archive(tmp_path / "a.txz", BUILT), "a", "archive") == nccl.Contents("built", "2.30.7")
    assert nccl.look_into(archive(tmp_path / "b.txz", SOURCES), "b", "build") == nccl.Contents("tree", "2.29.7")
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as bundle:
        bundle.writestr("nccl-master/makefiles/version.mk", TREE)
    assert nccl.look_into(tmp_path / "c.zip", "c", "build").version == "2.29.7"


@pytest.mark.parametrize(
    ("files", "source", "words"),
    [
        ({"README": "hello"}, "archive", "is not NCCL: it has no include/nccl.h with a version and lib/libnccl.so.2"),
        ({"include/nccl.h": BUILT["include/nccl.h"]}, "archive", "is not NCCL"),
        ({"include/nccl.h": "/* empty */", "lib/libnccl.so.2": ""}, "archive", "is not NCCL"),
        ({"README": "hello"}, "build", "is not NCCL: it has no makefiles/version.mk"),
        (SOURCES, "archive", "holds NCCL 2.29.7 as sources, and nccl_source is 'archive'; set nccl_source to 'build'"),
        (BUILT, "build", "holds NCCL 2.30.7 ready built, and nccl_source is 'build'; set nccl_source to 'archive'"),
    ],
)
def test_an_archive_that_is_not_what_it_should_be(
    tmp_path: Path, files: dict[str, str], source: str, words: str
) -> None:
    with pytest.raises(nccl.NcclError) as refused:
        nccl.look_into(archive(tmp_path / "a.txz", files), "/srv/a.txz", source)
    assert words in str(refused.value)


def test_a_file_that_is_no_archive_or_a_piece_of_one(tmp_path: Path) -> None:
    (tmp_path / "page.txz").write_text("<html>404</html>", encoding="utf-8")
    with pytest.raises(nccl.NcclError, match=r"page cannot be read as an archive of NCCL"):
        nccl.look_into(tmp_path / "page.txz", "page", "archive")
    whole = archive(tmp_path / "whole.txz", {"README": "x" * 50000, **BUILT}).read_bytes()
    (tmp_path / "piece.txz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(nccl.NcclError, match=r"piece cannot be read"):
        nccl.look_into(tmp_path / "piece.txz", "piece", "archive")


def test_an_archive_decides_about_the_version() -> None:
    wish = nccl.Options(source="archive", archive="/srv/a.txz", sha256=SUM)
    contents = nccl.Contents("built", "2.30.7")
    assert nccl.plan(wish, CPU, {}, contents)[PLATFORM].version == "2.30.7"
    with pytest.raises(nccl.NcclError, match=r"nccl_version is 2.32.3, but /srv/a.txz holds NCCL 2.30.7"):
        nccl.plan(nccl.Options(source="archive", archive="/srv/a.txz", version="2.32.3"), CPU, {}, contents)
    with pytest.raises(nccl.NcclError, match=r"name an archive of 2.28.9"):
        nccl.plan(wish, CPU, framework(), contents)


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"source": "archive"}, "nccl_archive is empty: set it to the path or URL of NVIDIA's nccl_"),
        ({"source": "archive", "archive": "/srv/a.txz"}, "nccl_sha256 is empty"),
        ({"source": "archive", "archive": "/srv/a.txz", "sha256": "abc"}, "nccl_sha256 is 'abc'"),
        ({"source": "build"}, "without, the source of 2.29.7 is known"),
    ],
)
def test_a_source_that_is_not_named(wish: dict[str, str], words: str) -> None:
    with pytest.raises(nccl.NcclError) as refused:
        nccl.sources(nccl.Options(**wish), "2.31.0")
    assert words in str(refused.value)


def test_where_a_source_comes_from() -> None:
    wish = nccl.Options(source="archive", archive="https://x/y.txz", sha256=SUM)
    assert nccl.sources(wish, "") == [{"url": "https://x/y.txz", "sha256": SUM}]
    assert nccl.sources(nccl.Options(source="build", archive="/y.tgz", sha256=SUM), "") == [
        {"path": "/y.tgz", "sha256": SUM}
    ]
    (known,) = nccl.sources(nccl.Options(source="build"), "2.29.7")
    assert known["apt"]["package"] == "nvidia-nccl"
    assert nccl.sources(nccl.Options(), "2.32.3") == []


# --- laying it out ---


def fake(folder: Path, *, version: str = "2.30.7", cuda: str = "13.0", machine: int = 0, header: str = "") -> Path:
    """Write something that is laid out like NCCL."""
    here = {"x86_64": 62, "aarch64": 183}[os.uname().machine]
    (folder / "nccl" / "lib").mkdir(parents=True)
    (folder / "nccl" / "include" / "nccl_device").mkdir(parents=True)
    _, minor, patch = (header or version).split(".")
    (folder / "nccl" / "include" / "nccl.h").write_text(HEADER.format(minor=minor, patch=patch), encoding="utf-8")
    (folder / "nccl" / "include" / "nccl_device" / "core.h").write_text("", encoding="utf-8")
    elf = b"\x7fELF" + bytes(14) + struct.pack("<H", machine or here) + bytes(100)
    library = folder / "nccl" / "lib" / f"libnccl.so.{version}"
    library.write_bytes(elf + f"NCCL version {version} compiled with CUDA {cuda}\0".encode())
    (folder / "nccl" / "lib" / "libnccl.so.2").symlink_to(library.name)
    (folder / "nccl" / "lib" / "libnccl_static.a").write_bytes(b"!<arch>")
    return folder


def run(folder: Path, tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(FILES / "nccl_arrange.py"), "--version", "2.30.7", "--cuda", "13"]
    argv += ["--link", "/usr/local/nccl", "--tree", str(tree), *options, str(folder)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_it_is_laid_out_as_programs_look_for_it(tmp_path: Path) -> None:
    done = run(fake(tmp_path / "from"), tmp_path / "tree")
    assert done.returncode == 0, done.stderr
    lib = tmp_path / "tree" / "lib"
    assert str((lib / "libnccl.so").readlink()) == "libnccl.so.2"
    assert str((lib / "libnccl.so.2").readlink()) == "libnccl.so.2.30.7"
    assert not (lib / "libnccl_static.a").exists()
    assert (tmp_path / "tree" / "include" / "nccl_device" / "core.h").exists()
    text = (lib / "pkgconfig" / "nccl.pc").read_text(encoding="utf-8")
    assert "prefix=/usr/local/nccl\n" in text
    assert "Version: 2.30.7\n" in text


def test_a_packages_files_stay_where_they_are(tmp_path: Path) -> None:
    system = fake(tmp_path / "from") / "nccl"
    (system / "lib").rename(system / "multiarch")
    done = run(system, tmp_path / "tree", "--by-link", "--library-folder", str(system / "multiarch"))
    assert done.returncode == 0, done.stderr
    lib = tmp_path / "tree" / "lib"
    # by the name that an update of the package keeps
    assert str((lib / "libnccl.so.2").readlink()) == str(system / "multiarch" / "libnccl.so.2")
    assert str((lib / "libnccl.so").readlink()) == "libnccl.so.2"
    assert str((tmp_path / "tree" / "include" / "nccl.h").readlink()) == str(system / "include" / "nccl.h")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"cuda": "12.9"}, "was built with CUDA 12, and CUDA 13 was asked for; take NCCL for CUDA 13, or set"),
        ({"version": "2.29.7"}, "nccl.h is of NCCL 2.29.7, and 2.30.7 was asked for"),
        ({"version": "2.29.7", "header": "2.30.7"}, "is NCCL 2.29.7, and the nccl.h beside it is of 2.30.7"),
        ({"machine": 21}, "is for ppc64le, and this host is"),
    ],
)
def test_what_came_is_held_against_what_was_asked_for(tmp_path: Path, made: dict[str, Any], words: str) -> None:
    done = run(fake(tmp_path / "from", **made), tmp_path / "tree")
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "tree").exists()


def test_a_library_that_is_none(tmp_path: Path) -> None:
    folder = fake(tmp_path / "from")
    (folder / "nccl" / "lib" / "libnccl.so.2.30.7").write_text("<html>")
    assert "is no shared library" in run(folder, tmp_path / "tree").stderr
    (folder / "nccl" / "include" / "nccl.h").unlink()
    assert "has no include/nccl.h" in run(folder, tmp_path / "tree").stderr


# --- on the node ---


def test_headers_are_linked_unless_something_else_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, include = tmp_path / "nccl", tmp_path / "include"
    (link / "include" / "nccl_device").mkdir(parents=True)
    (link / "include" / "nccl.h").touch()
    include.mkdir()
    monkeypatch.setattr(nccl_system.library_closure, "packages_of", lambda paths: dict.fromkeys(paths, ""))
    entries, kept = nccl_system.sort_out(str(link), str(include), ["nccl.h", "nccl_device.h", "nccl_device"])
    assert [(entry.path, entry.state) for entry in entries] == [
        (f"{include}/nccl.h", "link"),
        (f"{include}/nccl_device", "link"),
    ]
    assert kept == []
    # a file of a package, and a link that an earlier NCCL of ours left, whose target this one has not
    (include / "nccl.h").touch()
    (include / "nccl_device.h").symlink_to(f"{link}/include/nccl_device.h")

    def packages_of(paths: list[str]) -> dict[str, str]:
        return {path: "libnccl-dev" if path.endswith("nccl.h") else "" for path in paths}

    monkeypatch.setattr(nccl_system.library_closure, "packages_of", packages_of)
    entries, kept = nccl_system.sort_out(str(link), str(include), ["nccl.h", "nccl_device.h", "nccl_device"])
    assert [(entry.path, entry.state) for entry in entries] == [
        (f"{include}/nccl_device.h", "absent"),
        (f"{include}/nccl_device", "link"),
    ]
    assert kept == [{"path": f"{include}/nccl.h", "owner": "libnccl-dev"}]
    assert "nccl.h (of the package libnccl-dev); compilers find" in nccl_system.words(kept, str(link))


def test_before_a_package_comes_our_links_go(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "nccl_device").symlink_to("/usr/local/nccl/include/nccl_device")
    (tmp_path / "include" / "nccl.h").touch()
    entries, kept = nccl_system.sort_out("/usr/local/nccl", str(tmp_path / "include"), [])
    assert [(entry.path, entry.state) for entry in entries] == [(f"{tmp_path}/include/nccl_device", "absent")]
    assert kept == []


@pytest.fixture
def reach(tmp_path: Path) -> nccl_report.Reach:
    (tmp_path / "environment").write_text("LD_LIBRARY_PATH=/opt/x:/opt/y\n", encoding="utf-8")
    return nccl_report.Reach(
        {"link": "/usr/local/nccl", "python_env": str(tmp_path), "environment_file": str(tmp_path / "environment")}
    )


def test_another_nccl_in_a_session_is_named_with_its_cause(reach: nccl_report.Reach) -> None:
    ours = {"path": reach.ours, "version": "2.32.3"}
    assert nccl_report.judge_session(reach, ours, "", "2.32.3") == ""
    said = nccl_report.judge_session(reach, {"path": "/opt/x/libnccl.so.2", "version": "2.18.5"}, "", "2.32.3")
    assert "gets NCCL 2.18.5 of /opt/x/libnccl.so.2 instead of 2.32.3" in said
    assert "LD_LIBRARY_PATH of" in said
    assert "is '/opt/x:/opt/y'" in said


@pytest.mark.parametrize(
    ("align", "path", "version", "words"),
    [
        ("framework", "/env/libnccl.so.2", "2.32.3", ""),
        ("framework", "/env/libnccl.so.2", "2.28.9", "PyTorch takes NCCL 2.28.9 of /env/libnccl.so.2, and the"),
        ("cluster", "/env/libnccl.so.2", "2.32.3", "run the role python_env again"),
        ("report", "/env/libnccl.so.2", "2.28.9", ""),
        ("cluster", "", "", ""),
    ],
)
def test_what_the_framework_maps_is_judged_by_the_alignment(
    reach: nccl_report.Reach, align: str, path: str, version: str, words: str
) -> None:
    said = nccl_report.judge_torch(reach, {"path": path, "version": version}, "", "2.32.3", align)
    assert (words in said) if words else said == ""


def test_the_report_says_who_maps_what() -> None:
    libraries = [
        {"path": "/usr/local/nccl-1/lib/libnccl.so.2", "version": "2.32.3", "found": "the cluster's", "ours": True},
        {"path": "/env/libnccl.so.2", "version": "", "found": "the framework's", "ours": False},
    ]
    mapped = {"session": {"path": libraries[0]["path"]}, "torch": {"path": libraries[1]["path"]}}
    said = nccl_report.words(libraries, mapped)
    assert "2.32.3 of /usr/local/nccl-1/lib/libnccl.so.2 (the cluster's, mapped by session);" in said
    assert "does not answer of /env/libnccl.so.2 (the framework's, mapped by torch)" in said


@pytest.mark.parametrize("prefix", ["/x\n/tmp/evil", "/x\0", "/x:/tmp/evil", "/x,/tmp/evil", "/x /tmp/evil", "/x#"])
def test_the_loader_gets_one_folder(prefix: str) -> None:
    with pytest.raises(nccl_system.file_transaction.StageError, match=r"nccl\.conf: the folder is"):
        nccl_system.loader_entries("/etc/ld.so.conf.d/nccl.conf", f"{prefix}/nccl", is_coming=True)


def compiled(path: Path, soname: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    named = ["-Xlinker", "-soname", "-Xlinker", soname] if soname else []
    subprocess.run(["gcc", "-shared", *named, "-x", "c", "-", "-o", str(path)], input=b"int x;", check=True)
    return path


def laid_out(folder: Path) -> list[str]:
    """Lay out what the loader gets, as the user who runs the tests, and return the changes."""
    entries = nccl_system.loader_entries(str(folder / "nccl.conf"), str(folder / "nccl"), is_coming=False)
    mine = [replace(entry, uid=None, gid=None) for entry in entries]
    return file_stage.apply(mine).changes


def cached(folder: Path, cache: Path) -> list[str]:
    """Return the lines of a cache that ldconfig makes by the written file."""
    argv = ["/sbin/ldconfig", "-C", str(cache)]
    subprocess.run([*argv, "-X", "-f", str(folder / "nccl.conf")], check=True, capture_output=True)
    lines = subprocess.run([*argv, "-p"], check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split(" => ")[1] for line in lines if f" => {folder}/" in line]


def test_the_loaders_cache_has_one_name_of_an_artifact_whatever_it_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = compiled(tmp_path / "nccl/lib/libnccl.so.2", "libnccl.so.2")
    compiled(tmp_path / "nccl/lib/libz.so.1", "libz.so.1")
    folder, conf = tmp_path / "lib/clusterctl", tmp_path / "nccl.conf"
    link = str(folder / "libnccl.so.2")
    conf.write_text(f"# clusterctl: the cluster's NCCL\n{tmp_path}/nccl/lib\n")  # of an earlier release
    made = [f"created {folder.parent}", f"created {folder}", f"linked {link} to {library}", f"changed {conf}"]
    assert laid_out(tmp_path) == made
    assert folder.stat().st_mode & 0o7777 == 0o755
    assert cached(tmp_path, tmp_path / "cache") == [link]
    assert laid_out(tmp_path) == []

    (folder / "libz.so.1").symlink_to("libnccl.so.2")
    (folder / "glibc-hwcaps/x86-64-v3").mkdir(parents=True)
    assert laid_out(tmp_path) == [f"removed {folder}/glibc-hwcaps", f"removed {folder}/libz.so.1"]
    assert [path.name for path in folder.iterdir()] == ["libnccl.so.2"]

    monkeypatch.setattr(libraries, "LIBRARY_CACHE", str(tmp_path / "cache"))
    left = path_state.watch_state(link, "loader")
    assert left == {"path": link, "kind": "loader", "target": str(library)}
    Path(link).unlink()
    assert path_state.watch_states([left]) == [{"path": link, "kind": "absent"}]
    Path(link).symlink_to(tmp_path / "nccl/lib/libz.so.1")
    assert path_state.watch_states([left]) == [{**left, "target": f"{tmp_path}/nccl/lib/libz.so.1"}]

    library.unlink()
    assert laid_out(tmp_path) == [f"removed {link}"], "the next NCCL comes into the cache once its name is known"


# A name with an arrow is one that ldconfig's output alone does not tell from the right one.
@pytest.mark.parametrize("soname", ["libz.so.1", "", "libnccl.so.2 -> x", "libnccl.so.2\n\tlibz.so.1"])
def test_a_library_of_another_soname_is_refused_and_nothing_is_written(
    tmp_path: Path, run_module: RunModule, soname: str
) -> None:
    library = compiled(tmp_path / "nccl/lib/libnccl.so.2", soname)
    given = {"link": str(tmp_path / "nccl"), "conf": str(tmp_path / "nccl.conf"), "include_dir": str(tmp_path)}
    done = run_module("nccl_system", **given)
    assert done["failed"]
    assert done["msg"].startswith(f"{library} has the SONAME {soname!r} instead of libnccl.so.2, and the loader")
    assert f"remove {tmp_path}/nccl and its pack in the controller's cache" in done["msg"]
    assert {path.name for path in tmp_path.iterdir()} == {"nccl"}


def test_a_check_before_the_first_installation_tells_what_comes(tmp_path: Path, run_module: RunModule) -> None:
    prefix, conf = tmp_path / "cluster", tmp_path / "nccl.conf"
    given = {"link": f"{prefix}/nccl", "conf": str(conf), "include_dir": str(tmp_path), "headers": []}
    folder = prefix / "lib/clusterctl"
    made = [f"created {one}" for one in (prefix, prefix / "lib", folder)]
    linked = f"linked {folder}/libnccl.so.2 to {prefix}/nccl/lib/libnccl.so.2"
    done = run_module("nccl_system", check=True, diff=True, **given)
    assert done["changes"] == [*made, linked, f"created {conf}", "ldconfig"]
    assert done["diff"][-1]["after"] == f"# clusterctl: the cluster's NCCL\n{folder}\n"
    assert list(tmp_path.iterdir()) == []
    compiled(prefix / "nccl/lib/libnccl.so.2", "libnccl.so.2")
    # the entry replaces one of an earlier release, which asked the loader's cache for this path
    watch = run_module("nccl_system", check=True, **given)["watch"]
    assert watch == [{"path": f"{prefix}/nccl/lib/libnccl.so.2", "kind": "library"}]
