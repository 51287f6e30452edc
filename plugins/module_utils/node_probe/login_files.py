# SPDX-License-Identifier: Apache-2.0
"""Variables that PAM and the ssh daemon give to a session, read from their files as text.

Only names that the caller asks for are returned. See pam_env.conf(5), and SetEnv and PermitUserEnvironment in
sshd_config(5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from .reading import read_text, read_text_of_user
from .shell_files import words_of
from .ssh_daemon import read_sshd_config

if TYPE_CHECKING:
    import pwd

_PAM, _PAM_OF_USER = "/etc/security/pam_env.conf", ".pam_environment"
_SSHD, _SSH_OF_USER = "/etc/ssh/sshd_config", ".ssh/environment"
_EXPANDS = ("${", "@{")


def read_files(
    home: str, user: pwd.struct_passwd | None, wanted: Callable[[str], bool], root: str = ""
) -> dict[str, tuple[dict[str, str], dict[str, set[str]]]]:
    """Return, for each file that sets something, the variables that it sets in any case, and all values of each.

    Args:
        home: the home of the login user, '' to leave it out.
        user: the login user, with whose identity root reads below the home.
        wanted: whether a variable is asked for.
        root: a folder that stands for ``/``.
    """
    config = read_sshd_config(root + _SSHD)
    first, *others = [_pairs(line) for line in config.get("setenv", [])] or [[]]  # sshd takes the first line alone
    pairs = {_PAM: pam_settings(read_text(root + _PAM, "")), _SSHD: first}
    if home:
        pairs[f"{home}/{_PAM_OF_USER}"] = pam_settings(read_text_of_user(f"{home}/{_PAM_OF_USER}", user))
    if home and config.get("permituserenvironment", ["no"])[0].lower() != "no":
        lines = read_text_of_user(f"{home}/{_SSH_OF_USER}", user).split("\n")
        pairs[f"{home}/{_SSH_OF_USER}"] = [_pair(line.strip()) for line in lines if not line.startswith("#")]
    found = {}
    for path, given in pairs.items():
        always = {name: value for name, value in given if wanted(name)}
        values: dict[str, set[str]] = {}
        for name, value in [*given, *(pair for line in others for pair in line if path == _SSHD)]:
            if wanted(name):
                values.setdefault(name, set()).add(value)
        if values:
            found[path] = (always, values)
    return found


def pam_settings(text: str) -> list[tuple[str, str]]:
    """Return the variables in a text in the form of pam_env.conf; what PAM has to expand is unknown."""
    found = []
    for line in text.replace("\\\n", " ").split("\n"):
        words = words_of(line)
        options = dict(map(_pair, words[1:]))
        value = options.get("OVERRIDE") or options.get("DEFAULT", "")
        if value and not any(sign in value for sign in _EXPANDS):
            found.append((words[0], value))
    return found


def _pairs(line: str) -> list[tuple[str, str]]:
    return [_pair(word) for word in words_of(line)]


def _pair(word: str) -> tuple[str, str]:
    name, _sign, value = word.partition("=")
    return name, value
