"""Read and check what the controller asks of the supervisor, and answer where this node has the files it names."""

from __future__ import annotations

import json
import os
import re
import selectors
import time
from pathlib import Path
from typing import Any

import memory_kills
from job_members import JOB_ID

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PEER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})")
REQUEST_LIMIT = 16 * 1024 * 1024
REQUEST_WAIT_S = 60.0


def receive() -> bytes:
    """Return the request's line, or raise ValueError without one."""
    data = bytearray()
    end = time.monotonic() + REQUEST_WAIT_S
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        while b"\n" not in data:
            if not selector.select(max(0.0, end - time.monotonic())):
                raise ValueError("the request did not come in time")
            part = os.read(0, 65536)
            if not part:
                raise ValueError("stdin closed before a request came")
            data += part
            if len(data) > REQUEST_LIMIT:
                raise ValueError("the request is too long")
    return bytes(data).split(b"\n", 1)[0]


def checked(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request, or raise ValueError that says what is wrong."""
    if not JOB_ID.fullmatch(request["job"]):
        raise ValueError("the job id is malformed")
    if not request["argv"] or not all(isinstance(token, str) for token in request["argv"]):
        raise ValueError("argv is not a list of strings")
    if request["deadline_s"] is not None and not 0 < float(request["deadline_s"]) < float("inf"):
        raise ValueError("deadline_s is not a positive number")
    if not all(FILE_NAME.fullmatch(name) for name in request.get("files", {})):
        raise ValueError("a file name is malformed")
    if not all(PEER.fullmatch(peer["name"]) for peer in request.get("peers", [])):
        raise ValueError("a peer's name is malformed")
    return request


def home() -> str:
    """Return the user's home, or the root folder where it is missing."""
    return str(Path.home()) if Path.home().is_dir() else "/"


def look() -> int:
    """Say where this node has what a job is going to need."""
    request = json.loads(receive())
    folder = Path(home(), request.get("directory") or ".")
    found: dict[str, str] = {}
    for name in request["names"]:
        places = [folder / name] if "/" in name else [Path(part, name) for part in request["path"].split(":") if part]
        here = [str(place) for place in places if place.is_file() and ("/" in name or os.access(place, os.X_OK))]
        found[name] = here[0] if here else ""
    runs = [name for name, place in found.items() if place and os.access(place, os.X_OK)]
    place = {"folder": str(folder), "is": folder.is_dir()}
    memory = memory_kills.look()  # before the job
    print(json.dumps({"event": "looked", "found": found, "runs": runs, **place, "memory": memory}), flush=True)
    return 0
