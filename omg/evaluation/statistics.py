"""Statistics over seeds: mean, interquartile mean, and bootstrap intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MANY = 1000
"""Above this many values the interval is that of a normal mean, without bootstrap."""


class Estimate(NamedTuple):
    """Mean, interquartile mean, and a 95 % confidence interval of the mean."""

    mean: float
    iqm: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + (f" [{self.low:.3f}, {self.high:.3f}]" if self.n > 1 else "")


def interquartile_mean(values: np.ndarray) -> float:
    """The mean of the values between the quartiles; values that straddle a quartile count in part."""
    ordered = np.sort(np.asarray(values, float).ravel())
    n = len(ordered)
    edges = np.arange(n + 1) / n
    weight = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0, None)
    return float((ordered * weight).sum() / weight.sum())


def estimate(per_seed: np.ndarray, resamples: int = 2000) -> Estimate:
    """`per_seed` is `[seed, opponent]` (or `[seed]`). The bootstrap resamples whole seeds.

    With a single seed there is no interval; its bounds are the mean itself.
    """
    values = np.asarray(per_seed, float).reshape(len(per_seed), -1)
    seeds = len(values)
    if seeds > MANY:
        mean = float(values.mean())
        margin = 1.96 * float(values.mean(1).std(ddof=1)) / seeds**0.5
        return Estimate(mean, interquartile_mean(values), mean - margin, mean + margin, seeds)
    resampled = np.random.default_rng(0).integers(seeds, size=(resamples, seeds))
    means = values[resampled].mean((1, 2))
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(float(values.mean()), interquartile_mean(values), float(low), float(high), seeds)
