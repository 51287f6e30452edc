# SPDX-License-Identifier: Apache-2.0
"""The unprivileged identity of builds and proofs: a user id without an account, home, group or other process."""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import resource
import select
import signal
import stat
import struct
import subprocess
import tempfile
import time
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Mapping, NamedTuple, NoReturn, Optional, Tuple

from ansible_collections.clusterctl.hpc.plugins.module_utils import command, tree_removal
from ansible_collections.clusterctl.hpc.plugins.module_utils.artifact import ArtifactError, Progress

# Between the ranges of which systemd takes ids by itself (its UIDS-GIDS); a container with 16 bits of ids has them too.
_FIRST, _LAST = 60578, 61183
# Each byte that is locked is an id in use. No user can open the file, so none can keep ids from root.
LOCK = "/run/clusterctl-build-users"
_FLOCK = "hhqqi"  # struct flock of fcntl(2): type, whence, start, length, process
_MOST_TURNS = 10
_DEEPEST = 200  # folders below a work folder
# Folders in which every user may leave files.
_COMMON = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - looked through for files of one user id
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS of prctl(2)
_OTHERS_WRITE = 0o022
_LONGEST_END_S = 10.0
_POLL_S = 0.02


class Space(NamedTuple):
    """Where a build or a proof works."""

    work: Path  # belongs to the user id, and to nobody else
    uid: Optional[int]  # None: the programs run as who runs the module

    def environment(self) -> Dict[str, str]:
        """Return the variables that keep programs in their own folders; programs without an account ask for a name."""
        return {
            "HOME": str(self.work / "home"),
            "TMPDIR": str(self.work / "tmp"),
            "USER": "clusterctl",
            "LOGNAME": "clusterctl",
        }


@contextmanager
def space(parent: str, name: str) -> Iterator[Space]:
    """Make a work folder with ``home`` and ``tmp`` for a build or a proof; it is removed at the end.

    The outer folder stays root's and lets in the user id alone, so that the id cannot open its files to others.

    Args:
        parent: where the folder is made.
        name: of the artifact.

    Raises:
        ArtifactError: no user id is free, or only root can reach the folder.
    """
    with held(name) as uid:
        outer = Path(tempfile.mkdtemp(prefix=f"clusterctl-{name}-", dir=parent))
        try:
            if uid is not None:
                _refuse_closed(parent)
                os.chown(outer, 0, uid)
                outer.chmod(0o710)
            work = outer / "work"
            work.mkdir(mode=0o700)
            for folder in ("home", "tmp"):
                (work / folder).mkdir()
            yield Space(work, uid)
        finally:
            with suppress(OSError):
                tree_removal.remove(str(outer))


def _refuse_closed(folder: str) -> None:
    closed = closed_above(folder)
    if closed:
        raise ArtifactError(
            f"Only root can reach {folder}, because {closed} is closed to others. Builds do not run as root;"
            " choose another work folder (preflight_work_dir), such as /var/tmp."
        )


def closed_above(folder: str) -> str:
    """Return the first folder on the way to a folder, itself included, that others cannot enter; '' without one."""
    place = Path(folder).resolve()
    return next((str(each) for each in [*reversed(place.parents), place] if not each.stat().st_mode & stat.S_IXOTH), "")


@contextmanager
def held(seed: str) -> Iterator[Optional[int]]:
    """Keep a user id for this process alone; None where the process is not root's.

    A lock reserves the id. The kernel gives it free when the process ends, also when it is killed.

    Args:
        seed: gives the first candidate, so that two artifacts begin at different ones.

    Raises:
        ArtifactError: no user id is free, or the lock cannot be taken.
    """
    if os.geteuid() != 0:
        yield None
        return
    for turn in range(_MOST_TURNS):
        if turn:
            time.sleep(_POLL_S)
        handle = _opened_lock()
        try:
            uid = _reserved(handle, seed)
            if uid is None or not _is_at(handle):  # another process removes the file just now, or has removed it
                continue
            try:
                yield uid
            finally:
                _forget_lock(handle)
            return
        finally:
            os.close(handle)
    raise ArtifactError(
        f"No user id between {_FIRST} and {_LAST} is free for a build; stop the processes that have them, or let the"
        " container map these ids."
    )


def _opened_lock() -> int:
    """Return the open file of the locks; it is the one that later processes open too.

    Raises:
        ArtifactError: the file cannot be made, or is not root's alone.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(LOCK, flags, 0o600)
    except OSError as error:
        raise ArtifactError(f"{LOCK} cannot be opened: {error.strerror}; remove it.") from error
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode) or state.st_uid != 0 or stat.S_IMODE(state.st_mode) & ~0o600:
        os.close(handle)
        raise ArtifactError(f"{LOCK} is not a file of root's alone; remove it.")
    return handle


def _lock(handle: int, kind: int, start: int, length: int) -> bool:
    """Take or give back a range of the file for this open file; whether it was free."""
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0))
    except BlockingIOError:
        return False
    return True


def _forget_lock(handle: int) -> None:
    """Remove the file where nobody else has an id."""
    if _lock(handle, fcntl.F_WRLCK, 0, 0) and _is_at(handle):
        with suppress(OSError):
            os.unlink(LOCK)  # noqa: PTH108 - beside a descriptor


def _is_at(handle: int) -> bool:
    """Whether the open file is the one that other processes open."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(LOCK))
    except OSError:
        return False


