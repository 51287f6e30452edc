"""The limit of open files of this process: raised to what many hosts need, or refused with that number."""

from __future__ import annotations

import contextlib
import resource

from clusterctl.support.errors import ConfigError

_EACH_HOST = 4  # the pipes and the process of a connection; the probe of networks holds one to every host
_LEAST_OTHERS = 128
_OTHERS = 512  # the pipes of 64 ssh at a time, and what Python and Ansible have open


def allow_for(hosts: int) -> None:
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
