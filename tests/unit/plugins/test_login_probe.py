"""The logins of one node, with a stand-in for ssh: what is tried, tried again, and left."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import sshd
from clusterctl.support import content

if TYPE_CHECKING:
    from pathlib import Path

sys.path.insert(0, str(content.collections_path()))

from ansible_collections.clusterctl.hpc.plugins.module_utils import login_probe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SSH = """#!/bin/sh
state=$(dirname "$0")
if [ "$1" = -G ]; then cat "$state/config"; exit; fi
for word; do before=$last; last=$word; done
printf '%s\\n' "$*" >> "$state/tried"
case $before in
    refusing|10.0.0.9) echo 'cluster@10.0.0.9: Permission denied (publickey).' >&2; exit 255;;
    flaky) if [ ! -e "$state/flaky" ]; then touch "$state/flaky"; echo 'Connection reset by peer' >&2; exit 255; fi;;
    hanging) exec sleep 60;;
    changed) printf '@@@@@@@\\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\\n@@@@@@@\\nmany lines\\n' >&2
        echo 'Host key verification failed.' >&2; exit 255;;
esac
"""


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Put a stand-in in ssh's place, and return what reads the logins that it was asked for."""
    program = tmp_path / "ssh"
    program.write_text(SSH, encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "key").touch()
    (tmp_path / "config").write_text(f"stricthostkeychecking true\nidentityfile {tmp_path}/key\n", encoding="utf-8")
    (tmp_path / "mesh").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")  # where the program itself is looked for
    monkeypatch.setattr(login_probe, "environment", lambda: {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    monkeypatch.setattr(login_probe, "MESH", str(tmp_path / "mesh"))
    monkeypatch.setattr(login_probe, "_PAUSE_S", 0.01)

    def still_there(wait_s: float) -> bool:
        time.sleep(wait_s)
        return False

    monkeypatch.setattr(login_probe, "_stdin_ended", still_there)

    def read() -> list[str]:
        path = tmp_path / "tried"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    return read


def logins(*names: str, budget_s: float = 20) -> dict[str, Any]:
    targets = [{"name": name, "address": "10.0.0.9", "port": 2222} for name in names]
    found: dict[str, Any] = login_probe.Logins(targets, 5, budget_s).run()
    return found


def test_what_may_have_been_hurry_is_tried_again(tried: Callable[[], list[str]]) -> None:
    found = logins("node1", "flaky", "refusing")
    assert (found["passed"], found["untried"]) == (2, 0)
    assert found["failures"] == [{"target": "refusing", "said": "cluster@10.0.0.9: Permission denied (publickey)."}]
    names = [line.split()[-2] for line in tried()]
    assert sorted(names) == ["flaky", "flaky", "node1", "refusing"]
    assert names[0] == "node1"  # the neighbour, and alone until it is known to be quick


def test_a_page_about_a_changed_key_keeps_its_first_and_last_words(tried: Callable[[], list[str]]) -> None:
    (failure,) = logins("changed")["failures"]
    assert failure["said"].startswith("WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!")
    assert failure["said"].endswith("Host key verification failed.")
    assert len(tried()) == 1


def test_time_that_runs_out_leaves_logins_untried(tried: Callable[[], list[str]]) -> None:
    began = time.monotonic()
    found = logins("hanging", "node1", "node2", budget_s=0.5)
    assert (found["passed"], found["untried"], found["failures"]) == (0, 3, [])
    assert time.monotonic() - began < 5
    assert len(tried()) == 1


def test_without_a_mesh_two_refusals_are_enough(tried: Callable[[], list[str]], tmp_path: Path) -> None:
    (tmp_path / "mesh").unlink()
    found = logins("a", "b", "c", "d")
    assert (found["mesh"], found["stopped_early"], found["keyless"]) == (False, True, False)
    assert len(found["failures"]) == 2
    assert all("-p 2222 -- 10.0.0.9 true" in line for line in tried())


def test_without_a_mesh_and_a_key_nothing_is_tried(tried: Callable[[], list[str]], tmp_path: Path) -> None:
    (tmp_path / "mesh").unlink()
    (tmp_path / "key").unlink()
    found = logins("a", "b")
    assert (found["keyless"], found["failures"], tried()) == (True, [], [])


@pytest.mark.parametrize(("checking", "kept"), [("true", "yes"), ("ask", "yes"), ("accept-new", "no"), ("false", "no")])
def test_no_key_is_ever_written_down(tried: Callable[[], list[str]], tmp_path: Path, checking: str, kept: str) -> None:
    (tmp_path / "config").write_text(f"stricthostkeychecking {checking}\n", encoding="utf-8")
    logins("node1")
    (line,) = tried()
    assert f"StrictHostKeyChecking={kept}" in line
    assert "UpdateHostKeys=no" in line
    assert ("UserKnownHostsFile=/dev/null" in line) == (kept == "no")


# --- which processes of sshd serve a login that is not decided yet ---


TITLES = {
    1: b"sshd: /usr/sbin/sshd -D [listener] 1 of 10-100 startups\0",
    2: b"sshd: [accepted]\0",
    3: b"sshd: cluster [priv]\0",
    4: b"sshd: cluster [net]\0",
    5: b"/usr/sbin/sshd\0-D\0-R\0",
    6: b"sshd-session: unknown [net]\0",
    7: b"sshd: cluster@notty\0",
    8: b"/usr/bin/python3\0-R\0",
}


def test_logins_without_a_decision_are_told_by_the_titles_of_openssh(tmp_path: Path) -> None:
    for pid, title in TITLES.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(title)
    (tmp_path / "9").mkdir()  # it ended meanwhile
    assert sshd.undecided_logins(str(tmp_path)) == {2, 4, 5, 6}
