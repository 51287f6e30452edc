"""Limits that keep jobs from starting are raised by files of their own, and values that suffice are left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_probe import login_session
from ansible_collections.clusterctl.hpc.plugins.modules import session_settings

if TYPE_CHECKING:
    from pathlib import Path

SSHD = "port 22\nmaxstartups {}\nmaxsessions 10\n"


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
    monkeypatch.setattr(session_settings, "ask_sshd", lambda: SSHD.format(startups))
    entries = session_settings.wanted_files("mpi", 1024, 4, "limits", ["sshd"])
    assert {entry.path: entry.content.decode().splitlines()[-1] for entry in entries} == says
    assert all((entry.mode, entry.uid) == (0o644, 0) for entry in entries)


def test_more_nodes_than_the_default_of_sshd_ask_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_settings, "ask_sshd", lambda: SSHD.format("10:30:100"))
    assert session_settings.wanted_files("mpi", 0, 500, "limits", ["sshd"]) == []
    assert session_settings.logins_at_once("") is None


def test_settings_of_pam_limits_are_read_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "limits.conf").write_text("# * soft core 0\n* soft nofile 1024 # note\nbroken line\n")
    (tmp_path / "limits.d").mkdir()
    (tmp_path / "limits.d/90.conf").write_text("* soft nofile 64\n@mpi - memlock unlimited\n")
    (tmp_path / "limits.d/README").write_text("* soft nproc 1\n")
    assert login_session.limit_settings(str(tmp_path)) == {"* soft nofile": "64", "@mpi - memlock": "unlimited"}
