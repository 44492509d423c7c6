"""Scores: how close an agent comes to a best response, partner by partner.

`score = (R - R_random) / (R_best_response - R_random)`: 0 is random play with that partner, 1 is an agent that was
trained with that partner alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from omg.evaluation.statistics import Estimate, interquartile_mean

RESAMPLES = 2000


class Bounds(NamedTuple):
    """What random play and best responses earn with each partner."""

    random: Float[np.ndarray, " partner"]
    best: Float[np.ndarray, " partner"]

    def usable(self, least: float) -> np.ndarray:
        """The partners with which a best response gains something over random play, at least `least` of the largest."""
        gain = self.best - self.random
        return (gain > 0) & (gain >= least * gain.max())

    def score(self, returns: Float[np.ndarray, "*seed partner"]) -> Float[np.ndarray, "*seed partner"]:
        return (returns - self.random) / (self.best - self.random)


def stratified(scores: Float[np.ndarray, "seed partner"]) -> Estimate:
    """Mean and interquartile mean over seeds and partners; the interval is that of the interquartile mean.

    The bootstrap is stratified: for every partner the seeds are resampled by themselves. With one seed there is no
    interval.
    """
    seeds, partners = scores.shape
    rows = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds, partners))
    found = [interquartile_mean(scores[row, np.arange(partners)]) for row in rows] if seeds > 1 else []
    iqm = interquartile_mean(scores)
    low, high = np.percentile(found, [2.5, 97.5]) if found else (iqm, iqm)
    return Estimate(float(scores.mean()), iqm, float(low), float(high), seeds)


def probability_of_improvement(
    better: Float[np.ndarray, "seed partner"], worse: Float[np.ndarray, "other_seed partner"]
) -> Estimate:
    """How probably a run of one method beats a run of another with the same partner; ties count half."""

    def probability(x: np.ndarray, y: np.ndarray) -> float:
        return float(((x[:, None] > y) + 0.5 * (x[:, None] == y)).mean())

    rng, value = np.random.default_rng(0), probability(better, worse)
    found = []
    for _ in range(RESAMPLES if min(len(better), len(worse)) > 1 else 0):
        x, y = (s[rng.integers(len(s), size=s.shape), np.arange(s.shape[1])] for s in (better, worse))
        found.append(probability(x, y))
    low, high = np.percentile(found, [2.5, 97.5]) if found else (value, value)
    return Estimate(value, value, float(low), float(high), len(better))
