# SPDX-License-Identifier: Apache-2.0
"""A line of a file of trust or settings ends at a newline alone, as for sshd, ssh, glibc, PAM and the shell."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    brought,
    login_probe,
    mesh_certificates_look,
    sshd,
    text_edit,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import (
    artifacts,
    machine,
    parameters,
    path_state,
    reading,
    record,
    ssh,
    users,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.hardware import storage
from ansible_collections.clusterctl.hpc.plugins.modules import hosts_file, leftovers
from ansible_collections.clusterctl.hpc.plugins.plugin_utils import source
from clusterctl.model import host_keys
from clusterctl.model.host_keys import HostKey
from clusterctl.nightly import schedule
from clusterctl.remote import host_key as controllers
from clusterctl.remote.host_key import KnownPlace
from clusterctl.remote.shared_cache import signing
from clusterctl.sandbox import apt
from clusterctl.support.errors import ConfigError

# All at which str.splitlines() ends a line besides a newline; a file that is opened as text ends one at \r as well.
SEPARATORS = ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJhZA"
_BEGIN, _END = (of(mesh_certificates_look.MARKER) for of in (text_edit.begin_of, text_edit.end_of))
# Each reads a text in which one line is a comment, and what follows the separator in it means nothing.
READERS: dict[str, tuple[Callable[[str], object], str]] = {
    "environment": (reading.read_environment_file, "PATH=/evil"),
    "os-release": (lambda text: machine.read_os_release(text)["version_id"], "VERSION_ID=9"),
    "open mpi": (lambda text: parameters.read_settings(text)[1], "btl = tcp"),
    "prefix": (artifacts.prefix_candidates, "# clusterctl: added PATH /evil/openmpi/bin"),
    "pam": (parameters.pam_settings, "PATH DEFAULT=/evil"),
    "shell": (lambda text: parameters.exports(text, bool)[0], "export PATH=/evil"),
    "sudo": (
        lambda text: users.is_root_without_password(f"x may run the following commands on n:\n{text}"),
        "    (ALL) NOPASSWD: ALL",
    ),
    "hosts": (text_edit.host_names, "10.0.0.66 node1"),
    "own names": (
        lambda text: hosts_file.with_own_names(text, "10.0.0.66", ["own"]).endswith("\n10.0.0.66 own\n"),
        "10.0.0.66 node1",
    ),
    "block of sshd_config": (
        lambda text: mesh_certificates_look.with_first_block(text, "x\n").startswith(_BEGIN),
        f"{_BEGIN}\n{_END}",
    ),
    "mounts": (
        lambda text: record.has_server(f"1 2 0:1 / /run rw - tmpfs {text}"),
        "1 2 0:1 / /mnt rw - nfs server:/ rw",
    ),
    "file systems": (storage.mounts, "server:/ /mnt nfs rw 0 0"),
    "control groups": (lambda text: machine.control_group_folders("/none", text, "cpu"), "0::/evil"),
    "console": (
        lambda text: host_keys.on_console(
            f"-----BEGIN SSH HOST KEY KEYS-----\n{KEY[:-3]}Z29 {text}\n-----END SSH HOST KEY KEYS-----\n"
        ),
        KEY,
    ),
    "apt list": (source.parse_one_line, "deb http://evil x main"),
    "apt stanza": (source.parse_deb822, "URIs: http://evil"),
    "apt list of the sandbox": (apt.parse_one_line, "deb http://evil x main"),
    "apt stanza of the sandbox": (apt.parse_deb822, "Types: deb\nURIs: http://evil\nSuites: x\nComponents: main"),
}


@pytest.mark.parametrize("separator", SEPARATORS, ids=ascii)
@pytest.mark.parametrize("name", READERS)
def test_what_follows_another_separator_is_part_of_the_comment(name: str, separator: str) -> None:
    reader, hidden = READERS[name]

    assert reader(f"# a comment{separator}{hidden}\n") == reader("# a comment\n")


@pytest.mark.parametrize("name", READERS)
def test_the_same_words_count_on_a_line_of_their_own(name: str) -> None:
    reader, hidden = READERS[name]

    assert reader(f"# a comment\n{hidden}\n") != reader("# a comment\n")
    assert reader(f"# a comment\r\n{hidden}\r\n") != reader("# a comment\r\n")


@pytest.mark.parametrize("separator", SEPARATORS, ids=ascii)
def test_files_of_a_node_are_read_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str) -> None:
    def written(name: str, hidden: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"# a comment{separator}{hidden}\n".encode())
        return path

    monkeypatch.setattr(ssh, "_SYSTEM_FILE", str(written("ssh_known_hosts", f"node9 {KEY}")))
    written(".ssh/known_hosts", f"node8 {KEY}")
    sshd = written("etc/ssh/sshd_config", "HostKey /evil")
    written("etc/security/limits.conf", "* hard memlock 1")
    block = written("block", "# BEGIN clusterctl hosts")

    assert ssh.known_hosts([KEY], str(tmp_path))["known_hosts"]["own_names"] == []
    assert ssh.read_sshd_config(str(sshd)) == {}
    assert users.limit_settings(str(sshd.parents[1] / "security")) == {}
    assert path_state._block(str(block), "hosts") == b""  # noqa: SLF001 - shown as a hash alone
    assert len(login_probe._lines(str(sshd))) == 2  # noqa: SLF001 - a message names a line by its number
    assert "/tmp/x" not in brought.mount_points(str(written("mountinfo", "1 2 0:1 / /tmp/x rw")))  # noqa: S108 - a text

    sshd.write_text("PermitUserEnvironment yes\n", encoding="ascii")
    written(".ssh/environment", "PATH=/evil")
    assert parameters.login_files(str(tmp_path), None, "PATH".__eq__, str(tmp_path)) == {}


@pytest.mark.parametrize("separator", SEPARATORS, ids=ascii)
def test_the_name_of_a_process_adds_no_row_to_its_status(separator: str) -> None:
    """The kernel escapes a newline in it, and nothing else."""
    name = f"x{separator}Uid:\t0"
    program = f"import ctypes, sys; ctypes.CDLL(None).prctl(15, {name.encode()!r}); print(flush=True); sys.stdin.read()"
    run = {**os.environ, "CLUSTERCTL_RUN": json.dumps({"run": "r1"})}
    with subprocess.Popen(
        ["python3", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=run
    ) as process:
        process.stdout.readline()

        assert process.pid in {worker.pid for worker in leftovers.workers()}


@pytest.mark.parametrize("separator", SEPARATORS, ids=ascii)
def test_settings_that_sshd_tells_are_read_so(monkeypatch: pytest.MonkeyPatch, separator: str) -> None:
    class Done:
        ok = True
        output = f"banner /x{separator}hostkey /evil\nhostkey /good\nport 22\n"

    monkeypatch.setattr(sshd.os, "access", lambda *_unused: True)
    monkeypatch.setattr(sshd.command, "run", lambda *_unused: Done)

    assert set(sshd.settings_of("root")) <= {"banner", "hostkey", "port", ""}
    assert sshd.host_key_files() == ["/good"]


@pytest.mark.parametrize("separator", SEPARATORS, ids=ascii)
def test_files_of_the_controller_are_read_so(tmp_path: Path, separator: str) -> None:
    signers = tmp_path / "signers"
    signers.write_bytes(f"# a comment{separator}site {KEY}\n".encode())
    with pytest.raises(ConfigError, match="names nobody"):
        signing.signers_file(str(signers))
    assert signing.SignatureVerifier(signers)._lines.encode() == signers.read_bytes()  # noqa: SLF001 - what ssh-keygen gets

    crontab = "# mine\n" + schedule.with_block("", "job", "0 3 * * * x").replace("\n", separator) + "\n"
    assert schedule.without_block(crontab, "job") == crontab

    known = tmp_path / "known_hosts"
    known.write_bytes(f"# a comment{separator}node1 {KEY}\n".encode())
    controllers.keep(KnownPlace(known, ("node2",)), [HostKey(*KEY.split())])
    assert known.read_bytes() == f"# a comment{separator}node1 {KEY}\nnode2 {KEY}\n".encode()
