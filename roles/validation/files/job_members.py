"""Find every process of a job on this node by the job's id, kill it, and remove what it leaves in /tmp and /dev/shm.

Ranks carry the id in their environment, as ``CLUSTERCTL_JOB``. mpirun starts Open MPI's daemons through ssh, without
that environment. They carry the id on their command line, as the value of the MCA parameter ``clusterctl_job``.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import shutil
import signal
import stat
import struct
import time
from pathlib import Path
from typing import Any

import bounded_run
from bounded_run import SCRATCH_FOLDERS

JOB_VARIABLE = "CLUSTERCTL_JOB"
JOB_PARAMETER = "clusterctl_job"  # no component owns this MCA name; mpirun passes it on to its daemons' command lines
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{7,63}")

SWEEP_WAIT_S = 5.0
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Open MPI puts its segments
SEGMENT = re.compile(r"(?:sm|vader)_segment\.")
ORPHAN_WAIT_S = 0.3
# As in the collection's login_probe, which is not on a node.
_FOR_PEOPLE = ("RequestTTY=no", "RemoteCommand=none", "ClearAllForwardings=yes", "PermitLocalCommand=no")
NOT_INTERACTIVE = tuple(word for setting in _FOR_PEOPLE for word in ("-o", setting))
PEER_WAIT_S = 15.0
MOST_READ = 16 << 20  # bytes; a process may show all its memory as its environment
SECURE = 23  # AT_SECURE of getauxval(3): a program whose file gave it more rights than its caller has


def read_bytes(path: str) -> bytes:
    """Return a file of /proc, empty when the process is gone, is a zombie or belongs to another user."""
    try:
        with Path(path).open("rb") as stream:
            return stream.read(MOST_READ)
    except OSError:
        return b""


def is_own(pid: int) -> bool:
    """Whether a process has this user's ids alone, and got none of them from a setuid program."""
    status = read_bytes(f"/proc/{pid}/status").split(b"\n")  # a name may hold any other separator of lines
    ids = next((line.split()[1:] for line in status if line.startswith(b"Uid:")), [])
    vector = read_bytes(f"/proc/{pid}/auxv")
    whole = len(vector) % struct.calcsize("@NN") == 0
    return set(ids) == {b"%d" % os.getuid()} and whole and dict(struct.iter_unpack("@NN", vector)).get(SECURE) == 0


def carries(pid: int, job: str) -> bool:
    """Whether that process of this user belongs to the job, by its environment or by its arguments.

    Any user may give a process the job's id.
    """
    return names(pid, job) and is_own(pid)


def names(pid: int, job: str) -> bool:
    """Whether a process has the job's id in its environment or in its arguments."""
    wanted = f"{JOB_VARIABLE}={job}".encode()
    if wanted in read_bytes(f"/proc/{pid}/environ").split(b"\0"):
        return True
    arguments = read_bytes(f"/proc/{pid}/cmdline").split(b"\0")
    name, value = JOB_PARAMETER.encode(), job.encode()
    return any(token == name and arguments[at + 1] == value for at, token in enumerate(arguments[:-1]))


def members(job: str) -> list[int]:
    """Return the pids of the job on this node, Open MPI's daemons first, so that they start nothing anew."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and path.name != str(os.getpid())]
    found = [pid for pid in pids if carries(pid, job)]
    return sorted(found, key=lambda pid: (JOB_VARIABLE.encode() in read_bytes(f"/proc/{pid}/environ"), pid))


def command_of(pid: int) -> str:
    """Return what a human calls the process."""
    return read_bytes(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()[:200]


def session_folder(pid: int) -> str | None:
    """Return Open MPI's folder for this process's job on this node, None without one.

    It counts in a folder for temporary files alone: the machine's, this program's or the process's own.
    """
    entries = (entry.partition(b"=") for entry in read_bytes(f"/proc/{pid}/environ").split(b"\0"))
    given = {name: os.fsdecode(value) for name, _unused, value in entries}
    path = given.get(b"PMIX_SERVER_TMPDIR", "")
    known = [bounded_run.scratch_folder(), *bounded_run.SCRATCH_FOLDERS, given.get(b"TMPDIR", "").rstrip("/")]
    below = any(place and path.startswith(f"{place}/") for place in known)
    is_plain = os.path.normpath(path) == path.rstrip("/")
    return path if below and is_plain and re.match(r"(prte|jf\.|ompi\.)", Path(path).name) else None


def shared_segments(pid: int) -> set[str]:
    """Return the files in /dev/shm that the process has mapped; a killed rank cannot remove its own."""
    text = read_bytes(f"/proc/{pid}/maps").decode("utf-8", "replace")
    return {match.group(1) for match in re.finditer(r"\s(/dev/shm/[^\n]+?)(?: \(deleted\))?\n", text)}


def orphaned_segments() -> set[str]:
    """Return this user's shared memory of Open MPI that no process has mapped, because its ranks were killed.

    A rank maps a segment as soon as it has made it. So a segment that is unmapped at two looks is abandoned.
    """

    def unmapped() -> set[str]:
        files = [path for path in SHARED_MEMORY.glob("*_segment.*") if SEGMENT.match(path.name)]
        if not files:
            return set()
        mapped = {
            name for path in Path("/proc").iterdir() if path.name.isdigit() for name in shared_segments(int(path.name))
        }
        return {str(path) for path in files} - mapped

    found = unmapped()
    if found:
        time.sleep(ORPHAN_WAIT_S)
        found &= unmapped()
    return found


def kill(pid: int, job: str) -> bool:
    """Send KILL to a process of the job, but not to a new process with the same number."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not carries(pid, job):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def daemon_folders(session: str) -> set[str]:
    """Return the folders that PRRTE's daemons of one mpirun made for themselves; a killed daemon leaves its own behind.

    Args:
        session: ``host-pid`` of mpirun; it is part of the name of a file in the folder.
    """
    pattern = f"prted.*/pmix.*.tool.prterun-{glob.escape(session)}@0"
    return {str(path.parent) for path in Path(bounded_run.scratch_folder()).glob(pattern)} if session else set()


