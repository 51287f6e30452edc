# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Make a user's ssh key for the mesh on this node and return its public half."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: mesh_key
short_description: Make a user's ed25519 key for the mesh on the node, and return its public half
version_added: 0.1.0
description:
  - Makes C(~/.ssh) and a separate key file there. The user's other keys stay as they are.
  - Reads and writes everything below the home with that user's identity, so that root follows none of the user's links.
    A link to a file that the user may not read or replace fails the module. The message names the link.
  - The private half never leaves the node. A damaged key file is renamed and replaced.
  - Returns the facts that the mesh needs. These are where sshd looks for authorized keys, whether the ssh client reads
    C(/etc/ssh/ssh_config.d), what may refuse a login by key, and the lines of the managed blocks.
options:
  user:
    description: The user. Empty means the user who logged in.
    type: str
    default: ""
  name:
    description: Bare name of the key file in C(~/.ssh).
    type: str
    default: id_clusterctl
  remember:
    description: Hosts whose lines in the managed blocks are returned.
    type: list
    elements: str
    default: []
  create:
    description:
      - Whether to create the user if it is missing, with a home and a shell and without a password. An existing user
        stays as it is. The uid is the same on all nodes where it is free.
      - The keys of the login user's authorized keys may then log in as this user, too.
    type: bool
    default: false
  login:
    description: The user that Ansible logs in as, where sudo does not tell.
    type: str
    default: ""
  keys:
    description: With C(create), further public keys that may log in as the user, as lines of authorized_keys.
    type: list
    elements: str
    default: []
  rotation:
    description:
      - With C(stage), make a new key beside the present one, and return its public half. With C(switch), let that key
        take the place of the present one.
    type: str
    choices: ["", stage, switch]
    default: ""
author:
  - The clusterctl authors (!UNKNOWN)
