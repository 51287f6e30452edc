# SPDX-License-Identifier: Apache-2.0
"""Put several files in place as one step: stage all, validate all, rename all; undo all after an error."""

# Modules run on every node in every run; os starts faster than pathlib and serves as well.
# ruff: noqa: PTH101, PTH102, PTH104, PTH108, PTH114, PTH115, PTH116, PTH119, PTH120, PTH123, PTH211

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
from dataclasses import dataclass
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    TypedDict,
)

from ansible_collections.clusterctl.hpc.plugins.module_utils import config_line, tree_removal
from ansible_collections.clusterctl.hpc.plugins.module_utils.user_identity import acting_as

if TYPE_CHECKING:
    from ansible_collections.clusterctl.hpc.plugins.module_utils.file_stage import Step


# The wanted state of one path: kind, content, owner, mode and validator, each checked when it is read.


class StageError(Exception):
    """The files cannot be laid out and nothing was changed; the message is one sentence that names the path."""


@dataclass(frozen=True)
class Entry:
    """The wanted state of one path.

    ``edit`` turns the present text into the wanted one (state ``edit``); ``content`` is the whole of a ``file``.
    ``mode``, ``uid`` and ``gid`` of None leave an existing path's own. ``user`` is the identity with which the path is
    read and written, for what lies below a home; None is the identity of the process.
    """

    path: str
    state: str  # file, edit, directory, link, absent
    content: bytes = b""
    edit: Optional[Callable[[str], str]] = None
    what: str = ""  # for an edit: the phrase before the path, for example block 'hosts'
    target: str = ""
    mode: Optional[int] = None
    uid: Optional[int] = None
    gid: Optional[int] = None
    validate: Tuple[str, ...] = ()
    sensitive: bool = False
    user: Optional[pwd.struct_passwd] = None
    is_watched: bool = True  # whether a later change of the path is drift
    watched_block: str = ""  # marker of the block that alone is watched; '' for the whole path


def one_line(path: str, field: str, value: str, *, refused: str = "") -> str:
    """Return a value that goes into a line of a file.

    Raises:
        StageError: it has a control character, or one of the refused characters.
    """
    try:
        return config_line.checked(value, f"{path}: {field}", refused=refused)
    except config_line.LineError as error:
        raise StageError(f"{error}.") from None


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
    if not 0 <= mode <= 0o7777:  # noqa: PLR2004 - all bits of a mode
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


class Attributes(TypedDict):
    """Mode and owners of an entry; None leaves a path's own."""

    mode: Optional[int]
    uid: Optional[int]
    gid: Optional[int]


def attributes(path: str, given: Mapping[str, Any]) -> Attributes:
    """Return what a module's options ``mode``, ``owner`` and ``group`` ask for.

    Raises:
        StageError: the mode is not one, or the node has no such user or group.
    """

    def number(option: str, kind: str, look_up: Callable[[str], int]) -> Optional[int]:
        name = given[option]
        try:
            return None if name is None else int(name) if name.isdigit() else look_up(name)
        except KeyError:
            raise StageError(f"The {option} of {path} should be '{name}', but this node has no such {kind}.") from None

    return {
        "mode": parse_mode(path, given["mode"]),
        "uid": number("owner", "user", lambda name: pwd.getpwnam(name).pw_uid),
        "gid": number("group", "group", lambda name: grp.getgrnam(name).gr_gid),
    }


def check_paths(paths: Sequence[str]) -> None:
    """Refuse paths that are not absolute and normalized, and repeated paths.

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
            raise StageError(f"The path {path} is named twice; name each path once.")
        seen.add(path)


def check_validator(path: str, argv: Sequence[str]) -> None:
    """Refuse a validator that does not get the new file.

    Raises:
        StageError: no token holds ``%s``.
    """
    if argv and not any("%s" in token for token in argv):
        raise StageError(f"The validator of {path} names no '%s', so it would not read the new file; add '%s'.")


def by_whom(entry: Entry) -> str:
    """Return the words that name an entry's user after a verb in the passive; '' for the process's own user."""
    return f" by user {entry.user.pw_name}" if entry.user else ""


_VALIDATOR_SECONDS = 60
_MOST_EVIDENCE = 400
# A rename onto a mount point is EBUSY. Podman and docker mount /etc/hosts, /etc/hostname and /etc/resolv.conf.
_MOUNTED = frozenset({errno.EBUSY, errno.EXDEV})


class SelinuxContexts(Protocol):
    """The part of SELinux that staging needs; None on a machine without SELinux."""

    def carry(self, target: str, staged: str) -> None:
        """Give the staged file the context of its target, or the policy's context for a new target."""


# --- validate --------------------------------------------------------------------------------------------------------


