"""What a pack of a rooted builder, or a changed copy of a pack, can do: nothing that its manifest does not say."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible_collections.clusterctl.hpc.plugins.action import software_stage
from ansible_collections.clusterctl.hpc.plugins.module_utils import artifact, build_files, pack_extract
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import MANIFEST, ArtifactError
from ansible_collections.clusterctl.hpc.plugins.modules import artifact_install
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import accepted, artifact_building

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes trees of root")
KEY = "0123456789abcdef"
DATA = b"program"
DIGEST = hashlib.sha256(DATA).hexdigest()
GOOD = [["bin", "d", 0, "", "0755"], ["bin/tool", "f", len(DATA), DIGEST, "0755"]]


def member(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o755, **fields: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode = kind, mode
    for field, value in fields.items():
        setattr(made, field, value)
    return made


FOLDER = member("bin", tarfile.DIRTYPE)
TOOL = member("bin/tool", size=len(DATA))


def write(path: Path, files: Sequence[Any], members: Sequence[tarfile.TarInfo], manifest_first: bool = True) -> str:
    """Write a ``.tar.gz`` with a manifest and these members; returns the manifest's digest."""
    manifest = json.dumps({"schema": 1, "files": list(files)}).encode()
    first = member(MANIFEST, mode=0o644, size=len(manifest))
    with gzip.open(path, "wb", compresslevel=1) as packed, tarfile.open(fileobj=packed, mode="w|") as bundle:
        for each in [first, *members] if manifest_first else [*members, first]:
            if each is first:
                bundle.addfile(each, io.BytesIO(manifest))
            elif each.size > 1 << 20:
                bundle.addfile(each, Zeros(each.size))  # type: ignore[arg-type]
            else:
                bundle.addfile(each, io.BytesIO(DATA) if each.isreg() else None)
    return hashlib.sha256(manifest).hexdigest()