def _reserved(handle: int, seed: str) -> Optional[int]:
    """Lock and return a user id; None where each is taken, or not mapped."""
    mapped = _mapped("/proc/self/uid_map"), _mapped("/proc/self/gid_map")
    for uid in candidates(seed):
        if not all(any(first <= uid < end for first, end in ranges) for ranges in mapped) or _has_account(uid):
            continue
        if not _lock(handle, fcntl.F_WRLCK, uid, 1):  # another build or proof has it
            continue
        if not processes_of(uid):
            return uid
        _lock(handle, fcntl.F_UNLCK, uid, 1)
    return None


def candidates(seed: str) -> Iterator[int]:
    """Yield all user ids of the range; the seed decides which is first."""
    span = _LAST - _FIRST + 1
    start = zlib.crc32(seed.encode()) % span
    return (_FIRST + (start + step) % span for step in range(span))


def _mapped(path: str) -> List[Tuple[int, int]]:
    """Return the ranges of ids that exist in this user namespace, each with its end excluded."""
    rows = [line.split() for line in Path(path).read_text(encoding="ascii").splitlines()]
    return [(int(row[0]), int(row[0]) + int(row[2])) for row in rows]


def _has_account(uid: int) -> bool:
    for look_up in (pwd.getpwuid, grp.getgrgid):
        with suppress(KeyError):
            look_up(uid)
            return True
    return False


def processes_of(uid: int) -> List[int]:
    """Return the processes of a user id; one that ended and waits for its parent does not count."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            if place.stat().st_uid == uid and (place / "stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX":
                found.append(int(place.name))
    return found


def becoming(uid: Optional[int], folder: str) -> Callable[[], None]:
    """Return what a child process does before it starts a program: enter a folder as a user id.

    The program has no other groups, and programs with the setuid bit give it no rights.

    Args:
        uid: of :func:`held`; None changes the folder only.
        folder: the folder to enter, which this identity must reach by itself.
    """
    import ctypes  # noqa: PLC0415 - a module that starts nothing is quicker without it

    library = ctypes.CDLL(None)

    def become() -> None:
        with suppress(OSError, ValueError):  # on the controller, it has the limit of a worker of Ansible
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        if uid is not None:
            with suppress(OSError, ValueError):  # libraries for networks pin memory; root's limit counts for root alone
                resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        os.chdir(folder)

    return become


@contextmanager
def owning(given: Space, log: Optional[BinaryIO] = None) -> Iterator[None]:
    """Let the user id own the work folder; at the end none of its processes lives, and the folder is root's again.

    Args:
        given: from :func:`space`.
        log: an open file that the programs write, also under the name /dev/stderr.

    Raises:
        ArtifactError: a process cannot be ended, or the folder holds what root must not take.
    """
    if given.uid is None:
        yield
        return
    give(given.work, given.uid)
    if log:
        os.fchown(log.fileno(), given.uid, 0)
    try:
        yield
    finally:
        end_all(given.uid)
        if log:
            os.fchown(log.fileno(), 0, 0)
            os.fchmod(log.fileno(), 0o644)
        forget(given.uid)
    take_back(given.work, given.uid)


def _below(folder: Path) -> Iterator[str]:
    """Yield a folder and all paths below it, a folder before what it holds.

    Raises:
        ArtifactError: it is deeper than a build has a reason to be.
    """
    yield str(folder)
    for place, folders, files in os.walk(str(folder)):
        if folders and place.count("/") - str(folder).count("/") >= _DEEPEST:
            raise ArtifactError(f"A build's step made folders deeper than {_DEEPEST} below {folder}; correct the step.")
        for name in [*folders, *files]:
            yield f"{place}/{name}"


def give(folder: Path, uid: int) -> None:
    """Give a folder and all below it to a user id; links are not followed."""
    for path in _below(folder):
        os.lchown(path, uid, uid)


def take_back(folder: Path, uid: int) -> None:
    """Give a folder and all below it to root, and let nobody else write there; links are not followed.

    Raises:
        ArtifactError: something belongs to another user, as a hard link to a file elsewhere does, or would run with
            the rights of its owner.
    """
    for path in _below(folder):
        state = os.lstat(path)
        if state.st_uid != uid:
            raise ArtifactError(f"A build's step linked {path} to a file that is not its own; correct the step.")
        if stat.S_ISREG(state.st_mode) and state.st_mode & (stat.S_ISUID | stat.S_ISGID):
            raise ArtifactError(f"A build's step set the setuid or setgid bit of {path}; correct the step.")
        os.lchown(path, 0, 0)
        if not stat.S_ISLNK(state.st_mode) and state.st_mode & _OTHERS_WRITE:
            os.chmod(path, stat.S_IMODE(state.st_mode) & ~_OTHERS_WRITE)  # noqa: PTH101 - tens of thousands


def end_all(uid: int) -> None:
    """End every process of a user id at once, also those that left their session.

    Raises:
        ArtifactError: one is still there after some seconds.
    """
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)  # all that this identity may signal: its own
        finally:
            os._exit(0)
    if not command.has_left(child):  # the user id can stop it before it has killed all
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        command.has_left(child)
    deadline = time.monotonic() + _LONGEST_END_S
    while True:
        left = processes_of(uid)
        if not left:
            return
        if time.monotonic() > deadline:
            raise ArtifactError(f"Process {left[0]} of a build does not end; look what it waits for, then try again.")
        time.sleep(_POLL_S)


def forget(uid: int) -> None:
    """Remove what a user id without processes has left in folders that all users share."""
    for folder in _COMMON:
        with suppress(OSError):
            for entry in list(os.scandir(folder)):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid != uid:
                        continue
                    tree_removal.remove(entry.path)


def run_check(
    argv: List[str], environment: Dict[str, str], timeout_s: int, given: str = "", user: Optional[int] = None
) -> command.Done:
    """Run a command that proves an artifact; after the timeout it and its children are killed.

    A child that left the session may keep the output open. It is not waited for beyond the timeout.
    """
    become = becoming(user, "/")
    return command.run(argv, timeout_s, environment, whole=True, before=become, given=given, merged=True)


# Run one step of a build: log its output, report its progress, and end all its processes with it.

_LOOK_S = 0.25
_PROGRESS_S = 1.0
_GRACE_S = 3.0


class Abandoned(BaseException):
    """The reader of the result is gone; a BaseException, so that no handler on the way swallows it."""


def abandon(_signum: int, _frame: Any) -> NoReturn:
    """Handle a signal that ends the build."""
    raise Abandoned


def channel_is_gone(descriptor: int = 1) -> bool:
    """Tell whether the reader of this program's standard output is gone."""
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _unused, event in poller.poll(0))


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all its children: SIGTERM first, SIGKILL after a grace period."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            process.poll()  # reaps the leader, because a zombie keeps its group alive
            if not _group_alive(process.pid):
                return
            time.sleep(0.05)


