# SPDX-License-Identifier: Apache-2.0
"""Lay out several paths as one step: look at all, stage all, validate all, and only then put them in place.

When anything fails, every path is left as it was: new content waits beside its target until every entry has passed,
and what a rename displaced is kept until the last rename has succeeded.
"""

# Modules run on every node in every run; os starts faster than pathlib and serves as well.
# ruff: noqa: PTH112, PTH115, PTH120

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence

from ansible_collections.clusterctl.hpc.plugins.module_utils import audited_module, file_transaction, origins
from ansible_collections.clusterctl.hpc.plugins.module_utils.file_transaction import (
    Entry,
    SelinuxContexts,
    StageError,
    Transaction,
    by_whom,
    check_paths,
    validate_aside,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import path_state
from ansible_collections.clusterctl.hpc.plugins.module_utils.text_edit import EditError
from ansible_collections.clusterctl.hpc.plugins.module_utils.user_identity import IdentityError, acting_as, read_regular

# --- look ------------------------------------------------------------------------------------------------------------


_NEW_FILE_MODE = 0o644
_NEW_FOLDER_MODE = 0o755
_HIDDEN = "(hidden: the entry is marked as sensitive)\n"
_BINARY = "(not text)\n"


@dataclass
class Step:
    """One entry after a look at its path."""

    entry: Entry
    path: str  # where to act: for an edit, the target of a link
    before: Optional[os.stat_result]
    old: bytes = b""
    new: bytes = b""
    action: str = ""  # '' (nothing to do), write, attributes, mkdir, link, remove
    mode: int = 0
    uid: int = -1
    gid: int = -1
    phrases: List[str] = field(default_factory=list)
    staged: str = ""


def look(entry: Entry, coming: Dict[str, str]) -> Step:
    """Compare a path with its entry; the caller has the identity of the entry's user.

    Args:
        entry: what the path should be.
        coming: path to state of the entries before this one, which will be there by then.

    Raises:
        StageError: something is in the way, or the path leads through a link of another user.
    """
    foreign = path_state.link_of_another(entry.path if entry.state == "edit" else os.path.dirname(entry.path))
    if foreign:
        raise StageError(
            f"{entry.path} is reached through the link {foreign}, which a user other than root could have set; remove "
            f"the link with 'rm {foreign}'."
        )
    path = os.path.realpath(entry.path) if entry.state == "edit" else entry.path
    try:
        before: Optional[os.stat_result] = os.lstat(path)
    except FileNotFoundError:
        before = None
    except OSError as error:
        raise StageError(f"{path} cannot be looked at{by_whom(entry)}: {error.strerror}.") from error
    step = Step(entry, path, before)
    if entry.state == "absent":
        if before is not None:
            step.action, step.phrases = "remove", [f"removed {path}"]
        return step
    looks = {"file": _look_at_file, "edit": _look_at_file, "directory": _look_at_folder, "link": _look_at_link}
    looks[entry.state](step)
    folder = os.path.dirname(path)
    if step.action and coming.get(folder) != "directory" and not os.path.isdir(folder):
        raise StageError(
            f"{path} cannot be made, because its folder {folder} does not exist; put an entry of state 'directory' for "
            "it before this one."
        )
    return step


def _look_at_file(step: Step) -> None:
    entry, before = step.entry, step.before
    if before is not None and stat.S_ISDIR(before.st_mode):
        raise StageError(f"{step.path} should be a file, but it is a directory; remove it first.")
    regular = before is not None and stat.S_ISREG(before.st_mode)
    if before is not None and not regular and not stat.S_ISLNK(before.st_mode):
        raise StageError(f"{step.path} should be a file, but it is a device, a socket or a pipe; remove it first.")
    if regular:
        step.old = _read(step)
    step.new = _edited(step) if entry.edit else entry.content
    _choose_attributes(step, before if regular else None, _NEW_FILE_MODE)
    if entry.edit and not regular and not step.new:
        return  # nothing to remove from a missing file
    if not regular or step.old != step.new:
        step.action = "write"
        verb = "changed" if regular else "replaced the link" if before is not None else "created"
        step.phrases = [f"{verb} {entry.what + ' in ' if entry.what else ''}{step.path}"]
        return
    _note_attributes(step)


def _read(step: Step) -> bytes:
    try:
        return read_regular(step.path) or b""
    except OSError as error:
        raise StageError(f"{step.path} cannot be read{by_whom(step.entry)}: {error.strerror}.") from error


def _edited(step: Step) -> bytes:
    edit = step.entry.edit
    if edit is None:
        return step.entry.content
    try:
        return edit(step.old.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    except EditError as error:
        raise StageError(f"{step.path}: {error}.") from error


def _look_at_folder(step: Step) -> None:
    if step.before is None:
        _choose_attributes(step, None, _NEW_FOLDER_MODE)
        step.action, step.phrases = "mkdir", [f"created {step.path}"]
        return
    if not stat.S_ISDIR(step.before.st_mode):
        raise StageError(f"{step.path} should be a directory, but something else is there; remove it first.")
    _choose_attributes(step, step.before, _NEW_FOLDER_MODE)
    _note_attributes(step)


def _look_at_link(step: Step) -> None:
    wanted = step.entry.target
    if step.before is not None:
        if stat.S_ISDIR(step.before.st_mode):
            raise StageError(f"{step.path} should be a link, but it is a directory; remove it first.")
        if stat.S_ISLNK(step.before.st_mode) and os.readlink(step.path) == wanted:
            return
    step.action, step.phrases = "link", [f"linked {step.path} to {wanted}"]


def _choose_attributes(step: Step, present: Optional[os.stat_result], new_mode: int) -> None:
    entry = step.entry
    if present is None:
        present_mode, present_uid, present_gid = new_mode, -1, -1
    else:
        present_mode, present_uid, present_gid = stat.S_IMODE(present.st_mode), present.st_uid, present.st_gid
    if entry.user and present_uid != entry.user.pw_uid:  # a user can make only its own files
        present_uid, present_gid = entry.user.pw_uid, entry.user.pw_gid
    step.mode = present_mode if entry.mode is None else entry.mode
    step.uid = present_uid if entry.uid is None else entry.uid
    step.gid = present_gid if entry.gid is None else entry.gid


def _note_attributes(step: Step) -> None:
    """Note a difference in mode and owner only."""
    before = step.before
    if before is None:
        return
    if stat.S_IMODE(before.st_mode) != step.mode:
        step.phrases.append(f"mode of {step.path} from {stat.S_IMODE(before.st_mode):04o} to {step.mode:04o}")
    if (before.st_uid, before.st_gid) != (step.uid, step.gid):
        if step.entry.user and step.entry.state != "directory":
            step.action = "write"  # only root may change an owner, but the user may replace the file
        step.phrases.append(f"owner of {step.path} from {_owners(before.st_uid, before.st_gid)} to {_step_owner(step)}")
    if step.phrases and not step.action:
        step.action = "attributes"


def _owners(uid: int, gid: int) -> str:
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    try:
        group = grp.getgrgid(gid).gr_name
    except KeyError:
        group = str(gid)
    return f"{user}:{group}"


def _step_owner(step: Step) -> str:
    return _owners(step.uid if step.uid >= 0 else os.geteuid(), step.gid if step.gid >= 0 else os.getegid())


# --- diff ------------------------------------------------------------------------------------------------------------


def diff_of(step: Step) -> Dict[str, str]:
    """Return a path before and after, in the form that Ansible prints."""
    before, after = "", ""
    if step.action == "write":
        before, after = _shown(step, step.old), _shown(step, step.new)
    elif step.action == "attributes" and step.before is not None:
        was = step.before
        before = f"{stat.S_IMODE(was.st_mode):04o} {_owners(was.st_uid, was.st_gid)}\n"
        after = f"{step.mode:04o} {_step_owner(step)}\n"
    elif step.action == "mkdir":
        after = f"directory {step.mode:04o} {_step_owner(step)}\n"
    elif step.action == "link":
        if step.before is not None:
            before = f"link to {os.readlink(step.path)}\n" if stat.S_ISLNK(step.before.st_mode) else "file\n"
        after = f"link to {step.entry.target}\n"
    elif step.action == "remove":
        before = "present\n"
    return {"before_header": step.path, "after_header": step.path, "before": before, "after": after}


def _shown(step: Step, content: bytes) -> str:
    if step.entry.sensitive:
        return _HIDDEN if content else ""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return _BINARY


# --- stage -----------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What was done, or would be done in check mode."""

    changes: List[str] = field(default_factory=list)
    watch: List[Dict[str, Any]] = field(default_factory=list)
    diff: List[Dict[str, str]] = field(default_factory=list)


def apply(
    entries: Sequence[Entry],
    *,
    check_mode: bool = False,
    want_diff: bool = False,
    selinux: Optional[SelinuxContexts] = None,
    is_noted: bool = True,
) -> Outcome:
    """Make every path what its entry says, all or none.

    Args:
        entries: the wanted states.
        check_mode: look and change nothing.
        want_diff: tell each path before and after.
        selinux: None on a machine without SELinux.
        is_noted: keep what each path was, so that ``uninstall`` can put it back.

    Raises:
        StageError: something is in the way, a validator refused, or the system did; every path is as it was before.
    """
    check_paths([entry.path for entry in entries])
    try:
        return _apply(entries, check_mode=check_mode, want_diff=want_diff, selinux=selinux, is_noted=is_noted)
    except IdentityError as error:
        raise StageError(str(error)) from None


def _apply(
    entries: Sequence[Entry],
    *,
    check_mode: bool,
    want_diff: bool,
    selinux: Optional[SelinuxContexts],
    is_noted: bool,
) -> Outcome:
    coming: Dict[str, str] = {}
    steps: List[Step] = []
    for entry in entries:
        with acting_as(entry.user):
            steps.append(look(entry, coming))
        coming[entry.path] = entry.state
    outcome = Outcome(changes=[phrase for step in steps for phrase in step.phrases])
    todo = [step for step in steps if step.action]
    if want_diff:
        for step in todo:
            with acting_as(step.entry.user):
                outcome.diff.append(diff_of(step))
    if check_mode:
        validate_aside(todo)
        done = [step for step in steps if not step.action]
    else:
        if is_noted:
            _note_origins(todo)
        Transaction(selinux).run(todo)
        if is_noted:
            _note_left(todo)
        done = steps
    for step in (step for step in done if step.entry.is_watched):
        with acting_as(step.entry.user):
            marker = step.entry.watched_block
            outcome.watch.append(path_state.watch_state(step.path, "block" if marker else "", marker))
    return outcome


def _note_origins(steps: Sequence[Step]) -> None:
    """Keep what each path was.

    Raises:
        StageError: the record cannot be written; nothing was changed.
    """
    found = {}
    for step in steps:
        before, entry = step.before, step.entry
        if before is not None and origins.is_ours(step.path, step.old):
            # An earlier release wrote it. Its own files go; of a file with a block, only the block does.
            if entry.state == "edit":
                continue
            before = None
        target = ""
        if before is not None and stat.S_ISLNK(before.st_mode):
            with acting_as(entry.user):
                target = os.readlink(step.path)
        origin = origins.origin_of(before, step.old, target, entry.user.pw_name if entry.user else "")
        found[step.path] = {**origin, "edited": True} if entry.state == "edit" else origin
    try:
        origins.note(found)
    except OSError as error:
        raise StageError(f"{origins.place()} cannot be written: {error.strerror}; nothing was changed.") from error


def _note_left(steps: Sequence[Step]) -> None:
    """Keep what was written; without it, ``uninstall`` edits the files back instead of restoring them."""
    known = origins.load()["paths"]
    written = {step.path: step.new for step in steps if step.action == "write"}
    written.update({step.path: os.fsencode(step.entry.target) for step in steps if step.action == "link"})
    foreign = [
        step.path
        for step in steps
        if step.action == "write"
        and "left" in known.get(step.path, {})
        and known[step.path]["left"] != origins.digest(step.old)
    ]
    with contextlib.suppress(OSError):
        origins.note_left(written, foreign)


# Run a module that lays out files: its result, its watch entries, and no file content in the syslog.


class QuietModule(audited_module.AuditedModule):
    """A module whose arguments hold the contents of files; neither the syslog nor the result shows them."""

    def log(self, msg: str, log_args: Any = None) -> None:
        """Log that the module ran, without its arguments."""
        super().log(f"{self._name} invoked" if log_args else msg)

    @property
    def shown_arguments(self) -> Dict[str, Any]:
        """The invocation in the result: only paths and states."""
        files = self.params.get("files")
        if files is None:
            return {"path": self.params.get("path")}
        return {"files": [{"path": given["path"], "state": given["state"]} for given in files]}


class _Selinux:
    """SELinux contexts by the functions of AnsibleModule."""

    def __init__(self, module: QuietModule) -> None:
        self.module = module

    def carry(self, target: str, staged: str) -> None:
        """Give the staged file the context of its target, or the policy's context for a new target."""
        there = os.path.lexists(target)  # selinux_context ends the module for a missing path
        context = self.module.selinux_context(target) if there else self.module.selinux_default_context(target)
        self.module.set_context_if_different(staged, context, changed=False)


def selinux_of(module: QuietModule) -> Optional[SelinuxContexts]:
    """Return what keeps the contexts of files; None on a machine without SELinux."""
    return _Selinux(module) if module.selinux_enabled() else None


def run(
    module: QuietModule, entries: Callable[[], List[file_transaction.Entry]], verify: Callable[[], str] = lambda: ""
) -> None:
    """Lay out the entries and end the module with the collection's usual result.

    Args:
        module: the running module.
        entries: makes the entries; its StageError is the module's failure.
        verify: runs when all is in place, never in check mode; returns a sentence where the effect is missing.
    """
    invocation = {"module_args": module.shown_arguments}
    try:
        outcome = apply(
            entries(),
            check_mode=module.check_mode,
            want_diff=module._diff,  # noqa: SLF001 - the documented way for a module to learn of --diff
            selinux=selinux_of(module),
        )
    except file_transaction.StageError as error:
        module.fail_json(msg=str(error), changes=[], watch=[], invocation=invocation)
    result: Dict[str, Any] = {
        "changed": bool(outcome.changes),
        "changes": outcome.changes,
        "watch": outcome.watch,
        "invocation": invocation,
    }
    if module._diff:  # noqa: SLF001 - as above
        result["diff"] = outcome.diff
    module.label(result)
    problem = "" if module.check_mode else verify()
    if problem:
        module.fail_json(msg=problem, **{**result, "watch": []})
    module.exit_json(**result)