class Zeros:
    """A file of many zeros."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int) -> bytes:
        size = min(size, self.left)
        self.left -= size
        return bytes(size)


def install(root: Path, pack: Path, manifest_sha256: str, links_to: Sequence[str] = ()) -> dict[str, Any]:
    given = {
        "name": "demo",
        "version": "1",
        "key": KEY,
        "host": "n1",
        "root": str(root),
        "links_to": list(links_to),
        "link": "",
        "content": False,
        "lost": [],
        "push_dir": str(root),
        "closure": False,
        "library_path": [],
        "closure_ignore": [],
        "pack": {
            "path": str(pack),
            "sha256": hashlib.sha256(pack.read_bytes()).hexdigest(),
            "size": pack.stat().st_size,
            "compression": "gz",
            "manifest_sha256": manifest_sha256,
            "inputs": {},
        },
    }
    return artifact_install.Install(given).apply()


HOSTILE: dict[str, tuple[Sequence[Any], Sequence[tarfile.TarInfo]]] = {
    "climbing": (GOOD, [FOLDER, member("../../planted", size=len(DATA)), TOOL]),
    "climbing, and named": (
        [["../../planted", "f", len(DATA), DIGEST, "0644"], *GOOD],
        [member("../../planted", mode=0o644, size=len(DATA)), FOLDER, TOOL],
    ),
    "absolute": (GOOD, [FOLDER, member("/clusterctl-planted", size=len(DATA)), TOOL]),
    "absolute, and named": (
        [["/clusterctl-planted", "f", len(DATA), DIGEST, "0644"], *GOOD],
        [member("/clusterctl-planted", mode=0o644, size=len(DATA)), FOLDER, TOOL],
    ),
    "not in the manifest": (GOOD, [FOLDER, TOOL, member("bin/more", size=len(DATA))]),
    "twice": (GOOD, [FOLDER, TOOL, TOOL]),
    "missing": (GOOD, [FOLDER]),
    "setuid": (
        [GOOD[0], ["bin/tool", "f", len(DATA), DIGEST, "4755"]],
        [FOLDER, member("bin/tool", mode=0o4755, size=len(DATA))],
    ),
    "setgid": (
        [GOOD[0], ["bin/tool", "f", len(DATA), DIGEST, "2755"]],
        [FOLDER, member("bin/tool", mode=0o2755, size=len(DATA))],
    ),
    "setuid, and not named": (GOOD, [FOLDER, member("bin/tool", mode=0o4755, size=len(DATA))]),
    "writable for the group": (
        [["bin", "d", 0, "", "0775"], GOOD[1]],
        [member("bin", tarfile.DIRTYPE, 0o775), TOOL],
    ),
    "writable for all": (
        [GOOD[0], ["bin/tool", "f", len(DATA), DIGEST, "0757"]],
        [FOLDER, member("bin/tool", mode=0o757, size=len(DATA))],
    ),
    "another owner": (GOOD, [FOLDER, member("bin/tool", size=len(DATA), uid=1000)]),
    "capabilities": (
        GOOD,
        [FOLDER, member("bin/tool", size=len(DATA), pax_headers={"SCHILY.xattr.security.capability": "x"})],
    ),
    "a device": (GOOD, [FOLDER, TOOL, member("bin/null", tarfile.CHRTYPE, devmajor=1, devminor=3)]),
    "a device in place": (GOOD, [FOLDER, member("bin/tool", tarfile.CHRTYPE, devmajor=1, devminor=3)]),
    "a pipe": (GOOD, [FOLDER, member("bin/tool", tarfile.FIFOTYPE)]),
    "a link that leaves": (
        [["bin", "l", 0, "../../../home", ""]],
        [member("bin", tarfile.SYMTYPE, linkname="../../../home")],
    ),
    "a link to a folder of users": (
        [["bin", "l", 0, "/home/user/evil", ""]],
        [member("bin", tarfile.SYMTYPE, linkname="/home/user/evil")],
    ),
    "a link that leaves by a way around": (
        [["bin", "l", 0, "/usr/../tmp/evil", ""]],
        [member("bin", tarfile.SYMTYPE, linkname="/usr/../tmp/evil")],
    ),
    "through a link": (
        [["bin", "l", 0, "/usr/clusterctl-absent", ""], ["bin/tool", "f", len(DATA), DIGEST, "0755"]],
        [member("bin", tarfile.SYMTYPE, linkname="/usr/clusterctl-absent"), TOOL],
    ),
    "a second name of a foreign file": (
        GOOD,
        [FOLDER, member("bin/tool", tarfile.LNKTYPE, linkname="/etc/shadow")],
    ),
    "other content": ([GOOD[0], ["bin/tool", "f", len(DATA), "0" * 64, "0755"]], [FOLDER, TOOL]),
    "another size": (GOOD, [FOLDER, member("bin/tool", size=3 << 20)]),
    "a header of gigabytes": (GOOD, [FOLDER, member("bin/tool", tarfile.GNUTYPE_LONGNAME, size=3 << 20)]),
    "a manifest with control characters": ([["bin\n", "d", 0, "", "0755"]], [member("bin\n", tarfile.DIRTYPE)]),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("tools", ["tar", "without tar"])
def test_a_pack_brings_nothing_but_what_a_manifest_may_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, tools: str
) -> None:
    if tools != "tar":
        which = artifact_install.shutil.which
        monkeypatch.setattr(
            artifact_install.shutil, "which", lambda name, **more: None if name == "tar" else which(name, **more)
        )
    root, pack = tmp_path / "deep" / "root", tmp_path / "pack"
    root.mkdir(parents=True)
    digest = write(pack, *HOSTILE[name])
    with pytest.raises(accepted.DamagedPackError, match=r"^pack is refused: "):
        accepted.content_digest(pack, "gz", str(root))
    with pytest.raises(artifact.BadPackError, match=r"^n1: the pack of demo-1-\w+ is refused: [^\n]+$"):
        install(root, pack, digest)
    assert list(root.iterdir()) == []
    assert not (tmp_path / "deep" / "planted").exists()
    assert not Path("/clusterctl-planted").exists()


def test_a_link_to_a_folder_of_the_user_is_installed_where_the_controller_names_the_folder(tmp_path: Path) -> None:
    root, pack, place = tmp_path / "root", tmp_path / "pack", "/data/venvs/x"
    root.mkdir()
    files = [*GOOD, ["bin/python", "l", 0, f"{place}/bin/python", ""]]
    members = [FOLDER, TOOL, member("bin/python", tarfile.SYMTYPE, linkname=f"{place}/bin/python")]
    for links_to in ([], ["/data/venvs/y"]):
        digest = write(pack, files, members)  # an installation takes the pack
        with pytest.raises(accepted.DamagedPackError, match="which is outside of the artifact"):
            accepted.content_digest(pack, "gz", str(root), links_to)
        with pytest.raises(artifact.BadPackError, match="which is outside of the artifact"):
            install(root, pack, digest, links_to)
    digest = write(pack, files, members)
    assert accepted.content_digest(pack, "gz", str(root), [place]) == digest
    assert install(root, pack, digest, [place])["changed"] is True
    assert (root / f"demo-1-{KEY}" / "bin" / "python").readlink() == Path(f"{place}/bin/python")


def test_a_pack_as_builders_make_it_is_installed(tmp_path: Path) -> None:
    root, pack = tmp_path / "root", tmp_path / "pack"
    root.mkdir()
    files = [*GOOD, ["bin/python", "l", 0, "/usr/bin/python3", ""], ["bin/twin", "f", len(DATA), DIGEST, "0755"]]
    members = [
        FOLDER,
        member("bin/python", tarfile.SYMTYPE, linkname="/usr/bin/python3"),
        member("bin/tool", size=len(DATA), mtime=1_234_567_890),
        member("bin/twin", tarfile.LNKTYPE, linkname="bin/tool"),
    ]
    digest = write(pack, files, members)
    assert accepted.content_digest(pack, "gz", str(root)) == digest
    assert install(root, pack, digest)["changed"] is True
    tree = root / f"demo-1-{KEY}"
    state = (tree / "bin" / "tool").stat()
    assert (state.st_mtime, state.st_mode & 0o7777, state.st_nlink) == (1_234_567_890, 0o755, 2)
    assert (tree / "bin" / "twin").read_bytes() == DATA
    assert (tree / "bin" / "python").readlink() == Path("/usr/bin/python3")
    assert not pack.exists()
    assert artifact.inspect_tree(str(tree), "demo", "1", KEY, content=True).ok


BOMBS: dict[str, Callable[[Path], str]] = {
    "a file": lambda path: write(path, GOOD, [FOLDER, member("bin/tool", size=256 << 20)]),
    "a name": lambda path: write(path, GOOD, [FOLDER, member("x", tarfile.GNUTYPE_LONGNAME, size=256 << 20), TOOL]),
    "headers": lambda path: write(path, GOOD, [FOLDER, member("x", tarfile.XHDTYPE, size=256 << 20), TOOL]),
    "the manifest": lambda path: write(path, GOOD, [member(MANIFEST, size=256 << 20)], manifest_first=False),
    "after the end": lambda path: append(path, write(path, GOOD, [FOLDER, TOOL])),
    "brackets": lambda path: nested(path),  # noqa: PLW0108 - it is defined below
}


def append(path: Path, digest: str) -> str:
    content = gzip.decompress(path.read_bytes())
    with gzip.open(path, "wb", compresslevel=1) as packed:
        packed.write(content)
        for _ in range(256):
            packed.write(bytes(1 << 20))
    return digest


def nested(path: Path) -> str:
    manifest = b'{"schema":1,"files":[' + b"[]," * 5_000_000 + b"[]]}"
    with gzip.open(path, "wb", compresslevel=1) as packed, tarfile.open(fileobj=packed, mode="w|") as bundle:
        bundle.addfile(member(MANIFEST, mode=0o644, size=len(manifest)), io.BytesIO(manifest))
    return hashlib.sha256(manifest).hexdigest()


@pytest.mark.parametrize("name", BOMBS)
def test_a_pack_that_unpacks_to_gigabytes_ends_at_the_first_byte_too_many(tmp_path: Path, name: str) -> None:
    root, pack = tmp_path / "root", tmp_path / "pack"
    root.mkdir()
    digest = BOMBS[name](pack)
    pid = os.fork()
    if pid == 0:  # a process of its own, whose memory and files the kernel bounds
        code = 1
        try:
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + (96 << 20), size + (96 << 20)))
            resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, 16 << 20))
            resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
            for act in (
                lambda: accepted.content_digest(pack, "gz", str(root)),
                lambda: install(root, pack, digest),
            ):
                try:
                    act()
                except ArtifactError:
                    code = 0
                else:
                    code = 1
                    break
        except BaseException as error:  # noqa: BLE001 - the child must end here
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            code = 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("size", ["9" * 30, "1e400", "-1", '"1"', "1.5", "[]"])
def test_a_strange_size_in_a_manifest_is_refused(size: str) -> None:
    data = f'{{"schema":1,"files":[["a","f",{size},"{DIGEST}","0644"]]}}'.encode()
    with pytest.raises(ArtifactError, match="not readable"):
        artifact.parse_manifest(data)


# --- what a build leaves --------------------------------------------------------------------------------------------


def test_a_build_with_the_umask_of_groups_is_packed_without_the_write_access(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin").chmod(0o2775)
    (tmp_path / "bin" / "tool").write_bytes(DATA)
    (tmp_path / "bin" / "tool").chmod(0o664)
    with pytest.raises(ArtifactError, match="writable for others"):
        artifact.make_manifest(str(tmp_path))
    artifact.close_modes(str(tmp_path))
    assert [entry.mode for entry in artifact.make_manifest(str(tmp_path))] == ["0755", "0644"]


@pytest.mark.parametrize("right", ["setuid", "setgid", "capability", "owner"])
def test_a_build_that_gives_rights_cannot_be_packed(tmp_path: Path, right: str) -> None:
    tool = tmp_path / "tool"
    tool.write_bytes(DATA)
    if right == "capability":
        done = subprocess.run(["setcap", "cap_setuid+ep", str(tool)], check=False, capture_output=True)
        if done.returncode:
            pytest.skip("this file system keeps no capabilities")
    elif right == "owner":
        os.chown(tool, 65534, 65534)
    else:
        tool.chmod(0o4755 if right == "setuid" else 0o2755)
    artifact.close_modes(str(tmp_path))
    with pytest.raises(ArtifactError, match=r"cannot be packed: 'tool' (has|belongs)"):
        artifact.make_manifest(str(tmp_path))


def test_a_capability_that_came_later_is_a_difference(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_bytes(DATA)
    tool.chmod(0o755)
    entries = artifact.make_manifest(str(tmp_path))
    if subprocess.run(["setcap", "cap_setuid+ep", str(tool)], check=False, capture_output=True).returncode:
        pytest.skip("this file system keeps no capabilities")
    assert artifact.deviation(str(tmp_path), entries) == "tool (has capabilities)"


# --- sources of builds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("target", ["/var/empty-clusterctl", "../../..", "a/../../../.."])
def test_a_source_writes_through_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, guarded: bool
) -> None:
    if not guarded:  # Python 3.9 without the filters
        monkeypatch.delattr(tarfile, "tar_filter", raising=False)
    source = tmp_path / "source.tar"
    with tarfile.open(source, "w") as bundle:
        bundle.addfile(member("top/a/link", tarfile.SYMTYPE, linkname=target))
        bundle.addfile(member("top/a/link/clusterctl-planted", size=len(DATA)), io.BytesIO(DATA))
    with pytest.raises((ArtifactError, tarfile.TarError), match=r"leads out|outside"):
        build_files.unpack(str(source), tmp_path / "work" / "src", 1, [])
    assert not list(tmp_path.rglob("clusterctl-planted"))


def test_a_source_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source.tar.gz"
    source.write_bytes(gzip.compress(member("top/zeros", size=3 << 30).tobuf()))  # the size stands before the content
    with pytest.raises(ArtifactError, match="unpacks to more than"):
        build_files.unpack(str(source), tmp_path / "src", 1, [])


# --- the controller -------------------------------------------------------------------------------------------------


class Connection:
    """A connection whose host sends as much as it likes."""

    def __init__(self, sends: int) -> None:
        self.sends = sends
        self.methods: list[str] = []
        self.method = "smart"

    def get_option(self, _name: str) -> str:
        return self.method

    def set_option(self, _name: str, value: str) -> None:
        self.method = value

    def fetch_file(self, _remote: str, local: str) -> None:
        self.methods.append(self.method)
        with Path(local).open("wb") as out:
            done = subprocess.run(["head", "-c", str(self.sends), "/dev/zero"], stdout=out, check=False)
        if done.returncode:
            raise AnsibleError("failed to transfer file")


def action(connection: Connection) -> Any:
    made: Any = software_stage.ActionModule.__new__(software_stage.ActionModule)
    made._connection = connection  # noqa: SLF001 - the only part that fetching uses
    return made


def test_a_host_sends_no_more_than_the_size_that_it_named(tmp_path: Path) -> None:
    local, connection = tmp_path / "pack", Connection(1 << 30)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(ArtifactError, match=r"^n1: /pack has more than the 10 bytes"):
        action(connection)._fetch("n1", "/pack", local, 10)  # noqa: SLF001
    assert not local.exists()
    assert connection.methods == ["sftp"]
    assert (resource.getrlimit(resource.RLIMIT_FSIZE), connection.method) == (before, "smart")
    connection.sends = 10
    action(connection)._fetch("n1", "/pack", local, 10)  # noqa: SLF001
    assert local.read_bytes() == bytes(10)


ANSWER: dict[str, Any] = {
    "pack": "/etc/shadow",
    "log": "/etc/shadow",
    "compression": "zst",
    "way": "built",
    "size": 3,
    "jobs": 2,
    "sha256": "0" * 64,
    "manifest_sha256": "0" * 64,
    "seconds": 1.5,
    "cpu_seconds": 2,
    "steps": [{"name": "make\x1b[2J\nx", "seconds": 1, "cpu_seconds": 1}],
}


def test_the_paths_in_an_answer_of_a_builder_are_those_of_the_controller() -> None:
    told = artifact_building.told(ANSWER, "n1", "demo-1-key", "/log")
    assert (told["pack"], told["log"]) == ("/var/cache/clusterctl/packs/demo-1-key.tar.zst", "/log")
    assert told["steps"][0]["name"].isprintable()


@pytest.mark.parametrize(
    "change",
    [
        {"compression": "../x"},
        {"compression": []},
        {"way": "stolen"},
        {"sha256": "0" * 63},
        {"manifest_sha256": None},
        {"size": -1},
        {"size": True},
        {"size": 1 << 50},
        {"seconds": float("nan")},
        {"jobs": "{{ 1 }}"},
        {"steps": [1]},
        {"steps": None},
    ],
)
def test_an_answer_of_a_builder_in_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match=r"^n1: its answer about the pack of demo has another form"):
        artifact_building.told(ANSWER | change, "n1", "demo", "/log")


def test_after_a_damaged_copy_the_controller_sends_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that came by the chain is not whole, so the host is told of the path of the controller's copy."""
    made: Any = software_stage.ActionModule.__new__(software_stage.ActionModule)
    asked, dropped = [], []
    cached = SimpleNamespace(path=Path("/cache/p"), sha256="a", size=3, record={"manifest_sha256": "b", "inputs": {}})

    def brought(_one: Any, _seen: Any, pushed: list[str], _variables: Any) -> dict[str, Any]:
        pushed.append("/push/chain")
        return {"path": "/push/chain"}

    def call(_name: str, given: dict[str, Any], _variables: Any) -> dict[str, Any]:
        (one,) = given["artifacts"]
        asked.append(one["pack"]["path"])
        damaged = {"failed": True, "msg": "damaged", "not_whole": True}
        return {"artifacts": {"demo": damaged if len(asked) == 1 else {"changed": True}}}

    for name, stand_in in {
        "_brought": brought,
        "_call": call,
        "_restore": lambda *_: None,
        "_note": lambda *_: None,
        "_push": lambda *_: "/push/own",
        "_cached": lambda *_: cached,
        "_drop": dropped.extend,
    }.items():
        monkeypatch.setattr(made, name, stand_in)
    seen = {"needs_pack": True, "needs_packages": [], "lost": [], "zstd": True}
    one = {"name": "demo", "version": "1", "key": KEY, "cache_dir": "/cache"}
    assert made._applied([one], {"demo": seen}, {"inventory_hostname": "n1"}) == {"demo": {"changed": True}}  # noqa: SLF001
    assert asked == ["/push/chain", "/push/own"]
    assert dropped == ["/push/chain", "/push/own"]


