# SPDX-License-Identifier: Apache-2.0
"""Read and write the mark of a cluster and the lock of a run on a node.

The mark says to which cluster the node belongs. The lock says which run works on it; a reboot clears it. The folder of
the lock is held by ``flock`` while a program looks and writes, so that two programs never decide at the same time.
"""

# Programs for nodes; os starts faster than pathlib and serves as well.
# ruff: noqa: PTH102, PTH106, PTH108, PTH112, PTH118, PTH119, PTH120

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import sys
import syslog
import tempfile
import time
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence

from . import audit_file

# --- rules: no I/O ---------------------------------------------------------------------------------------------------

SCHEMA = 1
_TEXTS = ("cluster", "name", "controller", "inventory", "since")
_LONGEST = 1000  # characters of one value
_MOST_NAMED = 8


def mark_of(data: Any) -> Optional[Dict[str, Any]]:
    """Return the mark of a cluster as a node keeps it; None where the data is not one."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("members"), dict):
        return None
    texts = {name: data.get(name, "") for name in _TEXTS}
    if not all(isinstance(text, str) and len(text) <= _LONGEST for text in texts.values()) or not texts["cluster"]:
        return None
    members = {str(name)[:_LONGEST]: str(address)[:_LONGEST] for name, address in data["members"].items()}
    return {"schema": SCHEMA, **texts, "members": members}


def lost_members(
    mark: Optional[Mapping[str, Any]], cluster: str, names: Iterable[str], addresses: Iterable[str]
) -> List[str]:
    """Return the members that the node's cluster would lose; none where the node is not foreign.

    A node is foreign where another cluster marked it, and that cluster has a member that this inventory does not list.

    Args:
        mark: the mark on the node; None where it has none.
        cluster: the id of the cluster that wants the node.
        names: of all hosts that its inventory lists.
        addresses: of these hosts.
    """
    if mark is None or mark["cluster"] == cluster:
        return []
    known_names, known_addresses = {name.lower() for name in names}, set(addresses) - {""}
    return sorted(
        name
        for name, address in mark["members"].items()
        if name.lower() not in known_names and name not in known_addresses and address not in known_addresses
    )


def fresh_mark(wanted: Mapping[str, Any], before: Optional[Mapping[str, Any]], now: str) -> Optional[Dict[str, Any]]:
    """Return the mark to write; None where the present one says the same.

    Args:
        wanted: cluster, name, controller, inventory and members. ``since`` is the time for a node that is new to the
            cluster.
        before: the present mark.
        now: the time where none is wanted.
    """
    is_same = before is not None and before["cluster"] == wanted["cluster"]
    since = before["since"] if before is not None and is_same else wanted.get("since") or now
    mark = mark_of({**wanted, "schema": SCHEMA, "since": since})
    return None if mark == before else mark


def cluster_words(mark: Mapping[str, Any]) -> str:
    """Return which cluster marked a node, for its audit line."""
    return f"the cluster {mark['cluster']} of {mark['inventory']}, set up by {mark['controller']}"


def foreign_words(mark: Mapping[str, Any], lost: Sequence[str]) -> str:
    """Return why a foreign node is refused, a clause that follows its name."""
    named = ", ".join(lost[:_MOST_NAMED]) + (f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else "")
    return (
        f"belongs to the cluster of {mark['inventory']} (set up by {mark['controller']}, since {mark['since']}), "
        f"which would lose {named}"
    )


# --- the node --------------------------------------------------------------------------------------------------------


STATE = "/var/lib/clusterctl"
RUN = "/run/clusterctl"
_MARK, _LOCK = "cluster.json", "lock"
_LARGEST = 4 << 20
_PATIENCE_S = 60.0  # of a program that looks and writes for milliseconds
_POLL_S = 0.02
_MOST_TURNS = 50  # a folder that others remove and make anew meanwhile


class Node:
    """The mark and the lock of this node."""

    def __init__(self, state: str = "", run: str = "") -> None:
        """Take the folders of the mark and of the lock."""
        self._state, self._run = state or _folder("STATE", STATE), run or _folder("RUN", RUN)

    def mark(self) -> Optional[Dict[str, Any]]:
        """Return the mark of the node's cluster; an unreadable one counts as missing."""
        return mark_of(_read(os.path.join(self._state, _MARK)))

    def write_mark(self, wanted: Mapping[str, Any]) -> bool:
        """Mark the node as one of a cluster; returns whether that changed the mark.

        Raises:
            OSError: the mark cannot be written.
        """
        fresh = fresh_mark(wanted, self.mark(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        if fresh is None:
            return False
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._state, 0o755)
        _write(os.path.join(self._state, _MARK), json.dumps(fresh, indent=1, sort_keys=True) + "\n")
        return True

    def forget_mark(self) -> None:
        """Remove the mark, for a node that leaves its cluster."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._state, _MARK))

    def take(self, lock: Mapping[str, Any], instead: str = "") -> Optional[Dict[str, Any]]:
        """Take the lock for a run, or return the lock of the run that has it.

        A lock that the same run took for another name of this machine is returned as well.

        Args:
            lock: who takes it: ``run``, ``host`` (the inventory's name of the node) and more for messages.
            instead: the run whose lock may be taken over, because it has ended.

        Raises:
            OSError: the lock cannot be written.
        """
        with _alone(self._run):
            path = os.path.join(self._run, _LOCK)
            present = _read(path)
            if isinstance(present, dict) and present.get("run") not in {instead, None}:
                is_ours = (present.get("run"), present.get("host")) == (lock["run"], lock["host"])
                return None if is_ours else present
            _write(path, json.dumps(dict(lock), sort_keys=True) + "\n")
            return None

    def release(self, run: str) -> None:
        """Remove the lock of a run, with the folder; the lock of another run stays."""
        if not os.path.isdir(self._run):
            return
        with _alone(self._run):
            path = os.path.join(self._run, _LOCK)
            present = _read(path)
            if isinstance(present, dict) and present.get("run") == run:
                os.unlink(path)
            with contextlib.suppress(OSError):
                os.rmdir(self._run)


def _folder(word: str, usual: str) -> str:
    """Return a folder; tests name others."""
    return os.environ.get(f"CLUSTERCTL_CLAIM_{word}", usual)


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Hold a folder, which is made where it is missing; the kernel lets go of it when the process ends."""
    for _unused in range(_MOST_TURNS):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            os.fchmod(handle, 0o700)  # whoever may open the folder may hold it
            _hold(handle, folder)
            if not _is_at(handle, folder):  # another program removed it meanwhile
                continue
            yield
            return
        finally:
            os.close(handle)
    raise OSError(11, "It changes all the time", folder)


def _hold(handle: int, folder: str) -> None:
    """Wait for the folder for a while.

    Raises:
        OSError: another process holds it all the time.
    """
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise OSError(errno.EAGAIN, f"A process holds it for {_PATIENCE_S:g} s; end it", folder) from None
            time.sleep(_POLL_S)
        else:
            return


def _is_at(handle: int, folder: str) -> bool:
    try:
        there = os.lstat(folder)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)


def _read(path: str) -> Any:
    """Return the JSON in a file; None where there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as stream:
        try:
            return json.loads(stream.read(_LARGEST))
        except (OSError, ValueError, RecursionError):
            return None


def _write(path: str, text: str) -> None:
    handle, staged = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(text.encode())
            stream.flush()
            os.fchmod(handle, 0o644)
            os.fsync(handle)
        os.rename(staged, path)  # noqa: PTH104
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(staged)
        raise


# Run one step of a claim as a program: read a request from standard input, print the answer as one line of JSON.

ANSWER = "node_ownership"
_MODULE = "clusterctl.hpc.node_ownership"  # as Ansible names the module of the same task


def act(request: Mapping[str, Any], node: Node, *, is_root: bool) -> Dict[str, Any]:
    """Do what a request asks for.

    Args:
        request: ``names`` and ``addresses`` (of the inventory), ``cluster`` (its id) and ``adopt`` for the look. With
            ``lock``, the lock is taken unless the node is foreign; ``instead`` names a run that has ended. With
            ``mark``, the mark is written. With ``release``, the lock of that run is removed; with
            ``forget``, the mark of that cluster. ``audit`` (run, user, controller, changes) is told once that is done.
        node: the mark and the lock.
        is_root: whether this process may write them.

    Returns:
        ``mark`` (before), ``lost`` (members of another cluster), ``holder`` (the lock of another run), ``taken``
        and ``problem`` (a clause).
    """
    answer: Dict[str, Any] = {"mark": node.mark(), "lost": [], "holder": None, "taken": False, "problem": ""}
    names, addresses = request.get("names") or [], request.get("addresses") or []
    if names:
        answer["lost"] = lost_members(answer["mark"], request.get("cluster", ""), names, addresses)
    if not is_root or (answer["lost"] and not request.get("adopt")):
        return answer
    try:
        if request.get("lock"):
            answer["holder"] = node.take(request["lock"], request.get("instead", ""))
            answer["taken"] = answer["holder"] is None
            _audit(request if answer["taken"] else {})
        if request.get("mark"):
            node.write_mark(request["mark"])
            _audit(request)
        if answer["mark"] is not None and answer["mark"]["cluster"] == request.get("forget"):
            node.forget_mark()
        if request.get("release"):
            node.release(request["release"])
    except OSError as error:
        answer["problem"] = f"{error.filename or 'its mark'} cannot be written: {error.strerror}"
    return answer


def _audit(request: Mapping[str, Any]) -> None:
    """Write what a request says that its lock or its mark takes from others; a full disk does not stop the run."""
    said = request.get("audit")
    if not said:
        return
    changes = [str(change) for change in said.get("changes") or ()]
    text = audit_file.line(json.dumps(said), _MODULE, changes, audit_file.login_address(), time.time())
    with contextlib.suppress(OSError):
        audit_file.append(text, os.environ.get("CLUSTERCTL_CLAIM_AUDIT", audit_file.FILE))
    syslog.syslog(f"clusterctl audit {text}")


def main(_arguments: List[str]) -> int:
    """Answer one request; the arguments are those of a session that called sudo, and are not used."""
    request = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    answer = act(request, Node(), is_root=os.geteuid() == 0)
    sys.stdout.write(json.dumps({ANSWER: answer}, separators=(",", ":")) + "\n")
    return 0
