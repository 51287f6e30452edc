"""file_set as Ansible runs it: what it lays out, what it refuses, and that a refusal leaves everything as it was."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import RunModule

pytestmark = pytest.mark.programs

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
ACCEPT = [sys.executable, "-c", "import sys; sys.exit(0)", "%s"]
REFUSE = [sys.executable, "-c", "import sys; sys.exit('line 1 is wrong in ' + sys.argv[1])", "%s"]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def snapshot(folder: Path) -> dict[str, Any]:
    """Everything below a folder: kinds, modes, contents."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        kind = "link" if path.is_symlink() else "dir" if path.is_dir() else "file"
        text = path.readlink() if kind == "link" else path.read_bytes() if kind == "file" else b""
        found[str(path.relative_to(folder))] = (kind, mode_of(path), text)
    return found


@pytest.fixture
def wanted(tmp_path: Path) -> list[dict[str, Any]]:
    (tmp_path / "old").write_text("old\n")
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n")
    return [
        {"path": f"{tmp_path}/etc", "state": "directory", "mode": "0750"},
        {"path": f"{tmp_path}/etc/a.conf", "content": "a = 1\n", "mode": "0600"},
        {"path": f"{tmp_path}/etc/current", "state": "link", "target": "a.conf"},
        {"path": f"{tmp_path}/hosts", "state": "block", "marker": "m", "content": "10.0.0.1 node1\n"},
        {"path": f"{tmp_path}/old", "state": "absent"},
    ]


def test_everything_is_laid_out_and_a_second_run_changes_nothing(
    tmp_path: Path, run_module: RunModule, wanted: list[dict[str, Any]]
) -> None:
    first = run_module("file_set", files=wanted)
    assert first["changed"] is True
    assert first["changes"] == [
        f"created {tmp_path}/etc",
        f"created {tmp_path}/etc/a.conf",
        f"linked {tmp_path}/etc/current to a.conf",
        f"changed block 'm' in {tmp_path}/hosts",
        f"removed {tmp_path}/old",
    ]
    assert mode_of(tmp_path / "etc") == 0o750
    assert mode_of(tmp_path / "etc/a.conf") == 0o600
    assert (tmp_path / "etc/current").read_text() == "a = 1\n"
    assert not (tmp_path / "old").exists()
    after = snapshot(tmp_path)
    second = run_module("file_set", files=wanted)
    assert (second["changed"], second["changes"]) == (False, [])
    assert second["watch"] == first["watch"]
    assert snapshot(tmp_path) == after, "nothing may be left beside the targets"


def test_check_mode_says_the_same_and_touches_nothing(
    tmp_path: Path, run_module: RunModule, wanted: list[dict[str, Any]]
) -> None:
    before = snapshot(tmp_path)
    checked = run_module("file_set", check=True, files=wanted)
    assert snapshot(tmp_path) == before
    assert checked["changes"] == run_module("file_set", files=wanted)["changes"]


def test_the_watch_is_what_node_facts_sees(tmp_path: Path, run_module: RunModule, wanted: list[dict[str, Any]]) -> None:
    watch = run_module("file_set", files=wanted)["watch"]
    assert [entry["kind"] for entry in watch] == ["dir", "file", "link", "file", "absent"]
    assert run_module("node_facts", watch=watch)["node"]["watch"] == watch
    (tmp_path / "etc/a.conf").chmod(0o644)
    assert run_module("node_facts", watch=watch)["node"]["watch"] != watch


def test_a_file_that_is_its_users_alone_again_is_not_watched(tmp_path: Path, run_module: RunModule) -> None:
    (tmp_path / "keys").write_text("mine\n# BEGIN clusterctl m\nours\n# END clusterctl m\n")
    entry = {"path": f"{tmp_path}/keys", "state": "block", "marker": "m", "content": "", "watch": "none"}
    result = run_module("file_set", files=[entry])
    assert (tmp_path / "keys").read_text() == "mine\n"
    assert (result["changed"], result["watch"]) == (True, [])


def test_the_diff_shows_before_and_after(tmp_path: Path, run_module: RunModule) -> None:
    path = tmp_path / "a"
    path.write_text("one\n")
    diff = run_module("file_set", diff=True, files=[{"path": str(path), "content": "two\n"}])["diff"]
    assert diff == [{"before_header": str(path), "after_header": str(path), "before": "one\n", "after": "two\n"}]


