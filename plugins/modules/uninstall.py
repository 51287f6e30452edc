# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0 (see LICENSE) or, at your choice, GNU General Public License v3.0 or later (see COPYING).
"""Put a node back to what it was before clusterctl: files, folders, artifacts, packages and the account for jobs."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: uninstall
short_description: Put a node back to what it was before clusterctl
version_added: "0.2.0"
author: The clusterctl authors (!UNKNOWN)
description:
  - Puts every file back that clusterctl changed. A file that is as clusterctl left it gets its first content, mode and
    owner. From a file that others changed since, only the blocks and lines of clusterctl are taken.
  - Removes the rules of ufw and firewalld that opened the cluster's network.
  - Removes the artifacts with their links, the programs of the checks, logs, and the packages that came with them.
  - A package that something else needs by now stays and is named.
  - The account that was made for jobs stays with its home, unless O(remove_user) is set.
  - Reads what to put back from the record of origins, C(/var/lib/clusterctl/origins.json), which goes last.
options:
  paths:
    description: Further paths that the controller knows of, for a node whose record begins later.
    type: list
    elements: path
    default: []
  prefix:
    description: Folder of the cluster's software. Software in other folders that the node tells of is removed as well.
    type: path
    default: /usr/local
  host:
    description: Name of the host, for sentences.
    type: str
    default: ""
  remove_user:
    description: Also remove the account that was made for jobs, with its home.
    type: bool
    default: false
attributes:
  check_mode: {support: full, description: Says what would go.}
  diff_mode: {support: full, description: Before and after of every file that changes.}
"""

EXAMPLES = """
---
# It is internal: the tasks and action plugins of this collection show its options.
"""

RETURN = r"""
changes: {description: A short phrase for each change., type: list, returned: success}
told: {description: "What stays and why, a sentence each.", type: list, returned: success}
watch: {description: Always empty., type: list, returned: success}
"""

