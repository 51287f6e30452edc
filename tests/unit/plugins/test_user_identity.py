"""Files below a home are read and written as their user, and root follows none of that user's links."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import command, sshd, user_identity
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import parameters, path_state, reading, ssh
from ansible_collections.clusterctl.hpc.plugins.modules import mesh_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import RunModule

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
]

SECRET = "root:very-secret:1\n"  # noqa: S105 - the test's own


@dataclasses.dataclass
class Home:
    """A home of the user nobody, beside files of root at which nobody's links aim."""

    path: Path
    victim: Path  # everybody may read it
    secret: Path  # only root may read it
    folder: Path  # a folder of root with files of the same names as in ~/.ssh

    @property
    def user(self) -> pwd.struct_passwd:
        present = pwd.getpwnam("nobody")
        return pwd.struct_passwd((*present[:5], str(self.path), "/bin/sh"))

    @property
    def keys(self) -> Path:
        return self.path / ".ssh/authorized_keys"

    def lure(self, case: str) -> Path:
        """Set nobody's link of one case and return it."""
        if case == "parent":
            self.keys.parent.rmdir()
        link, target = {
            "victim": (self.keys, self.victim),
            "secret": (self.keys, self.secret),
            "absent": (self.keys, self.folder / "not-there"),
            "parent": (self.keys.parent, self.folder),
        }[case]
        link.symlink_to(target)
        os.chown(link, self.user.pw_uid, self.user.pw_gid, follow_symlinks=False)
        return link

    def block(self, **more: Any) -> dict[str, Any]:
        own = {"user": "nobody", "owner": "nobody", "mode": "0600"}
        return {"path": str(self.keys), "state": "block", "marker": "m", "content": "ours\n", **own, **more}

    def roots(self) -> dict[str, Any]:
        """What is at each path of root's: inode, mode, owner, time of the last change of either, content."""
        found: dict[str, Any] = {}
        for path in (self.victim, self.secret, self.folder, *sorted(self.folder.iterdir())):
            state = path.lstat()
            text = path.read_bytes() if path.is_file() else b""
            found[str(path)] = (state.st_ino, state.st_mode, state.st_uid, state.st_gid, state.st_ctime_ns, text)
        return found


@pytest.fixture
def home() -> Iterator[Home]:
    top = Path(tempfile.mkdtemp(prefix="clusterctl-home-", dir="/tmp"))  # where nobody may pass
    made = Home(top / "home", top / "root/victim", top / "root/secret", top / "root/folder")
    for folder in (made.path, made.keys.parent):
        folder.mkdir()
        os.chown(folder, made.user.pw_uid, made.user.pw_gid)
    made.folder.mkdir(parents=True)
    for path, text in ((made.victim, "theirs\n"), (made.secret, SECRET), (made.folder / "authorized_keys", "theirs\n")):
        path.write_text(text)
        path.chmod(0o644)
    made.secret.chmod(0o600)
    top.chmod(0o755)
    yield made
    shutil.rmtree(top)


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        (".openmpi/mca-params.conf", "link"),
        (".openmpi/mca-params.conf", "pipe"),
        (".ssh/known_hosts", "link"),
        (".ssh/known_hosts", "pipe"),
    ],
)
def test_the_look_at_a_node_reads_nothing_that_the_user_may_not_read(home: Home, place: str, kind: str) -> None:
    key = "ssh-ed25519 AAAA"
    home.secret.write_text(f"very-secret {key}\nvery = secret\n")
    path = home.path / place
    path.parent.mkdir(exist_ok=True)
    if kind == "link":
        path.symlink_to(home.secret)
    else:
        os.mkfifo(path)
    found = [
        ssh.known_hosts([key], str(home.path), home.user),
        parameters.parameters({}, str(home.path), home.user, "/usr/local"),
    ]
    assert "secret" not in str(found)
    assert (os.geteuid(), os.getegid()) == (0, 0)
    path.unlink()
    path.write_text(f"node1 {key}\nbtl = tcp\n")  # and it reads what is the user's
    os.chown(path, home.user.pw_uid, home.user.pw_gid)
    path.chmod(0o600)
    text = str(
        [
            ssh.known_hosts([key], str(home.path), home.user),
            parameters.parameters({}, str(home.path), home.user, "/usr/local"),
        ]
    )
    assert ("'value': 'tcp'" if "openmpi" in place else "'own_names': ['node1']") in text


