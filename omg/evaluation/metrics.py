"""Numbers about played episodes: one dictionary per seed, and their mean."""

from __future__ import annotations

from typing import Any

import numpy as np

from omg.envs.multiagentenv import Spec
from omg.runners import EpisodeStats


def summarise(spec: Spec, stats: EpisodeStats, n_seeds: int | None) -> list[dict[str, float]]:
    """What the test episodes of each seed came to."""
    returns, lengths = np.asarray(stats.agent_returns), np.asarray(stats.lengths)
    info = {name: np.asarray(value) for name, value in stats.info.items()}
    if n_seeds is None:
        returns, lengths, info = returns[None], lengths[None], {k: v[None] for k, v in info.items()}
    summaries = []
    for seed in range(len(returns)):
        team = np.asarray(spec.team_reward(returns[seed]))
        summary = {
            "test_return_mean": float(team.mean()),
            "test_return_std": float(team.std()),
            "test_ep_length_mean": float(lengths[seed].mean()),
        }
        if spec.kind != "cooperative":
            for agent in range(spec.n_agents):
                summary[f"test_return_agent_{agent}_mean"] = float(returns[seed, :, agent].mean())
        summary |= {f"test_{name}_mean": float(value[seed].mean()) for name, value in info.items()}
        summaries.append(summary)
    return summaries


def mean_of(summaries: list[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([s[key] for s in summaries])) for key in summaries[0]}


def over_seeds(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean over seeds, and beside it every seed's own where there are several."""
    merged: dict[str, Any] = mean_of(summaries)
    if len(summaries) > 1:
        merged |= {f"{key}_seeds": [s[key] for s in summaries] for key in summaries[0]}
    return merged
