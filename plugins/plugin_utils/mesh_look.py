# SPDX-License-Identifier: GPL-3.0-or-later
"""What mesh_key says of a node, in the form and within the bounds that the controller takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleActionFail  # type: ignore[import-untyped]
from ansible_collections.clusterctl.hpc.plugins.module_utils.mesh_rules import MeshError
from ansible_collections.clusterctl.hpc.plugins.module_utils.plain_text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_LONGEST_KEY = 20000
_LONGEST_CERTIFICATE = 1 << 16
_LONGEST_LINE = 1 << 18
_LONGEST_WORDS = 500
_MOST_LINES = 1 << 17
_MOST_WORDS = 64
_MOST_KEYS = 64


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
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        said = one_line(str(error), _LONGEST_WORDS)
        raise MeshError(
            f"{host}: its answer about its key has another form ({said}); find out who changed its Python, or leave "
            "it out of the inventory.",
            [host],
        ) from error


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


def _one_of(value: Any, *words: str) -> str:
    if value not in words:
        raise ValueError(f"none of {', '.join(map(repr, words))}")
    return str(value)


def _list(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise TypeError(f"a list of at most {most} is missing")
    return value
