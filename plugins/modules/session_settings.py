# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Set what sessions find, and raise limits of open files and logins where they are too low for jobs."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: session_settings
short_description: Set what sessions find, and raise limits that are too low for jobs
version_added: "0.2.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Merges folders and variables into a file that pam_env reads, where O(environment) is given. What others wrote stays.
    A line that needs no change keeps every byte. A list keeps the folders of others before ours, and holds each of our
    folders once.
  - Remembers in comments of the same file what it added. What is no longer asked for is removed. A replaced variable
    comes back.
  - Values are not expanded, since the file is not a shell script. A value that the file's form cannot carry is refused.
  - Writes the files by which shells, sshd, systemd, environment modules and Open MPI find the cluster's programs, where
    O(sessions) is given.
  - Asks PAM which limit of open files a session of the user gets, and asks sshd for its MaxStartups.
  - A value that is high enough is left alone. A lower one is raised by a file of its own, which stays from then on.
  - Who may log in is the administrator's decision, so the module changes no other setting of sshd.
  - Limits need root. For another user the module leaves them alone.
options:
  environment:
    description: What every session gets. Left out, the file stays as it is.
    type: dict
    suboptions:
      lists:
        description: Folders per variable. They stand behind the folders of others.
        type: dict
        default: {}
      bases:
        description: The initial list per variable, for a file that does not set it yet. Our folders stand behind it.
        type: dict
        default: {}
      variables:
        description: Variables and their values, which are strings or numbers.
        type: dict
        default: {}
      path:
        description: The file.
        type: str
        default: /etc/environment
      owner:
        description: User name or number. Left out, an existing file keeps its own.
        type: str
      group:
        description: Group name or number. Left out, an existing file keeps its own.
        type: str
      mode:
        description: Four octal digits in quotes. Left out, an existing file keeps its own.
        type: raw
  sessions:
    description: Who finds which programs, beside what O(environment) gives to every session. Left out, no file changes.
    type: dict
    suboptions:
      accounts:
        description: Accounts that find the programs first. An empty name is O(user). Root is left out.
        type: list
        elements: str
        default: []
      first:
        description: Folders that the accounts find behind those of PATH in O(environment), and before the system's.
        type: list
        elements: str
        default: []
      library_path:
        description: LD_LIBRARY_PATH of the accounts.
        type: list
        elements: str
        default: []
      prefix:
        description: Folder of the cluster's software.
        type: str
        default: /usr/local
      modulefile:
        description: Path of the module file. Empty writes none.
        type: str
        default: ""
      default_hostfile:
        description: Whether mpirun takes the cluster's hostfile where it is given no hosts.
        type: bool
        default: false
  user:
    description: User who runs the jobs. Empty means the user who called sudo, or else root.
    type: str
    default: ""
  open_files:
    description: Least limit of open files. V(0) leaves the limit alone.
    type: int
    required: true
  logins:
    description: >-
      Number of logins that sshd must accept at once. More than sshd's default of 10 are not asked for. V(0) leaves sshd
      alone.
    type: int
    required: true
  limits_file:
    description: File that raises the limit. It must be the last one in its folder, so that it counts.
    type: path
    default: /etc/security/limits.d/zz-clusterctl.conf
  sshd_files:
    description: >-
      Files that raise MaxStartups, the first and the last one in their folder. Releases of sshd differ in whether the
      first or the last value counts.
    type: list
    elements: path
    default: [/etc/ssh/sshd_config.d/00-clusterctl.conf, /etc/ssh/sshd_config.d/zz-clusterctl.conf]