def test_a_sensitive_file_shows_its_content_nowhere(tmp_path: Path, run_module: RunModule) -> None:
    entry = {"path": f"{tmp_path}/key", "content": "very-secret\n", "mode": "0600", "sensitive": True}
    assert "very-secret" not in str(run_module("file_set", diff=True, files=[entry]))
    refused = {**entry, "content": "other-secret", "validate": [sys.executable, "-c", "print(open('%s').read()); 1/0"]}
    result = run_module("file_set", diff=True, files=[refused])
    assert result["failed"] is True
    assert "other-secret" not in str(result)


def test_a_refusing_validator_leaves_every_path_as_it_was(
    tmp_path: Path, run_module: RunModule, wanted: list[dict[str, Any]]
) -> None:
    before = snapshot(tmp_path)
    last = {"path": f"{tmp_path}/checked", "content": "x\n", "validate": REFUSE}
    for check in (True, False):
        result = run_module("file_set", check=check, files=[*wanted, last])
        assert result["failed"] is True
        assert f"refuses the new {tmp_path}/checked: line 1 is wrong in {tmp_path}/checked" in result["msg"]
        assert snapshot(tmp_path) == before
    assert run_module("file_set", files=[*wanted, {**last, "validate": ACCEPT}])["changed"] is True


@ROOT_ONLY
def test_a_failure_in_the_middle_of_putting_in_place_is_undone(tmp_path: Path, run_module: RunModule) -> None:
    """The second target is a mounted folder, whose removal fails with EBUSY after the first file was replaced."""
    (tmp_path / "a").write_text("before\n")
    (tmp_path / "a").chmod(0o640)
    files = [
        {"path": f"{tmp_path}/new", "state": "directory"},
        {"path": f"{tmp_path}/new/b", "content": "b\n"},
        {"path": f"{tmp_path}/a", "content": "after\n", "mode": "0600"},
        {"path": f"{tmp_path}/link", "state": "link", "target": "a"},
        {"path": "/proc", "state": "absent"},
    ]
    before = snapshot(tmp_path)
    result = run_module("file_set", files=files)
    assert result["failed"] is True
    assert "/proc cannot be changed" in result["msg"]
    assert snapshot(tmp_path) == before


def test_a_folder_without_permission_is_named(tmp_path: Path, run_module: RunModule) -> None:
    tmp_path.chmod(0o500)
    # Root may write everywhere; without this capability it may not.
    under = ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()
    result = run_module("file_set", under=under, files=[{"path": f"{tmp_path}/a", "content": "x"}])
    tmp_path.chmod(0o700)
    assert f"{tmp_path}/a cannot be changed: Permission denied (run with become)" in result["msg"]


def test_a_block_keeps_every_byte_around_it(tmp_path: Path, run_module: RunModule) -> None:
    path = tmp_path / "f"
    original = b"first\r\n\xff\xfe not text\x0c\r\nlast without newline"
    path.write_bytes(original)
    block = {"path": str(path), "state": "block", "marker": "m", "content": "ours\n"}
    run_module("file_set", files=[block])
    assert path.read_bytes() == original + b"\n# BEGIN clusterctl m\nours\n# END clusterctl m\n"
    assert run_module("file_set", files=[block])["changed"] is False
    run_module("file_set", files=[{**block, "content": ""}])
    assert path.read_bytes() == original + b"\n"


def test_a_block_without_lines_needs_no_folder(tmp_path: Path, run_module: RunModule) -> None:
    block = {"path": f"{tmp_path}/none/f", "state": "block", "marker": "m", "content": ""}
    assert run_module("file_set", files=[block])["changed"] is False
    assert not list(tmp_path.iterdir())
    assert "does not exist" in run_module("file_set", files=[{**block, "content": "x\n"}])["msg"]


