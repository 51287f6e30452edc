"""The account that jobs run as: how it is made, who may log in to it, and whether it reaches root."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import job_account, mesh_rules, sshd
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import users
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import users as node_users
from ansible_collections.clusterctl.hpc.plugins.modules import session_settings
from clusterctl.model.facts import JobUser

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIALi599DvvDwMySq11LrlGoa5zscn2pIVvFVI3NuVmul"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIjo692h6EyqWaITe9OwUfqkqO4qAhVWfzHXC/tiVj5k"
# sudo -l of sudo 1.9.13 on Debian 12, the rules changed by hand.
LISTING = """\
Matching Defaults entries for cluster on node1:
    env_reset, mail_badpass, secure_path=/usr/local/sbin\\:/usr/bin\\:/sbin\\:/bin, use_pty{defaults}

User cluster may run the following commands on node1:
{rules}"""


@pytest.mark.parametrize(
    ("rules", "defaults", "is_root"),
    [
        ("    (ALL) NOPASSWD: ALL", "", True),
        ("    (ALL : ALL) ALL\n    (ALL) NOPASSWD: ALL", "", True),
        ("    (root) NOPASSWD: SETENV: ALL", "", True),
        ("    (root, user1) NOPASSWD: /usr/bin/id, ALL", "", True),
        ("    (ALL : ALL) ALL", ", !authenticate", True),
        ("    (ALL : ALL) ALL", "", False),
        ("    (ALL) NOPASSWD: /usr/bin/id, PASSWD: ALL", "", False),
        ("    (root) NOPASSWD: /usr/bin/systemctl restart nginx", "", False),
        ("    (postgres) NOPASSWD: ALL", "", False),
    ],
)
def test_rights_that_make_a_job_root(rules: str, defaults: str, is_root: bool) -> None:
    assert node_users.is_root_without_password(LISTING.format(rules=rules, defaults=defaults)) is is_root


def test_a_user_without_rights_is_not_root() -> None:
    assert not node_users.is_root_without_password("User mpi is not allowed to run sudo on node1.\n")
    assert not node_users.is_root_without_password("")


def test_an_account_is_described_where_it_was_asked_for() -> None:
    assert node_users.job_user(None) == {"job_user": None}
    missing = JobUser.model_validate(node_users.job_user("no-such-user")["job_user"])
    assert (missing.exists, missing.sudo) == (False, False)
    root = JobUser.model_validate(node_users.job_user("root")["job_user"])
    assert (root.exists, root.uid, root.sudo, root.has_home) == (True, 0, True, True)


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    late = pwd.struct_passwd(("late", "x", 20002, 20002, "", "/people/late", "/bin/bash"))
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: late)
    found = JobUser.model_validate(node_users.job_user("late")["job_user"])
    assert (found.exists, found.has_home) == (True, False)


def test_the_account_gets_a_home_and_a_shell_and_neither_a_password_nor_groups() -> None:
    argv = job_account.useradd_argv("mpi", 31000)
    assert argv[0] == "useradd"
    assert {"--create-home", "--user-group"} < set(argv)
    assert argv[argv.index("--shell") + 1] == "/bin/bash"
    assert argv[argv.index("--password") + 1] == "*"
    assert argv[argv.index("--uid") + 1] == "31000"
    assert not [word for word in argv if word in {"-G", "--groups", "--system"}]
    assert argv[-2:] == ["--", "mpi"]
    assert "--uid" not in job_account.useradd_argv("mpi", None)


def test_every_node_takes_the_same_uid_also_one_that_comes_later() -> None:
    uids = {job_account.wanted_uid(name) for name in ("mpi", "hpc", "jobs")}
    assert len(uids) == 3
    assert all(30000 <= uid < 59000 for uid in uids)
    assert job_account.wanted_uid("mpi") == 51620


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a b", "not a valid user name"),
        ("-x", "not a valid user name"),
        ("root", "uid is 0"),
    ],
)
def test_names_that_are_refused(name: str, says: str) -> None:
    with pytest.raises(job_account.AccountError, match=says):
        job_account.ensure(name, check=False)


def test_a_group_that_has_the_name_may_have_rights_and_is_not_taken_over() -> None:
    name = next(one.gr_name for one in grp.getgrall() if not _is_user(one.gr_name))
    with pytest.raises(job_account.AccountError, match=f"The group {name} exists .* set cluster_user to another name"):
        job_account.ensure(name, check=False)


def test_an_account_that_is_there_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_account.command, "run", lambda *_given: pytest.fail("nothing is to be run"))
    assert job_account.ensure("nobody", check=False) == []


def test_check_mode_says_what_would_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_account.command, "run", lambda *_given: pytest.fail("nothing is to be run"))
    assert job_account.ensure("no-such-user", check=True) == ["created the user no-such-user"]


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


# --- who may log in ---------------------------------------------------------------------------------------------------


def test_the_login_users_keys_are_taken_with_their_options_and_without_the_mesh() -> None:
    mesh = mesh_rules.authorized_keys(
        [{"name": "node1", "address": "10.0.0.1", "user_key": OTHER}], mesh_rules.Options()
    )
    text = (
        f'# a comment\n\nfrom="10.0.0.0/8" {KEY} user1\n# BEGIN clusterctl ssh_mesh\n{mesh}# END clusterctl ssh_mesh\n'
    )
    assert sshd.keys_of(text) == [f'from="10.0.0.0/8" {KEY} user1']
    assert sshd.block_of(text) == mesh.splitlines()


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, pwd.struct_passwd]:
    """Give this process's user two names, each with a home below the test's folder."""
    users = {
        name: pwd.struct_passwd((name, "x", os.geteuid(), os.getegid(), "", str(tmp_path / name), "/bin/sh"))
        for name in ("ubuntu", "mpi")
    }
    for name in users:
        (tmp_path / name / ".ssh").mkdir(parents=True)

    def entry_of(name: str) -> pwd.struct_passwd:
        return users[name]

    monkeypatch.setattr(job_account.pwd, "getpwnam", entry_of)
    monkeypatch.setattr(sshd, "settings_of", lambda _user: {})
    return users


def test_who_may_log_in_is_read_anew_each_time(homes: dict[str, pwd.struct_passwd]) -> None:
    keys = Path(homes["ubuntu"].pw_dir, ".ssh/authorized_keys")
    keys.write_text(f"{KEY} user1\n")
    found = job_account.login_keys(homes["mpi"], "ubuntu", [OTHER])
    assert found["lines"] == [f"{KEY} user1", OTHER]
    (before,) = found["watch"]
    assert before["path"] == str(keys)
    keys.write_text("")
    found = job_account.login_keys(homes["mpi"], "ubuntu", [OTHER])
    assert found["lines"] == [OTHER]
    assert found["watch"] != [before]  # so the fast path of provision sees that the file is another


def test_a_login_without_authorized_keys_is_refused_with_the_way_out(homes: dict[str, pwd.struct_passwd]) -> None:
    with pytest.raises(job_account.AccountError) as refused:
        job_account.login_keys(homes["mpi"], "ubuntu", [])
    assert "user ubuntu" in str(refused.value)
    assert "list their public keys in cluster_user_keys" in str(refused.value)
    with pytest.raises(job_account.AccountError, match="not a public key"):
        job_account.login_keys(homes["mpi"], "ubuntu", ["/root/key.pub"])


def test_the_login_user_itself_needs_no_keys_of_another(homes: dict[str, pwd.struct_passwd]) -> None:
    assert job_account.login_keys(homes["mpi"], "mpi", [])["lines"] == []


def test_the_block_says_whose_keys_they_are() -> None:
    text = job_account.block("ubuntu", [KEY])
    assert text.splitlines()[0].startswith("# Who may log in: keys of user ubuntu")
    assert text.splitlines()[1:] == [KEY]
    assert job_account.block("ubuntu", []) == ""
    mesh = f"restrict,pty {OTHER} clusterctl:node1"
    block = f"# BEGIN clusterctl ssh_mesh\n{mesh}\n{text}# END clusterctl ssh_mesh\n"
    assert sshd.block_of(block) == [mesh]  # a key of people is never taken for a node's


def test_a_line_of_a_file_of_keys_ends_at_its_newline_alone() -> None:
    text = f'from="10.0.0.1" {KEY} comment\x0b{OTHER}\x85{OTHER}\n{OTHER}\r\n'
    assert [line.split(" ")[0] for line in sshd.keys_of(text)] == ['from="10.0.0.1"', "ssh-ed25519"]


def test_a_job_user_tells_no_host_key() -> None:
    """Its authorized_keys are its own; known_hosts is root's."""
    member = {"name": "node3", "address": "10.0.0.3", "host_keys": [OTHER], "user_key": KEY}
    own = mesh_rules.authorized_keys([member], mesh_rules.Options()) + mesh_rules.known_hosts([member])
    assert mesh_rules.key_lines(own.splitlines()) == own.splitlines()[:1]


