# SPDX-License-Identifier: Apache-2.0
"""Name why a node could not be looked at, from the words of ssh, sudo or the shell."""

from __future__ import annotations

import re

from .model import Problem
from .words import cut

_FAILURES: tuple[tuple[str, str, str, str], ...] = (
    # How ssh calls the other end of a way through a bastion (ProxyJump, ProxyCommand), when that way ends.
    (
        r"UNKNOWN port 65535",
        "unreachable",
        "it is not reached through its bastion",
        "log in by hand with the same ssh options to see its words, which a shared connection hides",
    ),
    (
        r"Host key verification failed|Host key for \S+ has changed",
        "unknown_host_key",
        "its ssh host key is not the one that this machine knows",
        "compare 'ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub' on its console, then put the key into known_hosts",
    ),
    (
        r"Permission denied \(|Too many authentication failures|Invalid/incorrect password",
        "refused",
        "it refuses the login",
        "check ansible_user and ansible_ssh_private_key_file, and that the public key is in the user's authorized_keys",
    ),
    (
        r"Could not resolve hostname",
        "unreachable",
        "its name cannot be resolved on this machine",
        "set ansible_host to its address, or correct the name",
    ),
    (
        r"(?:Missing|Incorrect) \S+ password|password is required|not in the sudoers file|may not run sudo|Sorry, user",
        "sudo",
        "the login user may not become root without a password",
        "allow it passwordless sudo, or give the password with -K",
    ),
    (
        r"sudo: unknown user|sudo: .*no such user",
        "sudo",
        "the user to become does not exist",
        "correct ansible_become_user, or remove it to become root",
    ),
    (
        r"sudo: (?:command )?not found|No such file or directory: b?'?sudo|sudo: No such file",
        "sudo",
        "sudo is not installed",
        "install sudo, or log in as root with ansible_user=root and ansible_become=false",
    ),
    (
        r"python[0-9.]*: (?:command )?not found|python[0-9.]*: No such file|module interpreter .* was not found",
        "python",
        "Python was not found at the interpreter that Ansible uses",
        "install python3, or set ansible_python_interpreter to where it is",
    ),
    (
        r"refused|No route to host|unreachable|timed? ?out|Connection (?:closed|reset)|Failed to connect",
        "unreachable",
        "it does not answer",
        "check that it is up and that ansible_host and ansible_port are right",
    ),
    (
        r"No space left on device",
        "disk",
        "its disk is full",
        "free some space on / and /tmp",
    ),
    (
        r"Read-only file system",
        "disk",
        "its file system is read-only",
        "make it writable; 'dmesg' on the host tells of disk errors",
    ),
    (
        r"No usable temporary directory|Failed to create temporary directory",
        "disk",
        "a temporary folder cannot be made, because its disk is full or read-only",
        "make room on / and /tmp, or make them writable; 'df' and 'dmesg' on the host tell which",
    ),
    (
        r"Data could not be sent to remote host|Broken pipe",
        "unreachable",
        "its connection ended",
        "check that it is up, and that the network between it and this machine works",
    ),
)


def look_failure(host: str, text: str) -> Problem:
    """Return the problem behind a failed look at a node.

    Args:
        host: the node.
        text: message, stderr and stdout of the failure.
    """
    for pattern, check, problem, cure in _FAILURES:
        found = re.search(pattern, text, re.IGNORECASE)
        if found:
            line = _telling_line(text, found.start())
            return Problem(host, check, f"{problem} ({line})" if line else problem, cure)
    return Problem(host, "error", f"it could not be looked at: {cut(' '.join(text.split()), 300)}", "see the log")


def _telling_line(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : len(text) if end < 0 else end].strip().rstrip(".")
    # Ansible's own words around those of ssh repeat the sentence.
    return cut(re.sub(r"^.*(?:reached over ssh|to the host via ssh): *", "", line), 160)
