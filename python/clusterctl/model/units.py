"""Units and sizes as people write and read them: ``64 MiB``, ``1.25 GB/s``, ``-10 %``, ``2 min``.

Sizes of messages count in powers of two (``KiB``), rates in powers of ten (``GB/s``), as nccl-tests and the OSU
benchmarks do.
"""

from __future__ import annotations

import math
import re
from typing import Literal, TypeAlias

# "1" is a plain number; a user's own check may count what it likes in it.
Unit: TypeAlias = Literal["s", "us", "B/s", "FLOP/s", "Hz", "ranks", "nodes", "GPUs", "tokens/s", "1"]

_NUMBER = re.compile(r"\s*(?P<number>[-+]?[\d_,]*\.?\d+(?:[eE][-+]?\d+)?)\s*(?P<unit>.*?)\s*")
_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_BINARY = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_SCALED: tuple[Unit, ...] = ("B/s", "FLOP/s", "Hz")
_PLAIN: tuple[Unit, ...] = ("ranks", "nodes", "GPUs", "tokens/s", "1")
_ENOUGH = 3  # significant digits that one can read and act on


def known() -> tuple[str, ...]:
    """Return every unit that :func:`unit` understands."""
    scaled = [prefix + name for name in _SCALED for prefix in _PREFIXES]
    return (*_TIMES, *scaled, *_PLAIN)


def unit(text: str) -> tuple[Unit, float]:
    """Return the unit in which records count, and by what a number in ``text`` is to be multiplied to get there.

    ``GB/s`` is ``("B/s", 1e9)``, ``ms`` is ``("s", 1e-3)``; ``us`` stays ``us``, for latencies are counted in it.

    Raises:
        ValueError: the unit is unknown.
    """
    text = text.strip()
    if text in {"us", "µs"}:
        return "us", 1.0
    if text in _TIMES:
        return "s", _TIMES[text]
    for plain in _PLAIN:
        if text == plain:
            return plain, 1.0
    for scaled in _SCALED:
        prefix = text.removesuffix(scaled)
        if text.endswith(scaled) and prefix in _PREFIXES:
            return scaled, _PREFIXES[prefix]
    raise ValueError(f"'{text}' is not a unit; known are s, ms, us, B/s, GB/s, FLOP/s, Hz, tokens/s, 1 and their like")


def converted(value: float, given: Unit, wanted: Unit) -> float:
    """Return a value in another unit of the same kind (``s`` and ``us`` are).

    Raises:
        ValueError: they are not of one kind.
    """
    if given == wanted:
        return value
    seconds = {"s": 1.0, "us": 1e-6}
    if given in seconds and wanted in seconds:
        return value * seconds[given] / seconds[wanted]
    raise ValueError(f"{given} is another unit than {wanted}")


def number(value: object) -> tuple[float, str]:
    """Return a finite number and the unit behind it, empty where there is none.

    Raises:
        ValueError: it is not a finite number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{_shown(value)} is not a number")  # noqa: TRY004 - pydantic hears ValueError alone
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value)
        if found is None:
            raise ValueError(f"{_shown(value)} is not a number")
        figure, words = float(found["number"].replace("_", "").replace(",", "")), found["unit"]
    else:
        try:
            figure, words = float(value), ""
        except OverflowError:
            raise ValueError(f"{_shown(value)} is not a usable number") from None
    if not math.isfinite(figure):
        raise ValueError(f"{_shown(value)} is not a finite number")
    return figure, words


def size(value: object) -> int:
    """Return the bytes of ``4096``, ``64 KiB`` or ``1 MB``.

    Raises:
        ValueError: it is not a whole number of bytes, or one below 0.
    """
    figure, words = number(value)
    if (words or "B") not in _SIZES:
        near = f"; write '{figure:g} {words.upper()[0]}iB'" if words.upper() in {"K", "M", "G", "KB", "KIB"} else ""
        raise ValueError(f"{_shown(value)} is not a size{near or ' such as 4096, 64 KiB or 8 MiB'}")
    counted = figure * _SIZES[words or "B"]
    if counted != int(counted) or counted < 0:
        raise ValueError(f"{_shown(value)} is not a whole number of bytes")
    return int(counted)


def seconds(value: object) -> float:
    """Return the seconds of ``30``, ``200 ms`` or ``2 min``.

    Raises:
        ValueError: it is not a time, or not above 0.
    """
    figure, words = number(value)
    if (words or "s") not in _TIMES:
        raise ValueError(f"{_shown(value)} is not a time such as 30, 200 ms or 2 min")
    if figure <= 0:
        raise ValueError(f"{_shown(value)} is not above 0")
    return figure * _TIMES[words or "s"]


def fraction(value: object) -> float:
    """Return ``-0.1`` for ``-0.1`` and for ``-10 %``.

    Raises:
        ValueError: it is neither.
    """
    figure, words = number(value)
    if words not in {"", "%"}:
        raise ValueError(f"{_shown(value)} is not a fraction such as 0.1 or 10 %")
    return figure / 100 if words else figure


def size_words(count: int) -> str:
    """Return bytes as one reads them, ``64 MiB``; a size that is not a round number stays in bytes."""
    for name, factor in _BINARY:
        if count >= factor and count * 4 % factor == 0:
            return f"{count / factor:g} {name}"
    return f"{count:,} B"


def value_words(value: float, of: Unit) -> str:
    """Return a value with its unit as one reads it, ``1.25 GB/s``."""
    if of in _SCALED:
        prefix, factor = next(
            ((name, factor) for name, factor in reversed(_PREFIXES.items()) if abs(value) >= factor), ("", 1.0)
        )
        return f"{_digits(value / factor)} {prefix}{of}"
    if of in {"s", "us"}:
        return _time_words(value if of == "s" else value * 1e-6)
    return _digits(value) if of == "1" else f"{_digits(value)} {of}"


def percent(part: float) -> str:
    """Return a fraction as one reads it, ``12 %``, ``0.4 %``."""
    return f"{_digits(100 * part, 2)} %"


def _time_words(value: float) -> str:
    for name in ("s", "ms", "us"):
        if abs(value) >= _TIMES[name]:
            return f"{_digits(value / _TIMES[name])} {name}"
    return f"{_digits(value * 1e6)} us"


def _digits(value: float, enough: int = _ENOUGH) -> str:
    """Return a number with so many significant digits, all of those before the point, and no exponent."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, enough - 1 - math.floor(math.log10(abs(value))))
    words = f"{value:,.{places}f}"
    return words.rstrip("0").rstrip(".") if "." in words else words


def _shown(value: object) -> str:
    words = f"'{value}'" if isinstance(value, str) else str(value)
    return words if len(words) <= 40 else f"{words[:37]}..."  # noqa: PLR2004 - a line's worth
