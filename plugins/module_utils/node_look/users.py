# SPDX-License-Identifier: Apache-2.0
"""The login user and the user that jobs run as: name, home, and whether sudo works without a password."""

from __future__ import annotations

import os
import pwd
import re
import resource

from . import login
from .processes import name_and_parent
from .reading import Json, find_program, list_folder, of_process, read_environment_file, read_text

# Environment and limits of the ssh session that a job gets, also behind sudo, and the programs that it finds.

# --- login session ---------------------------------------------------------------------------------------------------

SHOWN_VARIABLES = ("PATH", "LD_LIBRARY_PATH")


class Session:
    """The environment and limits of the ssh session that started the probe, also if the probe runs through sudo.

    sudo replaces the environment (``env_reset``, ``secure_path``), so mpirun meets another one than the probe has.
    Behind sudo, the first of these sources that answers is taken:

    1. The variables that the caller passed along before sudo.
    2. The environment that sudo was started with. Root reads it in /proc, but lacks the right (CAP_SYS_PTRACE) in most
       containers.
    3. /etc/environment. It holds what PAM gives to a session, without what sshd or a shell's start-up file adds.
    """

    def __init__(self, given: dict[str, str] | None = None) -> None:
        """Walk up the parents of this process to the ssh daemon."""
        self.variables: dict[str, str] = dict(os.environ)
        self.source = "process"
        self.limits_pid: int | None = None
        above: list[tuple[int, str]] = []
        pid = os.getppid()
        while pid > 0 and len(above) < 64:  # noqa: PLR2004 - a limit, in case /proc shows a circle
            name, parent = name_and_parent(pid)
            if name.startswith("sshd"):
                self.source = "ssh session"
                break
            above.append((pid, name))
            pid = parent
        changers = [index for index, (_unused, name) in enumerate(above) if name in {"sudo", "su", "doas"}]
        if changers:
            self._look_above(above, changers[-1], pid, given)

    def _look_above(
        self, above: list[tuple[int, str]], outermost: int, daemon: int, given: dict[str, str] | None
    ) -> None:
        self.limits_pid = above[outermost + 1][0] if outermost + 1 < len(above) else daemon
        block = given or _environ(above[outermost][0])
        if block is None:
            self.source = "/etc/environment"
            block = read_environment_file(read_text("/etc/environment", ""))
        self.variables = block

    def limits(self) -> Json:
        """Return the soft and hard limits of a job in such a session; None means unlimited."""
        wanted = {
            "Max locked memory": "memlock",
            "Max open files": "nofile",
            "Max processes": "nproc",
            "Max address space": "as",
            "Max data size": "data",
            "Max file size": "fsize",
            "Max cpu time": "cpu",
        }
        if self.limits_pid:
            found = {}
            for line in read_text(f"/proc/{self.limits_pid}/limits").splitlines():
                key = wanted.get(line[:26].strip())
                if key:
                    soft, hard = line[26:].split()[:2]
                    found[key] = {"soft": _limit(soft), "hard": _limit(hard)}
            return found
        own = {
            "memlock": resource.RLIMIT_MEMLOCK,
            "nofile": resource.RLIMIT_NOFILE,
            "nproc": resource.RLIMIT_NPROC,
            "as": resource.RLIMIT_AS,
            "data": resource.RLIMIT_DATA,
            "fsize": resource.RLIMIT_FSIZE,
            "cpu": resource.RLIMIT_CPU,
        }
        limits: Json = {}
        for key, number in own.items():
            low, high = (_limit(str(value)) for value in resource.getrlimit(number))
            limits[key] = {"soft": low, "hard": high}
        return limits


def _limit(text: str) -> int | None:
    return None if text in {"unlimited", str(resource.RLIM_INFINITY)} else int(text)


def _environ(pid: int) -> dict[str, str] | None:
    try:
        raw = of_process(f"/proc/{pid}/environ")
    except OSError:
        return None
    pairs = (item.decode("utf-8", "replace").partition("=") for item in raw.split(b"\0") if item)
    return {name: value for name, _unused, value in pairs}


