# SPDX-License-Identifier: Apache-2.0
"""One line of the audit file of a node: who changed what, by which run. It is here to travel with this program."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Dict, Sequence

FOLDER = "/var/log/clusterctl"
FILE = f"{FOLDER}/audit.jsonl"
_LONGEST = 2000  # characters of one value: a line stays below what one write keeps whole
_MOST_CHANGES = 200
_PARENTS = 12  # shell, sudo and sshd are among the first


def line(said: str, action: str, changes: Sequence[str], address: str, when: float) -> str:
    """Return one line of JSON.

    Args:
        said: what the playbook says of the run, a JSON object; other text is kept as the run's name.
        action: the name of the module.
        changes: a short phrase for each change.
        address: from where the login came, '' where it is unknown.
        when: seconds since 1970.
    """
    try:
        run = json.loads(said) if said else {}
    except ValueError:
        run = {"run": said}
    given = run if isinstance(run, dict) else {"run": said}
    entry: Dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)),
        **{name: str(given.get(name, ""))[:_LONGEST] for name in ("run", "user", "controller")},
        "from": address[:_LONGEST],
        "action": action,
        "changes": [change[:_LONGEST] for change in changes[:_MOST_CHANGES]],
    }
    if len(changes) > _MOST_CHANGES:
        entry["more_changes"] = len(changes) - _MOST_CHANGES
    return json.dumps(entry)  # ASCII: no control character of a path reaches a terminal


def append(text: str, path: str = FILE) -> None:
    """Add one line to the audit file; its folder is made where it is missing.

    Raises:
        OSError: the file cannot be written, or a link stands in its place.
    """
    folder = Path(path).parent
    folder.mkdir(mode=0o755, exist_ok=True)  # the login user follows the progress of builds there
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        handle = os.open(Path(path).name, flags, 0o640, dir_fd=place)
    finally:
        os.close(place)
    try:
        os.write(handle, f"{text}\n".encode())
    finally:
        os.close(handle)


def login_address() -> str:
    """Return the address from which this process's login came; sudo takes it away, so the parents are asked as well."""
    process = os.getpid()
    for _unused in range(_PARENTS):
        try:
            environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            rows = Path(f"/proc/{process}/status").read_bytes().split(b"\n")
        except OSError:
            return ""
        for entry in environment:
            if entry.startswith(b"SSH_CONNECTION="):
                return entry.partition(b"=")[2].split(b" ")[0].decode("utf-8", "replace")
        process = next((int(row.split()[1]) for row in rows if row.startswith(b"PPid:")), 0)
        if process <= 1:
            return ""
    return ""
