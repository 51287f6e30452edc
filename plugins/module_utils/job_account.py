# SPDX-License-Identifier: Apache-2.0
"""Make the account that jobs run as, and find the keys of those who may log in to it."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

from . import command, disk_files, job_user_rules, origins, sshd, user_identity
from .node_look import path_state

# Make, mend and rotate the key of a user for the mesh; everything here runs with the user's identity.

GROUP_OR_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE = 0o600


class NoKeyError(user_identity.IdentityError):
    """The node cannot get its key; the message is one sentence."""


class Work:
    """Do things and collect a phrase for each; in check mode only collect the phrases."""

    def __init__(self, *, check: bool) -> None:
        """Begin without changes."""
        self.check = check
        self.changes: List[str] = []

    def do(self, phrase: str, action: Callable[[], Any]) -> None:
        """Do one thing, or only note it in check mode."""
        self.changes.append(phrase)
        if not self.check:
            action()


def ensure_key(home: str, name: str, comment: str, *, check: bool) -> Dict[str, Any]:
    """Make or mend ``~/.ssh`` and the key; returns changes, public_key and watch."""
    work = Work(check=check)
    folder = Path(home, ".ssh")
    private, public = folder / name, folder / f"{name}.pub"
    _ensure_folder(folder, work)
    half = _sound_half(private, work) if private.exists() else ""
    if not half:
        work.do(f"created the key {private}", lambda: _make(folder, name, comment))
        half = "" if check else _public_half(private)
        if not check and not half:
            raise NoKeyError(f"ssh-keygen cannot read {private}, which it has just made; check the file system.")
        if not check:
            _publish(public, f"{half} {comment}\n")
    elif not _is_half(read(public), half):
        work.do(f"wrote {public} anew", lambda: disk_files.write(public, f"{half} {comment}\n"))
    real = Path(os.path.realpath(folder))  # the folder may be a link of the user's own
    paths = [] if check else [folder, real / name, real / f"{name}.pub"]
    watch = [path_state.watch_state(str(path)) for path in paths]
    return {"changes": work.changes, "public_key": half, "watch": watch}


def successor(name: str) -> str:
    """Return the name of the key that waits beside another one during a rotation."""
    return f"{name}-next"


def rotated(home: str, name: str, comment: str, rotation: str, *, check: bool) -> Dict[str, Any]:
    """Make or mend the key as :func:`ensure_key`; in a rotation also make its successor, or switch to it."""
    work = Work(check=check)
    private, waiting = Path(home, ".ssh", name), Path(home, ".ssh", successor(name))
    if rotation == "switch" and waiting.is_file():  # on a shared home the first node switches for all
        work.do(f"switched to the new key {private}", lambda: _switch(waiting, private))
    made = ensure_key(home, name, comment, check=check)
    after = ensure_key(home, waiting.name, comment, check=check) if rotation == "stage" else {}
    return {
        **made,
        "changes": [*work.changes, *made["changes"], *after.get("changes", [])],
        "successor_key": after.get("public_key", ""),
    }


def _publish(public: Path, line: str) -> None:
    """Write the public half unless another node of a shared home has written it, whose comment then stays."""
    with tempfile.TemporaryDirectory(prefix=".clusterctl-", dir=public.parent) as scratch:
        fresh = Path(scratch, public.name)
        disk_files.write(fresh, line)
        try:
            os.link(fresh, public)
        except FileExistsError:
            if not _is_half(read(public), line):
                disk_files.write(public, line)


def _is_half(text: str, half: str) -> bool:
    """Whether a public file is one line with this type and key; each node of a shared home has its own comment."""
    return text.count("\n") == 1 and text.endswith("\n") and text.split()[:2] == half.split()[:2]


def _switch(waiting: Path, private: Path) -> None:
    with suppress(FileNotFoundError):
        private.with_name(f"{private.name}-cert.pub").unlink(missing_ok=True)  # it is of the old key
        waiting.replace(private)
        waiting.with_name(f"{waiting.name}.pub").unlink()


def _ensure_folder(folder: Path, work: Work) -> None:
    if not folder.is_dir():
        work.do(f"created {folder}", lambda: folder.mkdir(mode=0o700, exist_ok=True))
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & GROUP_OR_OTHERS_WRITE:
        work.do(
            f"removed the write permission of others on {folder}", lambda: folder.chmod(mode & ~GROUP_OR_OTHERS_WRITE)
        )


def _sound_half(private: Path, work: Work) -> str:
    """Return the public half of the present key; '' after a damaged key was renamed."""
    if stat.S_IMODE(private.stat().st_mode) != _PRIVATE:
        work.do(f"made {private} readable only by its owner", lambda: private.chmod(_PRIVATE))
        if work.check:  # ssh-keygen refuses to read it as it is
            return " ".join(read(private.with_name(f"{private.name}.pub")).split()[:2])
    half = _public_half(private)
    if not half:
        aside = private.with_name(f"{private.name}.damaged-{int(time.time())}")
        work.do(f"put the damaged {private} aside", lambda: private.rename(aside))
    return half


def _public_half(private: Path) -> str:
    """Return type and key of the private half itself; '' where the file is damaged.

    Raises:
        NoKeyError: a passphrase protects it, so it serves another purpose.
    """
    done = sshd.keygen("-y", "-P", "", "-f", str(private))
    if done.ok:
        return " ".join(done.output.split()[:2])
    if "passphrase" in done.errors:
        raise NoKeyError(
            f"{private} is protected by a passphrase, so jobs cannot use it; set ssh_mesh_key_name to another name."
        )
    return ""


def _make(folder: Path, name: str, comment: str) -> None:
    """Make the key in a temporary folder and link it into place; on a shared home the first node wins."""
    with tempfile.TemporaryDirectory(prefix=".clusterctl-", dir=folder) as scratch:
        done = sshd.keygen("-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", f"{scratch}/{name}")
        if not done.ok:
            raise NoKeyError(f"ssh-keygen made no key: {done.said}.")
        try:
            os.link(f"{scratch}/{name}", folder / name)
        except FileExistsError:
            return


def read(path: Path) -> str:
    """Return the text of a file; '' where it cannot be read."""
    try:
        return (user_identity.read_regular(str(path)) or b"").decode("utf-8", "surrogateescape")
    except OSError:
        return ""


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
        own = sshd.authorized_paths(entry, sshd.settings_of(entry.pw_name))
        for path in sshd.authorized_paths(other, sshd.settings_of(login)):
            if path in own:  # one file for all users
                return {"lines": list(dict.fromkeys(listed)), "watch": []}
            answer = sshd.read_as(other, path, lambda text: {"keys": sshd.keys_of(text)})
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
    heading = f"{sshd.PEOPLE}: keys of user {login}, and cluster_user_keys."
    return "".join(f"{line}\n" for line in (heading, *lines))
