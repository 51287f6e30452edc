# SPDX-License-Identifier: Apache-2.0
"""Find mpirun and python3 as a login session and systemd's units of the account that runs jobs find them.

The account's login shell starts as at a login, without a terminal, so that no start-up file joins an open tmux. Where a
program is another one than the account was given, bash and zsh start once more and trace where PATH changes. Paths and
places leave the node, and nothing else of the session.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Callable

from . import reading
from .reading import Json, read_environment_file, read_text

if TYPE_CHECKING:
    import pwd

ACTIVATE = "/etc/clusterctl/activate"  # its twins for csh and fish have their ending
GIVEN = "/etc/clusterctl/environment"  # the PATH that the account was given
PROFILE = "/etc/profile.d/zz-clusterctl.sh"  # names the accounts
_LOGIN_S, _ALL_S, _SYSTEMD_S = 6.0, 10.0, 3.0
_MOST_WRITTEN = 1 << 24  # bytes; bash-completion alone is thousands of lines of a trace
_BLOCK = 1 << 16
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER, prctl(2)

_NAMES = ("mpirun", "python3")
_OF_SYSTEM = ("", "/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
_FOLLOWED = {"bash", "zsh", "fish", "tcsh"}
_MARK = "CLUSTERCTL_LOOK"
# The blank keeps it out of a history. The sleep keeps the shell from the end of its input, where it writes one.
_COMMAND = f" /bin/sh -c 'echo \"${_MARK}:$PATH:${_MARK}\"; exec /bin/sleep 20'\n".encode()
# Options of a trace, and what stands ahead of each command: its depth, file, line and PATH. bash repeats the plus.
_TRACES = {
    "bash": (["-x"], "+clusterctl\x1f${#BASH_SOURCE[@]}\x1f$BASH_SOURCE\x1f$LINENO\x1f$PATH\x1f"),
    "zsh": (["-x", "-o", "promptsubst"], "+clusterctl\x1f${#funcfiletrace}\x1f%x\x1f%I\x1f$PATH\x1f"),
}
_STEP = re.compile(rb"(\++)clusterctl\x1f(\d{1,6})\x1f([^\x1f\n]*)\x1f(\d{1,6})\x1f([^\x1f\n]*)\x1f(\. |source )?")
_PLACE = re.compile(r"/[A-Za-z0-9_.+@/-]{1,200} line [0-9]{1,6}")


def sessions(
    variables: dict[str, str], home: str, user: pwd.struct_passwd, frozen: Callable[[list[str]], set[str]]
) -> Json:
    """Return a row for each program of a session, or for the problem of a session.

    A row has ``kind`` (login, systemd), ``name``, ``path``, ``own`` (whether it is as the account was given it),
    ``place`` (what sets PATH) and ``problem``. That is ``unreadable``, with the file in ``place``; or ``ended`` or
    ``silent``, where the login ran no command. There is no row for an account that this process does not have, nor on a
    node that gives no account a PATH.

    Args:
        variables: of the account's session without a terminal.
        home: of the account, '' where it does not answer.
        user: the account.
        frozen: returns those of some folders whose file systems do not answer.
    """
    if not home or os.geteuid() != user.pw_uid or not os.path.lexists(ACTIVATE):
        return {"sessions": []}
    shell = user.pw_shell or "/bin/sh"
    names = re.split(r"[\s|)]+", read_text(PROFILE, user.pw_name))  # without the file, the account is taken for one
    is_first = user.pw_uid != 0 and user.pw_name in names
    activate = ACTIVATE + next((f".{kind}" for kind in ("csh", "fish") if shell.endswith(kind)), "")
    if is_first and not os.access(activate, os.R_OK):
        return {"sessions": [_row("login", problem="unreadable", place=activate)]}
    until, argv0 = time.monotonic() + _ALL_S, f"-{os.path.basename(shell)}"
    path, problem, other, _unused = _login(shell, [argv0], variables, home, until)
    if os.path.basename(other) in _FOLLOWED - {os.path.basename(os.path.realpath(shell))}:
        # A start-up file became another shell, which would be interactive on a terminal.
        shell, argv0, variables = other, os.path.basename(other), {**variables, "PATH": path}
        path, problem, _unused, _unused = _login(shell, [argv0], variables, home, until)
    given = read_environment_file(read_text(GIVEN, "")).get("PATH", "")
    found = {"login": path, "systemd": _of_systemd(user.pw_uid)}
    silent = frozen([folder for one in (given, *found.values()) for folder in one.split(":")])
    programs = {name: _first(name, given, silent) for name in _NAMES}
    wanted = {name: one for name, one in programs.items() if os.path.dirname(one) not in _OF_SYSTEM}

    def own(name: str, path: str) -> bool:
        there = _first(name, path, silent)
        return _is_same(there, wanted[name]) if is_first else bool(there)

    rows = [_row("login", problem=problem)] if problem else []
    for kind, one in found.items():
        rows += [_row(kind, name, _first(name, one, silent), own=own(name, one)) for name in wanted if one]
    lost = [row for row in rows if row["kind"] == "login" and not row["own"]]
    steps, end = _trace(shell, argv0, variables, home, until) if lost else ([], "")
    for row in lost:
        if problem:
            row["place"] = steps[-1][0] if steps else ""
        elif end:
            good = [own(row["name"], met) for met in (*(met for _place, met in steps), end)]
            places = [step[0] for step, before, after in zip(steps, good, good[1:]) if before and not after]  # noqa: B905
            row["place"] = places[-1] if places else ""
    return {"sessions": rows}


def _row(kind: str, name: str = "", path: str = "", *, own: bool = False, problem: str = "", place: str = "") -> Json:
    return {"kind": kind, "name": name, "path": path, "own": own, "problem": problem, "place": place}


def _first(name: str, path: str, silent: set[str]) -> str:
    """Return what a PATH leads to, '' if that is nothing."""
    folders = (folder.rstrip("/") for folder in path.split(":") if folder.startswith("/") and folder not in silent)
    files = (f"{folder}/{name}" for folder in folders)
    return next((file for file in files if os.access(file, os.X_OK) and os.path.isfile(file)), "")


def _is_same(found: str, wanted: str) -> bool:
    """Tell whether two paths are one program; a Python is that of its folder, wherever its link leads."""
    pairs = [(os.path.dirname(found), os.path.dirname(wanted))]
    pairs += [] if wanted.endswith("/python3") else [(found, wanted)]
    return bool(found) and any(os.path.realpath(one) == os.path.realpath(other) for one, other in pairs)


# --- login -----------------------------------------------------------------------------------------------------------


def _login(
    shell: str, argv: list[str], variables: dict[str, str], home: str, until: float
) -> tuple[str, str, str, bytes]:
    """Start an interactive shell and have it run one command.

    Returns:
        Its PATH, why there is none (``ended``, ``silent``), the program that it is by then, and all that it wrote.
    """
    import ctypes  # noqa: PLC0415 - seldom needed, and slow to import
    import subprocess  # noqa: PLC0415 - likewise

    name, mark, pipe = os.path.basename(shell), os.urandom(16).hex(), subprocess.PIPE
    # zsh and ksh write a line to their history at once. zsh leaves out one with a blank by -g.
    argv = [argv[0], "-i", *(["-g"] if name == "zsh" else []), *argv[1:]]
    variables = {**variables, "TERM": "xterm", _MARK: mark}
    variables.update({"HISTFILE": os.devnull} if name.endswith("ksh") else {})
    how = {"executable": shell, "env": variables, "cwd": home, "start_new_session": True}
    until = min(until, time.monotonic() + _LOGIN_S)
    answer = re.compile(f"{mark}:([^\r\n]*):{mark}".encode())
    text, match, block, other = bytearray(), None, b"-", ""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    try:
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, **how)
    except OSError:
        return "", "ended", "", b""
    with process.stdin as sink, process.stdout as stream:
        with suppress(OSError):
            os.write(sink.fileno(), 2 * _COMMAND)  # a start-up file may read a line
        with suppress(OSError):
            sink.close()  # fish waits for it
        while not match and block and len(text) <= _MOST_WRITTEN:
            if not select.select([stream], [], [], max(0.0, until - time.monotonic()))[0]:
                break
            block = os.read(stream.fileno(), _BLOCK)
            text += block
            match = answer.search(text, max(0, len(text) - 2 * _BLOCK))
        with suppress(OSError):
            other = os.readlink(f"/proc/{process.pid}/exe")
        _end(process.pid)
    process.poll()
    if match:
        return match.group(1).decode("utf-8", "replace"), "", other, bytes(text)
    return "", "silent" if block else "ended", "", bytes(text)


def _end(pid: int) -> None:
    """End a shell and what its start-up files have left running: orphans are children of this process."""
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        children = read_text(f"/proc/self/task/{os.getpid()}/children", str(pid)).split()
        if not children:
            break
        with suppress(OSError):
            reading.reap(int(children[-1]))


def _of_systemd(uid: int) -> str:
    """Return the PATH of the user's units, '' where no manager of the user runs."""
    runtime = f"/run/user/{uid}"
    program = reading.find_program("systemctl")
    if not program or not os.path.exists(f"{runtime}/systemd/private"):
        return ""
    variables = {"XDG_RUNTIME_DIR": runtime, "LC_ALL": "C"}
    text = reading.output_of([program, "--user", "show-environment"], _SYSTEMD_S, env=variables)[1]
    return read_environment_file(text.decode("utf-8", "replace")).get("PATH", "")


