from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from clusterctl.model.hosts import Host
from clusterctl.remote import supervised_job, sync
from clusterctl.support.errors import ConfigError


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
    assert shell.startswith("--rsh='ssh' '-T' '-o' 'BatchMode=yes'")
    assert "\"ProxyCommand=nc 'a b' %h\"" in shell
    assert "--rsync-path=sudo -n -H -u user2 -- rsync" in line
    assert line[-2:] == ["/Users/user1/co de/", "[fd00::1]:/home/user2/co de/"]
