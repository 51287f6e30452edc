"""Copy a folder of code to one place on many nodes, all at once, over the controller's own ssh."""

from __future__ import annotations

import mmap
import os
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model.nodeset import folded
from clusterctl.remote import python, reach
from clusterctl.support import held_files
from clusterctl.support.errors import ConfigError, HostFailedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from clusterctl.remote.supervised_job import JobLogin

_AT_ONCE = 16
_MOST_NAMED = 3
_NOISE = "is your shell clean?"  # of rsync, where a session prints something before rsync's own bytes
# tar works where rsync says one of these; the second is of an rsync before 3.2.3 on the node.
_FOR_TAR = (_NOISE, "--mkpath: unknown option")
_ANSWER_S = 30
_LEAST_S, _LEAST_BYTES_PER_S = 600.0, 1e5
_MOST_SAID = 300
_MOST_SHOWN = 60
# Constant text: the files that a shell reads for a command by ssh, first those that hold the text by position.
_FIND_NOISE = """
files="$HOME/.bashrc $HOME/.bash_profile $HOME/.profile $HOME/.zshenv $HOME/.cshrc $HOME/.tcshrc $HOME/.ssh/rc
$HOME/.config/fish/config.fish /etc/bash.bashrc /etc/bashrc /etc/zsh/zshenv /etc/zshenv /etc/csh.cshrc /etc/ssh/sshrc"
found=$(grep -slF -e "$1" $files /etc/profile.d/*.sh)
test -n "$found" || found=$(grep -slE '(^|[;&[:blank:]])(echo|printf|cat|fortune|neofetch)[[:blank:]]' $files)
printf '\\nclusterctl-noise %s\\n' "$(printf '%s' "$found" | head -n 1)"
"""
_FOUND = b"clusterctl-noise "


@dataclass(frozen=True)
class Copied:
    """What was copied: the number of files, and a sentence where a node did not take rsync's way."""

    files: int
    note: str = ""


def files(folder: Path) -> list[str]:
    """Return what of a folder is to be copied, relative to it: everything but .git and what .gitignore names.

    Raises:
        ConfigError: it is not a folder, or there is no git to read its .gitignore with.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; --sync takes the folder of your program.")
    if shutil.which("git") is None:
        if any(folder.rglob(".gitignore")):
            raise ConfigError(f"{folder} has a .gitignore, which needs git to be read; install git.")
        return _walk(folder)
    with tempfile.TemporaryDirectory() as elsewhere:  # an empty repository knows no file, so all are told
        git = ["git", f"--git-dir={elsewhere}/git", f"--work-tree={folder}"]
        for argv in (
            ["git", "init", "--quiet", "--bare", f"{elsewhere}/git"],
            [*git, "-C", str(folder), "ls-files", "-z", "--others", "--exclude-standard"],
        ):
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.returncode != 0:
                words = done.stderr.decode("utf-8", "replace").strip()
                raise ConfigError(f"git cannot list what is in {folder}: {words}.")
    names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    nested = [name for name in names if name.endswith("/")]  # a repository in a subfolder is told as one name
    inside = [f"{name}{entry}" for name in nested for entry in files(folder / name)]
    return sorted([*(name for name in names if not name.endswith("/")), *inside])


def _walk(folder: Path) -> list[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(str(path) for path in found if ".git" not in path.parts)


def copy(folder: Path, target: str, logins: Sequence[JobLogin], has_rsync: Mapping[str, bool]) -> Copied:
    """Copy the folder to the same absolute path on every node.

    Nothing is removed there. With rsync on both sides only what is another travels, else everything, as one tar stream.
    So it is also where a session prints something, which rsync cannot bear.

    Raises:
        ConfigError: the folder cannot be read.
        HostFailedError: a node could not take it; the message names the nodes.
    """
    names = files(folder)
    here = _has_modern_rsync()
    rsync = [login for login in logins if here and has_rsync.get(login.host.name) and _is_plain(login)]
    others = [login for login in logins if login not in rsync]
    problems: dict[str, str] = {}
    noisy: list[JobLogin] = []
    with held_files.folder() as private:
        pack = private / "pack.tar"
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            sent = b"".join(os.fsencode(name) + b"\0" for name in names)
            limit_s = _limit_s(sum(path.lstat().st_size for path in map(folder.joinpath, names)))
            for login, problem in zip(
                rsync,
                pool.map(lambda one: _taken(rsync_argv(folder, target, one), sent, limit_s), rsync),
                strict=True,
            ):
                if any(words in problem for words in _FOR_TAR):
                    others.append(login)
                    noisy += [login] if _NOISE in problem else []
                else:
                    problems |= {login.host.name: problem} if problem else {}
            if others:
                _pack(folder, names, pack)
            for login, problem in zip(
                others, pool.map(lambda one: _by_tar(target, pack, one, limit_s), others), strict=True
            ):
                problems |= {login.host.name: problem} if problem else {}
    if problems:
        by_why: dict[str, list[str]] = {}
        for name, why in problems.items():
            by_why.setdefault(why, []).append(name)
        words = "; ".join(f"{folded(hosts)}: {why}" for why, hosts in list(by_why.items())[:_MOST_NAMED])
        raise HostFailedError(
            f"{folder} could not be copied to {target} ({words}); name a folder that the cluster's user may write on "
            "all nodes: --remote-dir PATH."
        )
    return Copied(len(names), _noise(noisy) if noisy else "")


def _noise(logins: Sequence[JobLogin]) -> str:
    """Return the sentence about sessions that print something: what, and which file does it, on the first node."""
    first = logins[0]
    printed = _printed(first, ["true"]).decode("utf-8", "replace")
    text = next((line.strip() for line in printed.splitlines() if line.strip()), "")[:_MOST_SHOWN]
    answer = _printed(first, ["sh", "-c", _FIND_NOISE, "sh", text])
    path = answer.rpartition(_FOUND)[2].partition(b"\n")[0].decode("utf-8", "replace") if _FOUND in answer else ""
    where = path if path.isprintable() and 0 < len(path) <= _MOST_SAID else "a start-up file of the shell"
    said = f" ('{text}')" if text.isprintable() and text else ""
    return (
        f"On {folded([login.host.name for login in logins])}, {where} prints something in each session{said}, so rsync "
        "cannot be used, and everything was copied by tar; let the file print only to a terminal: [ -t 1 ]."
    )


def _printed(login: JobLogin, argv: Sequence[str]) -> bytes:
    try:
        return python.run(login.command(list(argv)), b"", _ANSWER_S).output
    except (OSError, subprocess.TimeoutExpired, python.TooMuchOutputError):
        return b""


def rsync_argv(folder: Path, target: str, login: JobLogin) -> list[str]:
    """Return the argv that copies the files named on stdin (separated by NUL) from a folder to one on a node."""
    *transport, _, address = reach.arguments(login.host, control_dir=login.control_dir)
    line = ["rsync", "--archive", "--from0", "--files-from=-", "--mkpath", f"--rsh={_for_rsync(transport)}"]
    if login.as_user is not None and login.as_user != login.host.user:
        line += [f"--rsync-path={shlex.join(['sudo', '-n', '-H', '-u', login.as_user, '--', 'rsync'])}"]
    place = f"[{address}]" if ":" in address else address
    return [*line, "--", f"{folder}/", f"{place}:{target}/"]


def _is_plain(login: JobLogin) -> bool:
    """Whether rsync, which takes ssh's words as one text, can be told them."""
    return not any("'" in word and '"' in word for word in reach.arguments(login.host, control_dir=login.control_dir))


