"""Earlier values of the figures of a check, read once for all figures of the check."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clusterctl.model.results import Verdict
from clusterctl.state.history import packing, rows
from clusterctl.state.history.entries import Past

if TYPE_CHECKING:
    import sqlite3
    from array import array
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterctl.model.results import FigureKey


class Series:
    """The results of one check of one cluster since the baseline, newest first."""

    def __init__(
        self, db: sqlite3.Connection, path: Path, warn: Callable[[str], None], cluster: str, check: str
    ) -> None:
        """Read the runs and verdicts of the check; figures are read on demand."""
        self.about = (cluster, check)
        self._db, self._path, self._warn = db, path, warn
        self._layouts: dict[int, dict[str, int]] = {}
        base = rows.baseline(db, cluster)
        found = db.execute(
            "SELECT x.id, r.run_id, r.started, x.verdict, x.layout FROM runs r "
            "JOIN clusters c ON c.id = r.cluster JOIN results x ON x.run = r.id AND x.name = ? "
            "WHERE c.name = ? AND r.started >= ? ORDER BY r.started DESC, r.run_id DESC",
            (check, cluster, base.begins.timestamp() if base else -math.inf),
        )
        self._rows = [_Row(*row, accepted=base is not None and base.run_id == row[1]) for row in found]

    def past(self, key: FigureKey) -> Iterator[Past]:
        """Yield the figure's values, newest first; a damaged column becomes a warning."""
        return (Past(row.run_id, row.started, value, row.verdict, row.good) for row, value in self._each(key))

    def good_values(self, key: FigureKey) -> Iterator[float]:
        """Yield the figure's values in good runs, newest first; a damaged column becomes a warning."""
        return (value for row, value in self._each(key) if row.good)

    def _each(self, key: FigureKey) -> Iterator[tuple[_Row, float]]:
        text = key.text
        for row in self._rows:
            value = self._value(row, text)
            if value is not None:
                yield row, value

    def _value(self, row: _Row, key: str) -> float | None:
        if row.layout is None:
            return None
        try:
            place = self._places(row.layout).get(key)
            if place is None:
                return None
            if row.figures is None:
                data = self._db.execute("SELECT figures FROM results WHERE id = ?", (row.number,)).fetchone()
                row.figures = packing.unpack_figures(data[0])
            return row.figures[place]
        except (packing.BrokenError, IndexError) as error:
            self._warn(f"The figures of {row.run_id} in {self._path} are damaged ({error}) and are left out.")
            row.layout = None
            return None

    def _places(self, layout: int) -> dict[str, int]:
        if layout not in self._layouts:
            row = self._db.execute("SELECT keys FROM layouts WHERE id = ?", (layout,)).fetchone()
            self._layouts[layout] = packing.unpack_keys(row[0])
        return self._layouts[layout]


class _Row:
    """The result of a check in a run."""

    __slots__ = ("figures", "good", "layout", "number", "run_id", "started", "verdict")

    def __init__(
        self, number: int, run_id: str, started: float, verdict: str, layout: int | None, *, accepted: bool
    ) -> None:
        self.number, self.run_id, self.started, self.layout = number, run_id, started, layout
        self.verdict = Verdict(verdict)
        self.good = accepted or self.verdict is Verdict.PASS
        self.figures: array[float] | None = None
