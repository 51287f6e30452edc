# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role ssh_mesh does on a node, as calls of modules, and what is left to do when all nodes have done it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import plain

Step = tuple[str, dict[str, Any]]  # a module and its arguments

_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"
_DROP_INS = "/etc/ssh/ssh_config.d"
_OF_ROOT = {"owner": "root", "group": "root", "mode": "0644"}


@dataclass(frozen=True)
class Node:
    """A node of the mesh.

    Attributes:
        host: its name.
        look: what it said of itself, see :func:`mesh_look.of_files`.
        trust: ``keys`` or ``ca``.
        plan: the result of ssh_mesh_plan.
        signed: the result of ssh_mesh_sign, which has the texts of the files where ``trust`` is ``ca``.
        is_partial: whether this run leaves out a host of the inventory.
    """

    host: str
    look: Mapping[str, Any]
    trust: str
    plan: Mapping[str, Any]
    signed: Mapping[str, Any]
    is_partial: bool


def is_partial(plan: Mapping[str, Any], living: Collection[str]) -> bool:
    """Whether a run leaves out a host, or has lost one. What that host needs of an authority then stays."""
    return not set(plan["inventory"]) <= set(living)


def changes_trust(node: Node) -> bool:
    """Whether the node goes from keys to certificates, or back."""
    its = node.look["trust"]
    return bool(its["has_keys"] if node.trust == "ca" else its["lines"]["authorized_keys"])


def drops_certificates(look: Mapping[str, Any], trust: str) -> bool:
    """Whether a node still has certificates that nothing trusts once no host is left out."""
    return trust == "keys" and not look["is_missing"] and bool(look["trust"]["remains"])


def files_of(node: Node) -> Mapping[str, Any]:
    """Return the texts of the node's files; a node has its own where its files hold a host that only it knows."""
    texts = node.signed if node.trust == "ca" else node.plan
    own: Mapping[str, Any] = texts["own"].get(node.host, texts)
    return own


def final_blocks(node: Node) -> dict[str, str]:
    """Return what the blocks of authorized_keys and known_hosts hold when the run ends."""
    files, lines = files_of(node), node.look["trust"]["lines"]
    keeps = node.trust == "keys" and node.is_partial
    return {name: str(files[name]) + (text if keeps else "") for name, text in lines.items()}


def both_blocks(node: Node) -> dict[str, str]:
    """Return blocks that accept keys and certificates."""
    files, lines = files_of(node), node.look["trust"]["lines"]
    if node.trust == "ca":
        return {name: str(files["both"][name]) for name in lines}
    return {name: str(files[name]) + text for name, text in lines.items()}


def lay_out(node: Node) -> list[Step]:
    """Return the steps after which the node accepts all others, by keys and by certificates while nodes change.

    No node accepts certificates alone, or keys alone, before all nodes accept both. So no login fails meanwhile.
    """
    if node.look["is_missing"]:
        return []
    steps: list[Step] = []
    if node.trust == "ca":
        certificates = node.signed["certificates"][node.host]
        arguments = {
            "user": node.look["user"],
            "user_path": node.look["trust"]["user_path"],
            "user_certificate": str(certificates["user"]),
            "host_certificate": str(certificates["host"]),
            "revoked": str(node.signed["revoked"]),
        }
        steps.append(("mesh_certificates", arguments))
    meanwhile = changes_trust(node)
    authorized, known = _blocks(node, both_blocks(node) if meanwhile else final_blocks(node))
    if meanwhile:  # the final texts are watched
        authorized["watch"] = known["watch"] = "none"
    its = node.look["authorized_keys"]
    folder = {"path": its["folder"], "state": "directory", "mode": its["folder_mode"]}
    files = [
        {**folder, **_identity(its)},
        authorized,
        known,
        {"path": _DROP_INS, "state": "directory", **_OF_ROOT, "mode": "0755"},
        {
            "path": f"{_DROP_INS}/00-clusterctl.conf",  # of several files, ssh takes the first value of a setting
            "content": str(files_of(node)["client_config"]),
            **_OF_ROOT,
            "validate": ["ssh", "-G", "-F", "%s", "localhost"],
        },
        {"path": f"{_DROP_INS}/10-clusterctl.conf", "state": "absent"},
        {
            "path": "/etc/ssh/ssh_config",
            "state": "block",
            "marker": "ssh_mesh",
            "content": node.look["client_block"],
            **_OF_ROOT,
        },
    ]
    return [*steps, ("file_set", {"files": files})]


def login(
    node: Node, living: Collection[str], *, switched_key: str = "", verify: str = "ring", timeout_s: Any = 20
) -> list[Step]:
    """Return the steps of a node when all nodes accept it: the final texts, the new key, and the logins.

    Args:
        node: the node.
        living: hosts that still take part. The others are no targets.
        switched_key: name of the key whose successor takes its place; '' leaves the key.
        verify: which logins prove the mesh; ``none`` has none.
        timeout_s: of one login.
    """
    if node.look["is_missing"]:
        return []
    steps: list[Step] = []
    user = node.look["user"]
    if changes_trust(node):
        steps.append(("file_set", {"files": _blocks(node, final_blocks(node))}))
    if switched_key:
        steps.append(("mesh_key", {"user": user, "name": switched_key, "rotation": "switch"}))
    if verify != "none":
        targets = [plain(one) for one in node.plan["logins"][node.host] if one["name"] in living]
        arguments = {"origin": node.host, "user": user, "targets": targets, "timeout_s": timeout_s, "tolerate": True}
        steps.append(("mesh_login", arguments))
    return steps


def left_to_do(
    looks: Mapping[str, Mapping[str, Any]], logins: Mapping[str, Any], trust: str, *, is_partial: bool
) -> dict[str, Any]:
    """Return what is left to do after the logins.

    Args:
        looks: by host, see :func:`mesh_look.of_files`.
        logins: by host the result of its logins, which may have any form.
        trust: ``keys`` or ``ca``.
        is_partial: see :func:`is_partial`.

    Returns:
        ``refused``, the hosts that a login did not reach, ``certificates``, the hosts whose certificates nothing trusts
        any more, and ``unfinished``, whether any host has something left to do.
    """
    answers = [answer.get("refused") for answer in logins.values() if hasattr(answer, "get")]
    names = [name for answer in answers if isinstance(answer, list) for name in answer]
    refused = list(dict.fromkeys(str(name) for name in names if isinstance(name, str) and name in looks))
    certificates = [host for host, look in looks.items() if drops_certificates(look, trust) and not is_partial]
    former = any(look["former"] for look in looks.values())
    return {"refused": refused, "certificates": certificates, "unfinished": bool(refused or certificates or former)}


def _blocks(node: Node, texts: Mapping[str, str]) -> list[dict[str, Any]]:
    its = node.look["authorized_keys"]
    block = {"state": "block", "marker": "ssh_mesh"}
    content = texts["authorized_keys"] + node.look["login_keys"]
    authorized = {"path": its["path"], **block, "content": content, "watch": "block", "mode": its["mode"]}
    known = {"path": _KNOWN_HOSTS, **block, "content": texts["known_hosts"], **_OF_ROOT}
    return [{**authorized, **_identity(its)}, known]


def _identity(its: Mapping[str, str]) -> dict[str, str]:
    """Return the owner of a path, and the user who writes it; root writes a path of its own."""
    names = ("owner", "group", "user") if its["user"] else ("owner", "group")
    return {name: its[name] for name in names}
