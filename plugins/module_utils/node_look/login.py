# SPDX-License-Identifier: Apache-2.0
"""What a login gives to jobs: its shell, variables that break programs, and a home that sshd or a job cannot use."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import sys
from contextlib import nullcontext

from . import machine, parameters
from .reading import ActingAs, Json, output_of, read_text

_LISTS = ("PATH", "LD_LIBRARY_PATH")  # of folders, in which no place has a quote or a name to expand
# Each can end a Python, the loader or a shell at its start. Without one of them nothing is started here.
_RISKY = ("PYTHONHOME", "PYTHONPATH", "PYTHONPLATLIBDIR", "PYTHONWARNINGS", "LD_PRELOAD", "LD_AUDIT", "BASH_ENV")
_RISKY_LISTS = ("SHELLOPTS", "BASHOPTS")
_IMPORTS = "import ctypes, json, logging, random, socket, subprocess, typing"
_START_S = 10
_MOST_SAID = 300
_MOST_TRAPS = 20
_ENVIRONMENT = "/etc/environment"


def login(variables: dict[str, str], home: str, user: pwd.struct_passwd | None, root: str) -> Json:
    """Return the login user's shell, the variables that break something, and what is wrong with the home.

    Args:
        variables: of the session.
        home: of the login user, '' where it does not answer.
        user: the login user.
        root: the prefix of the software.
    """
    found = {"shell": user.pw_shell or "/bin/sh" if user else "", "traps": [], "unsafe": [], "home_refuses": ""}
    found["traps"] = traps(variables, home, user, [sys.executable, f"{root}/python_env/bin/python"])
    if home and user:
        found["unsafe"] = unsafe(home, user.pw_uid)
        found["home_refuses"] = home_refuses(home, user)
    return {"login": found}


# --- variables -------------------------------------------------------------------------------------------------------


def traps(variables: dict[str, str], home: str, user: pwd.struct_passwd | None, pythons: list[str]) -> list[Json]:
    """Return the variables of the session that break something: their place, and what a program says of them.

    Values are not told, since they may be secret, but for the folders of a list.
    """
    found = []
    for name, value in sorted(variables.items()):
        if "\r" in value:
            found.append((name, "carriage return", "", ""))
        elif name in _LISTS and any(sign in value for sign in "$\"'"):
            found.append((name, "not expanded" if "$" in value else "quote", "", value[:_MOST_SAID]))
    risky = [name for name in (*_RISKY, *_RISKY_LISTS) if variables.get(name)]
    if risky:
        argvs = [[python, "-c", _IMPORTS] for python in pythons] + [["/bin/sh", "-c", ":"], ["/bin/bash", "-c", ":"]]
        for argv in argvs:
            found += [(name, "breaks", argv[0], said) for name, said in _broken(argv, variables, risky, user)]
    return [
        {"name": name, "what": what, "program": program, "said": said, "source": place_of(name, home, user)}
        for name, what, program, said in found[:_MOST_TRAPS]
    ]


def _broken(
    argv: list[str], variables: dict[str, str], risky: list[str], user: pwd.struct_passwd | None
) -> list[tuple[str, str]]:
    """Return the variables without which a program starts, with its words; it fails for another reason without one."""
    if not os.access(argv[0], os.X_OK) or (user is None and os.geteuid() == 0):
        return []
    said = _words(argv, variables, user)
    if not said:
        return []
    alone = [name for name in risky if not _words(argv, {**variables, **dict.fromkeys(set(risky) - {name}, "")}, user)]
    culprits = [name for name in risky if name not in alone]
    clean = {name: value for name, value in variables.items() if name not in risky}
    return [] if _words(argv, clean, user) else [(name, said) for name in culprits]


def _words(argv: list[str], variables: dict[str, str], user: pwd.struct_passwd | None) -> str:
    """Return what a program says that does not start; root starts it as the user, whose files it may load."""
    identity = {}
    if user is not None and os.geteuid() == 0 and user.pw_uid:
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": groups}
    # bash leaves BASH_ENV out as the first shell of a login.
    environment = {**{name: value for name, value in variables.items() if value}, "SHLVL": "2"}
    status, errors = output_of(argv, _START_S, errors=True, env=environment, cwd="/", **identity)
    if status == -1 and not errors:  # a busy node proves nothing
        return ""
    lines = [line.strip() for line in errors.decode("utf-8", "replace").split("\n") if line.strip()]
    if not status and "ld.so: " not in "".join(lines):  # a warning breaks nothing
        return ""
    fatal = [line for line in lines if "Error" in line or "ld.so" in line]
    return (fatal or lines or [f"status {status}"])[-1][:_MOST_SAID]


def place_of(name: str, home: str, user: pwd.struct_passwd | None) -> str:
    """Return the file that sets a variable, in /etc/environment with its line; "environment" where none is known."""
    lines = read_text(_ENVIRONMENT, "").split("\n")
    sets = [number for number, line in enumerate(lines, start=1) if _sets(line, name)]
    if sets:
        return f"{_ENVIRONMENT} line {sets[-1]}"
    for files in (parameters.login_files, parameters.shell_files):
        for path in files(home, user, lambda one: one == name):
            return path
    return "environment"


def _sets(line: str, name: str) -> bool:
    return line.strip().removeprefix("export ").lstrip().startswith(f"{name}=")


# --- home ------------------------------------------------------------------------------------------------------------


def unsafe(home: str, uid: int, is_debian: bool | None = None) -> list[str]:
    """Return the paths for which sshd refuses the keys of a user, each with its reason (StrictModes, sshd_config(5)).

    The home, .ssh and authorized_keys have to belong to the user or to root, and nobody else may write to them. Debian
    lets a group write whose only member is the user (debian/patches/user-group-modes.patch of openssh).
    """
    if is_debian is None:
        is_debian = machine.read_os_release(read_text("/etc/os-release", ""))["family"] == "Debian"
    found = []
    for path in (home, f"{home}/.ssh", f"{home}/.ssh/authorized_keys"):
        try:
            state = os.stat(path)
        except OSError:
            continue
        if state.st_uid not in (0, uid):
            found.append(f"{path} belongs to another user (uid {state.st_uid})")
        elif state.st_mode & stat.S_IWOTH or (
            state.st_mode & stat.S_IWGRP and not (is_debian and _is_of_one(state.st_gid, uid))
        ):
            whom = "everybody" if state.st_mode & stat.S_IWOTH else "its group"
            found.append(f"{path} has mode {stat.S_IMODE(state.st_mode):04o}, so that {whom} may write to it")
    return found


def _is_of_one(gid: int, uid: int) -> bool:
    """Whether a user is the only member of a group."""
    try:
        members = {pwd.getpwnam(name).pw_uid for name in grp.getgrgid(gid).gr_mem}
    except KeyError:
        return False
    return members | {one.pw_uid for one in pwd.getpwall() if one.pw_gid == gid} == {uid}


def home_refuses(home: str, user: pwd.struct_passwd) -> str:
    """Say why the user cannot write to the home, '' if it can, or where only that user can tell; nothing is written."""
    try:
        if os.statvfs(home).f_flag & os.ST_RDONLY:
            return "read-only"
        if os.geteuid() not in (0, user.pw_uid):
            return ""
        with ActingAs(user) if os.geteuid() == 0 and user.pw_uid else nullcontext():
            return "" if os.access(home, os.W_OK, effective_ids=True) else "not writable"
    except OSError:
        return ""
