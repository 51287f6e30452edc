# SPDX-License-Identifier: GPL-3.0-or-later
"""What mesh_key says of a node, in the form and within the bounds that the controller takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleActionFail  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.module_utils.mesh_rules import MeshError
from ansible_collections.clusterctl.hpc.plugins.module_utils.plain_text import one_line

_LONGEST_KEY = 20000
_LONGEST_CERTIFICATE = 1 << 16
_LONGEST_LINE = 1 << 18
_LONGEST_WORDS = 500
_LONGEST_BLOCK = 1 << 22
_LONGEST_PATH = 4096
_MOST_LINES = 1 << 17
_MOST_WORDS = 64
_MOST_KEYS = 64
_OTHER_FORMS = (AttributeError, LookupError, TypeError, ValueError)


def of_hosts(variables: Mapping[str, Any], hosts: Iterable[str], registered: str) -> dict[str, dict[str, Any]]:
    """Return by host what it says of itself, without the hosts whose task failed.

    Args:
        variables: of the task.
        hosts: of the play.
        registered: the name of the variable.

    Raises:
        MeshError: a node's answer has another form; the sentence names the node.
    """
    found = {}
    for host in hosts:
        look = variables["hostvars"][host].get(registered)
        if look and not look.get("failed"):
            found[host] = _passed(host, look)
    return found


def of_files(host: str, look: Any) -> dict[str, Any]:
    """Return what a node says of its files and of what an earlier mesh left in them.

    Args:
        host: the node.
        look: the registered result.

    Raises:
        MeshError: the answer has another form.
    """
    try:
        return _of_files(look)
    except _OTHER_FORMS as error:
        raise _refusal(host, error) from error


def host_keys_of(host: str, answer: Any) -> list[str]:
    """Return the host keys that a node shows, and will show, as M(clusterctl.hpc.host_key) names them.

    Args:
        host: the node.
        answer: the registered result; empty where the node has none.

    Raises:
        MeshError: the answer has another form.
    """
    try:
        return [_text(key, _LONGEST_KEY) for key in _list(answer["host_keys"], _MOST_KEYS)] if answer else []
    except _OTHER_FORMS as error:
        raise _refusal(host, error) from error


def _of_files(look: Mapping[str, Any]) -> dict[str, Any]:
    its, trust, is_missing = look["authorized_keys"], look["trust"], _flag(look["is_missing"])
    texts = ("path", "mode", "owner", "group", "folder", "folder_mode", "user")
    blocks = ("authorized_keys", "known_hosts")
    return {
        "user": _text(look["user"], _LONGEST_WORDS),
        "is_missing": is_missing,
        "authorized_keys": {name: _text(its[name], _LONGEST_PATH) for name in texts},
        "login_keys": _text(look["login_keys"], _LONGEST_BLOCK),
        "client_block": _text(look["client_block"], _LONGEST_BLOCK),
        "former": len(_list(look["former"], _MOST_WORDS)),
        "trust": {}
        if is_missing
        else {
            "user_path": _text(trust["user_path"], _LONGEST_PATH),
            "has_keys": _flag(trust["has_keys"]),
            "remains": _flag(trust["remains"]),
            "lines": {name: _text(trust["lines"][name], _LONGEST_BLOCK) for name in blocks},
        },
    }


def _passed(host: str, look: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {
            "user": _text(look["user"], _LONGEST_WORDS),
            "public_key": _text(look["public_key"], _LONGEST_KEY),
            "successor_key": _text(look.get("successor_key", ""), _LONGEST_KEY),
            "reaches_root": _one_of(look["reaches_root"], "", "root", "sudo"),
            "obstacles": [one_line(_text(one), _LONGEST_WORDS) for one in _list(look["obstacles"], _MOST_WORDS)],
            "remembered": [_text(one) for one in _list(look["remembered"], _MOST_LINES)],
            "trust": _trust(look.get("trust") or {}),
        }
    except _OTHER_FORMS as error:
        raise _refusal(host, error) from error


def _refusal(host: str, error: Exception) -> MeshError:
    said = one_line(str(error), _LONGEST_WORDS)
    return MeshError(
        f"{host}: its answer about its key has another form ({said}); find out who changed its Python, or leave it out "
        "of the inventory.",
        [host],
    )


def failed(error: MeshError) -> dict[str, Any]:
    """Return the result of a task that runs once: the nodes whose answers are the cause have a problem each.

    Raises:
        AnsibleActionFail: no node is known to be the cause.
    """
    if not error.hosts:
        raise AnsibleActionFail(f"{str(error).rstrip('.')}.") from None
    problem = str(error).rstrip(".")
    problems = [{"host": host, "check": "ssh_mesh", "problem": problem, "kind": "host"} for host in error.hosts]
    return {"changed": False, "failed": True, "msg": str(error), "problems": problems}


def _trust(its: Mapping[str, Any]) -> dict[str, Any]:
    if not its:
        return {}
    keys = [_text(one["key"], _LONGEST_KEY) for one in _list(its["host_keys"], _MOST_KEYS)]
    return {
        "host_keys": [{"key": key} for key in keys if key.split()],
        "revoked_keys": one_line(_text(its["revoked_keys"]), _LONGEST_WORDS),
        "user": _text(its["user"], _LONGEST_CERTIFICATE),
        "host": _text(its["host"], _LONGEST_CERTIFICATE),
    }


def _text(value: Any, most: int = _LONGEST_LINE) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise TypeError(f"a text of at most {most} characters is missing")
    return str(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("true or false is missing")
    return value


def _one_of(value: Any, *words: str) -> str:
    if value not in words:
        raise ValueError(f"none of {', '.join(map(repr, words))}")
    return str(value)


def _list(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise TypeError(f"a list of at most {most} is missing")
    return value
