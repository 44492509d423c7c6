"""Numbers about played episodes: one dictionary per seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from omg.envs.multiagentenv import Spec
from omg.runners import EpisodeStats


def summarise(spec: Spec, stats: EpisodeStats, n_seeds: int | None) -> list[dict[str, float]]:
    """The results of the test episodes of each seed."""
    returns, lengths = np.asarray(stats.agent_returns), np.asarray(stats.lengths)
    info = {name: np.asarray(value) for name, value in stats.info.items()}
    if stats.focal_returns is not None:
        info["focal_return"] = np.asarray(stats.focal_returns)
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
        if spec.game_type != "cooperative":
            for agent in range(spec.n_agents):
                summary[f"test_return_agent_{agent}_mean"] = float(returns[seed, :, agent].mean())
        summary |= {f"test_{name}_mean": float(value[seed].mean()) for name, value in info.items()}
        summaries.append(summary)
    return summaries


def by_seed(summaries: list[dict[str, float]]) -> dict[str, list[float]]:
    """From one dictionary per seed to one list per measure."""
    return {key: [s[key] for s in summaries] for key in summaries[0]} if summaries else {}


def over_seeds(summaries: list[dict[str, float]]) -> dict[str, Any]:
    """The mean over seeds, and every seed's own value where there are several."""
    lists = by_seed(summaries)
    merged: dict[str, Any] = {key: float(np.mean(values)) for key, values in lists.items()}
    if len(summaries) > 1:
        merged |= {f"{key}_seeds": values for key, values in lists.items()}
    return merged
