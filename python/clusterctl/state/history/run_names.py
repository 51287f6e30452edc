"""Names of runs: an id, the beginning of one, ``last``, or ``last-1`` for the run before the last."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterctl.support.errors import ConfigError
from clusterctl.support.words import and_more

if TYPE_CHECKING:
    from collections.abc import Sequence

_LAST = re.compile(r"last(?:-(?P<back>\d{1,6}))?")
_MOST_NAMED = 4


def is_last(name: str) -> bool:
    """Whether a name counts back from the newest run, as ``last`` and ``last-1`` do."""
    return _LAST.fullmatch(name) is not None


def choose(name: str, ids: Sequence[str], whose: str) -> int:
    """Return the place of the named run among the ids.

    Args:
        name: what the user gave.
        ids: the ids of all runs, newest first.
        whose: how a message names them, such as "the history".

    Raises:
        ConfigError: the run is unknown, or the name is the beginning of several ids.
    """
    if not ids:
        raise ConfigError(f"{whose[0].upper()}{whose[1:]} is empty; 'clusterctl validate INVENTORY' begins it.")
    if match := _LAST.fullmatch(name):
        back = int(match["back"] or 0)
        if back >= len(ids):
            raise ConfigError(f"The run '{name}' is not in {whose} (runs: {len(ids)}); choose a newer one.")
        return back
    found = [place for place, known in enumerate(ids) if known == name]
    found = found or [place for place, known in enumerate(ids) if name and known.startswith(name)]
    if not found:
        raise ConfigError(f"The run '{name}' is not in {whose}; 'clusterctl history INVENTORY' lists the runs.")
    if len(found) > 1:
        several = and_more([ids[place] for place in found], _MOST_NAMED)
        raise ConfigError(f"'{name}' is the beginning of {len(found)} runs ({several}); give more of the id.")
    return found[0]
