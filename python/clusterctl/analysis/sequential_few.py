"""Who is slow among up to six nodes whose links were measured many times.

So few nodes have no effects that could be fitted beside those of their links. So every explanation by one suspect or
two is tried (Grubbs, as in :mod:`small_samples`), with two differences. The noise is known from the repeats. And
healthy nodes differ a little for good: generalized least squares (Aitken, *Proc. R. Soc. Edinb.* 55, 1936) with that
spread tell a slow link from ends that happen to be slow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from clusterctl.analysis import link_model, repeated_links
from clusterctl.analysis.distributions import t_quantile
from clusterctl.analysis.significance import Outlier

if TYPE_CHECKING:
    from clusterctl.analysis.link_model import Floats, Indices
    from clusterctl.analysis.link_values import LinkValues
    from clusterctl.analysis.repeated_links import Samples

_MOST_SUSPECTS = 2
_FEWEST_MOMENTS = 5
_SINGULAR = 1e-9
_MISFIT = 3.09  # standard normal quantile of 0.999: what is left beyond it is more than the noise that is known


@dataclass(frozen=True)
class Found:
    """The nodes and links that explain what is slow, and the fit for the words about them."""

    nodes: tuple[Outlier, ...]
    links: tuple[Outlier, ...]
    fitted: link_model.Fit
    times: Indices


def explain(known: LinkValues, samples: Samples, wrong: float, tolerance: float, least: float, spread: float) -> Found:
    """Return the explanation that convinces, without anybody where none does.

    Args:
        known: the links.
        samples: all samples of them; those of the tournament only say where to look.
        wrong: how often anybody may be named where all are healthy.
        tolerance: the effect that a healthy suspect may have.
        least: the least effect that is named.
        spread: standard deviation of what healthy nodes differ by for good.
    """
    table, size = known.table, known.table.first.size
    fitted = repeated_links.fit(samples, np.zeros(table.degree.size), np.zeros(size, dtype=np.bool_))
    flat = _without_nodes(samples, fitted)
    own = repeated_links.effects(samples, flat, samples.later)
    nobody = Found((), (), link_model.fit(table, known.logs), own.count)
    if int(own.count.min()) < _FEWEST_MOMENTS:
        return nobody
    noise, dof = _noise(samples, flat, own)
    judged, columns = known.suspects()
    incidence = np.zeros((size, table.degree.size))
    incidence[np.arange(size), table.first] = incidence[np.arange(size), table.second] = 1.0
    covariance = np.diag(noise**2 / own.count) + spread**2 * incidence @ incidence.T
    white = np.linalg.inv(np.linalg.cholesky(covariance))
    values, design = white @ own.effect, white @ np.hstack((np.ones((size, 1)), columns))
    best: list[tuple[int, float, float]] = []
    level = float(np.median(own.effect))
    for number in range(1, _MOST_SUSPECTS + 1):
        if size - 1 - number < 1:
            break
        told = _best(values, design, number, wrong, tolerance, least, dof)
        if told is not None:
            level, best = told
    nodes = tuple(Outlier(int(judged[at]), effect, score) for at, effect, score in best if at < judged.size)
    links = tuple(Outlier(at - judged.size, effect, score) for at, effect, score in best if at >= judged.size)
    effects = np.zeros(table.degree.size)
    effects[[one.at for one in nodes]] = [one.distance for one in nodes]
    left = own.effect - level - effects[table.first] - effects[table.second]
    usual = float(np.median(known.logs - effects[table.first] - effects[table.second]))
    return Found(nodes, links, link_model.Fit(usual, effects, left), own.count)


def _without_nodes(samples: Samples, fitted: repeated_links.Fit) -> repeated_links.Fit:
    """Return the fit with the effects of nodes given back to their links; what all share at a moment stays out."""
    table = samples.table
    first, second = table.first[samples.link], table.second[samples.link]
    left = fitted.left + fitted.nodes[first] + fitted.nodes[second]
    return repeated_links.Fit(fitted.nodes, left, fitted.scale, fitted.dof, fitted.before, fitted.behind)


def _noise(samples: Samples, flat: repeated_links.Fit, own: repeated_links.Effects) -> tuple[float, int]:
    """Return the standard deviation of a sample about its own link's mean, and its degrees of freedom."""
    later = samples.later
    around = flat.left[later] - own.effect[samples.link[later]]
    moments = int(np.unique(samples.moment[later]).size)
    return link_model.scale(around, own.count.size + moments - 1)


def _best(
    values: Floats, design: Floats, number: int, wrong: float, tolerance: float, least: float, dof: int
) -> tuple[float, list[tuple[int, float, float]]] | None:
    """Return level and suspects of the explanation by so many that leaves least, None where it does not convince."""
    found: tuple[float, list[int], Floats, Floats] | None = None
    tried = 0
    for suspects in combinations(range(1, design.shape[1]), number):
        columns = [0, *suspects]
        some = design[:, columns]
        squares = some.T @ some
        scaled = squares / np.sqrt(np.outer(np.diag(squares), np.diag(squares)))
        if np.linalg.det(scaled) < _SINGULAR:
            continue
        tried += 1
        inverse = np.linalg.inv(squares)
        effects = inverse @ some.T @ values
        left = float(((values - some @ effects) ** 2).sum())
        if (effects[1:] > 0).all() and (found is None or left < found[0]):
            found = left, list(suspects), effects, np.sqrt(np.diag(inverse))
    if found is None:
        return None
    left, chosen, effects, errors = found
    free = values.size - 1 - number
    errors = errors * math.sqrt(max(1.0, left / free if left > _most_left(free) else 1.0))
    threshold = t_quantile(min(0.5, wrong / tried), dof)
    told = [
        (at - 1, float(effect), float((effect - tolerance) / error))
        for at, effect, error in zip(chosen, effects[1:], errors[1:], strict=True)
    ]
    if any(effect <= least or score <= threshold for _, effect, score in told):
        return None
    return float(effects[0]), told


def _most_left(free: int) -> float:
    """Return the sum of squares that noise leaves in one of 1,000 fits (Wilson and Hilferty, *PNAS* 17, 1931)."""
    part = 2 / (9 * free)
    return free * float((1 - part + _MISFIT * math.sqrt(part)) ** 3)
