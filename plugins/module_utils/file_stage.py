# SPDX-License-Identifier: Apache-2.0
"""Lay out several paths as one step: look at all, stage all, validate all, and only then put them in place.

When anything fails, every path is left as it was: new content waits beside its target until every entry has passed,
and what a rename displaced is kept until the last rename has succeeded.
"""

# Modules run on every node in every run; os starts faster than pathlib and serves as well.
# ruff: noqa: PTH115

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

from ansible_collections.clusterctl.hpc.plugins.module_utils import origins
from ansible_collections.clusterctl.hpc.plugins.module_utils.file_entry import Entry, StageError, check_paths
from ansible_collections.clusterctl.hpc.plugins.module_utils.file_look import Step, diff_of, look
from ansible_collections.clusterctl.hpc.plugins.module_utils.file_transaction import (
    SelinuxContexts,
    Transaction,
    validate_aside,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_look import path_state
from ansible_collections.clusterctl.hpc.plugins.module_utils.user_identity import IdentityError, acting_as


@dataclass
class Outcome:
    """What was done, or would be done in check mode."""

    changes: List[str] = field(default_factory=list)
    watch: List[Dict[str, Any]] = field(default_factory=list)
    diff: List[Dict[str, str]] = field(default_factory=list)
    backups: List[str] = field(default_factory=list)


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
        outcome.backups = Transaction(selinux).run(todo)
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
