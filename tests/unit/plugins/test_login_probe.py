"""The logins of one node, with a stand-in for ssh: what is tried, tried again, and left."""

from __future__ import annotations

import getpass
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import node_programs
import pytest
import waiting
from ansible_collections.clusterctl.hpc.plugins.module_utils import sshd
from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))

from ansible_collections.clusterctl.hpc.plugins.module_utils import login_probe, mesh_rules
from ansible_collections.clusterctl.hpc.plugins.modules import mesh_login

if TYPE_CHECKING:
    from collections.abc import Callable

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
    monkeypatch.setattr(login_probe, "environment", lambda _user=None: {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    monkeypatch.setattr(login_probe, "MESH", (str(tmp_path / "mesh"),))
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


# --- what wins over the mesh: ssh itself tells it ---------------------------------------------------------------------


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, str, str]]]:
    """Return what writes files of ssh's configuration, and tells what wins over the mesh on the way to node2."""
    mine = tmp_path / "ssh_config.d" / "00-clusterctl.conf"
    mine.parent.mkdir()
    members = [{"name": f"node{number}", "address": f"10.0.0.{number}"} for number in (1, 2, 3)]
    mine.write_text(mesh_rules.client_config(members, getpass.getuser(), mesh_rules.Options()), encoding="utf-8")
    (tmp_path / "all").write_text(f"Include {tmp_path}/home\nMatch all\nInclude {tmp_path}/ssh_config.d/*.conf\n")
    program = tmp_path / "ssh"
    real = shutil.which("ssh")
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *" -F "*) exec {real} "$@";; *) exec {real} -F {tmp_path}/all "$@";; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(login_probe, "environment", lambda _user=None: {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    monkeypatch.setattr(login_probe, "MESH", (str(mine),))
    monkeypatch.setattr(login_probe, "_stdin_ended", time.sleep)
    monkeypatch.setattr(login_probe, "_PAUSE_S", 0.01)

    def look(home: str = "", **drop_ins: str) -> list[tuple[str, str, str]]:
        (tmp_path / "home").write_text(home, encoding="utf-8")
        for name, text in drop_ins.items():
            (mine.parent / f"{name.replace('_', '-')}.conf").write_text(text, encoding="utf-8")
        found = login_probe.overruled("node2", str(mine))
        return [(one["setting"], one["value"], one["where"].replace(f"{tmp_path}/", "")) for one in found]

    return look


IPA = "PubkeyAuthentication yes\nGlobalKnownHostsFile /var/lib/sss/pubconf/known_hosts\n"


def test_the_file_of_the_mesh_stands_before_those_of_others(configured: Callable[..., Any]) -> None:
    assert (
        configured(**{"04_ipa": IPA, "50_redhat": "Match all\n  GSSAPIAuthentication yes\n  ForwardX11Trusted yes\n"})
        == []
    )


@pytest.mark.parametrize(
    ("home", "found"),
    [
        ("Host *\n  ForwardAgent yes\n  ConnectTimeout 5\n  IdentityFile ~/.ssh/other\n", []),
        ("# RequestTTY force\nHost *\n  RequestTTY force\n", [("requesttty", "force", "home line 3")]),
        ("Host gate\n  RequestTTY force\n", []),
        ("Host=node2\n  User = somebody\n", [("user", "somebody", "home line 2")]),
        (
            "StrictHostKeyChecking no\nLocalForward 8080 localhost:80\n",
            [
                ("stricthostkeychecking", "false", "home line 1"),
                ("localforward", "8080 [localhost]:80", "home line 2"),
            ],
        ),
        ("Host node*\n  RemoteCommand tmux\n", [("remotecommand", "tmux", "home line 2")]),
        ("Host node*\n  HostName %h.example.com\n", [("hostname", "node2.example.com", "home line 2")]),
        ("Host node*\n  ProxyJump gate\n", []),
        ("Host *\n  ProxyJump gate\n", [("proxyjump", "gate", "home line 2")]),
        ("Host node2\n  ProxyJump node3\nHost node3\n  ProxyJump node2\n", [("proxyjump", "node3", "home line 2")]),
        (
            "Host *\n  ProxyCommand ssh -q -W %h:%p me@gate\n",
            [("proxycommand", "ssh -q -W %h:%p me@gate", "home line 2")],
        ),
        ("Host *\n  ProxyCommand nc %h %p\n", []),
    ],
)
def test_what_wins_over_the_mesh_is_named_with_its_file_and_line(
    configured: Callable[..., Any], home: str, found: list[tuple[str, str, str]]
) -> None:
    assert configured(home) == found


def test_a_drop_in_that_stands_first_is_named(configured: Callable[..., Any]) -> None:
    where = "ssh_config.d/00-aaa.conf line 2"
    assert configured(**{"00_aaa": IPA}) == [("globalknownhostsfile", "/var/lib/sss/pubconf/known_hosts", where)]


def test_a_login_that_fails_on_its_way_names_who_set_the_way(configured: Callable[..., Any]) -> None:
    proxy = "Match all\n  ProxyCommand /no/such/sss_ssh_knownhostsproxy -p %p %h\n"
    assert configured(**{"04_ipa": IPA + proxy}) == [], "a proxy that works is nobody's fault"
    (failure,) = logins("node2")["failures"]
    assert failure["said"].split(" / ")[-1].endswith("/ssh_config.d/04-ipa.conf line 4)")
    assert "through ProxyCommand /no/such/sss_ssh_knownhostsproxy" in failure["said"]


def test_a_login_without_an_end_is_not_tried(configured: Callable[..., Any]) -> None:
    configured("Host *\n  ProxyCommand ssh -W %h:%p gate\n")
    found = logins("node2")
    (failure,) = found["failures"]
    assert failure["said"].startswith("ProxyCommand ssh -W %h:%p gate in ")
    assert "again and again" in failure["said"]
    assert (found["passed"], found["untried"]) == (0, 0)


def test_the_role_asks_the_same_and_tries_no_login_without_an_end(
    configured: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    configured("Host *\n  ProxyCommand ssh -W %h:%p gate\nRequestTTY force\n")
    targets = [{"name": "node2"}]
    wins = mesh_login.overruled(getpass.getuser(), targets)
    assert [one["setting"] for one in wins] == ["requesttty", "proxycommand"]
    monkeypatch.setattr(mesh_login, "login_argv", lambda *_unused: ["false"])
    ((_target, said),) = mesh_login.login_all(getpass.getuser(), targets, 5, {"node2": "ProxyCommand x in y line 2"})
    told = mesh_rules.login_failure("node1", {"name": "node2", "address": "10.0.0.2"}, "mpi", said)
    assert "ProxyCommand x in y line 2 leads ssh through one machine again and again" in told
    assert "remove that setting of ssh" in told
    configured("Match all\n  ProxyCommand nc %h %p\n")
    assert mesh_login.ways(getpass.getuser(), ["node2"])["node2"].startswith(" (through ProxyCommand nc %h %p in ")


def test_what_ssh_has_started_ends_with_it(tried: Callable[[], list[str]], tmp_path: Path) -> None:
    program = tmp_path / "ssh"
    program.write_text(SSH.replace("exec sleep 60", f"sh -c 'echo $$ > {tmp_path}/child; exec sleep 60'"), "utf-8")
    logins("hanging", budget_s=1.0)
    child = int((tmp_path / "child").read_text())
    assert waiting.ends(child)
    assert tried()


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


def test_programs_that_stand_alone_on_a_node_have_the_same_words() -> None:
    assert node_programs.load("job_members").NOT_INTERACTIVE == login_probe.NOT_INTERACTIVE
    assert node_programs.load("check_node").MESH == login_probe.MESH
