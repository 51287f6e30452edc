"""Say whether this node is fit for a job, in one line and by the exit status; for the prolog of a scheduler.

``check_node.py --quick`` needs no controller and no clusterctl. It looks at what the last provision left here: the
links of the artifacts and their files, the libraries, the loader's cache, folders and disks that jobs write to, GPUs,
limits and sshd. ``fitness_rules.py`` judges, and ``node_look`` looks; both lie beside this file.

The line on stdout is ``NODE: fit`` or ``NODE: CAUSE; CURE``. The exit status is 0 for a fit node and 10 for an unfit
one. A child process looks. When it gives no answer within the deadline, or crashes at what it looks at, the line names
the last thing that it looked at. So a file system that hangs cannot hold this program. A child that somebody kills says
nothing about the node: another one looks. If that is killed as well, the line is ``NODE: unknown`` and the status 11.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

FIT, UNFIT, UNKNOWN = 0, 10, 11
TRIES = 2  # as many children may be killed
# Signals of a crash. Any other comes from a process that wants an end, and says nothing about the node.
CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGSYS, signal.SIGTRAP}
DEADLINE_S = 10.0
FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - without a look at the file system
MADE_WITH = "node.json"  # what this node had at the last provision
ROOT = os.path.dirname(os.path.dirname(FOLDER))  # noqa: PTH120 - the prefix, in whose libexec/clusterctl this lies
# Of the role ssh_mesh; earlier releases wrote the second one.
MESH = ("/etc/ssh/ssh_config.d/00-clusterctl.conf", "/etc/ssh/ssh_config.d/10-clusterctl.conf")
NCCL_LOADER = "/etc/ld.so.conf.d/nccl.conf"  # of the role nccl
LIBRARIES = {"openmpi": "libmpi.so", "nccl": "libnccl.so.2"}
NOT_PROVISIONED = "it was not provisioned by this release of clusterctl"
NOBODY = 65534  # the uid and gid that own nothing
MOST_NAMED = 3
BLOCK = 1 << 16

Words = Tuple[str, str]
Look = Callable[[argparse.Namespace], List[Words]]


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Say whether this node is fit for a job.")
    parser.add_argument("--quick", action="store_true", help="the looks that take less than a second (all there are)")
    parser.add_argument("--node", default="", help="the node's name in the line; default: Slurm's, else the host name")
    parser.add_argument(
        "--user",
        default=os.environ.get("SLURM_JOB_UID", ""),
        help="uid of the job's user, who must be able to write temporary files; root alone can change to it",
    )
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, help="seconds for all looks")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    asked = options(arguments)
    began = time.monotonic()
    found, last, was_killed = [], "", True
    for _unused in range(TRIES):
        if was_killed:
            found, last, was_killed = looked(asked, began + asked.deadline)
    name = asked.node or os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    if was_killed and not found:
        sys.stdout.write(f"{name}: unknown: {last}, {TRIES} times; look again\n")
        sys.stdout.flush()
        return UNKNOWN
    sys.stdout.write(line(name, found, last, time.monotonic() - began) + "\n")
    sys.stdout.flush()
    return UNFIT if found or last else FIT


def line(name: str, found: Sequence[Words], last: str, seconds: float) -> str:
    """Return the line of a node.

    Args:
        name: of the node.
        found: causes and cures.
        last: what the look ended at before its time, '' if it is whole.
        seconds: how long it took.
    """
    causes = [*([(last, "look at it by hand, and in the kernel's log")] if last else []), *found]
    if not causes:
        return f"{name}: fit ({seconds:.2f} s)"
    told = [f"{cause}; {cure}" for cause, cure in causes[:MOST_NAMED]]
    more = len(causes) - MOST_NAMED
    return " ".join(f"{name}: {' | '.join(told)}{f' | and {more} more' if more > 0 else ''}".split())


def looked(asked: argparse.Namespace, until: float) -> Tuple[List[Words], str, bool]:
    """Let a child look; return what it found, why it did not come to its end ('' if it did), and if it was killed."""
    node_reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(node_reading)
        with contextlib.suppress(BaseException):  # never unwinds into the parent's part
            look(asked, writing)
        os._exit(0)
    os.close(writing)
    text = received(node_reading, until)
    events = [json.loads(one) for one in text.split(b"\n")[:-1]]  # the last one is empty, or cut off
    found = [(str(cause), str(cure)) for event in events for cause, cure in event.get("found", ())]
    if events and "done" in events[-1]:
        os.waitpid(child, 0)
        return found, "", False
    at = next((str(event["look"]) for event in reversed(events) if "look" in event), "Python")
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)
    if time.monotonic() >= until:  # a child that hangs in the kernel cannot be waited for
        return found, f"the look at {at} gave no answer within {asked.deadline:g} s", False
    _unused, status = os.waitpid(child, 0)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    how = f"by signal {number}" if number else "early"
    return found, f"the look at {at} was ended {how}", number not in {0, *CRASHES}


def received(node_reading: int, until: float) -> bytes:
    """Return what the child wrote until its end or the deadline."""
    text = b""
    while time.monotonic() < until:
        if select.select([node_reading], [], [], max(0.0, until - time.monotonic()))[0]:
            block = os.read(node_reading, BLOCK)
            if not block:
                break
            text += block
            if b'{"done"' in text and text.endswith(b"\n"):
                break
    return text


def look(asked: argparse.Namespace, writing: int) -> None:
    """Take one look after the other, and write what each finds."""

    def tell(**event: Any) -> None:
        os.write(writing, json.dumps(event).encode() + b"\n")

    sys.dont_write_bytecode = True  # root leaves nothing beside the programs
    sys.path.insert(0, FOLDER)
    for name, take in looks():
        tell(look=name)
        try:
            found = take(asked)
        except Exception as error:  # noqa: BLE001 - what cannot be looked at is not fit
            found = [(f"the look at {name} failed: {type(error).__name__}: {error}", "look at it by hand")]
        tell(found=found)
    tell(done=True)


def looks() -> Iterator[Tuple[str, Look]]:
    """Return the looks by the words for what they look at; the last one is without the rights of root."""
    yield f"{FOLDER}/{MADE_WITH}", provisioned
    yield f"the artifacts in {ROOT}", artifacts
    yield "the loader's cache", loader_cache
    yield f"the disks of {ROOT} and /var/tmp", disks
    yield "the GPUs", gpus
    yield "the limits", limits
    yield "sshd", sshd
    yield "the folders for temporary files and shared memory", scratch
    yield "the libraries", libraries


def made_with() -> Dict[str, Any]:
    """Return what this node had at the last provision."""
    found = json.loads(Path(FOLDER, MADE_WITH).read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


def provisioned(_asked: argparse.Namespace) -> List[Words]:
    """Look whether a provision has left its record here."""
    import fitness_rules as rules  # noqa: PLC0415 - by the child alone

    try:
        made_with()
    except (OSError, ValueError) as error:
        return [(f"{NOT_PROVISIONED} ({error})", rules.PROVISION)]
    return []


def artifacts(_asked: argparse.Namespace) -> List[Words]:
    """Compare the artifacts with their manifests: links, kinds, sizes, modes and owners."""
    import fitness_rules as rules  # noqa: PLC0415
    from node_look import artifacts as probe  # noqa: PLC0415

    asked = [{"name": name, "link": f"{ROOT}/{name}"} for name in (*rules.NEEDED, *rules.OPTIONAL)]
    return rules.artifacts(probe.artifacts(asked, probe.Verifier(), ROOT)["artifacts"])


def libraries(_asked: argparse.Namespace) -> List[Words]:
    """Load the libraries, with all that they need; loading runs code of theirs, so never as root."""
    import ctypes  # noqa: PLC0415

    import fitness_rules as rules  # noqa: PLC0415

    if os.geteuid() == 0:
        give_up_rights(NOBODY, NOBODY, [])
    found = []
    for name, library in LIBRARIES.items():
        path = f"{ROOT}/{name}/lib/{library}"
        if not os.path.exists(path):  # noqa: PTH110 - the manifest tells what is missing
            continue
        try:
            ctypes.CDLL(path)
        except OSError as error:
            found.append((f"{path} cannot be loaded: {error}", rules.PROVISION))
    return found


def loader_cache(_asked: argparse.Namespace) -> List[Words]:
    """Look whether the loader's cache is whole, and has NCCL where provision put it there."""
    from node_look import libraries as node_libraries  # noqa: PLC0415

    content, cache, cure = node_libraries.content(), node_libraries.LIBRARY_CACHE, "run 'ldconfig'"
    if not node_libraries.read_library_cache(content, "libc.so.6"):
        return [(f"{cache} is empty or damaged", cure)]
    with contextlib.suppress(OSError, IndexError):
        link = f"{Path(NCCL_LOADER).read_text(encoding='utf-8').split()[-1]}/{LIBRARIES['nccl']}"
        if os.path.exists(link) and link not in node_libraries.read_library_cache(content, LIBRARIES["nccl"]):  # noqa: PTH110
            return [(f"{cache} lacks {link}", cure)]
    return []


