"""The memory and open files that connections to many hosts take, against what this process may have."""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass

from clusterctl.support import content
from clusterctl.support.errors import ConfigError

EACH_HOST = 2.8 * (1 << 20)  # bytes; doctor on 256 fresh nodes, docs/measured/scale.md
MANY = 64  # fewer hosts than that are never held against the memory
_LEAST_AT_ONCE = 4  # so many take no more than one program of ours
_MIB = 1 << 20


@dataclass(frozen=True)
class Room:
    """How many connections may be open at the same time, and whether each may stay open for the next question."""

    at_once: int
    shared: bool = True


def left_bytes() -> int | None:
    """Return what the kernel and the limits of our control group leave; None where this system does not tell."""
    try:
        found: int = content.module_util("node_look.machine").available_memory_bytes()
    except (OSError, ValueError, KeyError):
        return None
    return found


def allow_for(hosts: int) -> None:
    """See that there is room for one connection to every host at the same time.

    Raises:
        ConfigError: there is not.
    """
    left = left_bytes() if hosts >= MANY else None
    needed = EACH_HOST * hosts
    if left is not None and left < needed:
        raise ConfigError(
            f"{hosts} hosts need {needed / _MIB:.0f} MiB of memory, and this machine has {left / _MIB:.0f} MiB left "
            "for this process; end other programs, raise the memory limit of its control group, or choose fewer hosts "
            "by --limit."
        )


def for_questions(hosts: int, most: int) -> Room:
    """Return how one question goes to many hosts, at most ``most`` at a time.

    Where there is no room for a connection to each, none stays open, and fewer are open at the same time.
    """
    left = left_bytes() if hosts >= MANY else None
    if left is None or left >= EACH_HOST * hosts:
        return Room(most)
    return Room(min(most, max(_LEAST_AT_ONCE, int(left / EACH_HOST))), shared=False)


# --- The limit of open files of this process: raised to what many hosts need, or refused with that number -------------

_EACH_HOST = 4  # the pipes and the process of a connection; the probe of networks holds one to every host
_LEAST_OTHERS = 128
_OTHERS = 512  # the pipes of 64 ssh at a time, and what Python and Ansible have open


def allow_open_files(hosts: int) -> None:
    """Raise the soft limit of open files, which the processes of this one inherit.

    Raises:
        ConfigError: the hard limit is too low for so many hosts.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _EACH_HOST * hosts + _LEAST_OTHERS
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"{hosts} hosts need {needed} open files, and this process may have {hard}; raise the hard limit (as root: "
            f"'ulimit -n {needed}', or nofile in /etc/security/limits.conf), or choose fewer hosts by --limit."
        )
    wanted = _EACH_HOST * hosts + _OTHERS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has one more limit, which it does not tell
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
            )
