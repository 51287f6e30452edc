"""What the nodes of a mesh are told: members in, texts out."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import mesh_certificates_look
from ansible_collections.clusterctl.hpc.plugins.modules import mesh_certificates
from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))

from ansible_collections.clusterctl.hpc.plugins.module_utils import mesh_rules as rules

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIwwYGMGDwWPrygxQ4O3kv+UcH3baMHTl4kBu/CfhWR4"
USER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIALi599DvvDwMySq11LrlGoa5zscn2pIVvFVI3NuVmul"
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIjo692h6EyqWaITe9OwUfqkqO4qAhVWfzHXC/tiVj5k"


def member(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": f"node{number}",
        "address": f"10.0.0.{number}",
        "port": 22,
        "host_keys": [HOST_KEY],
        "aliases": [],
        "platform": "p",
        "slots": 2,
        **changes,
    }


def lines_of(*members: dict[str, Any]) -> list[str]:
    """What a node remembers that was told of these members."""
    return (rules.authorized_keys(members, rules.Options()) + rules.known_hosts(members)).splitlines()


def test_an_address_of_ipv6_on_another_port_has_brackets_of_its_own() -> None:
    there = member(1, address="fd00::1", port=2222)
    assert rules.known_hosts([there]) == f"[node1]:2222,[fd00::1]:2222 {HOST_KEY}\n"
    (found,) = rules.recall(lines_of(there), {"node1": ()}).values()
    assert (found["address"], found["port"]) == ("fd00::1", 2222)


class TestDoor:
    @pytest.mark.parametrize(
        ("changes", "telling"),
        [
            ({"name": "-oProxyCommand=x"}, "invalid host name"),
            ({"name": "a b"}, "invalid host name"),
            ({"name": "*"}, "invalid host name"),
            ({"aliases": ["ok", "x\nHost *"]}, "invalid host name"),
            ({"address": "node2"}, "address"),
            ({"port": 0}, "port"),
            ({"port": "22"}, "port"),
            ({"host_keys": ["ssh-ed25519 AAAA\nevil"]}, "public key"),
            ({"user_key": 'command="rm" ssh-ed25519 AAAA'}, "public key"),
        ],
    )
    def test_what_would_break_a_file_is_refused(self, changes: dict[str, Any], telling: str) -> None:
        with pytest.raises(rules.MeshError, match=telling):
            rules.check_members([member(1, **changes)])

    def test_no_members_and_double_members(self) -> None:
        with pytest.raises(rules.MeshError, match="empty"):
            rules.check_members([])
        with pytest.raises(rules.MeshError, match="node1 2 times"):
            rules.check_members([member(1), member(1)])

    @pytest.mark.parametrize(
        ("user", "options"),
        [
            ("a b", rules.Options()),
            ("user1", rules.Options(key_name="../x")),
            ("user1", rules.Options(key_options=['command="a\nb"'])),
            ("user1", rules.Options(client_options={"Port": "22\nHost *"})),
            ("user1", rules.Options(client_options={"Bad Name": "x"})),
            ("user1", rules.Options(client_options={"Port": "22\0"})),
            ("user1", rules.Options(client_options={"Port": "22\x1b[2J"})),
            ("user1", rules.Options(key_options=['command="a\x0bb"'])),
        ],
    )
    def test_malformed_options(self, user: str, options: rules.Options) -> None:
        with pytest.raises(rules.MeshError):
            rules.check_options(user, options)


class TestFiles:
    def test_known_hosts_names_the_port_that_the_key_was_seen_on(self) -> None:
        text = rules.known_hosts([member(1, aliases=["login"]), member(2, port=2222, address="fd00::2")])
        assert text.splitlines() == [
            f"node1,login,10.0.0.1 {HOST_KEY}",
            f"[node2]:2222,[fd00::2]:2222 {HOST_KEY}",
        ]

    def test_authorized_keys_with_options(self) -> None:
        options = rules.Options(key_options=["no-pty"])
        text = rules.authorized_keys([member(1, user_key=USER_KEY), member(2)], options)
        assert text == f'restrict,pty,no-pty,from="10.0.0.1" {USER_KEY} clusterctl:node1\n'

    def test_a_key_is_accepted_from_each_address_of_its_own_node(self) -> None:
        docker = "172.17.0.1"  # every node has it, so no connection to another node comes from it
        members = [
            member(1, user_key=USER_KEY, addresses=["10.0.0.1", "192.168.7.1", "fd00::1", docker]),
            member(2, user_key=OTHER_KEY, addresses=["10.0.0.2", docker]),
        ]
        lines = rules.authorized_keys(members, rules.Options()).splitlines()
        assert lines == [
            f'restrict,pty,from="10.0.0.1,192.168.7.1,fd00::1" {USER_KEY} clusterctl:node1',
            f'restrict,pty,from="10.0.0.2" {OTHER_KEY} clusterctl:node2',
        ]

    def test_nodes_with_a_common_home_share_a_key_whose_first_line_names_all_of_them(self) -> None:
        members = [member(one, user_key=USER_KEY) for one in (1, 2)]
        lines = rules.authorized_keys(members, rules.Options()).splitlines()
        assert [line.split(" ", 1)[0] for line in lines] == [
            'restrict,pty,from="10.0.0.1,10.0.0.2"',
            'restrict,pty,from="10.0.0.2"',
        ]

    def test_a_key_stays_restricted_where_any_address_may_use_it(self) -> None:
        text = rules.authorized_keys([member(1, user_key=USER_KEY)], rules.Options(from_members_only=False))
        assert text == f"restrict,pty {USER_KEY} clusterctl:node1\n"

    @pytest.mark.parametrize(
        ("asked", "user", "expected"),
        [
            ("node2", "root", {"hostname": "10.0.0.2", "port": "2222", "stricthostkeychecking": "true"}),
            ("10.0.0.2", "root", {"hostname": "10.0.0.2", "port": "2222"}),
            ("node1", "root", {"hostname": "10.0.0.1", "port": "22", "userknownhostsfile": "/dev/null"}),
            ("elsewhere", "root", {"hostname": "elsewhere", "stricthostkeychecking": "ask"}),
        ],
    )
    def test_ssh_itself_reads_the_client_config_so(
        self, tmp_path: Path, asked: str, user: str, expected: dict[str, str]
    ) -> None:
        path = tmp_path / "config"
        path.write_text(rules.client_config([member(1), member(2, port=2222)], user, rules.Options()))
        done = subprocess.run(["ssh", "-G", "-F", str(path), asked], capture_output=True, text=True, check=True)
        said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
        assert {key: said.get(key) for key in expected} == expected

    @pytest.mark.parametrize("asked", ["node1", "node2", "10.0.0.2"])
    def test_ssh_of_other_users_stays_as_it_is(self, tmp_path: Path, asked: str) -> None:
        rest = "Host *\n    GSSAPIAuthentication yes\n    ForwardAgent yes\n    ForwardX11 yes\n"
        ours = rules.client_config([member(1), member(2, port=2222)], "somebody-else", rules.Options())
        said = []
        for name, text in (("with", ours), ("without", "")):
            path = tmp_path / name
            path.write_text(text + rest)
            done = subprocess.run(["ssh", "-G", "-F", str(path), asked], capture_output=True, text=True, check=True)
            said.append(done.stdout)
        assert said[0] == said[1]
        assert "forwardagent yes" in said[0]

    def test_an_option_of_the_user_may_have_quotes(self) -> None:
        options = rules.Options(client_options={"ProxyCommand": 'sh -c "nc %h %p"'}, key_options=['command="true"'])
        rules.check_options("user1", options)
        assert '    ProxyCommand sh -c "nc %h %p"\n' in rules.client_config([member(1)], "user1", options)

    def test_strictness_can_be_given_up(self) -> None:
        text = rules.client_config([member(1)], "user1", rules.Options(strict_host_keys=False))
        assert "StrictHostKeyChecking no" in text


class TestLines:
    """The texts refuse once more what the door would have refused."""

    EVIL = 'x"\nssh-ed25519 AAAA evil'

    @pytest.mark.parametrize("address", [f"fe80::1%{EVIL}", f"fd00::1%{EVIL}", "fe80::1%eth0", "10.0.0.1\n"])
    def test_a_scope_writes_no_second_line_into_authorized_keys(self, address: str) -> None:
        members = [member(1, user_key=USER_KEY, addresses=["10.0.0.1", address]), member(2)]
        with pytest.raises(rules.MeshError, match="invalid address"):
            rules.check_members(members)
        for text in (rules.authorized_keys(members, rules.Options()), *rules.source_addresses(members)["node1"]):
            assert "%" not in text
            assert "evil" not in text

    @pytest.mark.parametrize("field", ["name", "user_key", "aliases", "host_keys", "address"])
    @pytest.mark.parametrize("letter", ["\n", "\r", "\0", "\x1b", "\x85", "\u2028"])
    def test_no_text_takes_a_value_that_would_leave_its_line(self, field: str, letter: str) -> None:
        wrong = f"{letter}evil"
        value = [wrong] if field in {"aliases", "host_keys"} else wrong
        its = {**member(1, user_key=USER_KEY), field: value}
        refusals = []
        for text in (
            lambda: rules.authorized_keys([its], rules.Options()),
            lambda: rules.known_hosts([its]),
            lambda: rules.client_config([its], "user1", rules.Options()),
        ):
            try:
                assert "evil" not in text()
            except rules.MeshError as error:
                refusals.append(str(error))
        assert refusals
        assert all(said.isprintable() and said.endswith(".") for said in refusals)

    def test_addresses_from_which_no_other_node_comes_are_in_no_from_list(self) -> None:
        here = ["127.0.0.1", "::1", "169.254.1.1", "fe80::1", "224.0.0.1", "ff02::1", "0.0.0.0", "::"]  # noqa: S104
        mapped = ["::ffff:127.0.0.1", "::ffff:169.254.1.1", "::ffff:224.0.0.1"]
        members = [member(1, user_key=USER_KEY, addresses=["10.0.0.1", *here, *mapped, "10.7.0.1"]), member(2)]
        assert rules.source_addresses(members)["node1"] == ["10.0.0.1", "10.7.0.1"]

    def test_another_spelling_of_anothers_address_is_that_address(self) -> None:
        members = [
            member(1, user_key=USER_KEY, addresses=["10.0.0.1", "::ffff:10.0.0.2", "FD00:0::2"]),
            member(2, addresses=["10.0.0.2", "fd00::2"]),
        ]
        assert rules.source_addresses(members) == {"node1": ["10.0.0.1"], "node2": ["10.0.0.2"]}

    def test_a_cluster_of_one_may_come_from_loopback(self) -> None:
        assert rules.source_addresses([member(1, address="127.0.0.1")]) == {"node1": ["127.0.0.1"]}


class TestMemory:
    def test_a_member_is_rebuilt_from_the_lines_about_it(self) -> None:
        whole = member(3, port=2222, aliases=["io"], user_key=USER_KEY, host_keys=[HOST_KEY, OTHER_KEY])
        recalled = rules.recall(lines_of(whole), {"node3": ["io", "other"]})
        known = {key: whole[key] for key in ("name", "address", "port", "aliases", "host_keys", "user_key")}
        assert recalled == {"node3": {**known, "addresses": ["10.0.0.3"]}}

    def test_a_node_that_a_run_leaves_out_keeps_its_addresses(self) -> None:
        whole = member(3, user_key=USER_KEY, host_keys=[HOST_KEY], addresses=["10.0.0.3", "192.168.7.3"])
        before = lines_of(whole)
        recalled = rules.recall(before, {"node3": ()})
        known = {key: value for key, value in member(3).items() if key != "addresses"}  # of an earlier release
        for kept in (rules.complete([known], {}, recalled, []), rules.complete([], {}, recalled, ["node3"])):
            assert rules.authorized_keys(kept, rules.Options()).splitlines() == before[:1]

    def test_a_remembered_host_has_no_name_that_the_inventory_does_not_give_it(self) -> None:
        lines = lines_of(member(3, aliases=["io", "pypi", "node1"], user_key=USER_KEY))
        assert rules.recall(lines, {"node3": ["node3", "io"], "node1": ["node1"]})["node3"]["aliases"] == ["io"]
        assert rules.recall(lines, {"node3": []})["node3"]["aliases"] == []

    def test_a_host_that_the_inventory_does_not_have_is_forgotten(self) -> None:
        assert rules.recall(lines_of(member(3, user_key=USER_KEY)), {"node1": ["node1"]}) == {}

    def test_lines_with_options_are_understood(self) -> None:
        options = rules.Options(key_options=['environment="A=b c"'])
        text = rules.authorized_keys([member(3, user_key=USER_KEY)], options)
        assert rules.recall(text.splitlines(), {"node3": ()})["node3"]["user_key"] == USER_KEY

    def test_only_lines_about_the_asked_hosts_are_given(self) -> None:
        lines = [*lines_of(member(1, user_key=USER_KEY), member(2, port=2222, user_key=OTHER_KEY)), "# a comment", ""]
        assert rules.remembered_lines(lines, ["node2"]) == lines_of(member(2, port=2222, user_key=OTHER_KEY))

    @pytest.mark.parametrize(
        "line",
        [
            'restrict,from="10.0.0.3" ssh-ed25519 AAAA clusterctl:node3',  # without an address of the host
            f"node3,10.0.0.3,evil\x1b[2J {HOST_KEY}",
            f"[node3]:99999,[10.0.0.3]:99999 {HOST_KEY}",
            "node3,10.0.0.3",
            "node3,10.0.0.3 ssh-ed25519 A{}A",
        ],
    )
    def test_a_malformed_memory_is_none_and_stops_nothing(self, line: str) -> None:
        done = rules.complete([member(1)], {}, rules.recall([line], {"node3": ["evil\x1b[2J"]}), ["node1", "node3"])
        rules.check_members(done)
        assert "\x1b" not in rules.known_hosts(done)

    def test_fresh_keys_win_then_known_then_remembered(self) -> None:
        members = [member(1, user_key=OTHER_KEY), member(2, user_key=OTHER_KEY), member(3)]
        names = {f"node{i}": () for i in (1, 2, 3)}
        recalled = rules.recall(lines_of(*[member(i, user_key=HOST_KEY) for i in (1, 2, 3)]), names)
        done = rules.complete(members, {"node1": USER_KEY}, recalled, [])
        assert [entry["user_key"] for entry in done] == [USER_KEY, OTHER_KEY, HOST_KEY]
        assert done[0]["slots"] == 2

    def test_hosts_of_the_inventory_are_kept_and_others_forgotten(self) -> None:
        names = ["node1", "node2", "node3"]
        lines = lines_of(member(2, user_key=USER_KEY), member(9, user_key=USER_KEY))
        done = rules.complete([member(1)], {}, rules.recall(lines, dict.fromkeys(names, ())), names)
        assert [entry["name"] for entry in done] == ["node1", "node2"]


class TestProof:
    def test_ring_all_and_none(self) -> None:
        assert rules.logins(["a", "b", "c"], "ring") == {"a": ["b"], "b": ["c"], "c": ["a"]}
        assert rules.logins(["a"], "ring") == {"a": ["a"]}
        assert rules.logins(["a", "b"], "all") == {"a": ["a", "b"], "b": ["a", "b"]}
        assert rules.logins(["a"], "none") == {"a": []}

    @pytest.mark.parametrize(
        ("said", "telling"),
        [
            # other words are rows of the table of known messages, each with its example
            ("user1@10.0.0.2: Permission denied (publickey,password).\r\n", "refuses the key of user user1"),
            ("", "no answer"),
        ],
    )
    def test_a_failed_login_names_both_ends_and_a_cure(self, said: str, telling: str) -> None:
        target = {"name": "node2", "address": "10.0.0.2", "port": 2222, "obstacles": ["sshd has AllowUsers user2"]}
        sentence = rules.login_failure("node1", target, "user1", said)
        assert sentence.startswith("node1 cannot open a shell on node2 (10.0.0.2 port 2222): ")
        assert telling in sentence
        assert sentence.endswith("On node2: sshd has AllowUsers user2.")


# --- the files of a node's certificates: what is laid out, where sshd's settings go, and what is removed ---


GIVEN = {
    "state": "present",
    "user_path": "/home/mpi/.ssh/id_clusterctl-cert.pub",
    "user_certificate": "USER\n",
    "host_certificate": "HOST\n",
    "revoked": "ssh-ed25519 AAAArevoked\n",
}
ENTRY = pwd.getpwuid(os.getuid())


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sshd's settings in place of /etc/ssh."""
    (tmp_path / "sshd_config.d").mkdir()
    monkeypatch.setattr(mesh_certificates_look, "SSHD_CONFIG", str(tmp_path / "sshd_config"))
    monkeypatch.setattr(mesh_certificates_look, "SSHD_FOLDER", str(tmp_path / "sshd_config.d"))
    monkeypatch.setattr(
        mesh_certificates_look, "SSHD_DROP_IN", str(tmp_path / "sshd_config.d" / "05-clusterctl-ca.conf")
    )
    return tmp_path


