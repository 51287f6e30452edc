# SPDX-License-Identifier: Apache-2.0
"""Read and write files below a user's home with that user's identity, so that root follows none of the user's links.

A user decides what lies below the home. Root would follow a link there to any file of the node, and root may not
write on a home that NFS squashes. The kernel refuses both to the user's own identity.
"""

# ruff: noqa: PTH114, PTH118

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import stat
import time
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Dict, Optional

from ansible_collections.clusterctl.hpc.plugins.module_utils import command

from .node_look.reading import ActingAs

if TYPE_CHECKING:
    import pwd


_MOST_SAID = 300
MOST_READ = 16 << 20  # bytes of one file; a user could make a sparse file of any size
MOST_ANSWER = 4 << 20  # bytes
ANSWER_S = 300.0  # the user of a child can stop it
_BLOCK = 1 << 16


class IdentityError(Exception):
    """Work as a user failed; the message is one sentence."""


def acting_as(user: Optional[pwd.struct_passwd]) -> ContextManager[None]:
    """Return a block in which every access to a file has the identity of a user; see :class:`ActingAs`.

    None, and the user who runs the process, change nothing. Programs are started by :func:`in_child`.

    Raises:
        IdentityError: the process is not root's.
    """
    if user is None or os.geteuid() == user.pw_uid:
        return contextlib.nullcontext()
    if os.geteuid() != 0:
        raise IdentityError(f"Only root can act as user {user.pw_name}; set ansible_become=true.")
    return ActingAs(user)


def in_child(user: pwd.struct_passwd, work: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
    """Do the work in a child process that has become the user for good, as programs that it starts need it.

    Args:
        user: the identity of the child.
        work: returns what JSON can carry.

    Raises:
        IdentityError: the work failed; with the child's sentence.
    """
    if os.geteuid() == user.pw_uid:
        return work()
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        try:
            os.initgroups(user.pw_name, user.pw_gid)
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            answer: Dict[str, Any] = {"result": work()}
        except IdentityError as error:
            answer = {"failure": str(error)}
        except OSError as error:
            answer = {"failure": f"As user {user.pw_name}: {error.filename or 'a file'}: {error.strerror}."}
        except Exception as error:  # noqa: BLE001 - the child must not go on as a second copy of the module
            words = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_SAID]
            answer = {"failure": f"The work as user {user.pw_name} ended with {words}."}
        with os.fdopen(sink, "w", encoding="utf-8") as stream:
            json.dump(answer, stream)
        os._exit(0)  # neither Ansible's clean-up nor its output is this child's
    os.close(sink)
    reply = _answer_of(child, source)
    if "failure" in reply:
        raise IdentityError(reply["failure"] or f"The work as user {user.pw_name} ended without an answer; try again.")
    if "left" in reply:
        raise IdentityError(
            f"Process {reply['left']} of user {user.pw_name} does not end, as behind a file system whose server does"
            " not answer; unmount what does not answer (see /proc/mounts), then try again."
        )
    if "result" not in reply:
        raise IdentityError(
            f"The work as user {user.pw_name} gave no answer within {ANSWER_S:g} s; look if a process of this user "
            "is stopped, then try again."
        )
    result: Dict[str, Any] = reply["result"]
    return result


def _answer_of(child: int, source: int) -> Dict[str, Any]:
    """Return what a child wrote, and end it; a failure without words where it was cut off.

    One that was late gives {}, or ``left`` with its number where it does not end either. The user of the child may stop
    or kill it at any time.
    """
    until = time.monotonic() + ANSWER_S
    data, has_ended = b"", False
    with os.fdopen(source, "rb", buffering=0) as stream:
        while not has_ended and len(data) <= MOST_ANSWER and time.monotonic() < until:
            if select.select([stream], [], [], max(0.0, until - time.monotonic()))[0]:
                block = stream.read(_BLOCK)
                data, has_ended = data + block, not block
    os.kill(child, signal.SIGKILL)  # also behind its answer: a child that its user stopped there would never end
    is_over = command.has_left(child)
    if not has_ended and len(data) <= MOST_ANSWER:
        return {} if is_over else {"left": child}
    try:
        reply = json.loads(data) if has_ended else None
    except (ValueError, RecursionError):
        reply = None
    return reply if isinstance(reply, dict) else {"failure": ""}


def read_regular(path: str) -> Optional[bytes]:
    """Return the content of a regular file; None for anything else, whose opening could wait for ever.

    Raises:
        OSError: the file is there and cannot be read, or is larger than a file of settings can be.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        content = stream.read(MOST_READ + 1)
    if len(content) > MOST_READ:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return content


def first_link(path: str, below: str) -> str:
    """Return the first link on the way from a folder to a path below it; '' without one."""
    place = below
    for part in os.path.relpath(path, below).split("/"):
        place = os.path.normpath(os.path.join(place, part))
        if os.path.islink(place):
            return place
    return ""