# --- limits that keep jobs from starting are raised by files of their own, and values that suffice are left alone ---


def sshd_settings(startups: str) -> dict[str, str]:
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
    monkeypatch.setattr(session_settings.sshd, "settings_of", lambda _user: sshd_settings(startups))
    entries = session_settings.wanted_files("mpi", 1024, 4, "limits", ["sshd"])
    assert {entry.path: entry.content.decode().splitlines()[-1] for entry in entries} == says
    assert all((entry.mode, entry.uid) == (0o644, 0) for entry in entries)


def test_more_nodes_than_the_default_of_sshd_ask_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_settings.sshd, "settings_of", lambda _user: sshd_settings("10:30:100"))
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

    def selinux_enabled(self) -> bool:
        return False

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
    monkeypatch.setattr(
        session_settings.sshd, "settings_of", lambda user: asked.append(user) or sshd_settings("10:30:100")
    )
    path = tmp_path / "limits"
    module = Module(
        environment=None, sessions=None, user="nobody", open_files=1024, logins=4, limits_file=str(path), sshd_files=[]
    )
    monkeypatch.setattr(session_settings.file_stage, "QuietModule", lambda **_spec: module)
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
    assert users.limit_settings(str(tmp_path)) == {"* soft nofile": "64", "@mpi - memlock": "unlimited"}


def test_a_user_of_a_directory_service_gets_the_settings_although_no_list_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pwd, "getpwall", list)
    assert session_settings.is_user("root")
    assert not session_settings.is_user("nobody-of-that-name")


@pytest.mark.parametrize("name", ["x - nofile 1\n* - core unlimited", "x y", "x#", "x\0"])
def test_a_user_that_would_leave_its_line_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_settings, "open_files_of", lambda _user: 1)
    with pytest.raises(session_settings.file_transaction.StageError, match="/limits: the user is"):
        session_settings.wanted_files(name, 1024, 0, "/limits", [])


@pytest.mark.parametrize(("said", "limit"), [("1024\n", 1024), ("unlimited", None), ("9" * 5000, None), ("", None)])
def test_the_shell_of_a_user_may_answer_anything(said: str, limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    done = session_settings.command.Done(0, said, "")
    monkeypatch.setattr(session_settings.command, "run", lambda *_unused: done)
    assert session_settings.open_files_of("mpi") == limit
