# SPDX-License-Identifier: Apache-2.0
"""Lay out several paths as one step: look at all, stage all, validate all, and only then put them in place.

Whatever fails, at whichever moment, the paths are left as they were: new content waits beside its target until every
entry has passed, and what a rename displaced is kept until the last rename has succeeded.
"""

# Modules run on every node in every run; pathlib is left out where os serves as well.
# ruff: noqa: PTH101, PTH102, PTH104, PTH108, PTH112, PTH114, PTH115, PTH116, PTH119, PTH120, PTH123
# ruff: noqa: PTH211

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, Sequence, Tuple

from ansible_collections.clusterctl.hpc.plugins.module_utils import node_probe
from ansible_collections.clusterctl.hpc.plugins.module_utils.text_edit import EditError
from ansible_collections.clusterctl.hpc.plugins.module_utils.user_identity import (
    IdentityError,
    acting_as,
    read_regular,
)

_VALIDATOR_SECONDS = 60
_MOST_EVIDENCE = 400
_NEW_FILE_MODE = 0o644
_NEW_FOLDER_MODE = 0o755
_HIDDEN = "(hidden: the entry is marked as sensitive)\n"
_BINARY = "(not text)\n"
# A rename onto a mount point is EBUSY; podman and docker mount /etc/hosts, /etc/hostname and /etc/resolv.conf so.
_MOUNTED = frozenset({errno.EBUSY, errno.EXDEV})


class StageError(Exception):
    """The set cannot be laid out; the message is one sentence naming the path, and nothing was changed."""


class SelinuxContexts(Protocol):
    """What of SELinux the staging needs; None stands for a machine without it."""

    def carry(self, target: str, staged: str) -> None:
        """Give the staged file the context of its target, or the one the policy names for a new target."""


@dataclass(frozen=True)
class Entry:
    """What one path should be.

    ``edit`` turns the present text into the wanted one (state ``edit``); ``content`` is the whole of a ``file``.
    ``mode``, ``uid`` and ``gid`` of None leave an existing path's own. ``user`` is the identity with which the path is
    read and written, for what lies below a home; None is the identity of the process.
    """

    path: str
    state: str  # file, edit, directory, link, absent
    content: bytes = b""
    edit: Optional[Callable[[str], str]] = None
    what: str = ""  # for an edit: what is edited, as a phrase before the path
    target: str = ""
    mode: Optional[int] = None
    uid: Optional[int] = None
    gid: Optional[int] = None
    validate: Tuple[str, ...] = ()
    backup: bool = False
    sensitive: bool = False
    user: Optional[pwd.struct_passwd] = None


@dataclass
class Outcome:
    """What was done, or would be done in check mode."""

    changes: List[str] = field(default_factory=list)
    watch: List[Dict[str, Any]] = field(default_factory=list)
    diff: List[Dict[str, str]] = field(default_factory=list)
    backups: List[str] = field(default_factory=list)


@dataclass
class _Step:
    """One entry after a look at its path."""

    entry: Entry
    path: str  # where to act: for an edit, what a link leads to
    before: Optional[os.stat_result]
    old: bytes = b""
    new: bytes = b""
    action: str = ""  # '' (nothing to do), write, attributes, mkdir, link, remove
    mode: int = 0
    uid: int = -1
    gid: int = -1
    phrases: List[str] = field(default_factory=list)
    staged: str = ""


