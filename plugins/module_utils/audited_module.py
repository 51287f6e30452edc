# SPDX-License-Identifier: Apache-2.0
"""The audit line of a node: who changed what, by which run, in a file that root alone writes, and in the syslog."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, NoReturn, Sequence, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_ownership import audit_file

from . import command

# SELinux contexts of what a module has written: the policy's own, by restorecon, on nodes where SELinux is enabled.
#
# A file that is made in a folder gets the folder's type, so a tree that is unpacked below /usr/local would have the
# type of /usr/local throughout, where the policy has types of its own for programs and libraries. Files that a user or
# ``file_set`` replaces keep their context, see :mod:`file_transaction`.

MOUNT = "/sys/fs/selinux"
_PROGRAM = "restorecon"
_AT_ONCE = 500  # paths in one command
_OPTIONS = 3  # words of a command before its paths
_SHOWN = 4  # paths of a command in a sentence
_TIMEOUT_S = 600
_TREES = frozenset({"artifact"})
_WITHOUT_FILE = frozenset({"absent", "library", "configuration"})


class Labelling(NamedTuple):
    """Paths to give their contexts: ``trees`` with all that is in them, ``single`` alone."""

    trees: Tuple[str, ...] = ()
    single: Tuple[str, ...] = ()


def is_enabled(mount: str = MOUNT) -> bool:
    """Tell whether SELinux is enabled, enforcing or not; its file system is mounted then."""
    return os.path.exists(os.path.join(mount, "enforce"))  # noqa: PTH110, PTH118 - modules start quicker without pathlib


def labelling(watch: Iterable[Mapping[str, Any]]) -> Labelling:
    """Return what a module's result names as its own: trees of artifacts, and single files, folders and links.

    A path within a named tree is left out, and a folder of others is never walked.

    Args:
        watch: the entries that a module returns as ``watch``.
    """
    trees, single = set(), set()
    for entry in watch:
        path, kind = str(entry.get("path") or ""), str(entry.get("kind") or "")
        if not path.startswith("/") or kind in _WITHOUT_FILE:
            continue
        (trees if kind in _TREES else single).add(os.path.normpath(path))
    outermost = {one for one in trees if not any(_within(one, other) for other in trees)}
    alone = {one for one in single if one not in trees and not any(_within(one, tree) for tree in outermost)}
    return Labelling(tuple(sorted(outermost)), tuple(sorted(alone)))


def commands(wanted: Labelling, program: str = _PROGRAM) -> List[List[str]]:
    """Return the commands; -i passes over a path that has gone, and contexts that an administrator set by hand stay."""
    found: List[List[str]] = []
    for option, paths in (("-Ri", wanted.trees), ("-i", wanted.single)):
        found += [[program, option, "--", *paths[start : start + _AT_ONCE]] for start in range(0, len(paths), _AT_ONCE)]
    return found


def _run(argv: Sequence[str]) -> command.Done:
    return command.run(argv, _TIMEOUT_S, {**os.environ, "PATH": command.SYSTEM_PATH})


def relabel(
    watch: Iterable[Mapping[str, Any]],
    *,
    mount: str = MOUNT,
    run: Callable[[Sequence[str]], command.Done] = _run,
) -> str:
    """Give what a module wrote its contexts; nothing without SELinux.

    Args:
        watch: the entries that the module returns.
        mount: where SELinux's file system is.
        run: runs a command.

    Returns:
        A sentence where it did not work, else ''.
    """
    if not is_enabled(mount):
        return ""
    wanted = labelling(watch)
    for argv in commands(wanted):
        done = run(argv)
        if done.status == command.NOT_STARTED:
            return (
                "SELinux is enabled, and restorecon is missing, so the new files have the contexts of their folders;"
                f" install policycoreutils, and run {_shown(wanted)} there."
            )
        if not done.ok:
            said = next((line.strip() for line in reversed(done.said.splitlines())), f"it ended with {done.status}")
            return f"SELinux contexts were not set by {' '.join(argv[:4])}: {said[:300]}; run it there by hand."
    return ""


def _shown(wanted: Labelling) -> str:
    """Return the commands as a sentence shows them, each with its first paths."""
    shown = []
    for argv in commands(wanted):
        more = len(argv) - _OPTIONS - _SHOWN
        said = f"'{' '.join(argv[: _OPTIONS + _SHOWN])}'"
        shown.append(f"{said} (and {more} more)" if more > 0 else said)
    return " and ".join(shown)


def _within(path: str, tree: str) -> bool:
    return path != tree and path.startswith(tree.rstrip("/") + "/")


_RUN = "CLUSTERCTL_RUN"  # run, user and controller as JSON; the playbooks set it


class AuditedModule(AnsibleModule):
    """A module whose changes stand in the audit file and in the syslog, also when it fails after them."""

    keeps_file = True  # an uninstall, which removes the file, is in the syslog alone
    is_labelled = False

    def exit_json(self, **result: Any) -> NoReturn:
        """Give what was written its SELinux contexts, write the audit line, then end the module."""
        self.label(result)
        self._audit(result)
        super().exit_json(**result)

    def fail_json(self, msg: str, **result: Any) -> NoReturn:
        """Write the audit line of what was changed before the failure, then end the module."""
        self._audit(result)
        super().fail_json(msg, **result)

    def label(self, result: Dict[str, Any]) -> None:
        """Give what was written its SELinux contexts, once: what proves the files may need them."""
        if self.is_labelled or not result.get("changed") or self.check_mode or os.geteuid() != 0:
            return
        self.is_labelled = True
        problem = relabel(entry for entry in result.get("watch") or () if isinstance(entry, dict))
        if problem:
            self.warn(problem)

    def _audit(self, result: Dict[str, Any]) -> None:
        changes = [str(change) for change in result.get("changes") or ()]
        looks_only = result.get("changed") is False  # its changes are those that another call will make
        if not changes or looks_only or self.check_mode or os.geteuid() != 0:
            return
        text = audit_file.line(os.environ.get(_RUN, ""), self._name, changes, audit_file.login_address(), time.time())
        try:
            if self.keeps_file:
                audit_file.append(text)
        except OSError as error:
            self.warn(f"The audit line was not written: {audit_file.FILE}: {error.strerror}.")
        self.log(f"audit {text}")
