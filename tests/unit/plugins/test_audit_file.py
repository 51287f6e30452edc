"""The audit line of a node."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import audited_module
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_ownership import audit_file

SAID = json.dumps({"run": "20261122T180000Z-provision-1", "user": "operator", "controller": "desk", "secret": "word"})


def test_a_line_says_who_from_where_which_run_and_what() -> None:
    found = json.loads(audit_file.line(SAID, "file_set", ["changed /etc/hosts"], "10.0.0.1", 0.0))
    assert found == {
        "time": "1970-01-01T00:00:00Z",
        "run": "20261122T180000Z-provision-1",
        "user": "operator",
        "controller": "desk",
        "from": "10.0.0.1",
        "action": "file_set",
        "changes": ["changed /etc/hosts"],
    }


def test_without_the_playbook_of_clusterctl_the_change_is_told_as_well() -> None:
    for said in ("", "[]", "{not json"):
        found = json.loads(audit_file.line(said, "file_set", ["a"], "", 0.0))
        assert (found["changes"], found["user"]) == (["a"], "")


def test_a_line_is_one_line_of_plain_characters_and_bounded() -> None:
    text = audit_file.line(SAID, "file_set", ["a\nb\x1b[31m\udcff" + "x" * 9000] * 900, "", 0.0)
    assert text.isascii()
    assert text.isprintable()
    found = json.loads(text)
    assert (len(found["changes"]), found["more_changes"]) == (200, 700)
    assert max(map(len, found["changes"])) == 2000


def test_the_file_is_for_root_and_its_group_and_logs_of_builds_beside_it_for_all(tmp_path: Path) -> None:
    path = tmp_path / "clusterctl" / "audit.jsonl"
    usual = os.umask(0o022)
    try:
        for text in ("one", "two"):
            audit_file.append(text, str(path))
    finally:
        os.umask(usual)
    assert path.read_text() == "one\ntwo\n"
    assert [stat.S_IMODE(found.stat().st_mode) for found in (path.parent, path)] == [0o755, 0o640]


def test_no_link_is_followed(tmp_path: Path) -> None:
    """Neither the file nor its folder may be a link: another user could have set it."""
    there = tmp_path / "precious"
    there.write_text("as it was\n")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "audit.jsonl").symlink_to(there)
    with pytest.raises(OSError, match=r"Too many levels|symbolic"):
        audit_file.append("text", str(tmp_path / "log" / "audit.jsonl"))
    (tmp_path / "other").symlink_to(tmp_path / "log")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        audit_file.append("text", str(tmp_path / "other" / "new.jsonl"))
    assert there.read_text() == "as it was\n"
    assert os.listdir(tmp_path / "log") == ["audit.jsonl"]  # noqa: PTH208 - a link counts as well


def test_the_address_of_the_login_is_found_beyond_the_programs_that_take_it_away() -> None:
    """Sudo takes the variable away, so that only a process above it has it."""
    ask = (
        "from ansible_collections.clusterctl.hpc.plugins.module_utils.node_ownership import audit_file\n"
        "print(audit_file.login_address())"
    )
    inner = ["env", "-u", "SSH_CONNECTION", sys.executable, "-c", ask]
    outer = [sys.executable, "-c", f"import subprocess; subprocess.run({inner!r}, check=True)"]
    path = os.pathsep.join(sys.path)
    session = {**os.environ, "PYTHONPATH": path, "SSH_CONNECTION": "192.0.2.7 50000 192.0.2.1 22"}
    done = subprocess.run(outer, env=session, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("192.0.2.7\n", "")


# --- which results of a module become a line of the audit file ---


class Module(audited_module.AuditedModule):
    """A module that is not started by Ansible."""

    def __init__(self) -> None:
        self.check_mode = False
        self._name = "test"

    def log(self, msg: str, log_args: Any = None) -> None:
        """Log nothing."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root audits")
@pytest.mark.parametrize(
    ("result", "is_told"),
    [
        ({"changed": True, "changes": ["installed openmpi 5.0.7"]}, True),
        ({"changed": False, "changes": ["installed openmpi 5.0.7"]}, False),  # a look at what is to be done
        ({"changed": True, "changes": []}, False),
        ({"changes": ["changed /etc/hosts"]}, True),  # of a module that failed behind it
    ],
)
def test_a_change_is_told_once_it_is_made(
    result: dict[str, Any], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(audit_file, "append", lines.append)
    Module()._audit(result)  # noqa: SLF001 - what both ends of a module call
    assert bool(lines) is is_told
