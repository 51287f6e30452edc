"""Turn the end of an ssh command into a kind of failure and one sentence: cause and cure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.model import job_login
from clusterctl.model.probe import FailureKind, ProbeFailure
from clusterctl.remote import jump

if TYPE_CHECKING:
    from clusterctl.model.hosts import Host

_SSH_FAILED = 255
_COMMAND_NOT_FOUND = 127
_OLD_PYTHON = "\nSyntaxError: "  # of Python before 3.8, such as 3.6 of openSUSE Leap 15
_MOST_EVIDENCE = 300

_HOST_KEY_WORDS = ("REMOTE HOST IDENTIFICATION HAS CHANGED", "Host key verification failed", "No matching host key")
_REFUSED_WORDS = ("Permission denied", "Too many authentication failures", "no mutual signature", "account is locked")
_UNREACHABLE_WORDS = (
    "Connection refused",
    "Connection timed out",
    "Operation timed out",
    "No route to host",
    "Network is unreachable",
    "Could not resolve hostname",
    "Connection closed",
    "Connection reset",
    "kex_exchange_identification",
    "banner exchange",
)
_NOBODY_WORDS = ("timed out", "No route to host", "Host is down", "not responding")
# How ssh calls the other end of a way through a bastion (ProxyJump, ProxyCommand), when that way ends.
_BASTION = "UNKNOWN port 65535"
_BASTION_ECHOES = (_BASTION, "kex_exchange_identification", "stdio forwarding failed")
_BASTION_FAILURES: tuple[tuple[FailureKind, tuple[str, ...], str], ...] = (
    (
        "unreachable",
        ("administratively prohibited",),
        "goes through {bastion}, which forwards no connection; set 'AllowTcpForwarding yes' in its sshd_config",
    ),
    (
        "unreachable",
        ("open failed",),
        "does not answer {bastion}; see that it is up and that ansible_host and ansible_port are right from there",
    ),
    (
        "host_key",
        _HOST_KEY_WORDS,
        "goes through {bastion}, whose host key is unknown or has changed; verify it, then put it in known_hosts",
    ),
    (
        "refused",
        _REFUSED_WORDS,
        "goes through {bastion}, which refuses the login; add your key there, or name user and key in ~/.ssh/config",
    ),
    (
        "unreachable",
        ("connect to host", "Could not resolve hostname"),
        "goes through {bastion}, which does not answer; see that it is up and that ProxyJump or ProxyCommand is right",
    ),
)


def classify(host: Host, returncode: int, stderr: str) -> ProbeFailure:
    """Return why a command on a host failed.

    Args:
        host: the host.
        returncode: of the local ssh process: 255 is a failure of ssh itself, any other that of the remote command.
        stderr: what ssh, sudo or the remote shell wrote.
    """
    place = where(host)
    if returncode == _SSH_FAILED:
        return _classify_ssh(host, place, stderr)
    sudo = next((line.strip() for line in stderr.splitlines() if line.startswith("sudo: ")), "")
    if sudo and host.python not in sudo:
        return ProbeFailure(host.name, "no_sudo", f"{place}: {_login(host)} {_sudo_words(host, sudo)}")
    if host.become and returncode == _COMMAND_NOT_FOUND and "sudo" in stderr:
        return ProbeFailure(host.name, "no_sudo", f"{place} has no sudo; install it, or log in as root.")
    if sudo or returncode == _COMMAND_NOT_FOUND or f"{host.python}: No such file" in stderr:
        return ProbeFailure(
            host.name,
            "no_python",
            f"{place} has no {host.python}; install python3 there, or set ansible_python_interpreter.",
        )
    if _OLD_PYTHON in stderr:
        return ProbeFailure(
            host.name,
            "no_python",
            f"{place}: {host.python} is older than Python 3.9; install a newer one of the distribution there, and set "
            "ansible_python_interpreter to it, such as /usr/bin/python3.11.",
        )
    return ProbeFailure(
        host.name, "error", f"{place}: the probe ended with status {returncode}. {shortened(stderr)}".strip()
    )


def _sudo_words(host: Host, sudo: str) -> str:
    if host.sudo_password is not None and "password" in sudo:
        return (
            f"cannot use sudo with the password that was given ({sudo}); correct ansible_become_password, or repeat -K."
        )
    return (
        f"cannot use sudo without a password ({sudo}); give the password with -K (--ask-become-pass), keep it as "
        "ansible_become_password in an Ansible vault, or allow sudo without one in /etc/sudoers.d."
    )


def _classify_ssh(host: Host, place: str, stderr: str) -> ProbeFailure:
    if _BASTION in stderr:
        return _classify_bastion(host, place, stderr)
    said = shortened(stderr)
    if any(word in stderr for word in _HOST_KEY_WORDS):
        return ProbeFailure(
            host.name,
            "host_key",
            f"{place} shows a host key that this machine does not know or that has changed; verify it with the node's "
            "owner, then put it in known_hosts.",
        )
    if any(word in stderr for word in _REFUSED_WORDS):
        return ProbeFailure(
            host.name,
            "refused",
            f"{place} refuses the login of {_login(host)}; {_refused_cure(host)} ({said}).",
        )
    if any(word in stderr for word in _UNREACHABLE_WORDS):
        return ProbeFailure(
            host.name,
            "unreachable",
            f"{place} does not answer; see that it is up and that ansible_host and ansible_port are right ({said}).",
        )
    return ProbeFailure(host.name, "error", f"{place}: ssh failed ({said}); try {by_hand(host)}.")


def is_silent(returncode: int, stderr: str) -> bool:
    """Tell whether ssh says that nobody answers at a node; a refusal is an answer, and a bastion's silence its own."""
    of_node = _BASTION not in stderr or "open failed" in stderr
    return returncode == _SSH_FAILED and of_node and any(word in stderr for word in _NOBODY_WORDS)


