"""A suite, and the three that clusterctl brings."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pydantic import Field, SerializeAsAny, field_validator

from clusterctl.model.base import Record
from clusterctl.suite.external import ExternalCheck
from clusterctl.suite.options import CHECKS, CheckOptions, NodeSpeedOptions, PairsOptions, SweepOptions, TrainingOptions
from clusterctl.suite.thresholds import HistoryOptions, OutlierOptions, ReferenceEntry

if TYPE_CHECKING:
    from collections.abc import Mapping

R = TypeVar("R", bound=Record)
_MIB = 1 << 20


class Suite(Record):
    """Checks with their options, in the order in which they run, and what their figures are to be."""

    name: str
    checks: dict[str, SerializeAsAny[CheckOptions]]
    external: tuple[ExternalCheck, ...] = ()
    references: tuple[ReferenceEntry, ...] = ()
    outliers: OutlierOptions = OutlierOptions()
    history: HistoryOptions = HistoryOptions()
    path: str = Field(default="", description="the file it was read from")

    @field_validator("checks", mode="before")
    @classmethod
    def _typed(cls, given: object) -> object:
        """Give each check the model of its own options, when a suite is read back."""
        if not isinstance(given, dict):
            return given
        return {
            name: CHECKS[name].model_validate(options) if name in CHECKS and isinstance(options, dict) else options
            for name, options in given.items()
        }

    def options(self, check: str, kind: type[R]) -> R:
        """Return a check's options; the defaults of nightly where this suite does not run it.

        Raises:
            TypeError: the check has options of another kind.
        """
        found = self.checks.get(check) or _NIGHTLY.checks[check]
        if not isinstance(found, kind):
            raise TypeError(f"{check} has {type(found).__name__}, no {kind.__name__}")
        return found

    @property
    def every_reference(self) -> tuple[ReferenceEntry, ...]:
        """The references of the suite, those that stand with the user's own checks among them."""
        own = (
            ReferenceEntry(check=one.name, quantity=one.measures, **one.reference.model_dump())
            for one in self.external
            if one.reference is not None
        )
        return (*self.references, *own)


_ANSWERS = ("hello", "point_to_point", "broadcast", "scatter", "gather", "reduce", "allreduce", "network")
_STACK_ANSWERS = ("nccl", "torchrun", "horovod")


def ordered(options: Mapping[str, CheckOptions]) -> dict[str, CheckOptions]:
    """Return options in the order in which the checks run."""
    return {name: options[name] for name in CHECKS if name in options}


def _every(given: Mapping[str, CheckOptions]) -> dict[str, CheckOptions]:
    return {name: given.get(name, kind()) for name, kind in CHECKS.items()}


_SMOKE = Suite(
    name="smoke",
    checks=ordered(
        {
            **{name: CheckOptions() for name in (*_ANSWERS, *_STACK_ANSWERS)},
            "node_speed": NodeSpeedOptions(budget_s=0.25, precision=0.05),
            "pairs": PairsOptions(
                budget_s=0.1, precision=0.05, latency_bytes=(8,), bandwidth_bytes=(_MIB,), max_rounds=16
            ),
        }
    ),
)
_NIGHTLY = Suite(
    name="nightly",
    checks=_every(
        {
            "node_speed": NodeSpeedOptions(budget_s=2.0),
            "pairs": PairsOptions(budget_s=0.2, max_rounds=128),
        }
    ),
)
_FULL = Suite(
    name="full",
    checks=_every(
        {
            "node_speed": NodeSpeedOptions(budget_s=10.0, precision=0.01),
            "pairs": PairsOptions(
                budget_s=1.0,
                precision=0.01,
                latency_bytes=(1, 8, 64, 512, 4096),
                bandwidth_bytes=(65536, _MIB, 8 * _MIB, 64 * _MIB),
            ),
            **{
                name: SweepOptions(
                    budget_s=3.0,
                    precision=0.01,
                    sizes=(8, 1024, 8192, 65536, 524288, 4 * _MIB, 32 * _MIB, 256 * _MIB),
                )
                for name in ("collectives", "nccl_sweep", "horovod_sweep")
            },
            "training": TrainingOptions(steps=100),
        }
    ),
)
BUILTIN: Mapping[str, Suite] = {suite.name: suite for suite in (_SMOKE, _NIGHTLY, _FULL)}
DEFAULT = "smoke"
