"""A shell script of the commands that cure findings, host by host. It is written for a reader, and never run here."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.model.findings import Diagnosis, Finding
    from clusterctl.model.hosts import Host

_HEAD = "#!/bin/sh\n# Cures of 'clusterctl doctor'. Read each command before you run it.\n"


def script(found: Diagnosis, hosts: Mapping[str, Host]) -> str:
    """Return the script; a finding that no command cures is a comment.

    Args:
        found: what doctor said.
        hosts: the hosts of the inventory by name.
    """
    lines = [_HEAD]
    for finding in found.findings:
        lines.append(_comment(f"{', '.join(finding.hosts)}: {finding.cause}"))
        if finding.fix:
            lines += [f"{shlex.join(words)}" for words in _commands(finding, hosts)]
        else:
            lines.append(_comment(f"by hand: {finding.cure}"))
    return "\n".join([*lines, ""])


def _commands(finding: Finding, hosts: Mapping[str, Host]) -> Sequence[Sequence[str]]:
    found: list[list[str]] = []
    for name in finding.hosts:
        host = hosts.get(name)
        if host is None:
            continue
        sudo = [] if host.user == "root" else ["sudo"]
        login = ["ssh", *host.login_words, host.address, "--"]
        found += [[*login, shlex.join([*sudo, *command])] for command in finding.fix]
    return found


def _comment(text: str) -> str:
    """Return a comment of one line, whatever a node put into the text."""
    return "# " + "".join(sign if sign.isprintable() else "?" for sign in text)
