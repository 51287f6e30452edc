"""Limits that keep jobs from starting are raised by files of their own, and values that suffice are left alone."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import login_session
from ansible_collections.clusterctl.hpc.plugins.modules import session_settings

if TYPE_CHECKING:
    from pathlib import Path


def sshd(startups: str) -> dict[str, str]:
    return {"port": "22", "maxstartups": startups, "maxsessions": "10"}


@pytest.mark.parametrize(
    ("files", "startups", "says"),
    [
        (1024, "10:30:100", {}),
        (None, "256:30:512", {}),
        (512, "10:30:100", {"limits": "mpi - nofile 1024"}),
        (1024, "1:99:2", {"sshd": "MaxStartups 10:30:100"}),
        (1024, "3:99:4", {"sshd": "MaxStartups 10:30:100"}),
        (1024, "4:99:5", {}),
        (24, "1:99:2", {"limits": "mpi - nofile 1024", "sshd": "MaxStartups 10:30:100"}),
    ],
)
def test_what_is_too_low_for_four_nodes_is_raised(
    monkeypatch: pytest.MonkeyPatch, files: int | None, startups: str, says: dict[str, str]
) -> None:
    monkeypatch.setattr(session_settings, "open_files_of", lambda _user: files)
    monkeypatch.setattr(session_settings.sshd_keys, "settings_of", lambda _user: sshd(startups))
    entries = session_settings.wanted_files("mpi", 1024, 4, "limits", ["sshd"])
    assert {entry.path: entry.content.decode().splitlines()[-1] for entry in entries} == says
    assert all((entry.mode, entry.uid) == (0o644, 0) for entry in entries)


def test_more_nodes_than_the_default_of_sshd_ask_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_settings.sshd_keys, "settings_of", lambda _user: sshd("10:30:100"))
    assert session_settings.wanted_files("mpi", 0, 500, "limits", ["sshd"]) == []
    assert session_settings.logins_at_once({}) is None
    assert session_settings.logins_at_once({"maxstartups": "many"}) is None


class Module:
    """Ansible's module in this process: it keeps its warnings and its answer."""

    check_mode = _diff = False

    def __init__(self, **params: object) -> None:
        self.params = params
        self.warnings: list[str] = []
        self.answer: dict[str, Any] = {}

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def exit_json(self, **answer: Any) -> None:
        self.answer = answer


@pytest.mark.skipif(os.geteuid() != 0, reason="the module does nothing without root")
@pytest.mark.parametrize(("files", "times"), [(1024, 1), (512, 2)])
def test_pam_and_sshd_are_asked_again_only_where_something_was_too_low(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: int, times: int
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(session_settings, "open_files_of", lambda user: asked.append(user) or files)
    monkeypatch.setattr(session_settings.sshd_keys, "settings_of", lambda user: asked.append(user) or sshd("10:30:100"))
    path = tmp_path / "limits"
    module = Module(user="nobody", open_files=1024, logins=4, limits_file=str(path), sshd_files=[])
    monkeypatch.setattr(session_settings.watched_module, "QuietModule", lambda **_spec: module)
    session_settings.main()
    assert asked == ["nobody", "root"] * times
    raised = times > 1
    assert (path.exists(), module.answer["changed"]) == (raised, raised)
    assert ["The limit of open files stays too low" in text for text in module.warnings] == [True] * raised


def test_settings_of_pam_limits_are_read_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "limits.conf").write_text("# * soft core 0\n* soft nofile 1024 # note\nbroken line\n")
    (tmp_path / "limits.d").mkdir()
    (tmp_path / "limits.d/90.conf").write_text("* soft nofile 64\n@mpi - memlock unlimited\n")
    (tmp_path / "limits.d/README").write_text("* soft nproc 1\n")
    assert login_session.limit_settings(str(tmp_path)) == {"* soft nofile": "64", "@mpi - memlock": "unlimited"}


def test_a_user_of_a_directory_service_gets_the_settings_although_no_list_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pwd, "getpwall", list)
    assert session_settings.is_user("root")
    assert not session_settings.is_user("nobody-of-that-name")


@pytest.mark.parametrize("name", ["x - nofile 1\n* - core unlimited", "x y", "x#", "x\0"])
def test_a_user_that_would_leave_its_line_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_settings, "open_files_of", lambda _user: 1)
    with pytest.raises(session_settings.file_entry.StageError, match="/limits: the user is"):
        session_settings.wanted_files(name, 1024, 0, "/limits", [])
