# SPDX-License-Identifier: Apache-2.0
"""Look up host names as ssh and mpirun do, within a time limit."""

from __future__ import annotations

import json
import os
import socket
import time

from .reading import Json, reap

_ANSWER_OF_NAMES_S = 4.0


def resolved(asked: list[str] | None) -> Json:
    """Look up the node's own name and those asked for, as ssh and mpirun do; None looks up nothing."""
    if asked is None:
        return {"names": []}
    names = list(dict.fromkeys([socket.gethostname(), *(str(name) for name in asked)]))
    answers = _look_up(names)
    late = f"no answer within {_ANSWER_OF_NAMES_S:g} s"
    return {
        "names": [{"name": name, **answers.get(name, {"addresses": [], "problem": late})} for name in names],
    }


def _look_up(names: list[str]) -> dict[str, Json]:
    """Ask the resolver in a child process: a call to it cannot be interrupted, and a dead server costs 30 s."""
    import select  # noqa: PLC0415 - seldom needed

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for name in names:
                os.write(writer, json.dumps({name: _addresses_of(name)}).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    data = b""
    end = time.monotonic() + _ANSWER_OF_NAMES_S
    try:
        while select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
            block = os.read(reader, 1 << 16)
            if not block:
                break
            data += block
    finally:
        os.close(reader)
        reap(child)
    answers: dict[str, Json] = {}
    for line in data.split(b"\n")[:-1]:
        answers.update(json.loads(line))
    return answers


def _addresses_of(name: str) -> Json:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return {"addresses": [], "problem": error.strerror or str(error)}
    return {"addresses": list(dict.fromkeys(str(entry[4][0]) for entry in found)), "problem": ""}
