"""All checks in the order in which they are run, and the way from a suite or a name to a check."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from clusterctl import suite as suites
from clusterctl.suite import CheckOptions
from clusterctl.support.errors import ConfigError
from clusterctl.validation.checks import answers
from clusterctl.validation.checks.collectives import Collectives, HorovodSweep, NcclSweep
from clusterctl.validation.checks.external import External
from clusterctl.validation.checks.hello import Hello
from clusterctl.validation.checks.horovod import Horovod, Training
from clusterctl.validation.checks.nccl import NCCL
from clusterctl.validation.checks.network import NetworkCheck
from clusterctl.validation.checks.node_speed import NodeSpeed
from clusterctl.validation.checks.pairs import Pairs
from clusterctl.validation.checks.torchrun import TorchrunCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.suite import Suite
    from clusterctl.validation.checks.base import Check

Options = TypeVar("Options", bound=CheckOptions)

REACHABLE, PROVISIONED, SKEW = suites.GROUND
GROUND = suites.GROUND  # always looked at first; all others stand on them


@dataclass(frozen=True)
class _Maker:
    """How a check is made of its options."""

    make: Callable[[CheckOptions], Check]

    def __call__(self, options: CheckOptions) -> Check:
        check = self.make(options)
        if options.deadline_s is None:
            return check
        return cast("Check", replace(cast("Any", check), deadline_s=options.deadline_s))  # all are frozen dataclasses


def _plain(check: Check) -> _Maker:
    """Make a check that has no options of its own."""
    return _Maker(lambda _options: check)


def _with(kind: type[Options], make: Callable[[Options], Check]) -> _Maker:
    """Make a check of its options, ``_with(suites.PairsOptions, Pairs)``."""

    def made(options: CheckOptions) -> Check:
        if not isinstance(options, kind):
            raise TypeError(f"these are {type(options).__name__}, no {kind.__name__}")
        return make(options)

    return _Maker(made)


# One line a check, in the order of suites.CHECKS; a test holds the two equal.
_MAKERS: Mapping[str, _Maker] = {
    "hello": _plain(Hello()),
    "point_to_point": _plain(answers.POINT_TO_POINT),
    "broadcast": _plain(answers.BROADCAST),
    "scatter": _plain(answers.SCATTER),
    "gather": _plain(answers.GATHER),
    "reduce": _plain(answers.REDUCE),
    "allreduce": _plain(answers.ALLREDUCE),
    "network": _plain(NetworkCheck()),
    "node_speed": _with(suites.NodeSpeedOptions, NodeSpeed),
    "pairs": _with(suites.PairsOptions, Pairs),
    "collectives": _with(suites.SweepOptions, Collectives.of),
    "nccl": _plain(NCCL),
    "nccl_sweep": _with(suites.SweepOptions, NcclSweep.of),
    "torchrun": _plain(TorchrunCheck()),
    "horovod": _plain(Horovod()),
    "horovod_sweep": _with(suites.SweepOptions, HorovodSweep.of),
    "training": _with(suites.TrainingOptions, Training.of),
}


def build(suite: Suite) -> tuple[Check, ...]:
    """Return the checks of a suite in the order in which they run, the user's own last."""
    made = (_MAKERS[name](options) for name, options in suite.checks.items() if name in _MAKERS)
    return (*made, *(External(check) for check in suite.external))


# What there is, as nightly measures it.
LAUNCHED: tuple[Check, ...] = build(suites.builtin("nightly"))


def select(names: Sequence[str] | None, suite: Suite | None = None) -> tuple[Check, ...]:
    """Return the checks of these names in their usual order; None means all of the suite.

    Args:
        names: what the user named; a check that the suite does not run is taken as nightly has it.
        suite: whose options they take; None is everything, as nightly has it.

    Raises:
        ConfigError: a name is unknown; the message gives the nearest one. Or there is none at all.
    """
    suite = suite or suites.builtin("nightly")
    if names is None:
        return build(suite)
    nightly = suites.builtin("nightly").checks
    own = [check.name for check in suite.external]
    known = [*GROUND, *_MAKERS, *own]
    if not names:
        raise ConfigError(
            f"--checks names no check, and a run without any proves nothing; the checks are: {', '.join(known)}."
        )
    for name in names:
        if name not in known:
            hint = suites.nearest(name, known, "the checks are:")
            raise ConfigError(f"There is no check named '{name}'; {hint}")
    chosen = {name: suite.checks.get(name) or nightly[name] for name in _MAKERS if name in names}
    external = tuple(check for check in suite.external if check.name in names)
    return build(suite.model_copy(update={"checks": chosen, "external": external}))