def wanted(**changes: Any) -> dict[str, Any]:
    found = mesh_certificates.wanted_files({**GIVEN, **changes}, ENTRY)
    return {os.path.basename(one.path): one for one in found}  # noqa: PTH119 - the name alone


def test_where_sshd_reads_its_folder_the_settings_are_a_drop_in(sshd: Path) -> None:
    (sshd / "sshd_config").write_text(f"Include {sshd}/sshd_config.d/*.conf\nMatch User x\n")
    found = wanted()
    assert list(found) == [  # what sshd refers to stands before what refers to it
        "id_clusterctl-cert.pub",
        "clusterctl.krl",
        "clusterctl-host-cert.pub",
        "05-clusterctl-ca.conf",
    ]
    assert found["clusterctl.krl"].content == b"ssh-ed25519 AAAArevoked\n"
    assert (found["id_clusterctl-cert.pub"].user, found["id_clusterctl-cert.pub"].uid) == (ENTRY, ENTRY.pw_uid)
    settings = found["05-clusterctl-ca.conf"].content.decode()
    assert settings.startswith("HostCertificate /etc/ssh/clusterctl-host-cert.pub\n")
    assert settings.endswith(f"Match User {ENTRY.pw_name}\n    RevokedKeys /etc/ssh/clusterctl.krl\n")
    assert all((one.uid, one.mode) == (0, 0o644) for name, one in found.items() if name != "id_clusterctl-cert.pub")


