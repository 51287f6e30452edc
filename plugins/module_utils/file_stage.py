# SPDX-License-Identifier: Apache-2.0
"""Lay out several paths as one step: look at all, stage all, validate all, and only then put them in place.

When anything fails, every path is left as it was: new content waits beside its target until every entry has passed,
and what a rename displaced is kept until the last rename has succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

from ansible_collections.clusterctl.hpc.plugins.module_utils.file_entry import Entry, StageError, check_paths
from ansible_collections.clusterctl.hpc.plugins.module_utils.file_look import Step, diff_of, look
from ansible_collections.clusterctl.hpc.plugins.module_utils.file_transaction import (
    SelinuxContexts,
    Transaction,
    validate_aside,
)
from ansible_collections.clusterctl.hpc.plugins.module_utils.node_probe import path_state
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
) -> Outcome:
    """Make every path what its entry says, all or none.

    Raises:
        StageError: something is in the way, a validator refused, or the system did; every path is as it was before.
    """
    check_paths([entry.path for entry in entries])
    try:
        return _apply(entries, check_mode=check_mode, want_diff=want_diff, selinux=selinux)
    except IdentityError as error:
        raise StageError(str(error)) from None


def _apply(
    entries: Sequence[Entry], *, check_mode: bool, want_diff: bool, selinux: Optional[SelinuxContexts]
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
        outcome.backups = Transaction(selinux).run(todo)
        done = steps
    for step in (step for step in done if step.entry.is_watched):
        with acting_as(step.entry.user):
            marker = step.entry.watched_block
            outcome.watch.append(path_state.watch_state(step.path, "block" if marker else "", marker))
    return outcome
