# SPDX-License-Identifier: Apache-2.0
"""Variables that the start-up files of shells set, read as text: no file is run.

Only names that the caller asks for are returned, since such files hold passwords and tokens as well. See bash(1),
"INVOCATION", zsh(1), "STARTUP/SHUTDOWN FILES", and tcsh(1), "Startup and shutdown".
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Callable

from .reading import list_folder, read_text, read_text_of_user

if TYPE_CHECKING:
    import pwd

_PROFILE_D = "/etc/profile.d"
_SYSTEM = ("/etc/profile", "/etc/bash.bashrc", "/etc/bashrc")
_HOME = (".profile", ".bash_profile", ".bash_login", ".bashrc")
_ZSH = ("/etc/zsh/zshenv", "/etc/zshenv"), (".zshenv", ".zprofile", ".zshrc")
_CSH = ("/etc/csh.cshrc", "/etc/csh.login"), (".cshrc", ".tcshrc", ".login")
_MOST_FILES = 200
_EXPORTS = ("export", "declare", "typeset")
_EXPANDS = ("$", "`")
_BEGIN, _END = "# BEGIN clusterctl ", "# END clusterctl "


def read_files(
    home: str, user: pwd.struct_passwd | None, wanted: Callable[[str], bool], root: str = ""
) -> dict[str, tuple[dict[str, str], dict[str, set[str]]]]:
    """Return what :func:`exports` finds in the start-up files that set something, by path.

    Args:
        home: the home of the login user, '' to leave it out.
        user: the login user, with whose identity root reads below the home.
        wanted: whether a variable is asked for.
        root: a folder that stands for ``/``.
    """
    shell = user.pw_shell if user else ""
    system, own = (_CSH[0], _CSH[1]) if shell.endswith("csh") else (_SYSTEM, _HOME)
    if shell.endswith("zsh"):
        system, own = (*system, *_ZSH[0]), (*own, *_ZSH[1])
    suffix = ".csh" if shell.endswith("csh") else ".sh"
    scripts = [f"{_PROFILE_D}/{name}" for name in list_folder(root + _PROFILE_D) if name.endswith(suffix)]
    texts = {path: read_text(root + path, "") for path in (*system, *scripts[:_MOST_FILES])}
    texts.update({f"{home}/{name}": read_text_of_user(f"{home}/{name}", user) for name in own if home})
    found = {path: exports(text, wanted) for path, text in texts.items()}
    return {path: entry for path, entry in found.items() if entry[1]}


def exports(text: str, wanted: Callable[[str], bool]) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Return the variables that a script sets in any case, and all values that each may get.

    An indented line depends on a condition or belongs to a function. So does a name with two values. What the shell has
    to expand is unknown. Blocks of clusterctl are left out.
    """
    always: dict[str, str] = {}
    values: dict[str, set[str]] = {}
    inside = False
    for line in text.split("\n"):
        if line.startswith((_BEGIN, _END)):
            inside = line.startswith(_BEGIN)
        if inside:
            continue
        for name, value in _assignments(line):
            if wanted(name):
                values.setdefault(name, set()).add(value)
                if not line[:1].isspace():
                    always[name] = value
    return {name: value for name, value in always.items() if values[name] == {value}}, values


def words_of(line: str) -> list[str]:
    """Return the words of a line as a shell splits it, without its comment; none where a quote does not end on it."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []


def _assignments(line: str) -> list[tuple[str, str]]:
    """Return what a line exports; a line that is more than one simple command is left out."""
    words = words_of(line)
    if words[:1] == ["setenv"] and len(words) == 3:  # noqa: PLR2004 - csh: a name and a value
        value = words[2].rstrip(";")
        return [] if any(sign in value for sign in _EXPANDS) else [(words[1], value)]
    if not words or words[0] not in _EXPORTS or any(word.rstrip(";") != word and word != words[-1] for word in words):
        return []
    if any(sign in words for sign in ("&&", "||", "|", ";")):
        return []
    words[-1] = words[-1].rstrip(";")
    pairs = [word.partition("=") for word in words[1:] if "=" in word and not word.startswith("-")]
    return [(name, value) for name, _sign, value in pairs if not any(sign in value for sign in _EXPANDS)]