_ALL = "%s..."  # as the last word of a validator: the new files of all entries with the same validator


def _validate(staged: Mapping[str, Step]) -> None:
    """Run the validators of new files, each of which has its step; one that takes all its files runs once."""
    groups: Dict[Tuple[str, ...], Dict[str, Step]] = {}
    for path, step in staged.items():
        argv = step.entry.validate
        if argv and argv[-1] == _ALL:
            groups.setdefault(argv, {})[path] = step
        elif argv:
            _run_validator([token.replace("%s", path) for token in argv], {path: step})
    for argv, files in groups.items():
        _run_validator([*argv[:-1], *files], files)


def _run_validator(argv: Sequence[str], files: Mapping[str, Step]) -> None:
    """Run a validator of new files; each has its step."""
    named = f"The validator of {next(iter(files.values())).path}"
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
        raise StageError(f"{named}, {argv[0]}, is not on this node; nothing was changed.") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StageError(f"{named} could not be run: {error}; nothing was changed.") from error
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip()
        meant = [step.path for staged, step in files.items() if staged in said] or [one.path for one in files.values()]
        for staged, step in files.items():
            said = said.replace(staged, step.path)
        if any(step.entry.sensitive for step in files.values()):
            said = "its words are hidden, since the entry is marked as sensitive"
        why = said[-_MOST_EVIDENCE:] or "it gave no reason"
        raise StageError(f"{argv[0]} refuses the new {meant[0]}: {why} (nothing was changed).")


def validate_aside(steps: Sequence[Step]) -> None:
    """Run the validators in check mode, on copies in a private folder."""
    if not any(step.entry.validate and step.action == "write" for step in steps):
        return
    written = [step for step in steps if step.action == "write"]
    with tempfile.TemporaryDirectory(prefix="clusterctl-") as folder:
        staged = {f"{folder}/{number}/{os.path.basename(step.path)}": step for number, step in enumerate(written)}
        for path, step in staged.items():
            os.mkdir(os.path.dirname(path))
            with open(path, "wb") as stream:
                stream.write(step.new)
        _validate(staged)


# --- put in place ----------------------------------------------------------------------------------------------------


_Act = Tuple["Optional[pwd.struct_passwd]", Callable[[], object]]


