"""What a person does at the prompt of a node: log in over a terminal, and type."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass

import pexpect
from clusterctl.sandbox.model import ssh_options
from validated import Cluster

_CONTROLS = re.compile(r"\x1b(?:\[[0-9;?=>]*[A-Za-z]|[()=>][A-Z0-9]?|\].*?(?:\x07|\x1b\\))|\r")


@dataclass
class Prompt:
    """Logins of people on the nodes of a cluster."""

    cluster: Cluster
    user: str

    def ssh(self, *options: str, user: str = "", node: str = "node1") -> list[str]:
        box = self.cluster.box
        return [
            "ssh",
            *options,
            "-i",
            str(box.private_key),
            *ssh_options(box),
            "-l",
            user or self.user,
            "--",
            box.node(node).address,
        ]

    def said(self, script: str, user: str = "", node: str = "node1") -> list[str]:
        """Return what a command over ssh prints."""
        done = subprocess.run(
            [*self.ssh("-n", user=user, node=node), script], capture_output=True, text=True, timeout=120, check=False
        )
        return done.stdout.splitlines()

    def typed(self, *lines: str, first: str = "", user: str = "") -> list[list[str]]:
        """Type lines at the prompt of a login over a terminal, and return what each one prints.

        Args:
            lines: the lines.
            first: a line that changes to another session.
            user: the account.
        """
        argv = self.ssh("-tt", user=user)
        found = []
        with pexpect.spawn(argv[0], argv[1:], encoding="utf-8", timeout=90, dimensions=(50, 500)) as terminal:
            for number, line in enumerate(["true", first, *lines] if first else ["true", *lines]):
                if line == first:
                    terminal.sendline(line)
                    time.sleep(2)
                    line = "true"  # noqa: PLW2901 - what is typed in the new session
                terminal.sendline(f"{line}; echo END''OF{number}")
                terminal.expect(rf"ENDOF{number}\b")
                shown = _CONTROLS.sub("", terminal.before).split("\n")
                found.append([one.strip() for one in shown if one.strip() and "END''OF" not in one])
            terminal.sendline("exit")
            terminal.expect(pexpect.EOF)  # a session that goes on is a job to the next provision
        return found[-len(lines) :]
