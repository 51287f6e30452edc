# SPDX-License-Identifier: Apache-2.0
"""What the ssh server's settings come to: sshd -T, which needs root (sshd(8))."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .record import Answer, Json
    from .tree import Tree

_SSHD_S = 2.0
_STARTUPS = re.compile(r"^maxstartups (\d+:\d+:\d+)$", re.MULTILINE)


def read(tree: Tree, answer: Answer, _request: Json) -> None:
    """Tell how many logins the server lets begin at once; without root, its files tell it (``node_probe``)."""
    sshd = tree.tool("sshd") if tree.recorded or os.geteuid() == 0 else ""
    found = _STARTUPS.search(tree.run([sshd, "-T"], _SSHD_S).text) if sshd else None
    if found:
        answer.reading("sshd", "", "MaxStartups", found.group(1))
