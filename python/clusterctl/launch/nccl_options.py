"""NCCL's options that a user sets for each pod: the GID index for RoCE, and the threads and sockets of TCP.

The limits are those of NCCL's documentation: 1 to 16 threads, and at most 64 sockets of all threads of a connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterctl.support.errors import ConfigError

AUTO = "auto"
GID_INDEX, SOCKET_THREADS, SOCKETS_PER_THREAD = "NCCL_IB_GID_INDEX", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"
# The options of 'clusterctl launch' and 'clusterctl render', with their help.
OPTIONS = {
    "--gid-index": "Set NCCL_IB_GID_INDEX of each pod: a number, or auto for the pod's own RoCE v2 entry over IPv4.",
    "--socket-threads": "Set NCCL_SOCKET_NTHREADS of each pod, 1 to 16; 0 leaves it to NCCL.",
    "--sockets-per-thread": "Set NCCL_NSOCKS_PERTHREAD of each pod; 0 leaves it to NCCL.",
}
_MOST_THREADS, _MOST_SOCKETS = 16, 64
_INDEX = re.compile(r"[0-9]{1,3}")
_LAST_INDEX = 255


@dataclass(frozen=True)
class NcclOptions:
    """What the user asks for; '' and 0 leave it to NCCL. ``gid_index`` is a number or ``auto``."""

    gid_index: str = ""
    socket_threads: int = 0
    sockets_per_thread: int = 0


NO_OPTIONS = NcclOptions()


def refuse(options: NcclOptions) -> None:
    """Refuse what NCCL would not take."""
    index = options.gid_index
    if index not in {"", AUTO} and not (_INDEX.fullmatch(index) and int(index) <= _LAST_INDEX):
        raise ConfigError(f"--gid-index {index!r} is not an entry of a GID table; give 0 to {_LAST_INDEX}, or auto.")
    threads, sockets = options.socket_threads, options.sockets_per_thread
    if not 0 <= threads <= _MOST_THREADS:
        raise ConfigError(f"--socket-threads {threads} is outside of NCCL's limits; give 1 to {_MOST_THREADS}.")
    if not 0 <= sockets <= _MOST_SOCKETS or max(threads, 1) * sockets > _MOST_SOCKETS:
        raise ConfigError(
            f"--socket-threads {threads} with --sockets-per-thread {sockets} is outside of NCCL's limits; their"
            f" product is {_MOST_SOCKETS} at most."
        )


def variables(options: NcclOptions) -> dict[str, str]:
    """Return the variables that can be set before the pod is known, so all but ``auto``."""
    found = {
        GID_INDEX: "" if options.gid_index == AUTO else options.gid_index,
        SOCKET_THREADS: str(options.socket_threads or ""),
        SOCKETS_PER_THREAD: str(options.sockets_per_thread or ""),
    }
    return {name: value for name, value in found.items() if value}


def words(options: NcclOptions) -> list[str]:
    """Return the options as ``clusterctl launch`` takes them."""
    found = zip(OPTIONS, (options.gid_index, options.socket_threads, options.sockets_per_thread), strict=True)
    return [f"{option}={value}" for option, value in found if value]