class Step(NamedTuple):
    """One command of a build, its placeholders replaced."""

    name: str
    argv: List[str]
    folder: Path
    environment: Mapping[str, str]
    user: Optional[int] = None  # id of the user to become; None stays who runs the module


class Outcome(NamedTuple):
    """How a step ended."""

    status: int  # negative: the number of the signal that killed it
    log_start: int  # byte of the log at which the step's output begins
    seconds: float
    cpu_seconds: float

    def times(self, name: str) -> Dict[str, Any]:
        """Return the row of the build's result."""
        return {"name": name, "seconds": round(self.seconds, 2), "cpu_seconds": round(self.cpu_seconds, 2)}


def run_step(step: Step, log: BinaryIO, say: Callable[[str], None]) -> Outcome:
    """Run a step to its end; none of its processes outlives it.

    Args:
        step: what to run.
        log: where its output goes; a file that has a name.
        say: gets the progress, about once a second.

    Raises:
        ArtifactError: its program is not on this host.
        Abandoned: the reader of this program's standard output is gone.
    """
    log.write(f"==> {step.name}: {step.argv}\n".encode())
    log.flush()
    start = log.tell()
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        process = subprocess.Popen(
            step.argv,
            env=dict(step.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=becoming(step.user, str(step.folder)),  # noqa: PLW1509 - the module has one thread
        )
    except FileNotFoundError as error:
        raise ArtifactError(
            f"The step '{step.name}' needs {error.filename}, which is not on this host; install it."
        ) from error
    except subprocess.SubprocessError as error:
        raise ArtifactError(
            f"The step '{step.name}' could not enter {step.folder} as user id {step.user}; correct the step's chdir."
        ) from error
    try:
        status = _follow(process, step.name, Path(log.name), start, say)
    finally:
        end_group(process)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return Outcome(status, start, time.monotonic() - began, cpu_seconds)


def _follow(process: "subprocess.Popen[bytes]", name: str, path: Path, start: int, say: Callable[[str], None]) -> int:
    progress, said = Progress(name), 0.0
    with path.open("rb") as log:
        log.seek(start)
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK_S)
            if channel_is_gone():
                raise Abandoned
            if time.monotonic() - said >= _PROGRESS_S:
                said = time.monotonic()
                progress.feed(log.read().decode(errors="replace"))
                say(progress.line())