# --- what a manifest may name in all -------------------------------------------------------------------------------


def test_a_manifest_names_no_more_bytes_than_any_artifact_has() -> None:
    entries = [artifact.Entry(f"f{number}", "f", 1 << 35, DIGEST, "0644") for number in range(2)]
    assert artifact.parse_manifest(artifact.manifest_bytes(entries)) == entries
    more = [*entries, artifact.Entry("more", "f", 1, DIGEST, "0644")]
    with pytest.raises(ArtifactError, match=r"^its files have more than 68719476736 bytes together$"):
        artifact.parse_manifest(artifact.manifest_bytes(more))
    torch = [artifact.Entry(f"f{number}", "f", 200_000, DIGEST, "0644") for number in range(40_000)]
    assert len(artifact.parse_manifest(artifact.manifest_bytes(torch))) == 40_000


def test_a_small_pack_that_names_gigabytes_is_refused_before_its_first_file(tmp_path: Path) -> None:
    root, pack = tmp_path / "root", tmp_path / "pack"
    root.mkdir()
    files = [GOOD[0], ["bin/tool", "f", 3 << 30, DIGEST, "0755"]]
    digest = write(pack, files, [FOLDER])
    words = r"is refused: its files have 3221225472 bytes, more than a pack of \d+ bytes unpacks to$"
    with pytest.raises(accepted.DamagedPackError, match=words):
        accepted.content_digest(pack, "gz", str(root))
    with pytest.raises(artifact.BadPackError, match=words):
        install(root, pack, digest)
    assert list(root.iterdir()) == []


