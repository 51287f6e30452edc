"""Stands in for ssh in tests of the chain: runs the command on this machine as if it were the named node.

``CHAIN_PLACE`` is a folder. It gets a file ``pids/NODE.PID`` for every process group of a node. ``slow/NODE`` holds the
bytes per second that a node can take, and ``shut/NODE`` is a node that refuses logins. ``CHAIN_NODE`` is who asks.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

_BLOCK = 16384


def main(arguments: list[str]) -> int:
    name, command = arguments[arguments.index("--") + 1 :]
    place, asking = Path(os.environ["CHAIN_PLACE"]), os.environ.get("CHAIN_NODE", "")
    if (place / "shut" / name).exists():
        sys.stderr.write(f"{name}: Permission denied (publickey).\n")
        return 255
    slow = place / "slow" / asking
    environment = {**os.environ, "CHAIN_NODE": name}
    rate = float(slow.read_text()) if asking and slow.exists() else 0.0
    done = subprocess.Popen(
        ["/bin/sh", "-c", command], env=environment, start_new_session=True, stdout=subprocess.PIPE if rate else None
    )
    (place / "pids" / f"{name}.{done.pid}").touch()
    with contextlib.suppress(BrokenPipeError):
        while rate and done.stdout and (data := os.read(done.stdout.fileno(), _BLOCK)):
            time.sleep(len(data) / rate)
            os.write(1, data)
    return done.wait()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
