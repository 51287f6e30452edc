"""What a login gives to jobs, looked at for real: variables that break programs, and a home that sshd refuses."""

from __future__ import annotations

import grp
import json
import os
import pwd
import sys
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import node_record_gate, text_edit
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import login, machine, reading
from ansible_collections.clusterctl.hpc.plugins.module_utils.text_edit import Environment

ME = pwd.getpwuid(os.geteuid())
CRLF = 'LD_LIBRARY_PATH="/x/lib"\r\nPATH="/x/bin:/usr/bin"\r\nSITE=1\r\n'


def traps(variables: dict[str, str], home: Path) -> list[tuple[str, str, str]]:
    found = login.traps({"PATH": "/usr/bin:/bin", **variables}, str(home), ME, [sys.executable])
    return [(one["name"], one["what"], one["program"]) for one in found]


def test_a_session_without_risky_variables_has_no_traps(tmp_path: Path) -> None:
    assert traps({"HOME": str(tmp_path), "LD_LIBRARY_PATH": "/usr/lib", "SITE": '$HOME "x"'}, tmp_path) == []
    tmp_path.joinpath("mylib.py").touch()
    assert traps({"PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "ignore"}, tmp_path) == []


def test_a_variable_that_breaks_a_python_or_a_shell_is_proven(tmp_path: Path) -> None:
    tmp_path.joinpath("json.py").write_text("raise ImportError('not json')\n")
    tmp_path.joinpath("env").write_text("exit 3\n")
    assert traps({"PYTHONHOME": "/nowhere", "PYTHONPATH": "/none"}, tmp_path) == [
        ("PYTHONHOME", "breaks", sys.executable)
    ]
    assert traps({"PYTHONPATH": str(tmp_path)}, tmp_path) == [("PYTHONPATH", "breaks", sys.executable)]
    assert traps({"BASH_ENV": str(tmp_path / "env")}, tmp_path) == [("BASH_ENV", "breaks", "/bin/bash")]
    assert {name for name, _what, _program in traps({"LD_PRELOAD": "/none.so"}, tmp_path)} == {"LD_PRELOAD"}


def test_the_place_of_a_variable_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("environment").write_text('A=1\n export PATH="$PATH:/opt/x"\n')
    monkeypatch.setattr(login, "_ENVIRONMENT", str(tmp_path / "environment"))
    (found,) = login.traps({"PATH": "$PATH:/opt/x"}, str(tmp_path), ME, [])
    assert found == {
        "name": "PATH",
        "what": "not expanded",
        "program": "",
        "said": "$PATH:/opt/x",
        "source": f"{tmp_path}/environment line 2",
    }


def test_provision_takes_away_what_the_look_finds(tmp_path: Path) -> None:
    """The cure of the finding is 'clusterctl provision': after it, the finding is gone."""
    assert traps(reading.read_environment_file(CRLF), tmp_path) == [
        ("LD_LIBRARY_PATH", "carriage return", ""),
        ("PATH", "carriage return", ""),
        ("SITE", "carriage return", ""),
    ]
    wanted = Environment({"PATH": ["/x/bin"], "LD_LIBRARY_PATH": ["/x/lib"]}, {"SITE": "1"}, {})
    cured = reading.read_environment_file(text_edit.set_environment(CRLF, wanted))
    assert traps(cured, tmp_path) == []
    assert cured == {"LD_LIBRARY_PATH": "/x/lib", "PATH": "/x/bin:/usr/bin", "SITE": "1"}


def test_modes_that_sshd_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    tmp_path.joinpath(".ssh").mkdir(mode=0o700)
    keys = tmp_path / ".ssh" / "authorized_keys"
    keys.touch(mode=0o644)
    assert login.unsafe(str(tmp_path), os.geteuid(), is_debian=False) == []
    keys.chmod(0o666)
    tmp_path.chmod(0o775)
    everybody = f"{keys} has mode 0666, so that everybody may write to it"
    assert login.unsafe(str(tmp_path), os.geteuid(), is_debian=False) == [
        f"{tmp_path} has mode 0775, so that its group may write to it",
        everybody,
    ]
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("own", "x", gid, [])))
    monkeypatch.setattr(pwd, "getpwall", lambda: [ME])
    assert login.unsafe(str(tmp_path), os.geteuid(), is_debian=True) == [everybody]  # a group of one, as Debian has it
    assert login.home_refuses(str(tmp_path), ME) == login.home_refuses(str(tmp_path / "none"), ME) == ""
    tmp_path.chmod(0o555)
    with monkeypatch.context() as patch:  # a login user who is not root looks at the home of the jobs' user
        patch.setattr(os, "geteuid", lambda: 4711)
        assert login.home_refuses(str(tmp_path), pwd.getpwnam("nobody")) == ""
    assert login.home_refuses(str(tmp_path), ME if ME.pw_uid else pwd.getpwnam("nobody")) == "not writable"


def test_processes_that_a_session_may_start_and_kills(tmp_path: Path) -> None:
    own, group, proc = tmp_path / "own", tmp_path / "user.slice", tmp_path / "proc"
    group.joinpath("job").mkdir(parents=True)
    tmp_path.joinpath("cgroup.controllers").touch()
    own.write_text("0::/user.slice/job\n")
    for folder, words in ((group, ("100", "90", "3")), (group / "job", ("max", "4", "1"))):
        for name, text in zip(("pids.max", "pids.current", "memory.events"), words, strict=True):
            folder.joinpath(name).write_text(f"oom 9\noom_kill {text}\n" if name == "memory.events" else f"{text}\n")
    for pid, uid, threads in ((7, 1000, 30), (8, 0, 50), (9, 1000, 5)):
        proc.joinpath(str(pid)).mkdir(parents=True)
        proc.joinpath(str(pid), "status").write_text(f"Name:\ta\nUid:\t{uid}\t{uid}\t{uid}\nThreads:\t{threads}\n")

    def found(limit: int | None, uid: int = 1000) -> object:
        return machine.processes(limit, uid, str(tmp_path), str(own), str(proc))

    of_group = {"left": 10, "by": f"{group}/pids.max"}
    assert found(None) == found(40, uid=0) == {"process_room": of_group, "memory_kills": 3}
    assert found(40) == {"process_room": {"left": 5, "by": "nproc"}, "memory_kills": 3}
    group.joinpath("pids.max").write_text("max\n")
    assert found(None) == {"process_room": None, "memory_kills": 3}


def test_the_section_passes_the_gate(tmp_path: Path) -> None:
    found = login.login({"PYTHONHOME": "/nowhere", "PATH": "/usr/bin\r"}, str(tmp_path), ME, "/usr/local")
    told = json.loads(json.dumps(found))
    assert node_record_gate.FORMS["login"](told["login"])["traps"][0]["what"] == "carriage return"
