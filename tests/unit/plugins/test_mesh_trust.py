"""The files of a node's certificates: what is laid out, where sshd's settings go, and what is removed."""

from __future__ import annotations

import base64
import os
import pwd
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import mesh_trust_look
from ansible_collections.clusterctl.hpc.plugins.modules import mesh_trust

if TYPE_CHECKING:
    from pathlib import Path

GIVEN = {
    "state": "present",
    "user_path": "/home/mpi/.ssh/id_clusterctl-cert.pub",
    "user_certificate": "USER\n",
    "host_certificate": "HOST\n",
    "revoked": base64.b64encode(b"\0KRL").decode(),
}
ENTRY = pwd.getpwuid(os.getuid())


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sshd's settings in place of /etc/ssh."""
    (tmp_path / "sshd_config.d").mkdir()
    monkeypatch.setattr(mesh_trust_look, "SSHD_CONFIG", str(tmp_path / "sshd_config"))
    monkeypatch.setattr(mesh_trust_look, "SSHD_FOLDER", str(tmp_path / "sshd_config.d"))
    monkeypatch.setattr(mesh_trust_look, "SSHD_DROP_IN", str(tmp_path / "sshd_config.d" / "05-clusterctl-ca.conf"))
    return tmp_path


def wanted(**changes: Any) -> dict[str, Any]:
    found = mesh_trust.wanted_files({**GIVEN, **changes}, ENTRY)
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
    assert found["clusterctl.krl"].content == b"\0KRL"
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
    assert [os.path.basename(one.path) for one in mesh_trust.files_of_settings()] == [  # noqa: PTH119 - the name alone
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
    with pytest.raises(mesh_trust.file_transaction.StageError, match=r"cert\.pub: the certificate is .*CERT"):
        wanted(**{field: text})


@pytest.mark.parametrize("more", ["ssh-ed25519 AAAA evil\n", "\0", "\x1b[2J\n", "\n"])
def test_a_certificate_to_which_its_user_added_something_is_signed_anew(tmp_path: Path, more: str) -> None:
    path = tmp_path / "cert.pub"
    path.write_text("CERT\n")
    assert mesh_trust_look.certificate_in(str(path)) == "CERT\n"
    path.write_text(f"CERT\n{more}")
    assert mesh_trust_look.certificate_in(str(path)) == ""
