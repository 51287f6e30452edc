# SPDX-License-Identifier: Apache-2.0
"""Run one step of a claim as a program: read a request from standard input, print the answer as one line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import syslog
import time
from typing import Any, Dict, List, Mapping

from . import audit_file
from .place import Node, lost_members

ANSWER = "node_claim"
_MODULE = "clusterctl.hpc.node_claim"  # as Ansible names the module of the same task


def act(request: Mapping[str, Any], node: Node, *, is_root: bool) -> Dict[str, Any]:
    """Do what a request asks for.

    Args:
        request: ``names`` and ``addresses`` (of the inventory), ``cluster`` (its id) and ``adopt`` for the look. With
            ``lock``, the lock is taken unless the node is foreign; ``instead`` names a run that has ended. With
            ``mark``, the mark is written. With ``release``, the lock of that run is removed; with
            ``forget``, the mark of that cluster. ``audit`` (run, user, controller, changes) is told once that is done.
        node: the mark and the lock.
        is_root: whether this process may write them.

    Returns:
        ``mark`` (before), ``lost`` (members of another cluster), ``holder`` (the lock of another run), ``taken``
        and ``problem`` (a clause).
    """
    answer: Dict[str, Any] = {"mark": node.mark(), "lost": [], "holder": None, "taken": False, "problem": ""}
    names, addresses = request.get("names") or [], request.get("addresses") or []
    if names:
        answer["lost"] = lost_members(answer["mark"], request.get("cluster", ""), names, addresses)
    if not is_root or (answer["lost"] and not request.get("adopt")):
        return answer
    try:
        if request.get("lock"):
            answer["holder"] = node.take(request["lock"], request.get("instead", ""))
            answer["taken"] = answer["holder"] is None
            _audit(request if answer["taken"] else {})
        if request.get("mark"):
            node.write_mark(request["mark"])
            _audit(request)
        if answer["mark"] is not None and answer["mark"]["cluster"] == request.get("forget"):
            node.forget_mark()
        if request.get("release"):
            node.release(request["release"])
    except OSError as error:
        answer["problem"] = f"{error.filename or 'its mark'} cannot be written: {error.strerror}"
    return answer


def _audit(request: Mapping[str, Any]) -> None:
    """Write what a request says that its lock or its mark takes from others; a full disk does not stop the run."""
    said = request.get("audit")
    if not said:
        return
    changes = [str(change) for change in said.get("changes") or ()]
    text = audit_file.line(json.dumps(said), _MODULE, changes, audit_file.login_address(), time.time())
    with contextlib.suppress(OSError):
        audit_file.append(text, os.environ.get("CLUSTERCTL_CLAIM_AUDIT", audit_file.FILE))
    syslog.syslog(f"clusterctl audit {text}")


def main(_arguments: List[str]) -> int:
    """Answer one request; the arguments are those of a session that called sudo, and are not used."""
    request = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    answer = act(request, Node(), is_root=os.geteuid() == 0)
    sys.stdout.write(json.dumps({ANSWER: answer}, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
