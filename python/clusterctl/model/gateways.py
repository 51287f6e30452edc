"""Gateways: the hosts that ask their neighbours for the controller, so that it need not log in to all by itself."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.model import job_login, nodeset
from clusterctl.support.errors import ConfigError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.model.hosts import Host

DIRECT_UP_TO = 128  # hosts in one question
HOSTS_PER_GATEWAY = 32  # with itself; a gateway logs in to all of them at the same time
_MOST_NAMED = 8


@dataclass(frozen=True)
class GatewayWish:
    """So many gateways, or these; with neither, one for each 32 hosts where a question goes to more than 128."""

    count: int | None = None
    names: tuple[str, ...] = ()


def wish_of(text: str, hosts: Sequence[str]) -> GatewayWish | None:
    """Return what ``--gateways`` asks for: a number, or names such as node[1-3]; None for 0.

    Args:
        text: of the option.
        hosts: names of all hosts of the inventory.

    Raises:
        ConfigError: it is neither, or names a host that the inventory does not have.
    """
    if text.strip().isdecimal():
        count = int(text) if len(text.strip()) < len(str(nodeset.MOST_HOSTS)) else len(hosts)
        return GatewayWish(count=count) if count else None
    names = nodeset.expanded(text) or []
    if not names:
        raise ConfigError(f"--gateways is {text!r}; give a number, or hosts of the inventory such as node1,node33.")
    strangers = [name for name in names if name not in set(hosts)]
    if strangers:
        raise ConfigError(
            f"--gateways names {strangers[0]!r}, which the inventory does not have; its hosts are: "
            f"{and_more(list(hosts), _MOST_NAMED)}."
        )
    return GatewayWish(names=tuple(names))


def plan(hosts: Sequence[Host]) -> dict[Host, tuple[Host, ...]]:
    """Return by gateway the hosts that it asks; a host that stands in neither place is asked directly.

    A gateway is one of the hosts that are asked. Neighbours in the inventory have the same one.

    Args:
        hosts: all hosts of one question.
    """
    able = [host for host in hosts if is_in_mesh(host) and not has_secret(host)]
    able = [host for host in able if (host.user, host.gateways) == (able[0].user, able[0].gateways)]
    wish = able[0].gateways if able else None
    if wish is None:
        return {}
    if wish.names:
        chosen = [host for host in able if host.name in wish.names]
        rest = _split([host for host in able if host not in chosen], len(chosen))
        groups = [[host, *its] for host, its in zip(chosen, rest, strict=True)]
    elif wish.count is None and len(hosts) <= DIRECT_UP_TO:
        groups = []
    else:
        groups = _split(able, min(len(able), wish.count or math.ceil(len(able) / HOSTS_PER_GATEWAY)))
    return {group[0]: tuple(group[1:]) for group in groups if len(group) > 1}


def is_in_mesh(host: Host) -> bool:
    """Return whether the user who logs in to the host may have the mesh: nodes let in the cluster's user alone."""
    return host.gateways is not None and host.step is None and job_login.job_user(host) in {"", host.user}


def has_secret(host: Host) -> bool:
    """Return whether a question to the host begins with a password, which no other node may see."""
    return host.become and host.sudo_password is not None


def _split(hosts: Sequence[Host], parts: int) -> list[list[Host]]:
    """Return so many runs of neighbours, of equal size give or take one."""
    ends = [len(hosts) * number // parts for number in range(parts + 1)] if parts else [0]
    return [list(hosts[begin:end]) for begin, end in itertools.pairwise(ends)]