def _for_rsync(words: Sequence[str]) -> str:
    """Join words as rsync takes them apart: at blanks, with either kind of quotes and no backslashes."""
    return " ".join(f'"{word}"' if "'" in word else f"'{word}'" for word in words)


def _limit_s(size: int) -> float:
    """Return the seconds for a copy of so many bytes: a node that takes nothing, or prints without end, is given up."""
    return _LEAST_S + size / _LEAST_BYTES_PER_S


def _taken(argv: Sequence[str], given: bytes | mmap.mmap, limit_s: float) -> str:
    """Run a command that takes what it is given, and return why it did not, '' where it did."""
    try:
        return _reason(python.run(argv, given, limit_s))
    except subprocess.TimeoutExpired:
        return f"it did not take the files within {limit_s:.0f} s"
    except python.TooMuchOutputError as error:
        return str(error)


def _has_modern_rsync() -> bool:
    """Whether this machine's rsync knows --mkpath (3.2.3); the rsync of macOS does not."""
    if shutil.which("rsync") is None:
        return False
    return b"--mkpath" in subprocess.run(["rsync", "--help"], capture_output=True, check=False).stdout


def _pack(folder: Path, names: Sequence[str], pack: Path) -> None:
    with tarfile.open(pack, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            member = tar.gettarinfo(str(folder / name), arcname=name)
            if member is None:  # a socket
                continue
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            if member.isreg():
                with (folder / name).open("rb") as file:
                    tar.addfile(member, file)
            else:
                tar.addfile(member)


def _by_tar(target: str, pack: Path, login: JobLogin, limit_s: float) -> str:
    # Constant text; the folder comes by position. tar changes the times of files, not of the folder that was there.
    script = 'mkdir -p -- "$1" && exec tar -x --no-same-owner -f - -C "$1"'
    with pack.open("rb") as own:
        given = mmap.mmap(own.fileno(), 0, access=mmap.ACCESS_READ)
    return _taken(login.command(["sh", "-c", script, "sh", target]), given, limit_s)


def _reason(done: python.Done) -> str:
    if done.returncode == 0:
        return ""
    # rsync's own words about a noisy session stand behind others.
    words = [line.strip() for line in done.errors.decode("utf-8", "replace").splitlines() if line.strip()]
    words = [*(line for line in words if any(one in line for one in _FOR_TAR)), *words]
    return words[0][:_MOST_SAID] if words else f"it ended with code {done.returncode}"
