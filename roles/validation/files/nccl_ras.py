"""Ask NCCL's RAS how a job stands that does not end: which ranks do not answer, and which operation each is in.

NCCL 2.24 and later listen for such questions in each process (its user guide, "Troubleshooting", "RAS"): one line of
text goes there, and text comes back until the end. ``NCCL_RAS_ADDR`` names the place, by default localhost:28028.

It needs the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Mapping

ADDRESS = "localhost:28028"
QUESTION = b"verbose status\n"
SECONDS = 10.0  # NCCL itself waits five seconds for its other processes
MOST_BYTES, MOST_LINES, MOST_TEXT = 1 << 16, 30, 200
ASKED_AT = 0.7  # of the deadline


def said(environment: Mapping[str, str], seconds: float = SECONDS) -> str:
    """Return what NCCL says, '' where nobody listens."""
    host, _colon, port = environment.get("NCCL_RAS_ADDR", ADDRESS).rpartition(":")
    found = b""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(OSError, ValueError, OverflowError))
        line = stack.enter_context(socket.create_connection((host.strip("[]"), int(port)), seconds))
        line.sendall(QUESTION)
        while len(found) < MOST_BYTES:
            data = line.recv(4096)
            if not data:
                break
            found += data
    return found.decode("utf-8", "replace")


def answer(environment: Mapping[str, str], seconds: float = SECONDS, most: int = MOST_LINES) -> list[str]:
    """Return the first lines that NCCL says, [] where nobody listens."""
    return [text[:MOST_TEXT] for text in said(environment, seconds).splitlines() if text.strip()][:most]


def tell() -> None:
    """Print the answer into the job's output, from a thread, for the question may take as long as its deadline."""

    def ask() -> None:
        for text in answer(os.environ):
            with contextlib.suppress(OSError):
                os.write(2, f"NCCL RAS: {text}\n".encode())

    threading.Thread(target=ask, daemon=True).start()
