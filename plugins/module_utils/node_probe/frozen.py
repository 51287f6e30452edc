# SPDX-License-Identifier: Apache-2.0
"""Find paths whose file system does not answer: a server of NFS or FUSE that hangs would keep the probe for ever."""

from __future__ import annotations

import os
import re
import select
import signal
import time

from .reading import read_text

_WAIT_S = 8.0  # a server that an automounter asks first takes some seconds
_ANSWERS_ITSELF = frozenset(
    (
        *("bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "iso9660", "jfs", "overlay"),
        *("ramfs", "reiserfs", "rootfs", "squashfs", "tmpfs", "vfat", "xfs", "zfs"),
    )
)
_OF_THE_KERNEL = ("/proc", "/sys", "/dev", "/run")
_MOST_ASKED = 256
_LISTS = ("PATH", "LD_LIBRARY_PATH")  # of folders
_FOLDERS = ("TMPDIR", "TEMP", "TMP", "UCX_CONFIG_DIR")
_FILES = ("NCCL_CONF_FILE", "SLURM_CONF")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def frozen_paths(paths: list[str], wait_s: float = _WAIT_S) -> set[str]:
    """Return those of the paths that are on a file system which gives no answer within some seconds.

    On a node whose file systems are all local, nothing is asked. Elsewhere each path is asked, because a link or an
    automounter can lead to any server.

    Args:
        paths: absolute paths; one that is missing has an answer.
        wait_s: how long all of them together may take.
    """
    if not has_server(read_text("/proc/self/mountinfo", "")):
        return set()
    asked = [path for path in dict.fromkeys(paths) if path.startswith("/")]
    return _silent(asked[:_MOST_ASKED], wait_s)


def folders(variables: dict[str, str]) -> list[str]:
    """Return the absolute folders that variables of a session have the probe look into, each once."""
    found = [folder for name in _LISTS for folder in re.split("[:;]", variables.get(name, ""))]
    found += [variables.get(name, "") for name in _FOLDERS]
    found += [os.path.dirname(variables.get(name, "")) for name in _FILES]
    return list(dict.fromkeys(_plain(folder) for folder in found if folder.startswith("/")))


def without(variables: dict[str, str], silent: set[str] | frozenset[str]) -> dict[str, str]:
    """Return variables of a session without what leads to one of the ``silent`` folders."""
    kept = dict(variables)
    for name in _LISTS:
        words = re.split("([:;])", kept.get(name, ""))  # a folder, what separates it from the next, and so on
        if not silent.isdisjoint(map(_plain, words)):
            pairs = zip(words[::2], [*words[1::2], ""])  # noqa: B905 - strict= came with Python 3.10
            left = [folder + sign for folder, sign in pairs if _plain(folder) not in silent]
            kept[name] = "".join(left)
    for name in (*_FOLDERS, *_FILES):
        value = kept.get(name, "")
        if _plain(os.path.dirname(value) if name in _FILES else value) in silent:
            del kept[name]
    return kept


def _plain(folder: str) -> str:
    return folder.rstrip("/") or folder[:1]


def has_server(mountinfo: str) -> bool:
    """Tell whether a file system is mounted that waits for a server, by the text of /proc/self/mountinfo."""
    for line in mountinfo.split("\n"):
        words, _unused, rest = line.partition(" - ")
        place = _ESCAPED.sub(lambda found: chr(int(found.group(1), 8)), " ".join(words.split()[4:5]))
        kind = rest.partition(" ")[0]
        if (
            kind
            and kind not in _ANSWERS_ITSELF
            and not f"{place}/".startswith(tuple(f"{at}/" for at in _OF_THE_KERNEL))
        ):
            return True
    return False


def _silent(paths: list[str], wait_s: float) -> set[str]:
    """Return the paths of which a process that looks at them is not back in time.

    A process may not end before its file system answers. So it holds nothing that this program's caller waits for.
    """
    waiting = {}
    for path in paths:
        source, sink = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                _look(path, sink)
            finally:
                os._exit(0)
        os.close(sink)
        waiting[source] = (path, child)
    end = time.monotonic() + wait_s
    while waiting:
        ready = select.select(list(waiting), [], [], max(0.0, end - time.monotonic()))[0]
        if not ready:
            break
        for source in ready:
            os.close(source)
            os.waitpid(waiting.pop(source)[1], 0)
    for source, (_path, child) in waiting.items():
        os.close(source)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, os.WNOHANG)
    return {path for path, _child in waiting.values()}


def _look(path: str, sink: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.closerange(3, sink)
    os.closerange(sink + 1, sink + _MOST_ASKED)
    # A refusal is an answer. To look at the path itself has no automounter mount it, where its folder is there already
    # (AT_NO_AUTOMOUNT in stat(2)); to look into it has.
    os.path.exists(os.path.join(path, "."))
