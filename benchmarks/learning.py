"""Compares the mean test return of every learner (5 seeds) with random play and the best scripted team.

`python benchmarks/learning.py ENV [ALGORITHM …]` prints one line per learner. `make test-all` asserts that the mean
minus two standard errors is above the threshold: halfway between random play and the best scripted team.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from omg.envs import make
from tests.helpers import configuration, learn, scripted_return

BEST_POLICY = {"foraging": "nearest_food", "predator_prey": "chase"}
SEEDS = {"seeds": 5, "test_nepisode": 256}
PARALLEL = {"batch_size_run": 8, "updates_per_iteration": 4}
"""Eight parallel environments and several updates per iteration: faster than the default of one environment and one
update.
"""

LARGE_REWARDS = {"reward_scale": 1.0}
"""A mixer propagates only a fraction of each TD error to the agents; small rewards are lost in its initial output."""

BUDGET: dict[str, dict[str, dict]] = {
    "foraging": {
        "iql": PARALLEL | {"t_max": 60_000},
        "vdn": PARALLEL | {"t_max": 60_000},
        "qmix": PARALLEL | {"t_max": 60_000},
        "qtran": PARALLEL | {"t_max": 150_000},
        "iql_idv": PARALLEL | {"t_max": 60_000},
        "d3qn": PARALLEL | {"t_max": 60_000},
        "iql_beta": {"t_max": 300_000},
        "vdn_beta": {"t_max": 100_000},
        "qmix_beta": {"t_max": 300_000},
        "coma": {"t_max": 500_000},
    },
    "predator_prey": {
        "iql": PARALLEL | {"t_max": 200_000, "updates_per_iteration": 8},
        "vdn": PARALLEL | {"t_max": 200_000, "updates_per_iteration": 8},
        "qmix": PARALLEL | LARGE_REWARDS | {"t_max": 600_000, "updates_per_iteration": 8},
        "qtran": PARALLEL | LARGE_REWARDS | {"t_max": 600_000, "updates_per_iteration": 8},
        "iql_idv": PARALLEL | {"t_max": 500_000, "updates_per_iteration": 8},
        "d3qn": PARALLEL | {"t_max": 200_000, "updates_per_iteration": 8},
        "iql_beta": {"t_max": 3_000_000},
        "vdn_beta": {"t_max": 3_000_000},
        "qmix_beta": LARGE_REWARDS | {"t_max": 4_000_000},
        "coma": {"t_max": 1_000_000},
    },
}


def bounds(env_name: str) -> tuple[float, float]:
    """Mean returns of random play and of the best scripted team."""
    env = make(env_name, **configuration("iql", env_name)["env_args"])
    return scripted_return(env, "random"), scripted_return(env, BEST_POLICY[env_name])


def lower_bound(returns: list[float]) -> float:
    """The mean minus two standard errors."""
    return float(np.mean(returns) - 2 * np.std(returns, ddof=1) / len(returns) ** 0.5)


def main() -> None:
    env_name, algorithms = sys.argv[1], sys.argv[2:] or list(BUDGET[sys.argv[1]])
    random, best = bounds(env_name)
    wanted = random + (best - random) / 2
    print(f"{env_name}: random {random:.3f}, {BEST_POLICY[env_name]} {best:.3f}, threshold {wanted:.3f}", flush=True)
    for name in algorithms:
        started = time.perf_counter()
        returns = learn(name, env_name, **(SEEDS | BUDGET[env_name][name]))
        bound = lower_bound(returns)
        verdict = "ok" if bound >= wanted else "BELOW"
        each = " ".join(f"{r:.2f}" for r in returns)
        seconds = time.perf_counter() - started
        print(
            f"{env_name} {name}: mean {np.mean(returns):.3f}, minus 2 s.e. {bound:.3f} {verdict} [{each}]",
            f"{seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
