# SPDX-License-Identifier: Apache-2.0
"""Ask sshd of this node for its settings and keys, and read authorized keys without following a user's link."""

from __future__ import annotations

import os
import pwd
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, List, Set, Tuple

from . import command, mesh_rules, text_edit, user_identity
from .node_look import path_state
from .node_look.reading import of_process

# Have the node's sshd read its configuration anew, and wait for logins that began with the old one.

_ANSWER_S = 30
_ENVIRONMENT = {"PATH": command.SYSTEM_PATH, "LC_ALL": "C"}
_POLL_S = 0.05
# In the titles of sshd's processes for a connection whose user is not known yet; -R is a process without a title yet.
_UNDECIDED = (b"[accepted]", b"[net]", b"\0-R\0")


def reload() -> None:
    """Have the running sshd read its configuration; open sessions stay."""
    for unit in ("ssh", "sshd"):
        if command.run(["systemctl", "reload", unit], _ANSWER_S, _ENVIRONMENT).ok:
            return
    candidates = [Path("/run/sshd.pid"), Path("/var/run/sshd.pid")]
    pids = [1]
    for path in candidates:
        with suppress(OSError, ValueError):
            pids.insert(0, int(path.read_text().split()[0]))
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "sshd":
                os.kill(pid, signal.SIGHUP)
                return


def undecided_logins(processes: str = "/proc") -> Set[int]:
    """Return the processes of sshd that serve a connection and have not decided yet about its login.

    They are root's, or of the user without rights that sshd reads from the network with. Any user may take the title.
    """
    owners = {os.geteuid(), 0}
    with suppress(KeyError):
        owners.add(pwd.getpwnam("sshd").pw_uid)
    found = set()
    for place in Path(processes).iterdir():
        if place.name.isdigit():
            with suppress(OSError):
                if place.stat().st_uid not in owners:
                    continue
                title = of_process(str(place / "cmdline"))
                program = os.path.basename(title.split(b"\0", 1)[0])  # noqa: PTH119 - bytes
                if program.startswith(b"sshd") and any(mark in title for mark in _UNDECIDED):
                    found.add(int(place.name))
    return found


def await_undecided_logins(patience_s: float) -> None:
    """Wait until the logins that sshd has not decided about now are decided; they keep the configuration of before."""
    waiting = undecided_logins()
    end = time.monotonic() + patience_s
    while waiting and time.monotonic() < end:
        time.sleep(_POLL_S)
        waiting &= undecided_logins()


PEOPLE = "# Who may log in"  # what the line begins with behind which the keys of people stand in the mesh's block
_SSHD_S = 30
_KEYGEN_S = 30


def _told(user: str) -> List[Tuple[str, str]]:
    """Return the settings that sshd has for a user (sshd -T), in its order; [] where it gives none."""
    for program in ("/usr/sbin/sshd", "/usr/local/sbin/sshd"):
        if os.access(program, os.X_OK):
            done = command.run([program, "-T", "-C", f"user={user},host=localhost,addr=127.0.0.1"], _SSHD_S)
            pairs = (line.partition(" ") for line in text_edit.lines_of(done.output))
            return [(name.lower(), value) for name, _unused, value in pairs] if done.ok else []
    return []


def settings_of(user: str) -> Dict[str, str]:
    """Return sshd's own settings for this user; {} where it gives none."""
    return dict(_told(user))


def all_settings_of(user: str) -> Dict[str, List[str]]:
    """Return all values of each of sshd's settings for this user; {} where it gives none."""
    found: Dict[str, List[str]] = {}
    for name, value in _told(user):
        found.setdefault(name, []).append(value)
    return found


def host_key_files() -> List[str]:
    """Return the files of the host keys that sshd is configured with."""
    return all_settings_of("root").get("hostkey", [])


def host_keys() -> List[Dict[str, str]]:
    """Return the host keys that sshd is configured with, by file: path, and key (type and key)."""
    found = []
    for path in host_key_files():
        with suppress(OSError):
            words = Path(f"{path}.pub").read_text(encoding="ascii", errors="replace").split()
            found.append({"path": path, "key": " ".join(words[:2])})
    return found


def keygen(*arguments: str) -> command.Done:
    """Run ssh-keygen.

    Raises:
        IdentityError: it is missing, or does not end.
    """
    done = command.run(["ssh-keygen", *arguments], _KEYGEN_S)
    if done.status == command.NOT_STARTED:
        raise user_identity.IdentityError(f"{done.errors} Install the OpenSSH client.")
    if done.status == command.TIMED_OUT:
        raise user_identity.IdentityError(done.errors)
    return done


def authorized_paths(entry: pwd.struct_passwd, settings: Dict[str, str]) -> List[Path]:
    """Return where sshd looks for the user's authorized keys (AuthorizedKeysFile of sshd_config(5))."""
    tokens = {"%%": "%", "%h": entry.pw_dir, "%u": entry.pw_name, "%U": str(entry.pw_uid)}
    return [
        Path(entry.pw_dir, re.sub("%.", lambda found: tokens.get(found.group(), found.group()), pattern))
        for pattern in settings.get("authorizedkeysfile", "").split() or [".ssh/authorized_keys"]
    ]


def is_users_own(entry: pwd.struct_passwd, path: Path) -> bool:
    """Tell whether the user decides what the path leads to: it lies below the home or in a folder of the user's."""
    if Path(entry.pw_dir) in path.parents:
        return True
    return path.parent.is_dir() and path.parent.stat().st_uid == entry.pw_uid != 0


def read_as(entry: pwd.struct_passwd, path: Path, look: Callable[[str], Dict[str, Any]]) -> Dict[str, Any]:
    """Return what ``look`` finds in a file of authorized keys; {} if the file is missing or not to be read.

    ``look`` gets the file's text, and runs as the user if the user decides what the path leads to.
    """

    def work() -> Dict[str, Any]:
        text = user_identity.read_regular(str(path))
        return {} if text is None else look(text.decode("utf-8", "surrogateescape"))

    try:
        if is_users_own(entry, path):
            return user_identity.in_child(entry, work)
        return {} if path_state.link_of_another(str(path)) else work()
    except (OSError, user_identity.IdentityError):
        return {}


def block_of(text: str) -> List[str]:
    """Return the lines of the mesh's block in a text, without the keys of people."""
    lines = text_edit.lines_of(text)
    begin, end = text_edit.begin_of(mesh_rules.MARKER), text_edit.end_of(mesh_rules.MARKER)
    if begin not in lines or end not in lines:
        return []
    block = lines[lines.index(begin) + 1 : lines.index(end)]
    return block[: next((at for at, line in enumerate(block) if line.startswith(PEOPLE)), len(block))]


def keys_of(text: str) -> List[str]:
    """Return the keys of a file of authorized keys with their options, without the mesh's own."""
    lines = (line.strip() for line in text_edit.lines_of(text_edit.set_block(text, mesh_rules.MARKER, "")))
    return [line for line in lines if line and not line.startswith("#")]
