# SPDX-License-Identifier: Apache-2.0
"""Under which names the node's own host keys stand in its files of known hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .reading import Json, read_text, read_text_of_user

if TYPE_CHECKING:
    import pwd

_SYSTEM_FILE = "/etc/ssh/ssh_known_hosts"
_BLOCK = "# BEGIN clusterctl ssh_mesh"
_AUTHORITY = "clusterctl-ca"  # the comment of its line


def known_hosts(host_keys: list[str], home: str, user: pwd.struct_passwd | None = None) -> Json:
    """Tell whether the mesh of clusterctl is in the system's file, and the names of the lines with a key of this node.

    The patterns of the cluster's certificate authority count as such names.

    Args:
        host_keys: the node's own public host keys, as ``type key``.
        home: the home of the login user.
        user: the login user, with whose identity root reads below the home.
    """
    system = read_text(_SYSTEM_FILE, "")
    keys = set(host_keys)
    names: dict[str, None] = {}
    own = read_text_of_user(f"{home}/.ssh/known_hosts", user)
    for line in (system + "\n" + own).split("\n"):
        marked, _unused, key = line.strip().partition(" ")
        if not marked.startswith(("#", "@")) and " ".join(key.split()[:2]) in keys:
            names.update(dict.fromkeys(marked.split(",")))
    has_authority = False
    for line in system.split("\n"):
        words = line.split()
        if words[:1] == ["@cert-authority"] and line.rstrip().endswith(f" {_AUTHORITY}"):
            names.update(dict.fromkeys(words[1].split(",")))
            has_authority = True
    found = {"has_mesh": _BLOCK in system, "has_authority": has_authority, "own_names": list(names)}
    return {"known_hosts": found}