def test_a_block_follows_a_link(tmp_path: Path, run_module: RunModule) -> None:
    (tmp_path / "real").write_text("x\n")
    (tmp_path / "link").symlink_to("real")
    entry = {"path": f"{tmp_path}/link", "state": "block", "marker": "m", "content": "y\n"}
    result = run_module("file_set", files=[entry])
    assert (tmp_path / "link").is_symlink()
    assert "y\n" in (tmp_path / "real").read_text()
    assert result["watch"][0]["path"] == str(tmp_path / "real")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# BEGIN clusterctl m\nx\n", "line 1 opens block 'm', but nothing closes it"),
        ("a\n# END clusterctl m\n", "line 2 closes block 'm', but nothing opens it"),
        ("# END clusterctl m\n# BEGIN clusterctl m\n", "line 1 closes block 'm' before line 2 opens it"),
        ("# BEGIN clusterctl m\n# END clusterctl m\n# BEGIN clusterctl m\n# END clusterctl m\n", "line 3 repeats"),
    ],
)
def test_broken_markers_are_named_by_file_and_line(
    tmp_path: Path, run_module: RunModule, text: str, words: str
) -> None:
    path = tmp_path / "f"
    path.write_text(text)
    entry = {"path": str(path), "state": "block", "marker": "m", "content": "y\n"}
    result = run_module("file_set", files=[entry])
    assert result["msg"].startswith(f"{path}: ")
    assert words in result["msg"]
    assert path.read_text() == text


def test_mode_alone_is_a_change_of_its_own(tmp_path: Path, run_module: RunModule) -> None:
    path = tmp_path / "a"
    path.write_text("x")
    path.chmod(0o644)
    result = run_module("file_set", files=[{"path": str(path), "content": "x", "mode": "0600"}])
    assert result["changes"] == [f"mode of {path} from 0644 to 0600"]
    assert mode_of(path) == 0o600


def test_an_existing_file_keeps_its_mode_where_none_is_given(tmp_path: Path, run_module: RunModule) -> None:
    path = tmp_path / "a"
    path.write_text("x")
    path.chmod(0o640)
    run_module("file_set", files=[{"path": str(path), "content": "y"}])
    assert mode_of(path) == 0o640


def test_a_file_takes_the_place_of_a_link_and_leaves_its_target(tmp_path: Path, run_module: RunModule) -> None:
    (tmp_path / "real").write_text("theirs")
    (tmp_path / "a").symlink_to("real")
    run_module("file_set", files=[{"path": f"{tmp_path}/a", "content": "ours"}])
    assert not (tmp_path / "a").is_symlink()
    assert (tmp_path / "real").read_text() == "theirs"


def test_a_directory_goes_with_all_it_holds(tmp_path: Path, run_module: RunModule) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/f").write_text("x")
    run_module("file_set", files=[{"path": f"{tmp_path}/d", "state": "absent"}])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([{"path": "etc/x", "content": ""}], "'etc/x' is not absolute"),
        ([{"path": "/opt/../x", "content": ""}], "not in its simplest form; write '/x'"),
        ([{"path": "/", "state": "absent"}], "not in its simplest form"),
        ([{"path": "/x", "content": ""}, {"path": "/x", "content": ""}], "/x is named twice"),
        ([{"path": "/x", "contents": ""}], "contents"),
        ([{"path": "/x"}], "/x is of state 'file', which needs 'content'"),
        ([{"path": "/x", "state": "link"}], "needs 'target'"),
        ([{"path": "/x", "state": "block", "content": "y"}], "needs 'marker'"),
        ([{"path": "/x", "state": "block", "content": "y", "marker": "a b"}], "'a b' is not a name"),
        ([{"path": "/x", "state": "absent", "mode": "0644"}], "for which 'mode' means nothing"),
        ([{"path": "/x", "content": "", "mode": "u+x"}], "The mode of /x is 'u+x'"),
        ([{"path": "/x", "content": "", "owner": "nobody-of-that-name"}], "this node has no such user"),
        ([{"path": "/x", "content": "", "group": "nobody-of-that-name"}], "this node has no such group"),
        ([{"path": "/x", "content": "", "validate": ["true"]}], "names no '%s'"),
        ([{"path": "/no/such/x", "content": ""}], "its folder /no/such does not exist"),
        ([{"path": "/etc", "content": ""}], "/etc should be a file, but it is a directory"),
        ([{"path": "/etc/passwd", "state": "directory"}], "should be a directory, but something else is there"),
        ([{"path": "/etc", "state": "link", "target": "x"}], "should be a link, but it is a directory"),
        ([{"path": "/dev/null", "content": "x"}], "a device, a socket or a pipe"),
    ],
)
def test_what_makes_no_sense_gets_a_sentence(run_module: RunModule, files: list[dict[str, Any]], words: str) -> None:
    result = run_module("file_set", files=files, check=True)
    assert result["failed"] is True
    assert words in result["msg"]
    assert "\n" not in result["msg"]
    assert "Traceback" not in str(result)


