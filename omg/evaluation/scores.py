"""Scores: how close an agent comes to a best response, partner by partner.

`score = (R - R_random) / (R_best_response - R_random)`: 0 is random play with that partner, 1 is an agent that was
trained with that partner alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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


def scores_of(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], np.ndarray]:
    """The partners, and `[seed, partner]`: the scores in the rows of one task and method."""
    partners = list(dict.fromkeys(row["partner"] for row in rows))
    by_seed: dict[Any, dict[str, float]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], {})[row["partner"]] = float(row["score"])
    return partners, np.array([[of_seed[partner] for partner in partners] for of_seed in by_seed.values()])


def estimate_scores(*tasks: Float[np.ndarray, "_ _"]) -> Estimate:
    """Mean and interquartile mean over seeds and partners (`[seed, partner]`); those of several tasks are averaged.

    The interval is that of the interquartile mean. The bootstrap resamples whole seeds, in every task by itself: the
    scores of one agent with its partners rise and fall together. With one seed there is no interval.
    """
    mean, iqm = np.mean([x.mean() for x in tasks]), _iqm(tasks)
    return Estimate(float(mean), iqm, *_interval(_resampled(tasks, 0), iqm), min(map(len, tasks)))


def difference(better: Sequence[np.ndarray], worse: Sequence[np.ndarray]) -> Estimate:
    """One method's interquartile mean minus another's on the same tasks, `[seed, partner]` for each task."""
    mean = np.mean([x.mean() - y.mean() for x, y in zip(better, worse, strict=True)])
    iqm = _iqm(better) - _iqm(worse)
    interval = _interval(_resampled(better, 0) - _resampled(worse, 1), iqm)
    return Estimate(float(mean), iqm, *interval, min(map(len, [*better, *worse])))


def _iqm(tasks: Sequence[np.ndarray]) -> float:
    return float(np.mean([interquartile_mean(x) for x in tasks]))


def _resampled(tasks: Sequence[np.ndarray], seed: int) -> np.ndarray:
    """The interquartile means of samples with replacement; not-a-number where a task has one seed only."""
    rng = np.random.default_rng(seed)
    if min(map(len, tasks)) == 1:
        return np.full(RESAMPLES, np.nan)
    return np.array([_iqm([x[rng.integers(len(x), size=len(x))] for x in tasks]) for _ in range(RESAMPLES)])


def _interval(found: np.ndarray, value: float) -> tuple[float, float]:
    if np.isnan(found).any():
        return value, value
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def probability_of_improvement(
    better: Float[np.ndarray, "seed partner"], worse: Float[np.ndarray, "other_seed partner"]
) -> Estimate:
    """How probably a run of one method beats a run of another with the same partner; ties count half."""

    def probability(x: np.ndarray, y: np.ndarray) -> float:
        return float(((x[:, None] > y) + 0.5 * (x[:, None] == y)).mean())

    rng, value = np.random.default_rng(0), probability(better, worse)
    if min(len(better), len(worse)) == 1:
        return Estimate(value, value, value, value, 1)
    found = [probability(*(x[rng.integers(len(x), size=len(x))] for x in (better, worse))) for _ in range(RESAMPLES)]
    return Estimate(value, value, *_interval(np.array(found), value), len(better))
