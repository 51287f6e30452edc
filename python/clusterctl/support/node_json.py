"""JSON that a node wrote: what is read from it can be shown, kept in a record and written again."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

_SURROGATE = re.compile("[\ud800-\udfff]")
_DEEPEST = 100  # levels; our programs need six


def loads(text: str | bytes) -> Any:
    """Return what a JSON text says, without lone surrogates, which no file can hold.

    Raises:
        ValueError: it is not JSON, it is nested too deeply, or one of its numbers is not finite or has too many digits.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    try:
        return storable(json.loads(text, parse_constant=_refuse, parse_float=_finite))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def storable(value: Any, depth: int = 0) -> Any:
    """Return JSON's data with every lone surrogate replaced, in keys as well.

    Raises:
        ValueError: the data is nested too deeply for those who work on it.
    """
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [storable(one, depth + 1) for one in value]
    if isinstance(value, dict):
        return {_SURROGATE.sub("\ufffd", key): storable(one, depth + 1) for key, one in value.items()}
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large")
    return value
