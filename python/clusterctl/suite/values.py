"""Values of a suite file: sizes, times, fractions and lists, each checked when it is read; the nearest known name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator

from clusterctl.model import units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MIB = 1 << 20
_LARGEST_PAIR_MESSAGE = 64 << 20
_LARGEST_MESSAGE = 16 << 30

Operation: TypeAlias = Literal["allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall"]
OPERATIONS: tuple[Operation, ...] = ("allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall")


def nearest(given: str, known: Iterable[str], otherwise: str) -> str:
    """Return 'did you mean ...?' with the nearest name that is known, or all of them where none is near."""
    names = list(known)
    near = difflib.get_close_matches(given.replace("-", "_").lower(), names, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"{otherwise} {', '.join(names)}."


def between(low: float, high: float, what: str) -> Callable[[float], float]:
    """Return a validator that refuses a value outside these limits with these words."""

    def look(value: float) -> float:
        if not low <= value <= high:
            raise ValueError(f"{value:g} is not {what}")
        return value

    return look


def whole(value: object) -> int:
    """Return a whole number.

    Raises:
        ValueError: the value is not a whole number.
    """
    figure, words = units.number(value)
    if words or figure != int(figure):
        raise ValueError(f"'{value}' is not a whole number")
    return int(figure)


def _listed(value: object) -> object:
    """Return a single value as a list of one."""
    return value if isinstance(value, (list, tuple)) else (value,)


def _plain_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value} is not text; put it in quotes")  # noqa: TRY004 - pydantic hears ValueError alone
    return value


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse an empty list and repeated values."""
    if not values:
        raise ValueError("the list is empty")
    if len(set(values)) < len(values):
        raise ValueError("a value is given twice")
    return values


Size = Annotated[int, BeforeValidator(units.size), AfterValidator(between(0, _LARGEST_MESSAGE, "at most 16 GiB"))]
PairSize = Annotated[
    int, BeforeValidator(units.size), AfterValidator(between(0, _LARGEST_PAIR_MESSAGE, "at most 64 MiB"))
]
Sizes = Annotated[tuple[Size, ...], BeforeValidator(_listed), AfterValidator(_distinct)]
PairSizes = Annotated[tuple[PairSize, ...], BeforeValidator(_listed), AfterValidator(_distinct)]
Seconds = Annotated[float, BeforeValidator(units.seconds)]
Fraction = Annotated[float, BeforeValidator(units.fraction)]
Confidence = Annotated[Fraction, AfterValidator(between(0.5, 0.9999, "between 50 % and 99.99 %"))]
Precision = Annotated[Fraction, AfterValidator(between(1e-4, 1, "between 0.01 % and 100 %"))]
Share = Annotated[Fraction, AfterValidator(between(0, 1, "between 0 and 1"))]
Count = Annotated[int, BeforeValidator(whole), AfterValidator(between(1, 10**9, "at least 1"))]
Text = Annotated[str, BeforeValidator(_plain_text)]
Operations = Annotated[
    tuple[Operation, ...],
    BeforeValidator(_listed),
    AfterValidator(_distinct),
]