def limits(session: Session) -> Json:
    """Return the limits of memory, files and processes, and the settings of pam_limits for all users."""
    return {"limits": session.limits(), "limit_settings": limit_settings("/etc/security")}


def limit_settings(folder: str) -> dict[str, str]:
    """Return the settings of limits.conf and limits.d by domain, type and item; a later one wins (limits.conf(5))."""
    names = [name for name in list_folder(f"{folder}/limits.d") if name.endswith(".conf")]
    found: dict[str, str] = {}
    for path in (f"{folder}/limits.conf", *(f"{folder}/limits.d/{name}" for name in names)):
        for line in read_text(path, "").split("\n"):
            words = line.partition("#")[0].split()
            if len(words) == 4:  # noqa: PLR2004 - domain, type, item, value
                found[" ".join(words[:3])] = words[3]
    return found


def environment(session: Session) -> Json:
    """Return PATH and LD_LIBRARY_PATH of the session, and where they were read."""
    kept = {name: session.variables[name] for name in SHOWN_VARIABLES if name in session.variables}
    return {"environment": kept, "environment_source": session.source}


# --- launch programs -------------------------------------------------------------------------------------------------

_NAMES = ("mpirun", "prterun", "prted", "orted")


def programs(search_path: str, own_folder: str) -> Json:
    """Return each program as the session finds it, and the state of the installed one.

    Args:
        search_path: PATH of the session.
        own_folder: where the programs of the installed Open MPI are.
    """
    folders = [folder.rstrip("/") for folder in search_path.split(":") if folder.startswith("/")]
    found = []
    for name in _NAMES:
        path = next((f"{folder}/{name}" for folder in folders if _can_run(f"{folder}/{name}")), "")
        own = f"{own_folder}/{name}"
        found.append(
            {
                "name": name,
                "path": path,
                "real": os.path.realpath(path) if path else "",
                "own": own,
                "own_real": os.path.realpath(own),
                "own_state": _state(own),
            }
        )
    return {"launch": found}


def _can_run(path: str) -> bool:
    return os.access(path, os.X_OK) and os.path.isfile(path)


def _state(path: str) -> str:
    if _can_run(path):
        return "ok"
    return "not executable" if os.path.exists(path) else "missing"


# --- sudo rights -----------------------------------------------------------------------------------------------------

_TIME_LIMIT_S = 10
_RULE = re.compile(r"^\s+\(([^)]*)\)\s*(.*)$")
_TAG = re.compile(r"^([A-Z_]+):\s*")
_NO_PASSWORD = "!authenticate"  # noqa: S105 - a word of sudoers


def is_root_without_password(listing: str) -> bool:
    """Whether the output of ``sudo -l`` allows ``ALL`` as root without a password."""
    before, _unused, rules = listing.partition(" may run the following commands")
    asks_for_none = _NO_PASSWORD in re.split(r"[\s,]+", before)
    for found in filter(None, map(_RULE.match, rules.split("\n"))):
        targets = re.split(r"[\s,]+", found.group(1).split(":")[0].strip())
        if "ALL" in targets or "root" in targets:
            without = asks_for_none
            for command in found.group(2).split(", "):
                word = command.strip()
                while tag := _TAG.match(word):  # a tag holds for the commands behind it
                    without = {"NOPASSWD": True, "PASSWD": False}.get(tag.group(1), without)
                    word = word[tag.end() :]
                if word == "ALL" and without:
                    return True
    return False


def sudo_answer(name: str) -> bool | None:
    """Ask sudo about a user: root may ask about anybody, a user about itself, and about others with all rights.

    Returns:
        None if sudo gives this process no answer. sudo is never asked for a password.
    """
    program = find_program("sudo")
    if not program:
        return False
    import subprocess  # noqa: PLC0415 - seldom needed, and slow to import

    own = os.geteuid() == pwd.getpwnam(name).pw_uid
    done = subprocess.run(
        [program, "-n", "-l", *([] if own else ["-U", name])],
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=_TIME_LIMIT_S,
        check=False,
    )
    if is_root_without_password(done.stdout):
        return True
    return False if done.returncode == 0 or own or os.geteuid() == 0 else None


