# SPDX-License-Identifier: Apache-2.0
"""Make the account that jobs run as, and find the keys of those who may log in to it."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
from typing import Any, Dict, List, Optional, Sequence

from . import command, job_user_rules, origins, sshd_keys, user_identity
from .node_look import path_state

# Below systemd's own ranges and the subordinate ids, above what people get by hand.
_FIRST_UID, _UIDS = 30000, 29000
_USERADD_S = 60


class AccountError(user_identity.IdentityError):
    """The account cannot be made or used; the message is one sentence."""


def wanted_uid(name: str) -> int:
    """Return the uid that an account of this name gets where it is free: the same on all nodes, also on later ones."""
    return _FIRST_UID + int(hashlib.sha256(name.encode()).hexdigest(), 16) % _UIDS


def useradd_argv(name: str, uid: Optional[int]) -> List[str]:
    """Return the command that makes the account: a home, a shell, and neither a password nor further groups."""
    number = [] if uid is None else ["--uid", str(uid)]
    # '*' is a password that nothing matches. useradd's own '!' is a lock, which sshd without PAM takes for a refusal.
    return [
        *("useradd", "--create-home", "--user-group", "--shell", "/bin/bash", "--password", "*"),
        *("--comment", "Jobs of the cluster", *number, "--", name),
    ]


def ensure(name: str, *, check: bool) -> List[str]:
    """Make the account if it is missing; an account that is there stays as it is.

    Returns:
        What was done, as phrases.

    Raises:
        AccountError: the name is not valid, the account is root's, a group of that name exists, or useradd failed.
    """
    if not job_user_rules.USER_NAME.fullmatch(name):
        raise AccountError(f"cluster_user is {name!r}, which is not a valid user name; use a-z, 0-9, '_' and '-'.")
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        pass
    else:
        if entry.pw_uid == 0:
            raise AccountError(
                f"cluster_user is {name!r}, whose uid is 0, so jobs would run as root; name another user."
            )
        return []
    if _exists(grp.getgrnam, name):
        raise AccountError(
            f"The group {name} exists on this node and the user {name} does not; set cluster_user to another name, or "
            f"make the user with 'useradd --create-home --gid {name} --shell /bin/bash {name}'."
        )
    if not check:
        uid = wanted_uid(name)
        taken = _exists(pwd.getpwuid, uid) or _exists(grp.getgrgid, uid)
        origins.note_account(name)
        done = command.run(useradd_argv(name, None if taken else uid), _USERADD_S)
        if not done.ok:
            origins.forget_account(name)
            said = " ".join(done.said.split()).rstrip(".")
            raise AccountError(
                f"The user {name} could not be made: {said}; make the user by hand, or correct the cause."
            )
    return [f"created the user {name}"]


def _exists(look: Any, key: Any) -> bool:
    try:
        look(key)
    except KeyError:
        return False
    return True


def missing(name: str, changes: Sequence[str]) -> Dict[str, Any]:
    """Return what check mode tells of an account that is still missing."""
    folder = f"/home/{name}/.ssh"
    return {
        "user": name,
        "group": name,
        "is_missing": True,
        "public_key": "",
        "authorized_keys": {
            "path": f"{folder}/authorized_keys",
            "mode": "0600",
            "owner": name,
            "group": name,
            "folder": folder,
            "folder_mode": "0700",
            "user": name,
        },
        "client_block": "",
        "trust": {},
        "obstacles": [],
        "remembered": [],
        "successor_key": "",
        "login_keys": "",
        "former": [],
        "reaches_root": "",
        "changes": [*changes, f"created {folder}"],
        "watch": [],
    }


def login_name(given: str) -> str:
    """Return the user that Ansible logs in as: the one that called sudo, else the given one, else this process's."""
    return os.environ.get("SUDO_USER", "") or given or pwd.getpwuid(os.geteuid()).pw_name


def login_keys(entry: pwd.struct_passwd, login: str, listed: Sequence[str]) -> Dict[str, Any]:
    """Return the keys that may log in to the account: the login user's with their options, and the listed ones.

    Returns:
        ``lines`` for authorized_keys, and ``watch``, the states of the login user's files.

    Raises:
        AccountError: a listed line is not a key, or there is none at all.
    """
    for line in listed:
        if not job_user_rules.PUBLIC_KEY.fullmatch(line):
            raise AccountError(
                f"cluster_user_keys has {line[:60]!r}, which is not a public key; give lines as 'ssh-ed25519 AAAA…'."
            )
    found: List[str] = []
    watch: List[Dict[str, Any]] = []
    if login != entry.pw_name and _exists(pwd.getpwnam, login):
        other = pwd.getpwnam(login)
        own = sshd_keys.authorized_paths(entry, sshd_keys.settings_of(entry.pw_name))
        for path in sshd_keys.authorized_paths(other, sshd_keys.settings_of(login)):
            if path in own:  # one file for all users
                return {"lines": list(dict.fromkeys(listed)), "watch": []}
            answer = sshd_keys.read_as(other, path, lambda text: {"keys": sshd_keys.keys_of(text)})
            found += answer.get("keys", [])
            watch.append(path_state.watch_state(os.path.realpath(path)))
    lines = list(dict.fromkeys([*found, *listed]))
    if not lines and login != entry.pw_name:
        raise AccountError(
            f"The authorized_keys of user {login} has no key, so it is unknown who may log in as user {entry.pw_name}; "
            "list their public keys in cluster_user_keys."
        )
    return {"lines": lines, "watch": watch}


def block(login: str, lines: Sequence[str]) -> str:
    """Return the part of the block in authorized_keys that lets people in."""
    if not lines:
        return ""
    heading = f"{sshd_keys.PEOPLE}: keys of user {login}, and cluster_user_keys."
    return "".join(f"{line}\n" for line in (heading, *lines))
