"""The certificate authority of a mesh: what it signs, when it signs anew, whom it refuses, and the lines of trust."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
import subprocess
import sys
from typing import Any

import pytest
from clusterctl.support import content

sys.path.insert(0, str(content.collections_path()))

from pathlib import Path

from ansible_collections.clusterctl.hpc.plugins.action import ssh_mesh_sign
from ansible_collections.clusterctl.hpc.plugins.module_utils import config_line, mesh_certificates_look, mesh_rules
from ansible_collections.clusterctl.hpc.plugins.module_utils.mesh_ca import authority as authorities
from ansible_collections.clusterctl.hpc.plugins.module_utils.mesh_ca import certificates, passphrase
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import ssh

PASSPHRASE = "correct horse canary"  # noqa: S105 - the test's own
ED25519 = "ssh-ed25519-cert-v01@openssh.com"
NOW = 1_800_000_000
DAY = 86400


def key_of(folder: Path, kind: str = "ed25519") -> str:
    path = folder / f"id_{kind}"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(path)], check=True)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


def wanted(key: str, **changes: Any) -> certificates.Wanted:
    given = {
        "kind": "user",
        "key": key,
        "key_id": "node1",
        "principals": ("mpi", "clusterctl-1"),
        "source_addresses": ("10.0.0.1", "fd00::1"),
        "permits": ("permit-pty",),
        **changes,
    }
    return certificates.Wanted(**given)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> authorities.Authority:
    found = authorities.Authority(str(tmp_path_factory.mktemp("cluster") / "ca"))
    found.create(PASSPHRASE, NOW)
    return found


@pytest.fixture
def signer(made: authorities.Authority, tmp_path: Path) -> authorities.Authority:
    """A copy of the authority, because making one takes half a second."""
    copied = tmp_path / "ca"
    copied.mkdir(mode=0o700)
    for path in made.folder.iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
        (copied / path.name).chmod(0o600)
    return authorities.Authority(str(copied))


def signed(signer: authorities.Authority, what: certificates.Wanted, *nodes: str, now: int = NOW) -> str:
    (text,) = signer.sign([authorities.Request(nodes or ("node1",), what)], PASSPHRASE, now, 30)
    return text


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_certificate_says_what_was_asked_for(signer: authorities.Authority, tmp_path: Path, kind: str) -> None:
    what = wanted(key_of(tmp_path, kind))
    text = signed(signer, what)
    found = certificates.parse(text)
    assert (found.kind, found.key, found.key_id, found.principals) == ("user", what.key, "node1", what.principals)
    assert (found.source_addresses, found.permits) == (what.source_addresses, what.permits)
    assert found.authority == signer.public("user")
    assert found.valid_after == NOW - 3600
    assert found.valid_before == NOW + 30 * DAY
    assert certificates.why_anew(text, what, signer.public("user"), NOW) == ""


def test_a_host_certificate_and_serial_numbers(signer: authorities.Authority, tmp_path: Path) -> None:
    key = key_of(tmp_path)
    host = wanted(key, kind="host", principals=("node1", "10.0.0.1"), source_addresses=(), permits=())
    requests = [authorities.Request(("node1",), host), authorities.Request(("node1", "node2"), wanted(key))]
    first, second = map(certificates.parse, signer.sign(requests, PASSPHRASE, NOW, 30))
    assert (first.kind, first.principals, first.serial, second.serial) == ("host", ("node1", "10.0.0.1"), 1, 2)
    issued = signer.record()["issued"]
    assert {node: sorted(its) for node, its in issued.items()} == {"node1": ["host", "user"], "node2": ["user"]}
    assert issued["node2"]["user"]["serial"] == 2


@pytest.mark.parametrize(
    ("changes", "later", "why"),
    [
        ({"principals": ("root", "clusterctl-1")}, 0, "of other names or addresses"),
        ({"source_addresses": ()}, 0, "of other names or addresses"),
        ({"permits": ()}, 0, "of other names or addresses"),
        ({"key": "ssh-ed25519 AAAA"}, 0, "of another key"),
        ({}, 19 * DAY, ""),
        ({}, 21 * DAY, "about to expire"),
        ({}, 400 * DAY, "expired"),
    ],
)
def test_when_a_certificate_is_signed_anew(
    signer: authorities.Authority, tmp_path: Path, changes: dict[str, Any], later: int, why: str
) -> None:
    what = wanted(key_of(tmp_path))
    text = signed(signer, what)
    assert certificates.why_anew(text, what._replace(**changes), signer.public("user"), NOW + later) == why
    assert certificates.why_anew(text, what, "ssh-ed25519 BBBB", NOW) == "signed by another authority"


@pytest.mark.parametrize("text", ["nonsense", f"{ED25519} AAAA", f"{ED25519} ?"])
def test_what_a_node_says_may_be_anything(text: str) -> None:
    assert certificates.why_anew(text, wanted("k"), "a", NOW) == "damaged"
    assert certificates.why_anew("\n", wanted("k"), "a", NOW) == "missing"


def test_a_truncated_certificate_is_refused_at_every_length(signer: authorities.Authority, tmp_path: Path) -> None:
    kind, data = signed(signer, wanted(key_of(tmp_path))).split()[:2]
    for length in range(0, len(data) - 4, 4):
        with pytest.raises(certificates.CertificateError):
            certificates.parse(f"{kind} {data[:length]}")


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_certificate_with_other_bytes_is_read_or_refused(
    signer: authorities.Authority, tmp_path: Path, kind: str
) -> None:
    name, data = signed(signer, wanted(key_of(tmp_path, kind))).split()[:2]
    whole = base64.b64decode(data)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x81
        with contextlib.suppress(certificates.CertificateError):
            certificates.parse(f"{name} {base64.b64encode(changed).decode()}")


def test_keys_are_encrypted_private_and_made_once(made: authorities.Authority) -> None:
    assert {path.stat().st_mode & 0o777 for path in made.folder.iterdir()} == {0o600}
    assert made.folder.stat().st_mode & 0o777 == 0o700
    for kind in authorities.KINDS:
        plain = ["ssh-keygen", "-y", "-P", "", "-f", str(made.key_file(kind))]
        assert subprocess.run(plain, capture_output=True, check=False).returncode != 0
    assert [path.name for path in made.folder.parent.iterdir()] == ["ca"]
    made.check(NOW)
    made.check_passphrase(PASSPHRASE)


def test_a_wrong_passphrase_signs_nothing(signer: authorities.Authority, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in signer.folder.iterdir()}
    request = authorities.Request(("node1",), wanted(key_of(tmp_path)))
    with pytest.raises(authorities.AuthorityError, match=r"does not open .*user_ca"):
        signer.sign([request], "another passphrase", NOW, 30)
    with pytest.raises(authorities.AuthorityError, match="does not open"):
        signer.check_passphrase("another passphrase")
    assert {name: (signer.folder / name).read_bytes() for name in before} == before
    assert {path.name for path in signer.folder.iterdir()} - {"lock"} == set(before)


def test_the_passphrase_stands_in_no_argument_environment_or_file(
    signer: authorities.Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def record(real: Any) -> Any:
        def call(argv: Any, *args: Any, **options: Any) -> Any:
            seen.append(f"{argv} {options.get('env')}")
            seen.extend(path.read_text(errors="replace") for path in signer.folder.rglob("*") if path.is_file())
            return real(argv, *args, **options)

        return call

    monkeypatch.setattr(passphrase.subprocess, "run", record(subprocess.run))
    monkeypatch.setattr(authorities.subprocess, "Popen", record(subprocess.Popen))
    signed(signer, wanted(key_of(tmp_path)))
    assert any("ssh-agent" in words for words in seen)
    assert len(seen) > 10
    assert not [words for words in seen if PASSPHRASE in words]


def test_a_short_passphrase_makes_no_authority(tmp_path: Path) -> None:
    with pytest.raises(passphrase.PassphraseError, match="at least 8 characters"):
        authorities.Authority(str(tmp_path / "ca")).create("short", NOW)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["user_ca", "host_ca.pub", "authority.json"])
def test_a_missing_file_of_the_authority(signer: authorities.Authority, name: str) -> None:
    (signer.folder / name).unlink()
    with pytest.raises(authorities.AuthorityError, match=rf"{name} .*cannot be read: .*restore it from a backup"):
        signer.check(NOW)


def test_an_expired_or_damaged_authority(signer: authorities.Authority) -> None:
    with pytest.raises(authorities.AuthorityError, match="expired on 2037-01-1"):
        signer.check(NOW + 3651 * DAY)
    (signer.folder / "authority.json").write_text("[]")
    with pytest.raises(authorities.AuthorityError, match="damaged"):
        signer.check(NOW)


def test_a_revoked_node_stays_out_until_it_has_new_keys(signer: authorities.Authority, tmp_path: Path) -> None:
    what = wanted(key_of(tmp_path))
    signed(signer, what)
    assert signer.revoked() == ""
    with pytest.raises(authorities.AuthorityError, match="node9 has no certificate"):
        signer.revoke(["node9"], NOW)
    signer.revoke(["node1"], NOW)
    assert signer.revoked() == f"{what.key}\n"
    with pytest.raises(authorities.AuthorityError, match=r"node1 is revoked; .*'clusterctl ca renew INVENTORY node1'"):
        authorities.refuse_barred(["node1", "node2"], signer.record())
    with pytest.raises(authorities.AuthorityError, match="node1 is revoked"):
        signed(signer, what)
    signer.forget(["node1"])
    with pytest.raises(authorities.AuthorityError, match="user key of node1 is revoked; make a new one"):
        signed(signer, what)
    (tmp_path / "new").mkdir()
    fresh = wanted(key_of(tmp_path / "new"))
    assert certificates.parse(signed(signer, fresh)).key == fresh.key
    assert signer.revoked() == f"{what.key}\n", "the old key stays out"


def accepts(folder: Path, name: str, revoked: str) -> bool:
    """Whether OpenSSH takes a signature of a key, read against a file of revoked keys as sshd reads it."""
    (folder / "revoked").write_text(revoked)
    (folder / "signers").write_text(f"node1 {(folder / name).with_suffix('.pub').read_text()}")
    signature = ["ssh-keygen", "-q", "-Y", "sign", "-n", "test", "-f", str(folder / name)]
    done = subprocess.run(signature, input=b"text", capture_output=True, check=True)
    (folder / "signature").write_bytes(done.stdout)
    files = ["-f", str(folder / "signers"), "-s", str(folder / "signature"), "-r", str(folder / "revoked")]
    words = ["ssh-keygen", "-Y", "verify", "-I", "node1", "-n", "test", *files]
    return subprocess.run(words, input=b"text", capture_output=True, check=False).returncode == 0


def test_a_key_that_an_openssh_cannot_read_shuts_nobody_out(signer: authorities.Authority, tmp_path: Path) -> None:
    what = wanted(key_of(tmp_path))
    signed(signer, what)
    signer.revoke(["node1"], NOW)
    unread = "ssh-mldsa-44 AAAAC3NzaC1lZDI1NTE5AAAAIA"
    record = signer.record()
    record["revoked"]["node1"]["keys"].append(unread)
    (signer.folder / "authority.json").write_text(json.dumps(record))
    other = tmp_path / "other"
    other.mkdir()
    key_of(other)
    assert not accepts(other, "id_ed25519", f"{unread}\n{what.key}\n"), "one line is enough"
    assert accepts(other, "id_ed25519", signer.revoked())
    assert not accepts(tmp_path, "id_ed25519", signer.revoked()), "the other lines count"


def test_a_node_that_left_the_inventory_comes_back_with_its_keys(signer: authorities.Authority, tmp_path: Path) -> None:
    what = wanted(key_of(tmp_path))
    signed(signer, what)
    assert signer.leave(["node1", "node2"], NOW) == []
    assert signer.leave(["node2"], NOW) == ["node1"]
    assert signer.leave(["node2"], NOW) == []
    assert authorities.revoked_keys(signer.record()) == [what.key]
    authorities.refuse_barred(["node1"], signer.record())
    assert authorities.expiring(signer.record(), ["node1"], NOW) == {"node1": None}  # so that it is signed anew
    signed(signer, what)
    assert authorities.revoked_keys(signer.record()) == []
    assert signer.revoked() == ""


def test_a_key_that_a_node_has_replaced_is_revoked_until_its_certificate_expires(
    signer: authorities.Authority, tmp_path: Path
) -> None:
    old = wanted(key_of(tmp_path))
    signed(signer, old)
    (tmp_path / "new").mkdir()
    fresh = wanted(key_of(tmp_path / "new"))
    signed(signer, fresh)
    assert authorities.revoked_keys(signer.record()) == [old.key]
    assert signer.revoked() == f"{old.key}\n"
    with pytest.raises(authorities.AuthorityError, match="user key of node1 is revoked"):
        signed(signer, old)
    signed(signer, fresh, now=NOW + 31 * DAY)
    assert authorities.revoked_keys(signer.record()) == []


def test_a_node_that_claims_the_key_of_another_and_drops_it_does_not_shut_that_one_out(
    signer: authorities.Authority, tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    claimed, own = key_of(tmp_path), key_of(tmp_path / "own")
    for kind in authorities.KINDS:
        signed(signer, wanted(claimed, kind=kind), "node1", "node2")
        signed(signer, wanted(own, kind=kind), "node2")
    assert signer.revoked() == ""
    signed(signer, wanted(claimed), "node1")
    (tmp_path / "next").mkdir()
    signed(signer, wanted(key_of(tmp_path / "next")), "node1")
    signed(signer, wanted(own, kind="host"), "node1")
    assert authorities.revoked_keys(signer.record()) == [claimed], "nobody has it any more"
    assert signer.sharing(["node2"]) == ["node1"]
    assert signer.sharing(["node1", "node2"]) == []
    signer.revoke(["node2"], NOW)
    assert own in authorities.revoked_keys(signer.record()), "that of a revoked node is revoked, whoever has it too"


@pytest.mark.parametrize(
    ("shown", "refused"),
    [
        ({"node1": "K1", "node2": "K2", "node3": "K3"}, ()),
        ({"node1": "K1", "node2": "K1"}, ("node2",)),
        ({"node2": "K1"}, ("node2",)),  # a run that does not visit the owner
        ({"node1": "K1", "node3": "K1"}, ("node3",)),
        ({"node3": "new", "node4": "new"}, ("node3", "node4")),
        ({"node3": "gone", "node4": "out"}, ()),  # refused later, as revoked keys
        ({"node3": "", "node4": ""}, ()),  # check mode makes none
    ],
)
def test_a_node_that_shows_the_key_of_another_is_refused_by_the_record(
    shown: dict[str, str], refused: tuple[str, ...]
) -> None:
    record = {
        "issued": {
            **{f"node{number}": {"user": {"key": f"K{number}"}} for number in (1, 2)},
            "absent": {"user": {"key": "gone"}},
            "node5": {"user": {"key": "out"}, "host": {"key": "H"}},
        },
        "revoked": {"node5": {"keys": ["out"], "barred": True, "returns": False}},
    }
    names = [f"node{number}" for number in range(1, 6)]
    if not refused:
        ssh_mesh_sign.refuse_claims(shown, names, record, "id_clusterctl")
        return
    with pytest.raises(mesh_rules.MeshError, match=r"ssh_mesh_ca_common_home .*remove ~/\.ssh/id_clusterctl ") as told:
        ssh_mesh_sign.refuse_claims(shown, names, record, "id_clusterctl")
    assert told.value.hosts == refused


@pytest.mark.parametrize("key", ["ssh-ed25519 AAAA", "ssh-ed25519-cert-v01@openssh.com AAAA"])
def test_a_key_that_cannot_be_signed_is_refused_by_the_name_of_its_nodes(
    signer: authorities.Authority, key: str
) -> None:
    with pytest.raises(authorities.AuthorityError, match=r"^The user key of node3, node4 cannot be signed \(.+\); .+"):
        signed(signer, wanted(key), "node3", "node4")


def test_which_nodes_are_due(signer: authorities.Authority, tmp_path: Path) -> None:
    signed(signer, wanted(key_of(tmp_path)))
    record = signer.record()
    assert authorities.expiring(record, ["node1", "node2"], NOW) == {}
    assert authorities.expiring(record, ["node1"], NOW + 21 * DAY) == {"node1": NOW + 30 * DAY}
    signer.forget(["node1"])
    assert authorities.expiring(signer.record(), ["node1"], NOW) == {"node1": None}


@pytest.mark.parametrize(
    ("text", "mode", "telling"),
    [
        ("secret\n", 0o644, "open to others; run 'chmod 600"),
        ("", 0o600, "must hold the passphrase"),
        ("x" * 2000, 0o600, "must hold the passphrase"),
    ],
)
def test_passphrase_files_that_are_refused(tmp_path: Path, text: str, mode: int, telling: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(passphrase.PassphraseError, match=telling):
        passphrase.read(str(path))
    with pytest.raises(passphrase.PassphraseError, match="cannot be read: No such file"):
        passphrase.read(str(tmp_path / "absent"))


def test_a_passphrase_in_memory_can_be_read_by_path() -> None:
    with passphrase.in_memory(PASSPHRASE) as path:
        assert passphrase.read(path) == PASSPHRASE
        assert passphrase.read(path) == PASSPHRASE


def test_without_memory_files_a_private_file_holds_the_passphrase_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with passphrase.in_memory(PASSPHRASE) as path:
        assert passphrase.read(path) == PASSPHRASE
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert not Path(path).exists()


class TestLines:
    MEMBERS: tuple[dict[str, Any], ...] = (
        {"name": "node1", "address": "10.0.0.1", "aliases": ["node1.lab.example"]},
        {"name": "node2", "address": "10.0.0.2", "port": 2222},
        {"name": "login", "address": "fd00::7"},
    )

    def test_patterns_fit_the_nodes_that_join_later(self) -> None:
        found = certificates.patterns(self.MEMBERS, ["gpu-007.lab.example", "12", "10.1.2.3"])
        assert found == sorted(
            ["node*", "node*.lab.example", "login", "gpu-*.lab.example", "12", "10.1.2.*", "10.0.0.*", "fd00::*"]
        )
        more = [*self.MEMBERS, {"name": "node17", "address": "10.0.0.17", "aliases": ["node17.lab.example"]}]
        assert certificates.patterns(more, []) == certificates.patterns(self.MEMBERS, [])

    def test_one_line_in_each_file(self) -> None:
        known = certificates.known("ssh-ed25519 AAAA", ["node*", "10.0.0.*"], [22, 2222])
        assert known == "@cert-authority node*,10.0.0.*,[node*]:*,[10.0.0.*]:* ssh-ed25519 AAAA clusterctl-ca\n"
        authorized = certificates.authorized("ssh-ed25519 AAAA", ["no-pty"])
        principal = certificates.principal("ssh-ed25519 AAAA")
        assert authorized == (
            f'cert-authority,restrict,pty,no-pty,principals="{principal}" ssh-ed25519 AAAA clusterctl-ca\n'
        )
        block = [*known.splitlines(), *authorized.splitlines(), "node1 ssh-ed25519 BBBB"]
        assert certificates.of_authority(block) == known + authorized
        assert mesh_rules.remembered_lines(block, ["node1", "clusterctl-ca"]) == block[2:]

    def test_the_client_names_other_ports_and_no_other_node(self) -> None:
        settings = mesh_rules.client_settings(mesh_rules.Options())
        text = certificates.client_config(self.MEMBERS, "mpi", ["node*", "10.0.0.*"], settings)
        assert "Match localuser mpi originalhost node2,10.0.0.2\n    Port 2222\n" in text
        assert "Match localuser mpi originalhost node*,10.0.0.*\n    StrictHostKeyChecking yes\n" in text
        assert "    RevokedHostKeys /etc/ssh/clusterctl.krl\n" in text
        assert "login" not in text

    @pytest.mark.parametrize(("word", "good"), [("node*", True), ("10.0.0.?", True), ("a b", False), ("!x", False)])
    def test_patterns_of_the_user(self, word: str, good: bool) -> None:
        assert certificates.is_pattern(word) is good


@pytest.mark.parametrize("word", ["x\nevil *", 'x" evil', "x evil", "x,evil", "x\x1b[2Jevil", "x\x85evil"])
def test_no_line_of_an_authority_takes_a_name_that_would_leave_it(word: str) -> None:
    member = {"name": word, "address": "10.0.0.1", "port": 2222}
    for text in (
        lambda: certificates.known("ssh-ed25519 AAAA", [word], [22]),
        lambda: certificates.client_config([member], "mpi", ["node*"], []),
        lambda: certificates.client_config([], "mpi", [word], []),
        lambda: certificates.client_config([], word, ["node*"], []),
        lambda: certificates.sshd_config(word),
    ):
        with pytest.raises(config_line.LineError, match=r"x.*evil"):
            text()


@pytest.mark.parametrize("key", ["ssh-ed25519 A\nevil", "ssh-ed25519 A\rB", "ssh-ed25519 A\0B", 'ssh-ed25519 A"'])
def test_no_line_of_an_authority_takes_a_key_that_would_leave_it(key: str) -> None:
    for text in (lambda: certificates.known(key, ["node*"], [22]), lambda: certificates.authorized(key, [])):
        with pytest.raises(config_line.LineError, match="The key of the authority"):
            text()


def test_no_key_writes_another_line_for_ssh_keygen(signer: authorities.Authority, tmp_path: Path) -> None:
    with pytest.raises(authorities.AuthorityError, match="a newline"):
        signed(signer, wanted(f"{key_of(tmp_path)}\nssh-ed25519 AAAA"))


def test_sshd_config_gets_the_block_first_because_its_end_may_belong_to_a_match() -> None:
    text = "Port 22\nMatch User x\n    X11Forwarding no\n"
    once = mesh_certificates_look.with_first_block(text, certificates.sshd_config(""))
    assert once.startswith("# BEGIN clusterctl ssh_mesh_ca\nHostCertificate ")
    assert once.endswith(text)
    assert mesh_certificates_look.with_first_block(once, certificates.sshd_config("")) == once
    assert mesh_certificates_look.with_first_block(once, "") == text


def test_doctor_sees_the_patterns_of_the_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ssh_known_hosts"
    monkeypatch.setattr(ssh, "_SYSTEM_FILE", str(path))
    path.write_text(
        "# BEGIN clusterctl ssh_mesh\n" + certificates.known("ssh-ed25519 AAAA", ["node*", "10.0.0.*"], [22])
    )
    found = ssh.known_hosts([], str(tmp_path))["known_hosts"]
    assert found == {"has_mesh": True, "has_authority": True, "own_names": ["node*", "10.0.0.*"]}


class TestPlan:
    """What the action asks the authority to sign."""

    @staticmethod
    def found(trust: dict[str, Any], own: str = "ssh-ed25519 SHARED", **options: Any) -> list[authorities.Request]:
        of_sshd = ["ssh-rsa R", "ssh-ed25519 E"]
        members = [
            {"name": f"node{number}", "aliases": [f"N{number}"], "address": f"10.0.0.{number}", "host_keys": of_sshd}
            for number in (1, 2)
        ]
        present = {name: {"revoked_keys": "", "host_keys": [], **trust} for name in ("node1", "node2")}
        looks = {name: {"public_key": own} for name in present}
        keys = {"user": "ssh-ed25519 U", "host": "ssh-ed25519 H"}
        given = mesh_rules.Options(**options)
        return ssh_mesh_sign.certificates(present, looks, members, "mpi", keys, given)

    HOST_KEYS = ({"path": "/r", "key": "ssh-rsa R"}, {"path": "/e", "key": "ssh-ed25519 E"})

    def test_nodes_with_one_home_have_one_certificate(self) -> None:
        user, *hosts = self.found({"host_keys": self.HOST_KEYS})
        assert user.nodes == ("node1", "node2")
        assert user.wanted.source_addresses == ("10.0.0.1", "10.0.0.2")
        assert [(one.nodes, one.wanted.key, one.wanted.principals) for one in hosts] == [
            (("node1",), "ssh-ed25519 E", ("node1", "n1", "10.0.0.1")),
            (("node2",), "ssh-ed25519 E", ("node2", "n2", "10.0.0.2")),
        ]

    def test_options_reach_the_certificate(self) -> None:
        user = self.found({"host_keys": self.HOST_KEYS}, from_members_only=False, key_options=["no-pty"])[0]
        assert (user.wanted.source_addresses, user.wanted.permits) == ((), ())

    def test_what_is_still_valid_waits_for_the_passphrase(
        self, signer: authorities.Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        what = wanted(key_of(tmp_path))
        request = authorities.Request(("node1",), what)
        present = {"node1": {"user": signed(signer, what), "host": ""}}
        keys = {kind: signer.public(kind) for kind in authorities.KINDS}
        monkeypatch.setattr(ssh_mesh_sign.time, "time", lambda: NOW + 25 * DAY)
        words = ssh_mesh_sign.postponed([request], present, keys)
        assert words.startswith("The certificates of node1 are to be renewed, and the ")
        monkeypatch.setattr(ssh_mesh_sign.time, "time", lambda: NOW + 31 * DAY)
        with pytest.raises(mesh_rules.MeshError, match="certificates of node1 have to be signed"):
            ssh_mesh_sign.postponed([request], present, keys)

    def test_a_key_that_could_not_be_revoked_everywhere_is_not_signed(self) -> None:
        with pytest.raises(mesh_rules.MeshError, match=r"key of node1 and node2 .* is of type sk-ssh-ed25519@"):
            self.found({"host_keys": self.HOST_KEYS}, own="sk-ssh-ed25519@openssh.com AAAA")

    def test_revoked_keys_of_the_administrator_stand_in_the_way(self) -> None:
        with pytest.raises(mesh_rules.MeshError, match="sshd on node1 has RevokedKeys /etc/mine"):
            self.found({"host_keys": self.HOST_KEYS, "revoked_keys": "/etc/mine"})

    def test_the_check_names_what_is_missing(self, signer: authorities.Authority, tmp_path: Path) -> None:
        absent = authorities.Authority(str(tmp_path / "absent"))
        with pytest.raises(authorities.AuthorityError, match="passphrase of the new certificate authority is missing"):
            authorities.refuse_unready(absent, ["node1"], "", NOW)
        authorities.refuse_unready(absent, ["node1"], PASSPHRASE, NOW)
        assert not absent.exists
        with pytest.raises(authorities.AuthorityError, match="certificates of node1 have to be signed"):
            authorities.refuse_unready(signer, ["node1"], "", NOW)
        signed(signer, wanted(key_of(tmp_path)))
        (tmp_path / "host").mkdir()
        signed(signer, wanted(key_of(tmp_path / "host"), kind="host", permits=(), source_addresses=()))
        authorities.refuse_unready(signer, ["node1"], "", NOW)
        with pytest.raises(authorities.AuthorityError, match="certificates of node1 have to be signed"):
            authorities.refuse_unready(signer, ["node1"], "", NOW, anew=True)


def test_a_host_key_that_the_controller_has_not_verified_is_not_signed() -> None:
    with pytest.raises(mesh_rules.MeshError, match="node1 has no host key that the controller has verified"):
        TestPlan.found({"host_keys": [{"path": "/e", "key": "ssh-ed25519 FORGED"}]})
