"""The values of a matrix of links as the outlier rules see them: logarithms, noise, and who may be suspected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis import culprit_words, link_model, significance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clusterctl.analysis.link_model import Fit, Floats, Indices, Links
    from clusterctl.model.results import PairMatrix

_FEWEST = 3  # two differ, and nothing says which of them is wrong
_FEW_NODES = 6  # of a matrix, up to which all explanations are tried


@dataclass(frozen=True)
class LinkValues:
    """The links of a matrix that have a value: who they join, the logarithms of their values, and their own noise."""

    table: Links
    logs: Floats
    noise: Floats

    @classmethod
    def of(cls, matrix: PairMatrix) -> LinkValues | None:
        """Return what is known of a matrix, None where it cannot be compared."""
        values, usable = np.asarray(matrix.value, dtype=np.float64), cls.usable(matrix)
        if matrix.better == "none" or usable.sum() < _FEWEST:
            return None
        first = np.asarray(matrix.first, dtype=np.int64)[usable]
        second = np.asarray(matrix.second, dtype=np.int64)[usable]
        values = values[usable]
        noise = np.zeros(values.size)
        if len(matrix.spread) == usable.size:
            noise = np.nan_to_num(np.asarray(matrix.spread, dtype=np.float64)[usable] / values, posinf=0.0)
        table = link_model.links(len(matrix.nodes), first, second)
        return cls(table, culprit_words.sign(matrix.better) * np.log(values), noise)

    @staticmethod
    def usable(matrix: PairMatrix) -> NDArray[np.bool_]:
        """Return which of the values have a logarithm."""
        values = np.asarray(matrix.value, dtype=np.float64)
        found: NDArray[np.bool_] = np.isfinite(values) & (values > 0)
        return found

    @property
    def is_small(self) -> bool:
        """Whether so few nodes have links that all explanations are tried."""
        return bool(np.count_nonzero(self.table.degree) <= _FEW_NODES)

    def each(self, common: float) -> Floats:
        """Return by how much each link may be off where all are off by ``common``."""
        return significance.link_noise(common, self.noise)

    def scale_of(self, fitted: Fit) -> Floats:
        """Return by how much each link may be off, from what a fit leaves."""
        return self.each(link_model.scale(fitted.residuals, parameters(self.table))[0])

    def suspects(self) -> tuple[Indices, Floats]:
        """Return the nodes that may be suspected, and a column for each of these nodes and then for each link."""
        table = self.table
        judged = np.flatnonzero(table.degree >= link_model.LEAST_LINKS)
        ends = (table.first[:, None] == judged) | (table.second[:, None] == judged)
        return judged, np.hstack((ends.astype(np.float64), np.eye(self.logs.size)))


def parameters(table: Links) -> int:
    """Return how many parameters a fit has: the level, and an effect of each node with enough links."""
    return 1 + int((table.degree >= link_model.LEAST_LINKS).sum())