def test_where_sshd_reads_no_folder_the_settings_are_a_block_at_the_beginning(sshd: Path) -> None:
    (sshd / "sshd_config").write_text("Port 22\nMatch User x\n")
    entry = wanted()["sshd_config"]
    assert entry.edit is not None
    text = entry.edit("Port 22\nMatch User x\n")
    assert "Match User root" not in text  # it would swallow the lines behind it
    assert text.index("RevokedKeys /etc/ssh/clusterctl.krl") < text.index("Port 22")
    assert entry.watched_block == "ssh_mesh_ca"
    (sshd / "sshd_config").write_text(text)
    gone = wanted(state="absent")["sshd_config"]
    assert gone.edit is not None
    assert gone.edit(text) == "Port 22\nMatch User x\n"


def test_absent_removes_all_of_it_and_touches_no_other_file(sshd: Path) -> None:
    (sshd / "sshd_config").write_text(f"Include {sshd}/sshd_config.d/*.conf\n")
    found = wanted(state="absent")
    assert {one.state for one in found.values()} == {"absent"}
    assert "sshd_config" not in found
    assert list(found) == ["id_clusterctl-cert.pub", "05-clusterctl-ca.conf"]  # the rest goes after sshd's reload
    assert [os.path.basename(one.path) for one in mesh_certificates.files_of_settings()] == [  # noqa: PTH119 - the name alone
        "clusterctl.krl",
        "clusterctl-host-cert.pub",
    ]


