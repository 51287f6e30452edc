"""Fingerprints, the console of a cloud's machine, and the lines of known_hosts, held against ssh-keygen itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from clusterctl.model import host_keys
from clusterctl.model.host_keys import HostKey

OLD = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIGmGtmFjGgEr0E5gG7n9PzAvjZ6C6DfG2vJZ6BBxGk1A")
OLD_RSA = HostKey("ssh-rsa", "AAAAB3NzaC1yc2EAAAADAQABAAAAgQC1")
NEW = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIBn2m5Hq0k2lE8p8QwVf3mR0n0qzQ0n7b2cYl8oK1rZq")
NAMES = ("10.0.0.3", "node3")

CONSOLE = f"""\
ec2: #############################################################
ec2: -----BEGIN SSH HOST KEY FINGERPRINTS-----
ec2: 256 {OLD.fingerprint} root@ip-10-0-0-3 (ED25519)
ec2: -----END SSH HOST KEY FINGERPRINTS-----
[   21.034] cloud-init[712]: reboot
ec2: -----BEGIN SSH HOST KEY FINGERPRINTS-----
ec2: 1024 MD5:1c:2d root@ip-10-0-0-3 (DSA)
ec2: 256 {NEW.fingerprint} root@ip-10-0-0-3 (ED25519)
ec2: -----END SSH HOST KEY FINGERPRINTS-----
-----BEGIN SSH HOST KEY KEYS-----
{NEW} root@ip-10-0-0-3
{OLD_RSA}
-----END SSH HOST KEY KEYS-----
"""


def test_a_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    public = (tmp_path / "key.pub").read_text(encoding="utf-8")
    told = subprocess.run(["ssh-keygen", "-lf", str(tmp_path / "key.pub")], capture_output=True, text=True, check=True)
    key = host_keys.found_in(public)
    assert key is not None
    assert key.fingerprint == told.stdout.split()[1]
    assert host_keys.fingerprint_of(public) == host_keys.fingerprint_of(key.fingerprint) == key.fingerprint


@pytest.mark.parametrize("word", ["", "SHA256:abc", "MD5:1c:2d", "ssh-ed25519", "ssh-ed25519 nonsense", "x ssh-rsa AA"])
def test_another_word_is_no_fingerprint(word: str) -> None:
    assert host_keys.fingerprint_of(word) is None


def test_the_console_tells_the_keys_of_the_last_start() -> None:
    found = host_keys.on_console(CONSOLE.replace("\n", "\r\n"))
    assert found == {NEW.fingerprint, OLD_RSA.fingerprint}


@pytest.mark.parametrize("text", ["", "login: ", CONSOLE[: CONSOLE.index("-----END")], "\0\x1b[2J" * 50])
def test_a_console_without_a_whole_block_tells_nothing(text: str) -> None:
    assert host_keys.on_console(text) == frozenset()


def test_only_the_lines_of_the_host_change() -> None:
    others = [
        "# a comment",
        f"node4,10.0.0.4 {OLD}",
        f"*.example.org {OLD}",
        f"@cert-authority node3 {OLD}",
        f"@revoked node3 {OLD}",
        f"[node3]:2222 {OLD}",
        "broken",
    ]
    text = "\n".join([*others[:3], f"node3,10.0.0.3,elsewhere {OLD} old", f"10.0.0.3 {OLD_RSA}", *others[3:]])
    assert host_keys.known_keys(text, NAMES) == (OLD, OLD_RSA)
    lines = host_keys.with_keys(text, NAMES, [NEW]).splitlines()
    assert [line for line in lines if line in others] == others
    assert [line for line in lines if line not in others] == [f"elsewhere {OLD} old", f"node3,10.0.0.3 {NEW}"]


def test_a_host_without_a_line_gets_one() -> None:
    assert host_keys.with_keys("", NAMES, [NEW]) == f"10.0.0.3 {NEW}\n"
    assert host_keys.with_keys(f"Node3 {OLD}", NAMES, [NEW]) == f"node3 {NEW}\n10.0.0.3 {NEW}\n"


def test_hashed_lines_stay_hashed_and_ssh_keygen_finds_the_new_key(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"10.0.0.3 {OLD}\n10.0.0.4 {OLD}\n[10.0.0.3]:2222 {OLD}\n", encoding="utf-8")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], check=True, capture_output=True)
    text = path.read_text(encoding="utf-8")
    assert host_keys.known_keys(text, ("10.0.0.3",)) == (OLD,)
    path.write_text(host_keys.with_keys(text, ("10.0.0.3",), [NEW]), encoding="utf-8")
    assert "10.0.0" not in path.read_text(encoding="utf-8")

    def found(name: str) -> str:
        command = ["ssh-keygen", "-F", name, "-f", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert str(NEW) in found("10.0.0.3")
    assert str(OLD) not in found("10.0.0.3")
    assert str(OLD) in found("10.0.0.4")
    assert str(OLD) in found("[10.0.0.3]:2222")


def test_a_port_of_its_own_is_part_of_the_name() -> None:
    assert host_keys.place("node3") == "node3"
    assert host_keys.place("node3", 2222) == "[node3]:2222"


@pytest.mark.parametrize("sign", ["\f", "\v", "\x1c", "\x85", "\u2028", "\r"])
def test_a_line_of_known_hosts_ends_at_a_newline_alone(sign: str) -> None:
    """Ssh reads what follows another sign as part of the comment."""
    text = f"# a comment{sign}node3 {OLD}\nother {OLD} note{sign}node3 {OLD_RSA}\n"
    assert host_keys.known_keys(text, ("node3",)) == ()
    assert host_keys.with_keys(text, ("node3",), [NEW]) == f"{text}node3 {NEW}\n"