def test_a_link_that_takes_the_place_of_a_watched_file_is_not_followed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user changes the path between the two looks of root."""
    path = home.path / "watched"
    path.write_text("theirs")
    plain = os.lstat

    def swap(asked: str, **more: int) -> os.stat_result:
        found = plain(asked, **more)
        if asked == str(path) and stat.S_ISREG(found.st_mode):
            path.unlink()
            path.symlink_to(home.secret)
        return found

    monkeypatch.setattr(path_state.os, "lstat", swap)
    assert path_state.watch_state(str(path))["sha256"] == ""


def test_a_program_that_loads_files_of_others_has_none_of_roots_rights(home: Home) -> None:
    ask = [sys.executable, "-c", "import os; print(os.getresuid(), os.getresgid(), os.getgroups())"]
    nobody = home.user.pw_uid, home.user.pw_gid
    done = command.run(["/bin/cat", str(home.secret)], 10, powerless=True)
    assert not done.ok
    assert "Permission denied" in done.errors
    assert command.run(["/usr/bin/id", "-u"], 10, powerless=True).output == f"{nobody[0]}\n"
    assert command.run(["/usr/bin/id", "-G"], 10, powerless=True).output == f"{nobody[1]}\n"
    assert command.run(ask, 10).output.startswith("(0, 0, 0)")


CASES = ("victim", "secret", "absent", "parent")


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_users_link_leads_root_nowhere(home: Home, run_module: RunModule, case: str, check: bool) -> None:
    before = home.roots()
    home.lure(case)
    result = run_module("file_set", check=check, diff=True, files=[home.block()])
    assert home.roots() == before
    assert "very-secret" not in str(result)
    assert check or result["failed"] is True
    if result.get("failed"):
        assert "by user nobody" in result["msg"]
        assert "Permission denied" in result["msg"]


@pytest.mark.parametrize("case", CASES)
def test_without_a_user_root_refuses_the_link_by_name(home: Home, run_module: RunModule, case: str) -> None:
    before = home.roots()
    link = home.lure(case)
    files = [home.block(user=None)]
    result = run_module("file_set", diff=True, files=files)
    assert home.roots() == before
    assert "very-secret" not in str(result)
    assert f"is reached through the link {link}" in result["msg"]
    assert f"'rm {link}'" in result["msg"]


@pytest.mark.parametrize("case", ["victim", "secret", "parent"])
def test_a_watched_path_is_not_read_through_the_link(home: Home, run_module: RunModule, case: str) -> None:
    link = home.lure(case)
    (seen,) = run_module("node_facts", watch=[{"path": str(home.keys)}])["node"]["watch"]
    assert seen["kind"] == "link"
    assert "sha256" not in seen
    assert str(link if case == "parent" else link.readlink()) == seen["target"]


def test_a_link_to_a_file_of_the_users_own_is_followed(home: Home, run_module: RunModule) -> None:
    (home.path / "keys").write_text("mine\n")
    os.chown(home.path / "keys", home.user.pw_uid, home.user.pw_gid)
    home.keys.symlink_to("../keys")
    first = run_module("file_set", files=[home.block()])
    assert home.keys.is_symlink()
    assert home.keys.read_text() == "mine\n# BEGIN clusterctl m\nours\n# END clusterctl m\n"
    state = home.keys.stat()
    assert (state.st_uid, stat.S_IMODE(state.st_mode)) == (home.user.pw_uid, 0o600)
    assert run_module("file_set", files=[home.block()])["changed"] is False
    assert run_module("node_facts", watch=first["watch"])["node"]["watch"] == first["watch"]


@pytest.mark.parametrize("how", ["a file", "a hard link"])
def test_a_file_of_roots_in_the_users_folder_is_replaced_and_not_given_away(
    home: Home, run_module: RunModule, how: str
) -> None:
    """The content is right already, so that only the owner has to change."""
    text = "# BEGIN clusterctl m\nours\n# END clusterctl m\n"
    home.victim.write_text(text)
    if how == "a hard link":
        os.link(home.victim, home.keys)
    else:
        home.keys.write_text(text)
    before = home.roots()
    result = run_module("file_set", files=[home.block()])
    assert not result.get("failed"), result["msg"]
    assert result["changes"][-1] == f"owner of {home.keys} from root:root to nobody:nogroup"
    assert home.keys.stat().st_uid == home.user.pw_uid
    assert home.keys.read_text() == text
    now, then = home.roots()[str(home.victim)], before[str(home.victim)]
    assert (now[:4], now[5]) == (then[:4], then[5])
    assert [path.name for path in home.keys.parent.iterdir()] == ["authorized_keys"]


def test_a_failure_as_root_undoes_what_was_done_as_the_user(home: Home, run_module: RunModule) -> None:
    home.keys.write_text("mine\n")
    os.chown(home.keys, home.user.pw_uid, home.user.pw_gid)
    new = {"path": f"{home.path}/new", "state": "directory", "user": "nobody"}
    result = run_module("file_set", files=[new, home.block(), {"path": "/proc", "state": "absent"}])
    assert "/proc cannot be changed" in result["msg"]
    assert home.keys.read_text() == "mine\n"
    assert sorted(path.name for path in home.path.rglob("*")) == [".ssh", "authorized_keys"]


def test_a_user_who_is_not_there_and_a_validator_get_a_sentence(home: Home, run_module: RunModule) -> None:
    absent = run_module("file_set", files=[home.block(user="not-a-user")])
    assert "this node has no such user" in absent["msg"]
    validated = run_module("file_set", files=[home.block(validate=["true", "%s"])])
    assert "'validate' means nothing" in validated["msg"]


@pytest.mark.parametrize(("case", "verb"), [("victim", "write"), ("secret", "read"), ("absent", "write")])
def test_the_meshs_sentence_names_user_link_and_cure(home: Home, case: str, verb: str) -> None:
    link = home.lure(case)
    target = link.readlink()
    with pytest.raises(mesh_key.user_identity.IdentityError) as refused:
        mesh_key.user_identity.in_child(home.user, lambda: mesh_key.check_access(home.user, home.keys) or {})
    said = str(refused.value)
    assert said.startswith(f"User nobody may not {verb} {target}, where the link {link} leads; ")
    assert f"'rm {link}'" in said


def test_a_linked_folder_is_told_before_the_key_is_made(home: Home) -> None:
    before = home.roots()
    link = home.lure("parent")
    with pytest.raises(mesh_key.user_identity.IdentityError, match=f"the link {link} leads"):
        mesh_key.user_identity.in_child(
            home.user, lambda: mesh_key.check_access(home.user, home.path / ".ssh/id_clusterctl") or {}
        )
    assert home.roots() == before


def test_the_keys_of_a_sound_home_are_found_with_their_user(home: Home) -> None:
    home.keys.write_text("x")
    assert sshd.is_users_own(home.user, home.keys)
    found = mesh_key.user_identity.in_child(
        home.user, lambda: mesh_key.authorized_file(home.keys, "nobody", "nogroup", own=True)
    )
    assert (found["path"], found["user"], found["owner"], found["mode"]) == (str(home.keys), "nobody", "nobody", "0600")
    outside = sshd.authorized_paths(home.user, {"authorizedkeysfile": "/etc/ssh/keys/%u .ssh/other"})[0]
    assert str(outside) == "/etc/ssh/keys/nobody"
    assert not sshd.is_users_own(home.user, outside)
    assert mesh_key.authorized_file(outside, "nobody", "nogroup", own=False)["user"] == ""


def test_a_fault_of_the_child_is_told_and_the_child_ends(home: Home) -> None:
    def work() -> dict[str, str]:
        return {"one": {}["absent"]}

    with pytest.raises(user_identity.IdentityError) as told:
        user_identity.in_child(home.user, work)
    assert str(told.value) == "The work as user nobody ended with KeyError: 'absent'."


def test_a_child_that_its_user_stops_after_its_answer_is_not_waited_for(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "_exit", lambda _status: os.kill(os.getpid(), signal.SIGSTOP))
    signal.alarm(8)  # ends the test where it is
    assert user_identity.in_child(home.user, lambda: {"it": "answered"}) == {"it": "answered"}
    signal.alarm(0)


def test_a_pipe_in_place_of_the_keys_is_not_waited_for(home: Home) -> None:
    os.mkfifo(home.keys)
    assert user_identity.read_regular(str(home.keys)) is None


def test_the_identity_comes_back_whatever_happens(home: Home) -> None:
    before = (os.geteuid(), os.getegid(), os.getgroups())
    with pytest.raises(PermissionError), user_identity.acting_as(home.user):
        home.secret.read_text()
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before
    assert home.secret.read_text() == SECRET


@pytest.mark.parametrize("step", ["setgroups", "setegid", "seteuid"])
def test_the_identity_comes_back_where_becoming_the_user_fails(
    home: Home, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = (os.geteuid(), os.getegid(), os.getgroups())
    real, calls = getattr(os, step), []

    def refuses(value: object) -> None:
        calls.append(value)
        if len(calls) == 1:
            raise OSError(11, "Resource temporarily unavailable")
        real(value)

    monkeypatch.setattr(os, step, refuses)
    with pytest.raises(OSError, match="temporarily unavailable"), user_identity.acting_as(home.user):
        pytest.fail("the block was entered")
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before
    calls.clear()
    with pytest.raises(OSError, match="temporarily unavailable"):
        reading.read_text_of_user(str(home.keys), home.user)
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before


def test_of_a_users_file_of_any_size_the_begin_is_read(home: Home) -> None:
    with home.keys.open("wb") as stream:
        stream.truncate(1 << 32)
    assert len(reading.read_text_of_user(str(home.keys), home.user)) <= 1 << 22


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv takes root's right to pass over modes")
def test_a_path_on_a_home_that_refuses_root_is_looked_at_as_its_owner(home: Home) -> None:
    """Without two capabilities, root is refused as by a server that squashes it."""
    path = home.path / "mine"
    path.write_text("text", encoding="utf-8")
    os.chown(path, home.user.pw_uid, home.user.pw_gid)
    home.path.chmod(0o700)
    look = (
        "import json, os, sys\n"
        "from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import path_state\n"
        "try: os.lstat(sys.argv[1]); print('not refused')\n"
        "except PermissionError: print(json.dumps(path_state.watch_state(sys.argv[1])), os.geteuid())"
    )
    rights = "-dac_override,-dac_read_search"
    argv = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}", sys.executable, "-c", look, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    answer, _, euid = done.stdout.rpartition(" ")
    assert euid.strip() == "0", done.stdout + done.stderr
    assert json.loads(answer) == path_state.watch_state(str(path))
    assert json.loads(answer)["sha256"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_child_that_cannot_be_killed_is_left(home: Home, monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """A file system of the user whose server never answers holds it; here it is never killed."""
    children: list[int] = []
    monkeypatch.setattr(os, "kill", lambda child, _number: children.append(child))
    leave = os._exit
    monkeypatch.setattr(os, "_exit", lambda status: (time.sleep(60), leave(status)))
    monkeypatch.setattr(user_identity, "ANSWER_S", 1.0)
    monkeypatch.setattr(command, "_END_S", 0.2)
    signal.alarm(8)  # ends the test where it is
    try:
        if answers:
            assert user_identity.in_child(home.user, lambda: {"it": "answered"}) == {"it": "answered"}
        else:
            with pytest.raises(user_identity.IdentityError, match=r"Process \d+ of user nobody does not end"):
                user_identity.in_child(home.user, lambda: time.sleep(60) or {})
    finally:
        signal.alarm(0)
        monkeypatch.undo()
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