attributes:
  check_mode: {support: full, description: Says what would be changed.}
  diff_mode: {support: full, description: Before and after of the files.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
msg: {description: "What went wrong, in one sentence.", type: str, returned: failure}
changes: {description: A short phrase for each change., type: list, returned: success}
watch: {description: States of paths that hold from now on., type: list, returned: success}
diff: {description: "Each file before and after, in diff mode.", type: list, returned: "success, in diff mode"}
"""

import os
import pwd
import resource
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    command,
    file_stage,
    file_transaction,
    prefix_rules,
    session_files,
    sshd,
    text_edit,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import path_state
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.reading import read_environment_file, read_text

_ANSWER_S = 30
_ASKING = {"PATH": command.SYSTEM_PATH, "LC_ALL": "C"}
_SSHD_FILES = ["/etc/ssh/sshd_config.d/00-clusterctl.conf", "/etc/ssh/sshd_config.d/zz-clusterctl.conf"]
_DEFAULT_STARTUPS = "10:30:100"  # of sshd_config(5)
_MOST_LOGINS = 10
_ENVIRONMENT: Dict[str, Any] = {
    "lists": {"type": "dict", "default": {}},
    "bases": {"type": "dict", "default": {}},
    "variables": {"type": "dict", "default": {}},
    "path": {"type": "str", "default": "/etc/environment"},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "mode": {"type": "raw"},
}
_SESSIONS: Dict[str, Any] = {
    "accounts": {"type": "list", "elements": "str", "default": []},
    "first": {"type": "list", "elements": "str", "default": []},
    "library_path": {"type": "list", "elements": "str", "default": []},
    "prefix": {"type": "str", "default": prefix_rules.DEFAULT},
    "modulefile": {"type": "str", "default": ""},
    "default_hostfile": {"type": "bool", "default": False},
}
_MOST_DIGITS = 20  # of a number of 64 bits


def open_files_of(user: str) -> Optional[int]:
    """Return the limit of open files that PAM gives to a user's session; None where it is unlimited or unknown.

    The shell that answers is the user's process, so it may answer anything.
    """
    done = command.run(["runuser", "-u", user, "--", "sh", "-c", "ulimit -Sn"], _ANSWER_S, _ASKING)
    said = done.output.strip()
    return int(said) if done.ok and said.isdecimal() and len(said) <= _MOST_DIGITS else None


def logins_at_once(settings: Mapping[str, str]) -> Optional[int]:
    """Return how many logins sshd accepts at once by its settings; None where they do not say."""
    begin = settings.get("maxstartups", "").partition(":")[0]
    return int(begin) if begin.isdecimal() else None


def wanted_files(
    user: str, open_files: int, logins: int, limits_file: str, sshd_files: Sequence[str]
) -> List[file_transaction.Entry]:
    """Return the files that raise what is too low.

    Raises:
        file_transaction.StageError: the user's name would leave its line.
    """
    entries = []
    present = open_files_of(user) if open_files else None
    if present is not None and present < open_files:
        file_transaction.one_line(limits_file, "the user", user, refused=" #")
        text = f"# clusterctl: jobs of {user} open many files and connections\n{user} - nofile {open_files}\n"
        entries.append(_file(limits_file, text))
    accepted = logins_at_once(sshd.settings_of("root")) if logins else None
    if accepted is not None and accepted < min(logins, _MOST_LOGINS):
        text = f"# clusterctl: all nodes log in at once\nMaxStartups {_DEFAULT_STARTUPS}\n"
        entries += [_file(path, text) for path in sshd_files]
    return entries


def still_too_low(user: str, open_files: int, logins: int) -> List[str]:
    """Return the names of the limits that their files have not raised."""
    # A process cannot see beyond its own hard limit, which the next session will not have.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = open_files if hard == resource.RLIM_INFINITY or hard >= open_files else 0
    return [entry.path for entry in wanted_files(user, files, logins, "limit of open files", ["MaxStartups of sshd"])]


def is_user(name: str) -> bool:
    """Whether the node knows a user, by a directory service too: such a service may not list its users."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _text_of(name: str, value: Any) -> str:
    """Return a variable's value as text.

    Raises:
        file_transaction.StageError: it is not a string or a number. YAML's yes, no, on and off are booleans.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise file_transaction.StageError(
            f"The value of {name} is {value!r}, which is not a string or a number; put it in quotes."
        )
    return str(value)


def _folders_of(name: str, value: Any) -> List[str]:
    if not isinstance(value, list) or not all(isinstance(folder, str) for folder in value):
        raise file_transaction.StageError(f"The folders for {name} are {value!r}, which is not a list of paths.")
    return value


def wanted_of(given: Dict[str, Any]) -> text_edit.Environment:
    """Return what the arguments ask for.

    Raises:
        file_transaction.StageError: a value has the wrong type.
    """
    return text_edit.Environment(
        paths={name: _folders_of(name, value) for name, value in given["lists"].items()},
        variables={name: _text_of(name, value) for name, value in given["variables"].items()},
        bases={name: _text_of(name, value) for name, value in given["bases"].items()},
    )


def environment_entry(given: Mapping[str, Any]) -> file_transaction.Entry:
    """Return the entry of the file that every session's environment comes from.

    Raises:
        file_transaction.StageError: a value has the wrong type, or owner, group or mode is invalid.
    """
    path = given["path"]
    edit = partial(text_edit.set_environment, wanted=wanted_of(given))
    return file_transaction.Entry(
        path=path, state="edit", edit=edit, what="variables", **file_transaction.attributes(path, given)
    )


def session_entries(
    given: Mapping[str, Any], environment: Mapping[str, Any], user: str
) -> List[file_transaction.Entry]:
    """Return the entries of the files by which sessions find the cluster's programs.

    Raises:
        file_transaction.StageError: a value has the wrong type, or no shell takes it.
    """
    variables = wanted_of(environment)
    path, prefix = list(variables.paths.get("PATH", ())), given["prefix"]
    accounts = dict.fromkeys(name or user for name in given["accounts"])
    wanted = session_files.Sessions(
        accounts=[name for name in accounts if not _is_root(name)],
        path=path,
        first=given["first"],
        library_path=given["library_path"],
        prefix=prefix,
        modulefile=given["modulefile"],
        has_default_hostfile=given["default_hostfile"],
    )
    found: Dict[str, file_transaction.Entry] = {}
    of_sshd = sshd.all_settings_of("root")
    try:
        text = text_edit.set_environment(read_text(environment["path"], ""), variables)
        whole = read_environment_file(text).get("PATH", "").split(":")
        theirs = [folder for folder in whole if folder not in {"", *path, *wanted.first}]
        for file in session_files.files(wanted, theirs, of_sshd.get("setenv", [])):
            if not file.needs or Path(file.needs).is_dir():
                for folder in file.makes:
                    found.setdefault(folder, file_transaction.Entry(path=folder, state="directory"))
                found[file.path] = _session_file(file, of_sshd.get("hostkey", []))
    except text_edit.EditError as error:
        raise file_transaction.StageError(f"{error}.") from None
    return list(found.values())


def _session_file(file: session_files.SessionFile, host_keys: Sequence[str]) -> file_transaction.Entry:
    if file.is_block:
        marker = session_files.MARKER
        edit = partial(text_edit.set_block, marker=marker, content=file.text)
        return file_transaction.Entry(path=file.path, state="edit", edit=edit, what=f"block '{marker}'")
    if not file.text:
        return file_transaction.Entry(path=file.path, state="absent")
    validate: Tuple[str, ...] = ()
    if file.path == session_files.SSHD and host_keys:  # the file names no key, and sshd checks nothing without one
        validate = ("/usr/sbin/sshd", "-t", "-h", host_keys[0], "-f", "%s")
    return replace(_file(file.path, file.text), mode=file.mode, validate=validate)


def _is_root(name: str) -> bool:
    try:
        return pwd.getpwnam(name).pw_uid == 0
    except KeyError:
        return False


def _file(path: str, text: str) -> file_transaction.Entry:
    return file_transaction.Entry(path=path, state="file", content=text.encode(), mode=0o644, uid=0, gid=0)


def main() -> None:
    """Run the module."""
    module = file_stage.QuietModule(
        argument_spec={
            "environment": {"type": "dict", "options": _ENVIRONMENT},
            "sessions": {"type": "dict", "options": _SESSIONS},
            "user": {"type": "str", "default": ""},
            "open_files": {"type": "int", "required": True},
            "logins": {"type": "int", "required": True},
            "limits_file": {"type": "path", "default": "/etc/security/limits.d/zz-clusterctl.conf"},
            "sshd_files": {"type": "list", "elements": "path", "default": _SSHD_FILES},
        },
        required_by={"sessions": ["environment"]},
        supports_check_mode=True,
    )
    given, really = module.params, not module.check_mode
    environment = given["environment"]
    invocation = {"module_args": {"path": environment["path"] if environment else ""}}  # values may be secret
    user = given["user"] or os.environ.get("SUDO_USER", "") or "root"
    limits = (user, given["open_files"], given["logins"]) if os.geteuid() == 0 and is_user(user) else (user, 0, 0)
    try:
        variables = [environment_entry(environment)] if environment else []
        if given["sessions"]:
            variables += session_entries(given["sessions"], environment, user)
        wanted = wanted_files(*limits, given["limits_file"], given["sshd_files"])
        raised = [entry for entry in wanted if Path(entry.path).parent.is_dir()]
        outcome = file_stage.apply(
            [*variables, *raised],
            check_mode=module.check_mode,
            want_diff=module._diff,  # noqa: SLF001 - the documented way for a module to learn of --diff
            selinux=file_stage.selinux_of(module),
        )
    except file_transaction.StageError as error:
        module.fail_json(msg=str(error), changes=[], watch=[], invocation=invocation)
    if really and any(
        path in change for change in outcome.changes for path in (session_files.SSHD, *given["sshd_files"])
    ):
        sshd.reload()
    for what in still_too_low(*limits) if wanted and really else []:
        module.warn(
            f"The {what} stays too low for jobs of user {user}, because another setting comes first; raise it in "
            "/etc/security/limits.d or in sshd_config."
        )
    files = (given["limits_file"], *given["sshd_files"]) if any(limits[1:]) else ()
    answer = {
        "changed": bool(outcome.changes),
        "changes": outcome.changes,
        "watch": [
            *(state for state in outcome.watch if state["path"] not in files),
            *(path_state.watch_state(path) for path in files if os.path.lexists(path)),
        ],
        "invocation": invocation,
    }
    if module._diff:  # noqa: SLF001 - as above
        answer["diff"] = outcome.diff
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