def test_a_certificate_that_check_mode_does_not_sign_stays(sshd: Path) -> None:
    (sshd / "sshd_config").write_text("")
    assert "id_clusterctl-cert.pub" not in wanted(user_certificate="", host_certificate="")


@pytest.mark.parametrize("field", ["user_certificate", "host_certificate"])
@pytest.mark.parametrize("text", ["CERT\nssh-ed25519 AAAA evil\n", "CERT\0\n", "CERT\r\n", "CERT\x1b[2J\n"])
def test_a_certificate_is_one_line(sshd: Path, field: str, text: str) -> None:
    (sshd / "sshd_config").write_text("")
    with pytest.raises(mesh_certificates.file_transaction.StageError, match=r"cert\.pub: the certificate is .*CERT"):
        wanted(**{field: text})


@pytest.mark.parametrize("more", ["ssh-ed25519 AAAA evil\n", "\0", "\x1b[2J\n", "\n"])
def test_a_certificate_to_which_its_user_added_something_is_signed_anew(tmp_path: Path, more: str) -> None:
    path = tmp_path / "cert.pub"
    path.write_text("CERT\n")
    assert mesh_certificates_look.certificate_in(str(path)) == "CERT\n"
    path.write_text(f"CERT\n{more}")
    assert mesh_certificates_look.certificate_in(str(path)) == ""