class Transaction:
    """Stage, validate and rename, and remember for each act how to undo it."""

    def __init__(self, selinux: Optional[SelinuxContexts]) -> None:
        """Begin without changes."""
        self.selinux = selinux
        self.user: Optional[pwd.struct_passwd] = None  # the user of the present step
        self.undo: List[_Act] = []
        self.cleanup: List[_Act] = []

    def run(self, steps: Sequence[Step]) -> None:
        """Do all steps.

        Raises:
            StageError: one failed; the others have been undone.
        """
        step: Optional[Step] = None
        try:
            for step in steps:
                with self._identity_of(step):
                    self._stage(step)
            _validate({one.staged: one for one in steps if one.action == "write"})
            for step in steps:
                with self._identity_of(step):
                    self._commit(step)
        except BaseException as error:
            for user, act in reversed(self.undo):
                # Undo as much as possible; the first error is the one to report.
                with contextlib.suppress(OSError), acting_as(user):
                    act()
            if isinstance(error, OSError) and step is not None:
                raise StageError(_system_error(step, error)) from error
            raise
        for user, act in self.cleanup:
            # The files are in place; a leftover beside a target does no harm.
            with contextlib.suppress(OSError), acting_as(user):
                act()

    @contextlib.contextmanager
    def _identity_of(self, step: Step) -> Iterator[None]:
        self.user = step.entry.user
        with acting_as(self.user):
            yield

    def _on_failure(self, act: Callable[[], object]) -> None:
        self.undo.append((self.user, act))

    def _at_the_end(self, *acts: Callable[[], object]) -> None:
        self.cleanup += [(self.user, act) for act in acts]

    def _stage(self, step: Step) -> None:
        if step.action == "mkdir":
            os.mkdir(step.path, 0o700)
            self._on_failure(partial(os.rmdir, step.path))
            with _opened(step.path, stat.S_IFDIR) as place:
                self._give(place, step, step.path)
        elif step.action == "write":
            handle, step.staged = tempfile.mkstemp(prefix=_beside(step.path), dir=os.path.dirname(step.path))
            self._on_failure(partial(_remove_if_there, step.staged))
            with os.fdopen(handle, "wb") as stream:
                stream.write(step.new)
                stream.flush()
                self._give(f"/proc/self/fd/{handle}", step, step.staged)
                os.fsync(stream.fileno())
        elif step.action == "link":
            step.staged = _fresh_name(step.path)
            os.symlink(step.entry.target, step.staged)  # fails for a name that is taken
            self._on_failure(partial(_remove_if_there, step.staged))

    def _give(self, place: str, step: Step, staged: str) -> None:
        if step.uid >= 0 or step.gid >= 0:
            os.chown(place, step.uid, step.gid)
        os.chmod(place, step.mode)  # after chown, which clears the set-user-id bit
        if self.selinux is not None:
            self.selinux.carry(step.path, staged)

    def _commit(self, step: Step) -> None:
        if step.action == "attributes" and step.before is not None:
            self._change_attributes(step, step.before)
        elif step.action in {"write", "link"}:
            self._replace(step)
        elif step.action == "remove":
            self._remove(step)

    def _change_attributes(self, step: Step, before: os.stat_result) -> None:
        def change(uid: int, gid: int, mode: int) -> None:
            with _opened(step.path, stat.S_IFMT(before.st_mode)) as place:
                now = os.stat(place)
                if (now.st_uid, now.st_gid) != (uid, gid):
                    os.chown(place, uid, gid)
                os.chmod(place, mode)

        self._on_failure(partial(change, before.st_uid, before.st_gid, stat.S_IMODE(before.st_mode)))
        change(step.uid, step.gid, step.mode)

    def _replace(self, step: Step) -> None:
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
            self._at_the_end(partial(_remove_if_there, kept))
        else:
            self._on_failure(partial(os.unlink, step.path))

    def _keep(self, path: str) -> str:
        """Keep the present file under a second name for an undo."""
        kept = _fresh_name(path)
        try:
            os.link(path, kept, follow_symlinks=False)
        except OSError:  # a file system without hard links, or a mounted file
            if os.path.islink(path):
                os.symlink(os.readlink(path), kept)
            else:
                shutil.copy2(path, kept, follow_symlinks=False)
                state = os.lstat(path)
                with contextlib.suppress(PermissionError):  # a user can keep only content and mode of another's file
                    os.chown(kept, state.st_uid, state.st_gid, follow_symlinks=False)
        self._on_failure(partial(_remove_if_there, kept))
        return kept

    def _write_through(self, step: Step, kept: str) -> None:
        """Write into the file itself, because it is a mount point, which a rename cannot replace."""

        def restore() -> None:
            _overwrite(step.path, step.old)
            if step.before is not None:
                with _opened(step.path, stat.S_IFREG) as place:
                    os.chown(place, step.before.st_uid, step.before.st_gid)
                    os.chmod(place, stat.S_IMODE(step.before.st_mode))

        self._on_failure(restore)
        _overwrite(step.path, step.new)
        before = step.before
        with _opened(step.path, stat.S_IFREG) as place:
            if before is not None and (before.st_uid, before.st_gid) != (step.uid, step.gid):
                os.chown(place, step.uid, step.gid)
            if before is not None and stat.S_IMODE(before.st_mode) != step.mode:
                os.chmod(place, step.mode)
        self._at_the_end(partial(_remove_if_there, step.staged), partial(_remove_if_there, kept))

    def _remove(self, step: Step) -> None:
        aside = _fresh_name(step.path)
        if not tree_removal.put_aside(step.path, aside):
            self._at_the_end(partial(tree_removal.remove, step.path))
            return
        self._on_failure(partial(os.rename, aside, step.path))
        if step.before is not None and stat.S_ISDIR(step.before.st_mode):
            self._at_the_end(partial(tree_removal.remove, aside))
        else:
            self._at_the_end(partial(os.unlink, aside))


def _beside(path: str) -> str:
    """Return the prefix of staged files: hidden, and with a dot, so that sudoers.d, cron.d and run-parts skip them."""
    return f".{os.path.basename(path)}.clusterctl-"


def _fresh_name(path: str) -> str:
    """Return an unused name beside the path; links and renames need a name, not an open file."""
    while True:
        name = f"{os.path.dirname(path)}/{_beside(path)}{os.urandom(4).hex()}"
        if not os.path.lexists(name):
            return name


@contextlib.contextmanager
def _opened(path: str, kind: int) -> Iterator[str]:
    """Yield a name that leads to what is at a path now, whatever another user puts there meanwhile; follow no link.

    Raises:
        OSError: something of another kind has taken the place.
    """
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        if stat.S_IFMT(os.fstat(handle).st_mode) != kind:
            raise OSError(errno.ESTALE, "something else took its place during the run", path)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _remove_if_there(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _overwrite(path: str, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b") as stream:
        stream.write(content)
        stream.truncate()
        stream.flush()
        os.fsync(stream.fileno())


def _system_error(step: Step, error: OSError) -> str:
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
    return f"{step.path} cannot be changed{by_whom(step.entry)}: {reason}; nothing was changed."
