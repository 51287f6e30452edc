"""All checks in the order in which they are run, and the way from a name to a check."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from clusterctl.checks import answers
from clusterctl.checks.hello import Hello
from clusterctl.checks.horovod import Horovod, Training
from clusterctl.checks.nccl import NCCL
from clusterctl.checks.network import Network
from clusterctl.checks.torchrun import Torchrun
from clusterctl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.checks.base import Check

REACHABLE = "reachable"
PROVISIONED = "provisioned"
SKEW = "skew"
GROUND = (REACHABLE, PROVISIONED, SKEW)  # always looked at first; all others stand on them

LAUNCHED: tuple[Check, ...] = (
    Hello(),
    answers.POINT_TO_POINT,
    answers.BROADCAST,
    answers.SCATTER,
    answers.GATHER,
    answers.REDUCE,
    answers.ALLREDUCE,
    Network(),
    NCCL,
    Torchrun(),
    Horovod(),
    Training(),
)


def select(names: Sequence[str] | None) -> tuple[Check, ...]:
    """Return the checks of these names in their usual order; None means all.

    Raises:
        ConfigError: a name is unknown; the message gives the nearest one.
    """
    if names is None:
        return LAUNCHED
    known = [*GROUND, *(check.name for check in LAUNCHED)]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name.replace("-", "_").lower(), known, n=1, cutoff=0.5)
            hint = f"did you mean '{near[0]}'?" if near else "the checks are: " + ", ".join(known) + "."
            raise ConfigError(f"There is no check named '{name}'; {hint}")
    return tuple(check for check in LAUNCHED if check.name in names)