# --- what takes a program away ---------------------------------------------------------------------------------------


def _trace(
    shell: str, argv0: str, variables: dict[str, str], home: str, until: float
) -> tuple[list[tuple[str, str]], str]:
    """Return the place of each command of a login and the PATH that it meets, and the PATH at the end.

    Both are empty where the shell has no such trace, and the latter where the login does not come to its end. The place
    of a command in a function, or in a file that is no start-up file, is the line that led there.
    """
    options, prompt = _TRACES.get(os.path.basename(os.path.realpath(shell)), ([], ""))
    if not prompt:
        return [], ""
    path, _unused, _unused, text = _login(shell, [argv0, *options], {**variables, "PS4": prompt}, home, until)
    above: list[tuple[int, str, bool]] = []  # depth, place, and whether the command reads a file
    steps = []
    for match in _STEP.finditer(text):
        plus, frames, file, line, met, reads = (word.decode("utf-8", "replace") for word in match.groups(b""))
        depth = len(plus) + int(frames)
        while above and above[-1][0] >= depth:
            above.pop()
        is_start_up = file.startswith("/etc/") or os.path.dirname(file) == home
        place = f"{file} line {line}" if not above or (above[-1][2] and is_start_up) else above[-1][1]
        above.append((depth, place, bool(reads)))
        steps.append((place if _PLACE.fullmatch(place) else "", met))
    return steps, path if steps else ""