def folders_of_daemon(pid: int) -> set[str]:
    """Return the folders that PRRTE's daemon of this pid made; ``prted.<host>.<pid>.<uid>`` is how it names them.

    A daemon that is told to end removes the file that :func:`daemon_folders` looks for before it removes the folder.
    Killed between the two, it leaves a folder that only its name ties to the job.
    """
    return {str(path) for path in Path(bounded_run.scratch_folder()).glob(f"prted.*.{pid}.{os.getuid()}")}


def sweep(job: str, session: str = "", wait_s: float = SWEEP_WAIT_S) -> dict[str, Any]:
    """Kill every process of the job on this node and remove what they leave in /tmp and /dev/shm.

    Args:
        job: the job's id.
        session: ``host-pid`` of its mpirun, where that is known.
        wait_s: seconds until processes that KILL does not end are given up.

    Returns:
        ``{"killed": [{"pid", "command"}], "left": [...], "removed": [paths]}``; ``left`` is what KILL did not end in
        time (a process inside an uninterruptible system call).
    """
    killed: dict[int, str] = {}
    litter: set[str] = set()
    end = time.monotonic() + wait_s
    while True:
        present = members(job)
        if not present or time.monotonic() > end:
            break
        for pid in present:
            command, folder, files = command_of(pid), session_folder(pid), shared_segments(pid) | folders_of_daemon(pid)
            if kill(pid, job):
                killed.setdefault(pid, command)
                litter |= files | ({folder} if folder else set())
        time.sleep(0.05)
    left = [{"pid": pid, "command": command_of(pid)} for pid in members(job)]
    litter |= daemon_folders(session) | orphaned_segments() | {f"{place}/ray-{job}" for place in SCRATCH_FOLDERS}
    removed = [] if left else [path for path in sorted(litter) if remove(path)]
    return {"killed": [{"pid": pid, "command": text} for pid, text in killed.items()], "left": left, "removed": removed}


def remove(path: str) -> bool:
    """Remove a file or folder of our own; whether there was one.

    Its folder is opened once, so that nobody can lead the removal elsewhere by another link.
    """
    try:
        place = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    name = Path(path).name
    try:
        state = os.stat(name, dir_fd=place, follow_symlinks=False)
        if state.st_uid != os.getuid():
            return False
        if stat.S_ISDIR(state.st_mode):
            shutil.rmtree(f"/proc/self/fd/{place}/{name}")
        else:
            os.unlink(name, dir_fd=place)
    except (OSError, RecursionError):
        return False
    finally:
        os.close(place)
    return True


def sweep_peer(peer: dict[str, Any], session: list[str]) -> dict[str, Any]:
    """Sweep another node when the controller cannot do it any more: through the cluster's own ssh, or through srun.

    With ``whole``, ``argv`` reaches the node by itself.
    """
    command = [*peer["argv"], *session]
    if not peer.get("whole"):
        options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
        command = ["ssh", *NOT_INTERACTIVE, *options, "--", peer["name"], shlex.join(command)]
    answer: dict[str, Any] = {"event": "swept", "host": peer["name"]}
    try:
        answer.update(json.loads(bounded_run.run(command, PEER_WAIT_S).output))
    except (OSError, ValueError, TypeError, RecursionError) as problem:
        answer["problem"] = str(problem)[:300]
    answer["host"] = peer["name"]
    return answer
