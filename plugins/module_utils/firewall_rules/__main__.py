# SPDX-License-Identifier: Apache-2.0
"""Say which rule of this node drops connections: packets as JSON on stdin, one line of JSON as the answer.

The rules are read by ``nft``, as root or through sudo without a password; otherwise ``problem`` says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any, Dict, List, Tuple

from .nftables import Packet, blocking

_PLACES = "/usr/sbin:/sbin:/usr/bin:/bin"
_TIMEOUT_S = 10


def ruleset() -> "Tuple[Dict[str, Any], str]":
    """Return the ruleset, or {} and why it cannot be read."""
    program = shutil.which("nft", path=_PLACES)
    if program is None:
        return {}, "nft is not installed"
    argv = [program, "-j", "list", "ruleset"]
    try:
        done = subprocess.run(
            argv if os.geteuid() == 0 else ["sudo", "-n", *argv],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
        )
        return (json.loads(done.stdout), "") if done.returncode == 0 else ({}, "root alone may read the rules")
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return {}, f"the rules cannot be read ({type(error).__name__})"


def main(_arguments: List[str]) -> int:
    """Print the answer, and return 0."""
    request = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    rules, problem = ruleset()
    found = [blocking(rules, Packet(**packet)) for packet in request["packets"]]
    answer = {"blocked": [one and one._asdict() for one in found], "problem": problem}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