import os
import pwd
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from ansible_collections.clusterctl.hpc.plugins.module_utils import (
    brought,
    command,
    file_restore,
    file_stage,
    file_transaction,
    firewall_manager,
    origins,
    packages_installed,
    sshd,
    tree_removal,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.firewall_manager import OpeningError
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import artifacts
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look.reading import read_text
from ansible_collections.clusterctl.hpc.plugins.module_utils.user_identity import IdentityError, acting_as

_WORK_FOLDER = "/var/tmp"  # noqa: S108 - where killed runs leave packs and builds
_USERDEL_S = 120
_LDCONFIG_S = 120
_MOST_PROCESSES_NAMED = 3


class UninstallError(Exception):
    """The node cannot be put back; the message is one sentence."""


# --- accounts --------------------------------------------------------------------------------------------------------


def made_accounts(record: Dict[str, Any]) -> List[pwd.struct_passwd]:
    """Return the accounts of the record that are still there."""
    found = []
    for name in record["accounts"]:
        with suppress(KeyError):
            found.append(pwd.getpwnam(name))
    return found


def processes_of(uid: int) -> List[str]:
    """Return the processes of a user as ``pid (name)``."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if place.stat().st_uid == uid:
                found.append(f"{place.name} ({(place / 'comm').read_text(errors='replace').strip()})")
    return found


def check_idle(accounts: Sequence[pwd.struct_passwd]) -> None:
    """Refuse to remove an account whose processes run.

    Raises:
        UninstallError: there are some.
    """
    for entry in accounts:
        busy = processes_of(entry.pw_uid)
        if busy:
            named = ", ".join(busy[:_MOST_PROCESSES_NAMED])
            raise UninstallError(
                f"The account {entry.pw_name} cannot be removed, because its processes run: {named}; end them first."
            )


def remove_account(name: str) -> None:
    """Remove an account with its home.

    Raises:
        UninstallError: userdel failed.
    """
    done = command.run(["userdel", "--remove", "--", name], _USERDEL_S)
    home_is_gone = 12  # of userdel(8): the home could not be removed; it may be gone already
    if done.status not in {0, home_is_gone}:
        raise UninstallError(f"The account {name} could not be removed: {done.said}.")


# --- trees and folders -----------------------------------------------------------------------------------------------


def remove_tree(path: str) -> None:
    """Remove an artifact's folder, or a hidden one, which no name leads to."""
    if os.path.basename(path).startswith("."):  # noqa: PTH119 - a text
        tree_removal.remove(path)
    else:
        tree_removal.remove_by_name(path, artifacts.MARKER)


def empty_folders(
    folders: Sequence[Tuple[str, Optional[pwd.struct_passwd]]], going: Set[str], *, really: bool
) -> List[str]:
    """Remove the folders in which nothing is left; return them, deepest first."""
    gone = []
    for path, user in sorted(folders, key=lambda item: item[0].count("/"), reverse=True):
        with suppress(OSError), acting_as(user):
            if any(f"{path}/{name}" not in going for name in os.listdir(path)):  # noqa: PTH208 - names alone
                continue
            if really:
                Path(path).rmdir()
            going.add(path)
            gone.append(path)
    return gone


# --- the node --------------------------------------------------------------------------------------------------------


class Node:
    """What there is to do on this node, and the doing of it."""

    def __init__(self, given: Dict[str, Any], *, really: bool, want_diff: bool) -> None:
        """Begin without changes."""
        self.given, self.really, self.want_diff = given, really, want_diff
        self.record = origins.load()
        self.changes: List[str] = []
        self.kept: List[str] = []
        self.diff: List[Dict[str, str]] = []

    def run(self) -> None:
        """Do everything; a part that is done is not done again, so that a killed run is finished by the next.

        Raises:
            UninstallError: a part could not be done.
            StageError: a file stands in the way; nothing was changed.
            OpeningError: a rule of the firewall could not be removed.
            PackageError: the packages could not be removed.
            OSError: the system refused something.
        """
        accounts, roots = made_accounts(self.record), self._roots()
        if self.given["remove_user"]:
            check_idle(accounts)
        if self.record.get("firewall"):
            self.changes += firewall_manager.change((), exact=True, really=self.really)
        entries, folders, kept = file_restore.survey(self.record, self.given["paths"], roots)
        self.kept += kept
        packages, needed = packages_installed.removable(self.record["packages"])
        late = [entry for entry in entries if entry.path in brought.NAMED_BY_SSHD]
        self._put_back([entry for entry in entries if entry not in late])
        if late:
            self._do("sshd reads its settings anew", sshd.reload)
            self._put_back(late)
        going = {entry.path for entry in entries if entry.state == "absent"}
        going |= self._artifacts(roots)
        going |= self._own_folders(roots)
        for path in empty_folders(folders, going, really=self.really):
            self.changes.append(f"removed {path}")
        # also for files that an uninstall put back which was killed before this
        touched = {*(entry.path for entry in entries), *self.record["paths"]}
        if any(path.startswith(brought.LOADER) for path in touched):
            self._do("ldconfig", lambda: command.run(["/sbin/ldconfig"], _LDCONFIG_S))
        if any(path.startswith(brought.SSHD) for path in touched):
            self._do("sshd reads its settings anew", sshd.reload)
        self._packages(packages, needed)
        self._accounts(accounts)
        self._forget(needed)

    def _put_back(self, entries: Sequence[file_transaction.Entry]) -> None:
        outcome = file_stage.apply(entries, check_mode=not self.really, want_diff=self.want_diff, is_noted=False)
        self.changes += outcome.changes
        self.diff += outcome.diff

    def _do(self, phrase: str, act: Any) -> None:
        self.changes.append(phrase)
        if self.really:
            act()

    def _roots(self) -> List[str]:
        """Return the folders of the software: the given one, and those that the node itself tells of.

        Raises:
            UninstallError: a user could change a folder while root removes from it.
        """
        told = artifacts.prefix_candidates(read_text("/etc/environment", ""))
        roots = sorted({self.given["prefix"], *told, *brought.roots_in(self.record["paths"])})
        for root in roots:
            why = artifacts.prefix_problem(root) if root != brought.ROOT else ""
            if why:
                raise UninstallError(f"Nothing is removed from {root}, because {why}; give it back to root first.")
        return roots

    def _artifacts(self, roots: Sequence[str]) -> Set[str]:
        found = [brought.trees_and_links(root) for root in roots]
        trees, links = (
            [tree for one, _unused in found for tree in one],
            [link for _unused, one in found for link in one],
        )
        for link in links:
            if link not in self.record["paths"]:  # else it was put back with the files
                self._do(f"removed {link}", Path(link).unlink)
        for tree in [*trees, *brought.left_in(_WORK_FOLDER)]:
            self._do(f"removed {tree}", lambda tree=tree: _remove(tree))
        return {*trees, *links}

    def _own_folders(self, roots: Sequence[str]) -> Set[str]:
        present = [folder for folder in brought.folders(roots) if os.path.lexists(folder)]
        for folder in present:
            self._do(f"removed {folder}", lambda folder=folder: _remove(folder))
        return set(present)

    def _packages(self, names: List[str], needed: Dict[str, str]) -> None:
        if names:
            self._do(f"removed the packages {', '.join(names)}", lambda: packages_installed.remove(names))
        for name, why in needed.items():
            self.kept.append(f"{self.given['host']}: the package {name} stays, because {why}.")

    def _accounts(self, accounts: Sequence[pwd.struct_passwd]) -> None:
        for entry in accounts:
            name = entry.pw_name
            if self.given["remove_user"]:
                self._do(f"removed the user {name} with {entry.pw_dir}", lambda name=name: remove_account(name))
            else:
                self.kept.append(
                    f"The account {name} stays, because its home {entry.pw_dir} may hold results; "
                    "--remove-user removes both."
                )

    def _forget(self, needed: Dict[str, str]) -> None:
        """Remove the record, or what of it is done."""
        if not os.path.lexists(brought.STATE):
            return
        accounts = {} if self.given["remove_user"] else {e.pw_name: {} for e in made_accounts(self.record)}
        wanted = [name for name in self.record["packages"] if packages_installed.plain_name(name) in needed]
        if not accounts and not wanted:
            self._do(f"removed {brought.STATE}", lambda: _remove(brought.STATE))
            return
        rest = {
            **{key: its for key, its in self.record.items() if key != "firewall"},
            "paths": {},
            "accounts": accounts,
            "packages": wanted,
        }
        others = sorted(str(path) for path in Path(brought.STATE).iterdir() if str(path) != origins.place())
        for path in others:
            self._do(f"removed {path}", lambda path=path: _remove(path))
        if self.really and rest != self.record:
            origins.save(rest)


class _Module(file_stage.QuietModule):
    """The module; its audit line goes to the syslog alone, because the audit file goes with the other logs."""

    keeps_file = False


def _remove(path: str) -> None:
    if Path(path).is_symlink() or not Path(path).is_dir():
        Path(path).unlink()
    elif brought.is_tree_name(Path(path).name):
        remove_tree(path)
    else:
        tree_removal.remove(path)


def main() -> None:
    """Run the module."""
    module = _Module(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "default": []},
            "prefix": {"type": "path", "default": brought.ROOT},
            "host": {"type": "str", "default": ""},
            "remove_user": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    if os.geteuid() != 0:
        module.fail_json(msg="Only root can put the node back; set ansible_become=true.", changes=[], watch=[])
    node = Node(module.params, really=not module.check_mode, want_diff=module._diff)  # noqa: SLF001 - as documented
    said: Dict[str, Any] = {"changes": node.changes, "told": node.kept, "watch": []}
    try:
        node.run()
    except (
        UninstallError,
        file_transaction.StageError,
        packages_installed.PackageError,
        IdentityError,
        OpeningError,
    ) as error:
        module.fail_json(msg=str(error), **said)
    except OSError as error:
        module.fail_json(msg=f"{error.filename or 'A file'}: {error.strerror}; run again.", **said)
    if module._diff:  # noqa: SLF001 - as above
        said["diff"] = node.diff
    module.exit_json(changed=bool(node.changes), **said)


if __name__ == "__main__":
    main()
