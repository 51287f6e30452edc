"""Turn the end of an ssh command into a kind of failure and one sentence: cause and cure."""

from __future__ import annotations

import getopt
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from clusterctl.model import job_login
from clusterctl.model.probe import ProbeFailure
from clusterctl.support import content

if TYPE_CHECKING:
    from collections.abc import Sequence

    from module_utils import error_meanings  # mypy finds it by mypy_path
    from module_utils import plain_text as _plain

    from clusterctl.model.hosts import Host
    from clusterctl.model.probe import FailureKind
else:
    error_meanings = content.module_util("error_meanings")
    _plain = content.module_util("plain_text")

_SSH_FAILED = 255
_COMMAND_NOT_FOUND = 127
_MOST_EVIDENCE = 300
_SSH_OPTIONS = "46AaCfGgKkMNnqsTtVvXxYyB:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:"  # of OpenSSH's client

_TERMINAL = "must have a tty"  # of sudo, where its configuration has requiretty
_NOBODY_WORDS = ("timed out", "No route to host", "Host is down", "not responding")
# Of 'ssh -v' (sshconnect.c, kex.c): what the node's sshd is, and the two ends of the exchange of keys.
_FIRST_LINE, _KEYS_SENT, _KEYS_CAME = "Remote protocol version", "SSH2_MSG_KEXINIT sent", "SSH2_MSG_NEWKEYS received"
# How ssh calls the other end of a way through a bastion (ProxyJump, ProxyCommand), when that way ends.
_BASTION = "UNKNOWN port 65535"
_BASTION_ECHOES = (_BASTION, "kex_exchange_identification", "stdio forwarding failed")


def classify(host: Host, returncode: int, stderr: str, output: bytes = b"") -> ProbeFailure:
    """Return why a command on a host failed.

    A return code of 255 is a failure of ssh itself, any other that of the remote command. ``output`` is what came in
    place of an answer.
    """
    failure = _classified(host, returncode, stderr, output)
    if not host.unheeded:
        return failure
    return replace(failure, message=f"{failure.message} {'. '.join(host.unheeded)}.")


def _classified(host: Host, returncode: int, stderr: str, output: bytes) -> ProbeFailure:
    place = where(host)
    if returncode == _SSH_FAILED:
        return _classify_ssh(host, place, stderr)
    found = error_meanings.find("session", stderr or output.decode("utf-8", "replace"))  # nologin speaks on stdout
    if found is not None:
        cause, cure = found.meaning(login=_login(host), python=host.python)
        return ProbeFailure(host.name, cast("FailureKind", found.row.kind), f"{place} {cause}; {cure}.")
    sudo = next((line.strip() for line in stderr.splitlines() if line.startswith("sudo: ")), "")
    if sudo and host.python not in sudo:
        return ProbeFailure(host.name, "no_sudo", f"{place}: {_login(host)} {_sudo_words(host, sudo)}")
    if host.become and returncode == _COMMAND_NOT_FOUND and "sudo" in stderr:
        return ProbeFailure(host.name, "no_sudo", f"{place} has no sudo; install it, or log in as root.")
    missing = any(f"{host.python}: {words}" in stderr for words in ("No such file", "Command not found"))  # of tcsh too
    if sudo or returncode == _COMMAND_NOT_FOUND or missing:
        return ProbeFailure(
            host.name,
            "no_python",
            f"{place} has no {host.python}; install python3 there, or set ansible_python_interpreter.",
        )
    ended = ProbeFailure(host.name, "error", f"{place}: the probe ended with status {returncode}. {shortened(stderr)}")
    return ended if stderr.strip() else ended_early(host, returncode, stderr, output)


def ended_early(host: Host, returncode: int, stderr: str, output: bytes) -> ProbeFailure:
    """Return the failure of a login that ends before a program of ours answers: the node let us in."""
    printed = _plain.one_line(shortened(output.decode("utf-8", "replace"), "nothing"), _MOST_EVIDENCE)
    shown = f"'{printed}'" if output.strip() else printed
    said = f" and said '{_plain.one_line(shortened(stderr), _MOST_EVIDENCE)}'" if stderr.strip() else ""
    return ProbeFailure(
        host.name,
        "error",
        f"{where(host)} gave no readable record: the login of {_login(host)} ended with status {returncode}, and "
        f"printed {shown} in its place{said}; look for 'exit', 'exec' and questions in the start-up files of that "
        "user's shell (~/.bashrc, /etc/bash.bashrc, /etc/profile.d), and for a ForceCommand in sshd_config.",
    )


# What a session has where it finds no Python. Builtins of sh alone: the session may find no other program either.
_SHOWN = (
    'printf "PATH=%s\\n" "$PATH"; for at in /usr/bin /bin /usr/local/bin; do '
    'if test -x "$at/$1"; then printf "has=%s\\n" "$at"; fi; done; '
    'n=0; while IFS= read -r line; do n=$((n+1)); case $line in PATH=*|"export PATH="*) '
    'printf "line=%s %s\\n" $n "$line";; esac; done </etc/environment'
)
SHOW_PATH = ("/bin/sh", "-c", _SHOWN, "sh")


def path_words(shown: bytes) -> str:
    """Return why a session does not find the programs that the node has, by the output of SHOW_PATH; else ''."""
    lines = [_plain.one_line(line, _MOST_EVIDENCE) for line in shown.decode("utf-8", "replace").split("\n")]
    found = [line.partition("=")[::2] for line in lines]
    path = next((value for name, value in found if name == "PATH"), "")
    folders = [value for name, value in found if name == "has"]
    sets = [value.partition(" ")[::2] for name, value in found if name == "line"]
    if not path or not folders or folders[0] in path.split(":"):
        return ""
    cause = f"PATH of its sessions is '{path}', and lacks {folders[0]}, where Python and other programs are"
    if not sets:
        return f"{cause}; find what sets PATH in a start-up file of the shell or in /etc/security/pam_env.conf"
    number, line = sets[-1]
    expands = ", where nothing is expanded" if "$" in line else ""
    return f"{cause}; write all folders out in line {number} of /etc/environment ({line}){expands}"