def hides_the_bastion(stderr: str) -> bool:
    """Tell whether a way through a bastion ended without a word of it: ssh drops its words in a shared connection."""
    return _BASTION in stderr and not _without_echoes(stderr)


def _without_echoes(stderr: str) -> str:
    lines = stderr.splitlines()
    return "\n".join(line for line in lines if line.strip() and not any(echo in line for echo in _BASTION_ECHOES))


def _classify_bastion(host: Host, place: str, stderr: str) -> ProbeFailure:
    """Return why the way through a bastion ended; the bastion's own words stand before those of ssh's end."""
    said = shortened(_without_echoes(stderr) or stderr)
    name = jump.bastion(host.ssh_args)
    way = f"the bastion {name}" if name else "its bastion"
    for kind, said_words, sentence in _BASTION_FAILURES:
        if any(word in stderr for word in said_words):
            return ProbeFailure(host.name, kind, f"{place} {sentence.format(bastion=way)} ({said}).")
    return ProbeFailure(
        host.name, "unreachable", f"{place} did not answer through {way}; see that both are up ({said})."
    )


def _refused_cure(host: Host) -> str:
    if host.user and host.user == host.variables.get(job_login.CLUSTER_USER):
        return (
            "run 'clusterctl provision', which lets in the keys of the login user's authorized_keys; where the login "
            f"uses no such key, list your public key in {job_login.KEYS}"
        )
    return "add your public key to its authorized_keys, or name the right user and key in the inventory"


def where(host: Host) -> str:
    """Return host, address and port, for messages."""
    return f"{host.name} ({host.address} port {host.port})"


def _login(host: Host) -> str:
    return f"user {host.user}" if host.user else "the login user"


def by_hand(host: Host) -> str:
    """Return the command that tries the login by hand."""
    user = f"-l {host.user} " if host.user else ""
    return f"'ssh -p {host.port} {user}{host.address} true'"


def shortened(text: str) -> str:
    """Return the last lines of a stderr text on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Warning: Permanently")]
    return " / ".join(lines[-3:])[-_MOST_EVIDENCE:] or "nothing on stderr"