def disks(_asked: argparse.Namespace) -> List[Words]:
    """Look whether a disk is full."""
    import fitness_rules as rules  # noqa: PLC0415
    from node_look import machine  # noqa: PLC0415

    return [rules.disk(one) for one in machine.storage(ROOT)["disk"] if rules.is_full(one)]


def gpus(_asked: argparse.Namespace) -> List[Words]:
    """Compare the GPUs with those of the last provision."""
    import fitness_rules as rules  # noqa: PLC0415
    from node_look import gpu  # noqa: PLC0415

    with contextlib.suppress(OSError, ValueError):
        return rules.gpus(made_with().get("gpus") or [], gpu.listed())
    return []  # what provision left is told of already


def limits(_asked: argparse.Namespace) -> List[Words]:
    """Look at the limits that the daemon of the scheduler hands down to its jobs."""
    import resource  # noqa: PLC0415

    import fitness_rules as rules  # noqa: PLC0415
    from node_look import network  # noqa: PLC0415

    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    found = rules.memlock(None if hard == resource.RLIM_INFINITY else hard, network.rdma()["rdma"])
    return [found] if found[0] else []


def sshd(_asked: argparse.Namespace) -> List[Words]:
    """Look whether sshd listens where provision made a mesh of logins."""
    import fitness_rules as rules  # noqa: PLC0415
    from node_look import reading as node_reading  # noqa: PLC0415
    from node_look import ssh  # noqa: PLC0415

    if not any(map(os.path.exists, MESH)):
        return []
    port = ssh.ssh_daemon("")["ssh"]["port"]
    found = rules.listener(port, [node_reading.read_text(f"/proc/net/{table}", "") for table in ("tcp", "tcp6")])
    return [found] if found[0] else []


def scratch(asked: argparse.Namespace) -> List[Words]:
    """Look whether the job's user can write temporary files and shared memory.

    The real user stays root, so that the job's user cannot kill this process.
    """
    import pwd  # noqa: PLC0415

    import fitness_rules as rules  # noqa: PLC0415
    from node_look import machine  # noqa: PLC0415
    from node_look import reading as node_reading  # noqa: PLC0415

    variables = dict(os.environ)
    if asked.user and os.geteuid() == 0:
        user = pwd.getpwuid(int(asked.user))
        with node_reading.ActingAs(user):
            found = machine.scratch(variables, user.pw_uid)["scratch"]
    else:
        found = machine.scratch(variables, os.getuid())["scratch"]
    return [words for folder in found for words in rules.scratch(folder)]


def give_up_rights(uid: int, gid: int, groups: List[int]) -> None:
    """Become another user and group for good."""
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
