# SPDX-License-Identifier: Apache-2.0
"""Host keys, port and settings of the ssh daemon, and the names under which files of known hosts have the keys."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .reading import Json, list_folder, matching_paths, read_text, read_text_of_user

if TYPE_CHECKING:
    import pwd


# --- ssh daemon ------------------------------------------------------------------------------------------------------

# What decides whether the nodes' jobs can log in, by sshd_config(5).
_SETTINGS = {
    word.lower(): word
    for word in (
        "AllowGroups",
        "AllowUsers",
        "AuthenticationMethods",
        "AuthorizedKeysFile",
        "DenyGroups",
        "DenyUsers",
        "ListenAddress",
        "Match",
        "MaxSessions",
        "MaxStartups",
        "PermitRootLogin",
        "Port",
        "PubkeyAuthentication",
        "StrictModes",
        "UsePAM",
    )
}
_OF_SESSIONS = ("setenv", "permituserenvironment")  # read and not shown, since a variable may hold a secret


def ssh_daemon(connection: str) -> Json:
    """Return the public host keys and the port.

    Args:
        connection: SSH_CONNECTION of the session, '' if it is not set.
    """
    config = read_sshd_config("/etc/ssh/sshd_config")
    port = (connection.split()[3:] or config.get("port") or ["22"])[0]  # the fourth word is the daemon's port
    # All values in their order: which of them counts, the first or the last, depends on keyword and release.
    settings = {_SETTINGS[word]: ", ".join(config[word]) for word in sorted(_SETTINGS) if word in config}
    return {"ssh": {"host_keys": host_keys(config), "port": int(port), "settings": settings}}


def host_keys(config: dict[str, list[str]] | None = None) -> list[str]:
    """Return the public host keys as ``type key``, ed25519 first.

    Args:
        config: sshd's configuration, None to read it.
    """
    config = read_sshd_config("/etc/ssh/sshd_config") if config is None else config
    keys = config.get("hostkey") or [
        f"/etc/ssh/{name}" for name in list_folder("/etc/ssh") if name.startswith("ssh_host_") and name.endswith("_key")
    ]
    lines = []
    for path in keys:
        words = read_text(f"{path}.pub", "").split()
        if len(words) > 1:
            lines.append(f"{words[0]} {words[1]}")
    lines.sort(key=lambda line: (not line.startswith("ssh-ed25519"), line))
    return lines


def read_sshd_config(path: str, depth: int = 0) -> dict[str, list[str]]:
    """Return the global values of sshd's configuration that matter here, by keyword; it follows Include.

    The lines of a Match block are the values of ``match``, in their order (sshd_config(5)).
    """
    found: dict[str, list[str]] = {}
    matching = False
    for line in read_text(path, "").split("\n"):
        words = line.partition("#")[0].replace("=", " ", 1).split()
        if not words:
            continue
        keyword = words[0].lower()
        matching = matching or keyword == "match"
        if matching:
            found.setdefault("match", []).append(" ".join([keyword, *words[1:]]))
        elif keyword == "include" and depth < 16:  # noqa: PLR2004 - sshd's own limit
            for pattern in words[1:]:
                for name in matching_paths(os.path.join("/etc/ssh", pattern.strip('"'))):
                    for key, values in read_sshd_config(name, depth + 1).items():
                        found.setdefault(key, []).extend(values)
        elif len(words) > 1:
            value = _value(keyword, words, line)
            if value:
                found.setdefault(keyword, []).append(value)
    return found


def _value(keyword: str, words: list[str], line: str) -> str:
    """Return the value of a keyword that matters here, '' for another keyword."""
    if keyword in _OF_SESSIONS:
        return line.split(None, 1)[1].strip()
    if keyword == "hostkey":
        return words[1].strip('"')
    return " ".join(word.strip('"') for word in words[1:]) if keyword in _SETTINGS else ""


# --- known hosts -----------------------------------------------------------------------------------------------------

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
