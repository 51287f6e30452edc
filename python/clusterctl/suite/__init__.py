"""What a validation runs, how long it measures, and what the figures are to be: three built-in suites, and the user's.

A suite is a frozen value. :func:`builtin` gives ``smoke``, ``nightly`` or ``full``; :func:`load` reads
``validation.yml``, in which everything is typed and every mistake is one sentence with its line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.suite.external import BENCHMARKS, ExternalCheck
from clusterctl.suite.model import BUILTIN, DEFAULT, Suite
from clusterctl.suite.options import (
    CHECKS,
    GROUND,
    QUANTITIES,
    CheckOptions,
    MeasuringOptions,
    NodeSpeedOptions,
    PairsOptions,
    SweepOptions,
    TrainingOptions,
)
from clusterctl.suite.reading import nearest, parse
from clusterctl.suite.thresholds import HistoryOptions, Limits, OutlierOptions, ReferenceEntry
from clusterctl.suite.values import OPERATIONS
from clusterctl.support.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "BENCHMARKS",
    "BUILTIN",
    "CHECKS",
    "DEFAULT",
    "GROUND",
    "OPERATIONS",
    "QUANTITIES",
    "CheckOptions",
    "ExternalCheck",
    "HistoryOptions",
    "Limits",
    "MeasuringOptions",
    "NodeSpeedOptions",
    "OutlierOptions",
    "PairsOptions",
    "ReferenceEntry",
    "Suite",
    "SweepOptions",
    "TrainingOptions",
    "beside",
    "builtin",
    "load",
    "nearest",
    "parse",
]


def builtin(name: str) -> Suite:
    """Return one of clusterctl's own suites.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in BUILTIN:
        raise ConfigError(f"There is no suite named '{name}'; {nearest(name, BUILTIN, 'the suites are')}")
    return BUILTIN[name]


def beside(inventory: Path) -> Path | None:
    """Return the ``validation.yml`` beside an inventory, or in its folder, None where there is none."""
    found = (inventory if inventory.is_dir() else inventory.parent) / "validation.yml"
    return found if found.is_file() else None


def load(path: Path | None, name: str | None = None) -> Suite:
    """Return the suite that a run is to take.

    Args:
        path: the user's ``validation.yml``, if there is one.
        name: the suite's name. None is the file's own suite, or smoke where there is no file. The name of a built-in
            suite that the file does not extend takes that one's checks, with the file's references and thresholds.

    Raises:
        ConfigError: the file cannot be read or is wrong, or there is no such suite.
    """
    if path is None:
        return builtin(name or DEFAULT)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"There is no file {path}; give another, or none for the built-in suites.") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigError(f"{path} cannot be read: {why}.") from None
    own = parse(text, str(path))
    if name is None or name == own.name:
        return own
    if name not in BUILTIN:
        known = {**BUILTIN, own.name: own}
        raise ConfigError(f"There is no suite named '{name}' in {path}; {nearest(name, known, 'the suites are')}")
    return own.model_copy(update={"name": name, "checks": BUILTIN[name].checks, "external": ()})
