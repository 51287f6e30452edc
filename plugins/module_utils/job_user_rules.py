# SPDX-License-Identifier: Apache-2.0
"""Rules about the user that jobs run as: valid names, valid public keys, and the sentence about a way to root.

Reads and writes nothing. The controller loads this file as well, so it needs only Python 3.9 and the standard library.
"""

from __future__ import annotations

import re
from typing import Mapping

USER_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")  # as useradd(8) has it
PUBLIC_KEY = re.compile(r"(?:[^\r\n]*[ \t])?(?:ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/]{16,}={0,3}(?: [^\r\n]*)?")


def root_reach(user: str, reaching: Mapping[str, str], nodes: int) -> str:
    """Return the sentence about a mesh that makes root of one node root of all, for provision and for doctor.

    Args:
        user: whose mesh it is.
        reaching: how the user becomes root, ``root`` or ``sudo``, by the name of each node where that works.
        nodes: the number of nodes that were looked at.
    """
    where = "" if len(reaching) == nodes else f" on {', '.join(sorted(reaching))}"
    how = "root" if "root" in reaching.values() else f"user {user}, who may use sudo without a password"
    return (
        f"Jobs run as {how}{where}: root on one node, or a job that is taken over, is then root on all nodes. Set "
        "cluster_user in the inventory to run jobs as a user of their own, then provision again."
    )