# --- user ------------------------------------------------------------------------------------------------------------


def user(check_sudo: bool) -> Json:
    """Return the login user, also behind sudo; ``sudo`` is None if it was not checked."""
    entry = _entry()
    can: bool | None = True if os.geteuid() == 0 else None
    if can is None and check_sudo:
        can = _sudo_works()
    return {"user": {"name": entry.pw_name, "uid": entry.pw_uid, "home": entry.pw_dir, "sudo": can}}


def job_user(name: str | None, frozen: frozenset[str] | set[str] = frozenset()) -> Json:
    """Return the account that jobs run as: the named one, '' for the login user; None if it was not asked for.

    ``uid`` is -1 if the account is missing. ``has_home`` tells whether its home is there; an automounter mounts it for
    that question. ``home_answers`` is false where the home is one of the ``frozen`` paths. ``sudo`` tells whether the
    account may do everything as root without a password; None if sudo does not say. ``unsafe`` and ``home_refuses`` are
    those of :mod:`.login`.
    """
    if name is None:
        return {"job_user": None}
    try:
        entry = pwd.getpwnam(name) if name else _entry()
    except KeyError:
        missing = {"name": name, "uid": -1, "home": "", "shell": "", "has_home": False, "home_answers": True}
        return {"job_user": {**missing, "sudo": False, "unsafe": [], "home_refuses": ""}}
    answers = entry.pw_dir not in frozen
    has_home = answers and _is_folder(entry.pw_dir)
    can = True if entry.pw_uid == 0 else sudo_answer(entry.pw_name)
    return {
        "job_user": {
            "name": entry.pw_name,
            "uid": entry.pw_uid,
            "home": entry.pw_dir,
            "shell": entry.pw_shell,
            "has_home": has_home,
            "home_answers": answers,
            "sudo": can,
            "unsafe": login.unsafe(entry.pw_dir, entry.pw_uid) if has_home else [],
            "home_refuses": login.home_refuses(entry.pw_dir, entry) if has_home else "",
        }
    }


def _is_folder(path: str) -> bool:
    """Tell whether a path is a folder; an automounter's folder is one only if what belongs there can be mounted."""
    try:
        os.stat(os.path.join(path, "."))
    except PermissionError:  # as on a server that squashes root
        return os.path.isdir(path)
    except OSError:
        return False
    return True


def homes(job_user_name: str | None) -> list[str]:
    """Return the homes of the login user and, if it was asked for, of the account that jobs run as."""
    own = uid_and_home()[1]
    try:
        return [own, pwd.getpwnam(job_user_name).pw_dir] if job_user_name else [own]
    except KeyError:
        return [own]


def login_user() -> pwd.struct_passwd | None:
    """Return the entry of the login user, also behind sudo; None if the user has no entry."""
    try:
        return _entry()
    except KeyError:
        return None


def uid_and_home() -> tuple[int, str]:
    """Return the number and the home of the login user, also behind sudo; a user may lack an entry."""
    try:
        entry = _entry()
    except KeyError:
        return os.geteuid(), os.environ.get("HOME", "")
    return entry.pw_uid, entry.pw_dir


def _entry() -> pwd.struct_passwd:
    name = os.environ.get("SUDO_USER", "") if os.geteuid() == 0 else ""
    return pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())


def _sudo_works() -> bool:
    program = find_program("sudo")
    if not program:
        return False
    import subprocess  # noqa: PLC0415 - seldom needed, and slow to import

    quiet = subprocess.DEVNULL
    return subprocess.call([program, "-n", "true"], stdin=quiet, stdout=quiet, stderr=quiet, timeout=10) == 0