def test_a_pack_that_does_not_fit_is_refused_before_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, pack = tmp_path / "root", tmp_path / "pack"
    root.mkdir()
    size = 8 << 20
    content = hashlib.sha256(bytes(size)).hexdigest()
    files = [GOOD[0], ["bin/tool", "f", size, content, "0755"], ["bin/twin", "f", size, content, "0755"]]
    twin = member("bin/twin", tarfile.LNKTYPE, linkname="bin/tool")
    digest = write(pack, files, [FOLDER, member("bin/tool", size=size), twin])
    kept, room = pack.read_bytes(), [size - 1]
    written: list[int] = []

    def state(free: int) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=free, f_frsize=1, f_files=0)

    monkeypatch.setattr(pack_extract.os, "statvfs", lambda _path: state(room[0]))
    write_all = pack_extract._Extracting.file  # noqa: SLF001 - what writes
    monkeypatch.setattr(
        pack_extract._Extracting,  # noqa: SLF001
        "file",
        lambda self, entry, *rest: (written.append(entry.size), write_all(self, entry, *rest))[1],
    )
    with pytest.raises(ArtifactError, match=rf"^n1: the disk is full: {root} has \d+ bytes free and demo-1-\w+ did"):
        install(root, pack, digest)
    assert (list(root.iterdir()), written) == ([], [])
    room[0] = size  # a second name takes no room
    pack.write_bytes(kept)
    assert install(root, pack, digest)["changed"] is True