def test_one_validator_reads_all_new_files_and_the_one_that_it_refuses_is_named(
    tmp_path: Path, run_module: RunModule
) -> None:
    compiles = "import sys; [compile(open(path).read(), path, 'exec') for path in sys.argv[1:]]"
    counts = f"open({str(tmp_path / 'runs')!r}, 'a').write(str(len(sys.argv) - 1) + ' ')"
    command = [sys.executable, "-c", f"{compiles}; {counts}", "%s..."]
    (tmp_path / "in").mkdir()
    files = [{"path": f"{tmp_path}/{name}", "content": "x = 1\n", "validate": command} for name in ("a", "b", "in/a")]
    assert run_module("file_set", check=True, files=files)["changed"] is True
    assert run_module("file_set", files=files)["changed"] is True
    assert run_module("file_set", files=[*files, {**files[0], "path": f"{tmp_path}/c"}])["changed"] is True
    assert (tmp_path / "runs").read_text() == "3 3 1 ", "in check mode, really, and what is new alone"
    bad = [{**files[0], "content": "x = 2\n"}, {**files[1], "content": "x =\n"}]
    for check in (True, False):
        assert f"refuses the new {tmp_path}/b: " in run_module("file_set", check=check, files=bad)["msg"]
    assert (tmp_path / "a").read_text() == "x = 1\n"


def test_a_missing_validator_is_named(tmp_path: Path, run_module: RunModule) -> None:
    entry = {"path": f"{tmp_path}/a", "content": "x", "validate": ["/no/such/checker", "%s"]}
    assert "/no/such/checker, is not on this node" in run_module("file_set", files=[entry])["msg"]
    assert list(tmp_path.iterdir()) == []


@ROOT_ONLY
def test_a_mounted_file_is_written_in_place(tmp_path: Path, run_module: RunModule) -> None:
    """As podman mounts /etc/hosts: a rename onto it is EBUSY."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("127.0.0.1 localhost\n")
    target.write_text("")
    mounted = subprocess.run(["mount", "--bind", str(source), str(target)], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("this machine may not mount")
    try:
        entry = {"path": str(target), "state": "block", "marker": "m", "content": "ours\n"}
        assert run_module("file_set", files=[entry])["changed"] is True
        assert "ours" in source.read_text(), "the mounted file itself must have changed"
        assert run_module("file_set", files=[entry])["changed"] is False
        before = source.read_text()
        failing = [{**entry, "content": "other\n"}, {"path": "/proc", "state": "absent"}]
        assert run_module("file_set", files=failing)["failed"] is True
        assert source.read_text() == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]
    finally:
        subprocess.run(["umount", str(target)], check=True)


def test_a_proof_runs_once_all_is_in_place_and_its_failure_is_one_sentence(
    tmp_path: Path, run_module: RunModule, wanted: list[dict[str, Any]]
) -> None:
    proof = [
        sys.executable,
        "-c",
        "import sys; sys.exit(open(sys.argv[1]).read() != 'a = 1\\n')",
        f"{tmp_path}/etc/a.conf",
    ]
    assert run_module("file_set", check=True, files=wanted, proof=proof)["changed"] is True
    assert run_module("file_set", files=wanted, proof=proof)["changed"] is True
    assert run_module("file_set", files=wanted, proof=proof)["changed"] is False
    wanted[1]["content"] = "a = 2\n"
    failed = run_module("file_set", files=wanted, proof=[*proof[:2], "raise SystemExit('no module named b')"])
    assert failed["failed"] is True
    assert failed["msg"].startswith("The files are in place, but '")
    assert failed["msg"].endswith("fails: no module named b")
    assert failed["changes"] == [f"changed {tmp_path}/etc/a.conf"]
    missing = run_module("file_set", files=wanted, proof=[f"{tmp_path}/python"])
    assert "python is not on this node" in missing["msg"]