attributes:
  check_mode: {support: full, description: Says what would be made. The public key of a missing key is empty.}
  diff_mode: {support: none, description: A key is not shown.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
public_key: {description: Type and key. Empty in check mode where the key is missing., type: str, returned: success}
successor_key:
  description: Type and key of the new key. Empty without the rotation C(stage).
  returned: success
  type: str
user: {description: Whose key it is., type: str, returned: success}
group: {description: "The user's own group.", type: str, returned: success}
authorized_keys:
  description: >-
    The file in which sshd looks for the user's keys, links resolved: path, owner, group, mode, folder, folder_mode, and
    user, whose identity reads and writes it (empty for root's).
  returned: success
  type: dict
is_missing:
  description: Whether the user is still missing, which only check mode returns.
  returned: success
  type: bool
login_keys:
  description: Lines of the managed block that let people log in as the user. Empty without C(create).
  returned: success
  type: str
former:
  description: Files in which the login user or an earlier mesh's user has the managed block, as C(authorized_keys).
  returned: success
  type: list
  elements: dict
reaches_root:
  description: >-
    C(root) if the user is root, C(sudo) if the user may do everything as root by sudo without a password, else empty.
  returned: success
  type: str
client_block:
  description: Lines that make /etc/ssh/ssh_config read /etc/ssh/ssh_config.d. Empty where it already does.
  returned: success
  type: str
obstacles:
  description: Settings that may make sshd refuse the user, as phrases.
  returned: success
  type: list
  elements: str
trust:
  description: >-
    What the node has of a certificate authority: host keys of sshd, certificates, the lines that trust it, and whether
    the blocks hold keys of single nodes.
  returned: success
  type: dict
remembered:
  description: Lines of the managed blocks about the hosts asked for.
  returned: success
  type: list
  elements: str
changes: {description: What was made or repaired., type: list, elements: str, returned: success}
watch:
  description: The states of the folder and of both halves of the key.
  returned: success
  type: list
  elements: dict
"""

# Without permission, pathlib's questions raise an error; those of os.path answer no.
# ruff: noqa: PTH112, PTH113, PTH116, PTH120

import os
import pwd
import re
import stat
from pathlib import Path
from typing import Any, Dict, List

from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    audited_module,
    job_account,
    login_probe,
    mesh_certificates_look,
    mesh_rules,
    origins,
    sshd,
    text_edit,
    user_identity,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import path_state, reading, users

_CLIENT = Path("/etc/ssh/ssh_config")
_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
_DROP_INS = tuple(map(Path, login_probe.MESH))
_INCLUDE = re.compile(r"^\s*include\s+.*ssh_config\.d/", re.IGNORECASE | re.MULTILINE)
_NO_SHELLS = ("nologin", "false")
_LOCAL_USER = re.compile(r"\blocaluser\s+(\S+)", re.IGNORECASE)


# --- looking around as root ------------------------------------------------------------------------------------------


def authorized_file(path: Path, owner: str, group: str, *, own: bool) -> Dict[str, str]:
    """Return where to write the authorized keys, links resolved, and with whose identity.

    For a file of the user's own this runs with the user's identity.
    """
    real = Path(os.path.realpath(path))
    if real.parent.is_dir():
        folder_mode = stat.S_IMODE(real.parent.stat().st_mode) & ~job_account.GROUP_OR_OTHERS_WRITE
    else:
        folder_mode = 0o700 if own else 0o755
    return {
        "path": str(real),
        "mode": "0600" if own else "0644",
        "owner": owner if own else "root",
        "group": group if own else "root",
        "folder": str(real.parent),
        "folder_mode": f"{folder_mode:04o}",
        "user": owner if own else "",
    }


def check_access(entry: pwd.struct_passwd, path: Path) -> None:
    """Refuse a file of the user's that the user cannot replace; this runs with the user's identity.

    Raises:
        user_key.NoKeyError: the user may not read the file, or does not own or may not write its folder.
    """
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    verb = ""
    if os.path.isfile(real) and not os.access(real, os.R_OK):
        verb = "read"
    elif os.path.isdir(folder) and os.stat(folder).st_uid != entry.pw_uid:
        verb = "write"
    else:
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        verb = "" if os.access(folder, os.W_OK | os.X_OK) else "write"
    if not verb:
        return
    user, link = entry.pw_name, user_identity.first_link(str(path), entry.pw_dir)
    if link:
        raise job_account.NoKeyError(
            f"User {user} may not {verb} {real}, where the link {link} leads; remove the link with 'rm {link}', or let "
            f"it lead to a file of user {user}."
        )
    raise job_account.NoKeyError(f"User {user} may not {verb} {real}; give it and its folder to the user with chown.")


def obstacles(entry: pwd.struct_passwd, settings: Dict[str, str]) -> List[str]:
    """Return what may make sshd refuse the user; it is reported only when a login has failed."""
    found = [
        f"sshd has {keyword} {settings[keyword.lower()]}"
        for keyword in ("AllowUsers", "DenyUsers", "AllowGroups", "DenyGroups", "AuthenticationMethods")
        if settings.get(keyword.lower(), "any") != "any"
    ]
    mode = stat.S_IMODE(Path(entry.pw_dir).stat().st_mode)
    if settings.get("strictmodes", "yes") == "yes" and mode & job_account.GROUP_OR_OTHERS_WRITE:
        found.append(f"{entry.pw_dir} is writable by others (mode {mode:04o}), which sshd's StrictModes refuses")
    return found


def block_lines(path: Path) -> List[str]:
    """Return the lines of our block in a file."""
    text = user_identity.read_regular(str(path)) or b""
    return sshd.block_of(text.decode("utf-8", "surrogateescape"))


def client_block() -> str:
    """Return the lines that make the client read its drop-in folder; '' where the distribution's file does so."""
    text = job_account.read(_CLIENT)
    outside = text_edit.set_block(text, mesh_rules.MARKER, "") if text else ""
    return "" if _INCLUDE.search(outside) else "Match all\n    Include /etc/ssh/ssh_config.d/*.conf\n"


# --- the module ------------------------------------------------------------------------------------------------------


def user_entry(name: str) -> pwd.struct_passwd:
    """Return the user's entry.

    Raises:
        user_key.NoKeyError: the user, the home or the login shell is missing.
    """
    wanted = name or os.environ.get("SUDO_USER", "") or pwd.getpwuid(os.geteuid()).pw_name
    try:
        entry = pwd.getpwnam(wanted)
    except KeyError:
        raise job_account.NoKeyError(
            f"The user {wanted} does not exist on this node; create it, or set ssh_mesh_user."
        ) from None
    if not Path(entry.pw_dir).is_dir():
        raise job_account.NoKeyError(
            f"The home {entry.pw_dir} of user {wanted} does not exist on this node; create it."
        )
    if Path(entry.pw_shell).name in _NO_SHELLS:
        raise job_account.NoKeyError(
            f"The user {wanted} has the shell {entry.pw_shell} and cannot log in; set a login shell with usermod."
        )
    if os.geteuid() not in (0, entry.pw_uid):
        raise job_account.NoKeyError(f"Only root can make the key of user {wanted}; set ansible_become=true.")
    return entry


def former_blocks(entry: pwd.struct_passwd, present: Path, login: str) -> List[Dict[str, str]]:
    """Return the files in which another user still has the mesh's block: the login user, or an earlier mesh's user."""
    found = []
    texts = map(job_account.read, _DROP_INS)
    for name in dict.fromkeys([login, *(name for text in texts for name in _LOCAL_USER.findall(text))]):
        try:
            other = pwd.getpwnam(name)
        except KeyError:
            continue
        path = sshd.authorized_paths(other, sshd.settings_of(name))[0]
        if other.pw_uid == entry.pw_uid or path == present:
            continue
        own, group = sshd.is_users_own(other, path), reading.group_name(other.pw_gid)

        def facts_of(text: str) -> Dict[str, Any]:
            return authorized_file(path, name, group, own=own) if sshd.block_of(text) else {}  # noqa: B023 - runs now

        found.append(sshd.read_as(other, path, facts_of))
    return [one for one in found if one]


def reaches_root(entry: pwd.struct_passwd) -> str:
    """Return how a job can do everything as root: ``root``, ``sudo`` without a password, or '' for neither."""
    if entry.pw_uid == 0:
        return "root"
    return "sudo" if users.sudo_answer(entry.pw_name) else ""


def note_origins(entry: pwd.struct_passwd, name: str, *, check: bool) -> None:
    """Keep whether the folder, the key and its successor were there before; no private half is copied."""
    folder = Path(entry.pw_dir, ".ssh")
    keys = [folder / f"{key}{end}" for key in (name, job_account.successor(name)) for end in ("", ".pub")]
    for path in (folder, *keys) if not check else ():
        origins.note_path(str(path), entry, content=path.suffix == ".pub")


def look(module: audited_module.AuditedModule) -> Dict[str, Any]:
    """Make the key and gather what the mesh needs of this node."""
    name, create = module.params["name"], module.params["create"]
    login = job_account.login_name(module.params["login"])
    created = job_account.ensure(module.params["user"], check=module.check_mode) if create else []
    if created and module.check_mode:
        return job_account.missing(module.params["user"], created)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", name):
        raise job_account.NoKeyError(f"ssh_mesh_key_name is {name!r}; give the bare name of a file in ~/.ssh.")
    entry = user_entry(module.params["user"])
    settings = sshd.settings_of(entry.pw_name)
    if settings.get("pubkeyauthentication", "yes") == "no":
        raise job_account.NoKeyError("sshd on this node has PubkeyAuthentication no; set it to yes in sshd_config.")
    group = reading.group_name(entry.pw_gid)
    comment = f"clusterctl:{os.uname().nodename}"
    path = sshd.authorized_paths(entry, settings)[0]
    own = sshd.is_users_own(entry, path)
    people = job_account.login_keys(entry, login, module.params["keys"]) if create else {"lines": [], "watch": []}

    def with_the_users_identity() -> Dict[str, Any]:
        check_access(entry, Path(entry.pw_dir, ".ssh", name))
        if own:
            check_access(entry, path)
        made = job_account.rotated(entry.pw_dir, name, comment, module.params["rotation"], check=module.check_mode)
        certificate = mesh_certificates_look.certificate_of(entry, name)
        return {**made, **certificate, **(known_of(path) if own else {})}

    def known_of(path: Path) -> Dict[str, Any]:
        authorized = authorized_file(path, entry.pw_name, group, own=own)
        return {"authorized_keys": authorized, "remembered": block_lines(Path(authorized["path"]))}

    note_origins(entry, name, check=module.check_mode)
    made = user_identity.in_child(entry, with_the_users_identity)
    if not own:
        link = path_state.link_of_another(str(path))
        if link:
            raise job_account.NoKeyError(
                f"sshd looks for the keys of user {entry.pw_name} in {path}, which is reached through the link {link}; "
                f"a user other than root could have set it. Remove it with 'rm {link}'."
            )
        made.update(known_of(path))
    wanted = module.params["remember"]
    trusted = block_lines(_KNOWN_HOSTS)
    trust = mesh_certificates_look.look(made.pop("certificate"), settings, made["remembered"], trusted)
    lines = [*mesh_rules.key_lines(made["remembered"]), *trusted] if wanted else []
    return {
        **made,
        "changes": [*created, *made["changes"]],
        "watch": [*made["watch"], *people["watch"]],
        "trust": trust,
        "user": entry.pw_name,
        "is_missing": False,
        "login_keys": job_account.block(login, people["lines"]),
        "former": former_blocks(entry, path, login),
        "reaches_root": reaches_root(entry),
        "group": group,
        "client_block": client_block(),
        "obstacles": obstacles(entry, settings),
        "remembered": mesh_rules.remembered_lines(lines, wanted),
    }


def main() -> None:
    """Run the module."""
    module = audited_module.AuditedModule(
        argument_spec={
            "user": {"type": "str", "default": ""},
            "name": {"type": "str", "default": "id_clusterctl"},
            "remember": {"type": "list", "elements": "str", "default": []},
            "create": {"type": "bool", "default": False},
            "login": {"type": "str", "default": ""},
            "keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "rotation": {"type": "str", "choices": ["", "stage", "switch"], "default": ""},
        },
        supports_check_mode=True,
    )
    try:
        result = look(module)
    except user_identity.IdentityError as error:
        module.fail_json(msg=str(error), changes=[], watch=[])
    except OSError as error:
        module.fail_json(msg=f"{error.filename or 'A file'}: {error.strerror}.", changes=[], watch=[])
    module.exit_json(changed=bool(result["changes"]), **result)


if __name__ == "__main__":
    main()
