from __future__ import annotations

import shutil
import subprocess
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.hosts import Host
from clusterctl.remote import supervised_job, sync
from clusterctl.support.errors import ConfigError, HostFailedError


def test_the_copy_leaves_out_git_and_what_it_ignores(tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("train.py", "sub/data.bin", "sub/keep.me", "build/x.o", "with space\n", "nested/.git/x", "nested/y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".gitignore").write_text("build/\n*.bin\n")
    wanted = [".gitignore", "nested/y", "sub/keep.me", "train.py", "with space\n"]
    assert sync.files(tmp_path) == wanted
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "train.py"], check=True)
    assert sync.files(tmp_path) == wanted
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ConfigError, match="install git"):
        sync.files(tmp_path)
    (tmp_path / ".gitignore").unlink()
    assert sync.files(tmp_path) == ["build/x.o", "nested/y", "sub/data.bin", "sub/keep.me", "train.py", "with space\n"]


def test_rsync_is_told_ssh_word_by_word() -> None:
    host = Host(name="n", address="fd00::1", user="user1", ssh_args=("-o", "ProxyCommand=nc 'a b' %h"))
    line = sync.rsync_argv(
        Path("/Users/user1/co de"), "/home/user2/co de", supervised_job.JobLogin(host, as_user="user2")
    )
    shell = next(word for word in line if word.startswith("--rsh="))
    assert shell.startswith("--rsh='ssh' '-o' 'RequestTTY=no' '-o' 'RemoteCommand=none'")
    assert "\"ProxyCommand=nc 'a b' %h\"" in shell
    assert "--rsync-path=sudo -n -H -u user2 -- rsync" in line
    assert line[-2:] == ["/Users/user1/co de/", "[fd00::1]:/home/user2/co de/"]


@pytest.mark.programs
@pytest.mark.parametrize("rsync", ["#!/bin/sh\necho 'openrsync: protocol version 29'\n", ""])
def test_an_rsync_without_mkpath_is_not_used_and_each_node_gets_the_whole_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rsync: str
) -> None:
    programs, source = tmp_path / "bin", tmp_path / "source"
    for folder in (programs, source):
        folder.mkdir()
    (source / "train.py").write_text("print()\n")
    (source / "data").write_bytes(bytes(300_000))
    if rsync:
        (programs / "rsync").write_text(rsync)
        (programs / "rsync").chmod(0o755)
    for name in ("git", "sh", "tar", "mkdir"):
        (programs / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(supervised_job.JobLogin, "command", lambda self, argv: [*argv[:-1], argv[-1] + self.host.name])
    logins = [supervised_job.JobLogin(Host(name=name, address=name, user="user1")) for name in ("node1", "node2")]
    assert sync.copy(source, str(tmp_path / "on-"), logins, dict.fromkeys(("node1", "node2"), True)) == sync.Copied(2)
    for name in ("node1", "node2"):
        assert (tmp_path / f"on-{name}" / "data").read_bytes() == bytes(300_000)
        assert (tmp_path / f"on-{name}" / "train.py").is_file()


# Captured with rsync 3.2.7 and 3.1.3 on the nodes.
NOISE = "protocol version mismatch -- is your shell clean?\\n(see the rsync manpage for an explanation)"
OLDER = "rsync: on remote machine: --mkpath: unknown option"


@pytest.mark.programs
@pytest.mark.parametrize(("said", "noted"), [(NOISE, True), (f"rsync: x\\n{OLDER}", False)])
@pytest.mark.parametrize("line", ["echo Welcome to this machine", "banner() { echo hello; }; banner"])
def test_where_a_session_prints_something_tar_copies_and_the_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, noted: bool, line: str
) -> None:
    programs, source, home = tmp_path / "bin", tmp_path / "source", tmp_path / "home"
    for folder in (programs, source, home):
        folder.mkdir()
    (source / "train.py").write_text("print()\n")
    rsync = f"#!/bin/sh\nif [ \"$1\" = --help ]; then echo ' --mkpath'; else printf '{said}\\n' >&2; exit 2; fi\n"
    (programs / "rsync").write_text(rsync)
    (programs / "rsync").chmod(0o755)
    (home / ".bashrc").write_text(f"{line}\n")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(home))
    session = ["bash", "-c", '. ~/.bashrc; exec "$@"', "bash"]
    monkeypatch.setattr(supervised_job.JobLogin, "command", lambda _self, argv: [*session, *argv])
    login = supervised_job.JobLogin(Host(name="node1", address="node1"))
    copied = sync.copy(source, str(tmp_path / "there"), [login], {"node1": True})
    assert (tmp_path / "there" / "train.py").is_file()
    assert copied.files == 1
    assert bool(copied.note) == noted
    if noted:
        assert f"On node1, {home}/.bashrc prints something in each session ('" in copied.note


@pytest.mark.programs
def test_what_rsync_says_of_a_folder_is_no_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "_has_modern_rsync", lambda: True)
    monkeypatch.setattr(sync, "_taken", lambda *_unused: "rsync: mkdir failed: Permission denied")
    login = supervised_job.JobLogin(Host(name="node1", address="node1"))
    with pytest.raises(HostFailedError, match=r"Permission denied.*--remote-dir PATH"):
        sync.copy(tmp_path, "/there", [login], {"node1": True})


@pytest.mark.programs
@pytest.mark.parametrize("has_rsync", [True, False])
@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("exec cat /dev/zero", "more than 16 MiB"),
        ("exec cat /dev/zero >&2", "within 2 s"),
        ("exec sleep 60", "within 2 s"),
        ("head -c 9000 /dev/zero | tr '\\0' x >&2; exit 1", "xxx"),
    ],
)
def test_a_node_that_prints_without_end_or_takes_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, words: str, *, has_rsync: bool
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "data").write_bytes(bytes(300_000))
    argv = ["sh", "-c", does]
    monkeypatch.setattr(sync, "_has_modern_rsync", lambda: True)
    monkeypatch.setattr(sync, "rsync_argv", lambda *_unused: argv)
    monkeypatch.setattr(supervised_job.JobLogin, "command", lambda *_unused: argv)
    monkeypatch.setattr(sync, "_LEAST_S", 2.0, raising=False)
    monkeypatch.setattr(sync, "_LEAST_BYTES_PER_S", 1e9, raising=False)
    began = time.monotonic()
    tracemalloc.start()
    with pytest.raises(HostFailedError) as failed:
        sync.copy(source, "/x", [supervised_job.JobLogin(Host(name="node1", address="a"))], {"node1": has_rsync})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert words in str(failed.value)
    assert len(str(failed.value)) < 1000
    assert peak < 100 << 20
    assert time.monotonic() - began < 20
