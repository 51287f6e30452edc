from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from clusterctl.model.findings import Finding
from clusterctl.model.hardware import Hardware
from clusterctl.state import environments, files, hardware_looks, paths, proofs, snapshots
from clusterctl.support.errors import ConfigError


def test_an_atomic_write_leaves_no_crumbs(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("old", encoding="utf-8")
    with pytest.raises(TypeError):
        files.write_atomically(target, 7)  # type: ignore[arg-type]
    assert [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()] == ["old"]


def test_content_is_text_bytes_or_parts(tmp_path: Path) -> None:
    target = tmp_path / "x"
    files.write_atomically(target, "ä\n")
    assert target.read_bytes() == b"\xc3\xa4\n"
    files.write_atomically(target, b"\xff")
    assert target.read_bytes() == b"\xff"
    files.write_atomically(target, (part for part in ("a", "\udcff", "b")), errors="replace")
    assert target.read_bytes() == b"a?b"
    with pytest.raises(UnicodeEncodeError):
        files.write_atomically(target, "\udcff")
    assert target.read_bytes() == b"a?b"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(("mode", "has"), [(files.PRIVATE, 0o600), (0o644, 0o644), (0o666, 0o666), (None, 0o640)])
def test_a_file_has_the_mode_that_was_asked_for(tmp_path: Path, mode: int | None, has: int) -> None:
    target = tmp_path / "x"
    target.touch(mode=0o777)
    before = os.umask(0o027)
    try:
        files.write_atomically(target, "x", mode=mode)
    finally:
        os.umask(before)
    assert target.stat().st_mode & 0o777 == has


def test_a_reader_finds_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("old", encoding="utf-8")
    with files.replacing(target) as stream:
        stream.write(b"new")
        stream.flush()
        assert target.read_text(encoding="utf-8") == "old"
    assert target.read_text(encoding="utf-8") == "new"


def test_what_a_killed_process_staged_goes_when_the_file_is_written_again(tmp_path: Path) -> None:
    target, litter, other = tmp_path / "run.json", tmp_path / ".run.json.99999999", tmp_path / ".facts.json.99999999"
    for path in (litter, other):
        path.write_text("half")
    files.write_atomically(target, "whole")
    assert sorted(tmp_path.iterdir()) == [other, target]
    files.remove_staged(tmp_path)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.programs
@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_the_content_is_on_the_disk_before_the_name_leads_to_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    program = "import sys; from pathlib import Path; from clusterctl.state import files;"
    program += "files.write_atomically(Path(sys.argv[1]), 'whole')"
    argv = ["strace", "-f", "-y", "-o", str(trace), "-e", "trace=write,fsync,rename,renameat,renameat2"]
    subprocess.run([*argv, sys.executable, "-c", program, str(tmp_path / "record.json")], check=True)
    calls = re.findall(r" (write|fsync|rename)\w*\(.*record\.json", trace.read_text())
    assert calls == ["write", "fsync", "rename"]


# --- compressed state is read up to a bound, and damage is an error ---


DATA = b"record " * 9


def test_what_is_compressed_comes_back() -> None:
    assert files.decompress(files.compress(DATA), len(DATA)) == DATA
    assert files.decompress(files.compress(b""), 0) == b""


@pytest.mark.parametrize(
    "frame", ["28b52ffd243f6d0000387265636f7264200100d5598c82b626b0", "28b52ffd203f6d0000387265636f7264200100d5598c"]
)
def test_what_earlier_releases_wrote_is_read(frame: str) -> None:
    assert files.decompress(bytes.fromhex(frame), 1 << 10) == DATA


def test_what_unpacks_to_more_than_the_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 62 bytes"):
        files.decompress(files.compress(DATA), len(DATA) - 1)
    bomb = files.zstd.compress(b"\0" * (1 << 26))
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        files.decompress(bomb, 1000)


def test_damage_is_refused() -> None:
    frame = files.compress(DATA)
    flipped = bytearray(frame)
    flipped[-6] ^= 1
    for damaged in (b"", b"no frame", frame[:-1], bytes(flipped)):
        with pytest.raises(ValueError, match=r"."):
            files.decompress(damaged, 1 << 10)


# --- paths ---


def test_two_inventories_of_one_name_are_two_clusters() -> None:
    assert paths.cluster_id(Path("/a/inventory.ini")) != paths.cluster_id(Path("/b/inventory.ini"))


# --- proofs ---


def test_the_last_proof_of_each_node_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = datetime(2026, 3, 9, tzinfo=timezone.utc)
    assert proofs.read("lab") == {}
    proofs.keep("lab", ["node1", "node2"], first)
    proofs.keep("lab", ["node2"], first + timedelta(days=1))
    assert proofs.read("lab") == {"node1": first, "node2": first + timedelta(days=1)}
    paths.proofs_file("lab").write_text("{")
    assert proofs.read("lab") == {}


def test_a_node_that_was_chosen_and_not_proved_had_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = datetime(2026, 3, 9, tzinfo=timezone.utc)
    later = first + timedelta(days=1)
    proofs.take_turns("lab", ["node1", "node2"], first)
    proofs.keep("lab", ["node2", "node3"], later)
    assert proofs.read("lab") == {"node2": later, "node3": later}
    assert proofs.turns("lab") == {"node1": first, "node2": later, "node3": later}


# --- what is about to be replaced ---


def changes(at: datetime) -> list[tuple[Path, Callable[[], tuple[str, ...]]]]:
    """Return the files of a cluster that are read before they are replaced, each with what replaces it."""
    look = Hardware(schema_version=1, time=1.0, boot_id="b")
    one = environments.Environment(project="/p", lock="uv.lock", trees={}, used=at)
    bad = Finding("x", "error", ("node1",), "cause", "cure")
    return [
        (paths.proofs_file("lab"), lambda: proofs.keep("lab", ["node1"], at)),
        (paths.proofs_file("lab"), lambda: proofs.take_turns("lab", ["node1"], at)),
        (paths.environments_file("lab"), lambda: environments.keep("lab", "d", one)),
        (paths.environments_file("lab"), lambda: environments.forget("lab", {})),
        (paths.parts_file("lab"), lambda: hardware_looks.keep("lab", {"node1": look}, at)),
        (paths.doctor_errors_file("lab"), lambda: hardware_looks.keep_errors("lab", [bad], ["node1"], at)),
        (paths.collected_file("lab"), lambda: snapshots.note_collected("lab", ["/t"], at)),
    ]


@pytest.mark.parametrize("damaged", ["{", "[" * 100_000, '{"schema_version": 1, "hosts": 3, "known": 3, "nodes": 3}'])
def test_a_damaged_file_is_moved_aside_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for path, change in changes(datetime(2026, 3, 9, tzinfo=timezone.utc)):
        files.keep(path, damaged)
        (note,) = change()
        (aside,) = path.parent.glob(f"{path.name}.damaged-*")
        assert aside.read_text(encoding="utf-8") == damaged
        assert note == f"{path} was damaged. It is now {aside.name}, and a new one takes its place."
        aside.unlink()
        assert change() == (), "the new one is whole"


def test_the_file_of_a_newer_clusterctl_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    newer = '{"schema_version": 2, "nodes": {}}'
    for path, change in changes(datetime(2026, 3, 9, tzinfo=timezone.utc)):
        files.keep(path, newer)
        with pytest.raises(ConfigError, match=r"has schema 2, .*; use the newer one that wrote it\.$"):
            change()
        assert path.read_text(encoding="utf-8") == newer
        assert not list(path.parent.glob("*.damaged-*"))
