# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Bring a pack from this node to others in a chain, each of which passes it on while it takes it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: artifact_spread
short_description: Pass a pack on from node to node in a chain
version_added: "0.2.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Logs in to the other nodes as the user of the ssh mesh, with its host keys. Each node takes the pack from the node
    before it, compares each piece with the controller's digests, and gives it to the next node meanwhile.
  - The pack on this node may still grow. The action plugin of M(clusterctl.hpc.artifact_install) copies it there.
  - A node that dies, or that is much slower than the others, is left out of the chain. A slow node still gets the pack.
  - What a node takes lies in a file that only the user of the mesh can read. M(clusterctl.hpc.artifact_install)
    removes it.
options:
  user:
    description: The user of the ssh mesh.
    type: str
    required: true
  name:
    description: This node's name in the ssh mesh.
    type: str
    required: true
  paths:
    description: Where the pack may lie on this node.
    type: list
    elements: str
    required: true
  size:
    description: Bytes of the pack.
    type: int
    required: true
  piece_bytes:
    description: Bytes of a piece.
    type: int
    required: true
  sums:
    description: The sha256 of all pieces in a row, in base64.
    type: str
    required: true
  marker:
    description: A file that a node has if it does not need the pack.
    type: str
    required: true
  nodes:
    description: The other nodes, each with C(name), C(python), C(file) and C(folders).
    type: list
    elements: dict
    required: true
  bytes_per_s:
    description: The most bytes that a node sends to another in a second; V(0) is without a limit.
    type: float
    default: 0
  progress:
    description: A file on this node that gets a line of progress, in a folder of root's.
    type: str
    default: ""
attributes:
  check_mode: {support: full, description: Brings nothing.}
  diff_mode: {support: none, description: There is no file to show.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
delivered: {description: "The place in C(folders) where the pack lies now, by node.", type: dict, returned: success}
has: {description: Nodes that did not need it., type: list, elements: str, returned: success}
reasons: {description: "Why a node did not get it, by node.", type: dict, returned: success}
slow:
  description: Nodes that got it and pass nothing on. They were slow, or another node could not take from them.
  type: list
  elements: str
  returned: success
seconds: {description: How long it took., type: float, returned: success}
"""

import os
import pwd
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.clusterctl.hpc.plugins.module_utils import chain_head, login_probe, user_identity


def progress_file(path: str) -> int:
    """Make the file for the progress anew, before this process becomes another user; returns a descriptor, or -1.

    Its folder is root's, so that no other user can put a link or a pipe in its place, or change what it says there.
    """
    if not path:
        return -1
    try:
        Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        Path(path).unlink(missing_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError:
        return -1  # progress is not worth a failure


def spread(given: Dict[str, Any], text: bytes, progress: int = -1) -> Dict[str, Any]:
    """Lead the chain; the process is the user's own for good.

    Args:
        given: the module's parameters.
        text: the program for the nodes.
        progress: an open file for a line of progress; -1 for none.

    Raises:
        IdentityError: the chain cannot be made.
    """
    session = login_probe.environment()
    os.environ.clear()
    os.environ.update(session)
    request = {
        **{name: given[name] for name in ("size", "piece_bytes", "sums", "marker", "bytes_per_s")},
        "ssh": list(chain_head.SSH),
        "python": sys.executable or "python3",
    }
    began = time.monotonic()
    head = chain_head.ChainHead(given["name"], given["paths"], request, given["nodes"], text)

    def tick(line: str) -> None:
        if progress >= 0:
            with suppress(OSError):
                os.pwrite(progress, f"{line}\n".encode(), 0)
                os.ftruncate(progress, len(f"{line}\n".encode()))

    try:
        found = head.run(tick)
    except chain_head.ChainError as error:
        raise user_identity.IdentityError(str(error)) from error
    return {**found, "seconds": round(time.monotonic() - began, 3)}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "paths": {"type": "list", "elements": "str", "required": True},
            "size": {"type": "int", "required": True},
            "piece_bytes": {"type": "int", "required": True},
            "sums": {"type": "str", "required": True},
            "marker": {"type": "str", "required": True},
            "nodes": {"type": "list", "elements": "dict", "required": True},
            "bytes_per_s": {"type": "float", "default": 0},
            "progress": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, delivered={}, has=[], reasons={}, slow=[], seconds=0.0)
    try:
        text = chain_head.relay_text()
        user = pwd.getpwnam(module.params["user"])
        progress = progress_file(module.params["progress"])
        found = user_identity.in_child(user, lambda: spread(module.params, text, progress))
    except KeyError:
        module.fail_json(msg=f"The user {module.params['user']} of the ssh mesh is missing here.")
    except (user_identity.IdentityError, OSError) as error:
        module.fail_json(msg=f"The chain was not made: {error}")
    finally:
        if module.params["progress"]:
            with suppress(OSError):
                Path(module.params["progress"]).unlink()
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