def _sudo_words(host: Host, sudo: str) -> str:
    if _TERMINAL in sudo:  # no password helps
        return (
            f"cannot use sudo without a terminal ({sudo}); put 'Defaults:{host.user or 'LOGIN_USER'} !requiretty' into "
            "a file of /etc/sudoers.d with visudo."
        )
    if host.sudo_password is not None and "password" in sudo:
        return (
            f"cannot use sudo with the password that was given ({sudo}); correct ansible_become_password, or repeat -K."
        )
    return (
        f"cannot use sudo without a password ({sudo}); give the password with -K (--ask-become-pass), keep it as "
        "ansible_become_password in an Ansible vault, or allow sudo without one in /etc/sudoers.d."
    )


def _classify_ssh(host: Host, place: str, stderr: str) -> ProbeFailure:
    """Return why ssh ended; a bastion's own words stand before those of the end of the way through it."""
    if _BASTION in stderr:
        named = bastion(host.ssh_args)
        program, way = "bastion", f"the bastion {named}" if named else "its bastion"
        said = shortened(_without_echoes(stderr) or stderr)
        unknown = f"{place} did not answer through {way}; see that both are up ({said})."
    else:
        program, way, said = "ssh", "", shortened(stderr)
        unknown = f"{place}: ssh failed ({said}); try {by_hand(host)}."
    found = error_meanings.find(program, stderr)
    if found is None:
        return ProbeFailure(host.name, "unreachable" if way else "error", unknown)
    cause, cure = found.meaning(bastion=way, login=_login(host), let_in=_refused_cure(host))
    told = f"{place} {cause}; {cure}"
    evident = program == "ssh" and found.row.kind == "host_key"  # its words are a banner
    return ProbeFailure(host.name, cast("FailureKind", found.row.kind), f"{told}." if evident else f"{told} ({said}).")


def is_silent(returncode: int, stderr: str) -> bool:
    """Tell whether ssh says that nobody answers at a node; a refusal is an answer, and a bastion's silence its own."""
    of_node = _BASTION not in stderr or "open failed" in stderr
    return returncode == _SSH_FAILED and of_node and any(word in stderr for word in _NOBODY_WORDS)


def lacks_keys(log: str) -> bool:
    """Tell whether a log of ``ssh -v`` has the first line of the node's sshd, and not the end of exchanging keys."""
    return _FIRST_LINE in log and _KEYS_SENT in log and _KEYS_CAME not in log


def hides_the_bastion(stderr: str) -> bool:
    """Tell whether a way through a bastion ended without a word of it: ssh drops its words in a shared connection."""
    return _BASTION in stderr and not _without_echoes(stderr)


def _without_echoes(stderr: str) -> str:
    lines = stderr.splitlines()
    return "\n".join(line for line in lines if line.strip() and not any(echo in line for echo in _BASTION_ECHOES))


def _refused_cure(host: Host) -> str:
    if host.user and host.user == host.variables.get(job_login.CLUSTER_USER):
        return (
            "run 'clusterctl provision', which lets in the keys of the login user's authorized_keys; where the login "
            f"uses no such key, list your public key in {job_login.KEYS}"
        )
    return (
        "add your public key to its authorized_keys, or name the right user and key in the inventory; where the key is "
        "there, see that the user may read authorized_keys, and that nobody else may write to the home and to .ssh "
        "('ls -ld ~ ~/.ssh ~/.ssh/*')"
    )


def where(host: Host) -> str:
    """Return host, address and port, for messages."""
    return f"{host.name} ({host.address} port {host.port})"


def _login(host: Host) -> str:
    return f"user {host.user}" if host.user else "the login user"


def by_hand(host: Host) -> str:
    """Return the command that tries the login by hand."""
    user = f"-l {host.user} " if host.user else ""
    port = f"-p {host.port} " if host.gives_port else ""
    return f"'ssh {port}{user}{host.address} true'"


def shortened(text: str, nothing: str = "nothing on stderr") -> str:
    """Return the last lines of a text on one line; ``nothing`` where it has none."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Warning: Permanently")]
    return " / ".join(lines[-3:])[-_MOST_EVIDENCE:] or nothing


def bastion(options: Sequence[str]) -> str:
    """Return the bastion as the options name it; empty where they name none, since ~/.ssh/config may do so.

    The options are ssh's, such as ``-J gate`` or ``-o ProxyCommand=...``. As for ssh, the first of a kind holds.
    """
    for name, value in _options_of(options)[0]:
        if name == "-J":
            return value
        if name != "-o":
            continue
        keyword, _, setting = value.strip().replace("=", " ", 1).partition(" ")
        if keyword.lower() == "proxyjump":
            return setting.strip()
        if keyword.lower() == "proxycommand":
            return _proxy_of(setting)
    return ""


def _proxy_of(command: str) -> str:
    """Return to which machine a ProxyCommand logs in, where it is an ssh; else the empty text."""
    try:
        program, *rest = shlex.split(command)
    except ValueError:
        return ""
    left = _options_of(rest)[1]
    return left[0] if program.rpartition("/")[2] == "ssh" and left else ""


def _options_of(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return options with their values, and the words after them; nothing of a line that ssh would refuse."""
    try:
        return getopt.getopt(list(words), _SSH_OPTIONS)
    except getopt.GetoptError:
        return [], []