def parse_mode(path: str, given: Any) -> Optional[int]:
    """Return a mode's number from "0644", or from the number that YAML made of an unquoted 0644.

    Raises:
        StageError: it is neither.
    """
    if given is None:
        return None
    try:
        mode = given if isinstance(given, int) else int(str(given), 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o7777:  # noqa: PLR2004 - all bits that a mode has
        raise StageError(f"The mode of {path} is {given!r}; write four octal digits in quotes, for example '0644'.")
    return mode


def user_entry(path: str, name: Optional[str]) -> Optional[pwd.struct_passwd]:
    """Return the entry of a user's name, None for None.

    Raises:
        StageError: the node has no such user.
    """
    if name is None:
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise StageError(f"The user of {path} should be '{name}', but this node has no such user.") from None


def owner_id(path: str, name: Optional[str]) -> Optional[int]:
    """Return the uid of a user's name or number, None for None.

    Raises:
        StageError: the node has no such user.
    """
    if name is None:
        return None
    try:
        return int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise StageError(f"The owner of {path} should be '{name}', but this node has no such user.") from None


def group_id(path: str, name: Optional[str]) -> Optional[int]:
    """Return the gid of a group's name or number, None for None.

    Raises:
        StageError: the node has no such group.
    """
    if name is None:
        return None
    try:
        return int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise StageError(f"The group of {path} should be '{name}', but this node has no such group.") from None


def check_paths(paths: Sequence[str]) -> None:
    """Refuse paths that do not say plainly where they lead, and any that is named twice.

    Raises:
        StageError: a path is relative, not in its simplest form, the root itself, or a repetition.
    """
    seen = set()
    for path in paths:
        if not path.startswith("/") or "\0" in path or "\n" in path:
            raise StageError(f"The path {path!r} is not absolute; give it from the root, for example '/etc/hosts'.")
        if os.path.normpath(path) != path or path == "/":
            raise StageError(f"The path {path!r} is not in its simplest form; write {os.path.normpath(path)!r}.")
        if path in seen:
            raise StageError(f"The path {path} is named twice; each path can be only one thing.")
        seen.add(path)


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
    steps = []
    for entry in entries:
        with acting_as(entry.user):
            steps.append(_look(entry, coming))
        coming[entry.path] = entry.state
    outcome = Outcome(changes=[phrase for step in steps for phrase in step.phrases])
    todo = [step for step in steps if step.action]
    if want_diff:
        for step in todo:
            with acting_as(step.entry.user):
                outcome.diff.append(_diff_of(step))
    if check_mode:
        _validate_aside(todo)
        done = [step for step in steps if not step.action]
    else:
        outcome.backups = _Transaction(selinux).run(todo)
        done = steps
    for step in done:
        with acting_as(step.entry.user):
            outcome.watch.append(node_probe.watch_state(step.path))
    return outcome


# --- look ------------------------------------------------------------------------------------------------------------


def _look(entry: Entry, coming: Dict[str, str]) -> _Step:
    foreign = node_probe.link_of_another(entry.path if entry.state == "edit" else os.path.dirname(entry.path))
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
        raise StageError(f"{path} cannot be looked at{_by_whom(entry)}: {error.strerror}.") from error
    step = _Step(entry, path, before)
    if entry.state == "absent":
        if before is not None:
            step.action, step.phrases = "remove", [f"removed {path}"]
        return step
    folder = os.path.dirname(path)
    if coming.get(folder) != "directory" and not os.path.isdir(folder):
        raise StageError(
            f"{path} cannot be made, because its folder {folder} does not exist; put an entry of state 'directory' for "
            "it before this one."
        )
    looks = {"file": _look_at_file, "edit": _look_at_file, "directory": _look_at_folder, "link": _look_at_link}
    looks[entry.state](step)
    return step


def _look_at_file(step: _Step) -> None:
    entry, before = step.entry, step.before
    if before is not None and stat.S_ISDIR(before.st_mode):
        raise StageError(f"{step.path} should be a file, but it is a directory; remove it first.")
    regular = before is not None and stat.S_ISREG(before.st_mode)
    if before is not None and not regular and not stat.S_ISLNK(before.st_mode):
        raise StageError(f"{step.path} should be a file, but it is a device, a socket or a pipe.")
    if regular:
        step.old = _read(step)
    step.new = _edited(step) if entry.edit else entry.content
    _choose_attributes(step, before if regular else None, _NEW_FILE_MODE)
    if entry.edit and not regular and not step.new:
        return  # nothing to take out of a file that is not there
    if not regular or step.old != step.new:
        step.action = "write"
        verb = "changed" if regular else "replaced the link" if before is not None else "created"
        step.phrases = [f"{verb} {entry.what + ' in ' if entry.what else ''}{step.path}"]
        return
    _note_attributes(step)


def _read(step: _Step) -> bytes:
    try:
        return read_regular(step.path) or b""
    except OSError as error:
        raise StageError(f"{step.path} cannot be read{_by_whom(step.entry)}: {error.strerror}.") from error


def _by_whom(entry: Entry) -> str:
    return f" by user {entry.user.pw_name}" if entry.user else ""


def _edited(step: _Step) -> bytes:
    edit = step.entry.edit
    if edit is None:
        return step.entry.content
    try:
        return edit(step.old.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    except EditError as error:
        raise StageError(f"{step.path}: {error}.") from error


def _look_at_folder(step: _Step) -> None:
    if step.before is None:
        _choose_attributes(step, None, _NEW_FOLDER_MODE)
        step.action, step.phrases = "mkdir", [f"created {step.path}"]
        return
    if not stat.S_ISDIR(step.before.st_mode):
        raise StageError(f"{step.path} should be a directory, but something else is there; remove it first.")
    _choose_attributes(step, step.before, _NEW_FOLDER_MODE)
    _note_attributes(step)


def _look_at_link(step: _Step) -> None:
    wanted = step.entry.target
    if step.before is not None:
        if stat.S_ISDIR(step.before.st_mode):
            raise StageError(f"{step.path} should be a link, but it is a directory; remove it first.")
        if stat.S_ISLNK(step.before.st_mode) and os.readlink(step.path) == wanted:
            return
    step.action, step.phrases = "link", [f"linked {step.path} to {wanted}"]


def _choose_attributes(step: _Step, present: Optional[os.stat_result], new_mode: int) -> None:
    entry = step.entry
    if present is None:
        present_mode, present_uid, present_gid = new_mode, -1, -1
    else:
        present_mode, present_uid, present_gid = stat.S_IMODE(present.st_mode), present.st_uid, present.st_gid
    if entry.user and present_uid != entry.user.pw_uid:  # a user can make files of its own alone
        present_uid, present_gid = entry.user.pw_uid, entry.user.pw_gid
    step.mode = present_mode if entry.mode is None else entry.mode
    step.uid = present_uid if entry.uid is None else entry.uid
    step.gid = present_gid if entry.gid is None else entry.gid


def _note_attributes(step: _Step) -> None:
    """Note mode and owner where they alone differ."""
    before = step.before
    if before is None:
        return
    if stat.S_IMODE(before.st_mode) != step.mode:
        step.phrases.append(f"mode of {step.path} from {stat.S_IMODE(before.st_mode):04o} to {step.mode:04o}")
    if (before.st_uid, before.st_gid) != (step.uid, step.gid):
        if step.entry.user and step.entry.state != "directory":
            step.action = "write"  # only root may give a file away, but its user may put another one in its place
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


def _step_owner(step: _Step) -> str:
    return _owners(step.uid if step.uid >= 0 else os.geteuid(), step.gid if step.gid >= 0 else os.getegid())


# --- diff ------------------------------------------------------------------------------------------------------------


def _diff_of(step: _Step) -> Dict[str, str]:
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


def _shown(step: _Step, content: bytes) -> str:
    if step.entry.sensitive:
        return _HIDDEN if content else ""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return _BINARY


# --- validate --------------------------------------------------------------------------------------------------------


def check_validator(path: str, argv: Sequence[str]) -> None:
    """Refuse a validator that would never look at the new file.

    Raises:
        StageError: no token holds ``%s``.
    """
    if argv and not any("%s" in token for token in argv):
        raise StageError(f"The validator of {path} names no '%s', so it would not look at the new content.")


def _validate(step: _Step, staged: str) -> None:
    entry = step.entry
    if not entry.validate:
        return
    argv = [token.replace("%s", staged) for token in entry.validate]
    try:
        done = subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_VALIDATOR_SECONDS,
        )
    except FileNotFoundError:
        raise StageError(
            f"The validator of {step.path}, {argv[0]}, is not on this node; nothing was changed."
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StageError(f"The validator of {step.path} could not be run: {error}; nothing was changed.") from error
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").replace(staged, step.path).strip()
        if entry.sensitive:
            said = "its words are hidden, since the entry is marked as sensitive"
        raise StageError(
            f"{entry.validate[0]} refuses the new {step.path}: {said[-_MOST_EVIDENCE:] or 'it gave no reason'} "
            "(nothing was changed)."
        )


def _validate_aside(steps: Sequence[_Step]) -> None:
    """Run the validators in check mode, on copies in a private folder."""
    if not any(step.entry.validate and step.action == "write" for step in steps):
        return
    with tempfile.TemporaryDirectory(prefix="clusterctl-") as folder:
        for step in steps:
            if step.action != "write":
                continue
            staged = f"{folder}/{os.path.basename(step.path)}"
            with open(staged, "wb") as stream:
                stream.write(step.new)
            _validate(step, staged)


# --- put in place ----------------------------------------------------------------------------------------------------


_Act = Tuple[Optional[pwd.struct_passwd], Callable[[], object]]


class _Transaction:
    """Stage, validate and put in place, remembering after each act how to undo it."""

    def __init__(self, selinux: Optional[SelinuxContexts]) -> None:
        self.selinux = selinux
        self.user: Optional[pwd.struct_passwd] = None  # whose identity the present step has
        self.undo: List[_Act] = []
        self.cleanup: List[_Act] = []
        self.backups: List[str] = []

    def run(self, steps: Sequence[_Step]) -> List[str]:
        """Do all steps and return the backups made.

        Raises:
            StageError: one failed; the others have been undone.
        """
        step: Optional[_Step] = None
        try:
            for step in steps:
                with self._identity_of(step):
                    self._stage(step)
            for step in steps:
                if step.action == "write":
                    _validate(step, step.staged)
            for step in steps:
                with self._identity_of(step):
                    self._commit(step)
        except BaseException as error:
            for user, act in reversed(self.undo):
                # Undo as much as can be undone; the first error is the one to tell.
                with contextlib.suppress(OSError), acting_as(user):
                    act()
            if isinstance(error, OSError) and step is not None:
                raise StageError(_system_error(step, error)) from error
            raise
        for user, act in self.cleanup:
            # A leftover beside the target does no harm; the set is in place.
            with contextlib.suppress(OSError), acting_as(user):
                act()
        return self.backups

    @contextlib.contextmanager
    def _identity_of(self, step: _Step) -> Iterator[None]:
        self.user = step.entry.user
        with acting_as(self.user):
            yield

    def _on_failure(self, act: Callable[[], object]) -> None:
        self.undo.append((self.user, act))

    def _at_the_end(self, *acts: Callable[[], object]) -> None:
        self.cleanup += [(self.user, act) for act in acts]

    def _stage(self, step: _Step) -> None:
        if step.action == "mkdir":
            os.mkdir(step.path, 0o700)
            self._on_failure(partial(os.rmdir, step.path))
            self._give(step.path, step)
        elif step.action == "write":
            handle, step.staged = tempfile.mkstemp(prefix=_beside(step.path), dir=os.path.dirname(step.path))
            self._on_failure(partial(_remove_if_there, step.staged))
            with os.fdopen(handle, "wb") as stream:
                stream.write(step.new)
                stream.flush()
                self._give(step.staged, step)
                os.fsync(stream.fileno())
        elif step.action == "link":
            step.staged = _fresh_name(step.path)
            os.symlink(step.entry.target, step.staged)  # fails where the name is taken, so nobody can slip in before
            self._on_failure(partial(_remove_if_there, step.staged))

    def _give(self, place: str, step: _Step) -> None:
        if step.uid >= 0 or step.gid >= 0:
            os.chown(place, step.uid, step.gid)
        os.chmod(place, step.mode)  # after chown, which clears the set-user-id bit
        if self.selinux is not None:
            self.selinux.carry(step.path, place)

    def _commit(self, step: _Step) -> None:
        if step.action == "attributes" and step.before is not None:
            self._change_attributes(step, step.before)
        elif step.action in {"write", "link"}:
            self._replace(step)
        elif step.action == "remove":
            self._remove(step)

    def _change_attributes(self, step: _Step, before: os.stat_result) -> None:
        def restore() -> None:
            os.chown(step.path, before.st_uid, before.st_gid)
            os.chmod(step.path, stat.S_IMODE(before.st_mode))

        self._on_failure(restore)
        if (before.st_uid, before.st_gid) != (step.uid, step.gid):
            os.chown(step.path, step.uid, step.gid)
        os.chmod(step.path, step.mode)

    def _replace(self, step: _Step) -> None:
        kept = self._keep(step.path) if step.before is not None else ""
        try:
            os.rename(step.staged, step.path)
        except OSError as error:
            if error.errno not in _MOUNTED or step.action != "write":
                raise
            self._write_through(step, kept)
            return
        if kept:
            self._on_failure(partial(os.rename, kept, step.path))
            self._finish_kept(step, kept)
        else:
            self._on_failure(partial(os.unlink, step.path))

    def _keep(self, path: str) -> str:
        """Keep what is there under a second name, so that it can come back."""
        kept = _fresh_name(path)
        try:
            os.link(path, kept, follow_symlinks=False)
        except OSError:  # a file system without hard links, or a mounted file
            if os.path.islink(path):
                os.symlink(os.readlink(path), kept)
            else:
                shutil.copy2(path, kept)
                state = os.stat(path)
                with contextlib.suppress(PermissionError):  # a user keeps content and mode of another's file
                    os.chown(kept, state.st_uid, state.st_gid)
        self._on_failure(partial(_remove_if_there, kept))
        return kept

    def _finish_kept(self, step: _Step, kept: str) -> None:
        if step.entry.backup:
            backup = f"{step.path}.{time.strftime('%Y-%m-%d@%H:%M:%S')}~"
            self._at_the_end(partial(os.rename, kept, backup))
            self.backups.append(backup)
        else:
            self._at_the_end(partial(_remove_if_there, kept))

    def _write_through(self, step: _Step, kept: str) -> None:
        """Write into the file itself: it is a mount point, which cannot be renamed over."""

        def restore() -> None:
            _overwrite(step.path, step.old)
            if step.before is not None:
                os.chown(step.path, step.before.st_uid, step.before.st_gid)
                os.chmod(step.path, stat.S_IMODE(step.before.st_mode))

        if step.entry.backup:
            backup = f"{step.path}.{time.strftime('%Y-%m-%d@%H:%M:%S')}~"
            shutil.copy2(step.path, backup)
            self._on_failure(partial(_remove_if_there, backup))
            self.backups.append(backup)
        self._on_failure(restore)
        _overwrite(step.path, step.new)
        before = step.before
        if before is not None and (before.st_uid, before.st_gid) != (step.uid, step.gid):
            os.chown(step.path, step.uid, step.gid)
        if before is not None and stat.S_IMODE(before.st_mode) != step.mode:
            os.chmod(step.path, step.mode)
        self._at_the_end(partial(_remove_if_there, step.staged), partial(_remove_if_there, kept))

    def _remove(self, step: _Step) -> None:
        aside = _fresh_name(step.path)
        os.rename(step.path, aside)
        self._on_failure(partial(os.rename, aside, step.path))
        if step.before is not None and stat.S_ISDIR(step.before.st_mode):
            self._at_the_end(partial(shutil.rmtree, aside))
        else:
            self._at_the_end(partial(os.unlink, aside))


def _beside(path: str) -> str:
    """Return how names of staged files begin: hidden, and with a dot that sudoers.d, cron.d and run-parts pass over."""
    return f".{os.path.basename(path)}.clusterctl-"


def _fresh_name(path: str) -> str:
    """Return a name beside the path that nothing has; links and renames need one, not an open file."""
    return tempfile.mktemp(prefix=_beside(path), dir=os.path.dirname(path))  # noqa: S306 - the folder is its owner's


def _remove_if_there(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _overwrite(path: str, content: bytes) -> None:
    with open(path, "r+b") as stream:
        stream.write(content)
        stream.truncate()
        stream.flush()
        os.fsync(stream.fileno())


def _system_error(step: _Step, error: OSError) -> str:
    user = step.entry.user
    denied = f"give it and its folder to user {user.pw_name}" if user else ""
    hints = {
        errno.ENOSPC: "free some space there",
        errno.EROFS: "its file system is mounted read-only",
        errno.EACCES: denied or "run with become",
        errno.EPERM: denied or "run with become, and see 'lsattr' for an immutable flag",
        errno.EBUSY: "it is a mount point",
    }
    hint = hints.get(error.errno or 0)
    reason = f"{error.strerror or error}{f' ({hint})' if hint else ''}"
    return f"{step.path} cannot be changed{_by_whom(step.entry)}: {reason}; nothing was changed."
