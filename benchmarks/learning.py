"""Does every learner learn? Mean test return over 5 seeds beside random play and the best scripted team.

`python benchmarks/learning.py [world] [algorithm …]` prints one line per learner; `make test-all` asserts the same.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from omg.envs import make
from tests.helpers import configuration, learn, scripted_return

BEST_RULE = {"foraging": "nearest_food", "predator_prey": "chase"}
SEEDS = {"seeds": 5, "test_nepisode": 256}
ONE_WORLD = {"batch_size_run": 8, "updates_per_iteration": 4}
"""Eight worlds and several updates for what the configuration would do in one world with one update each: faster."""

LARGE_REWARDS = {"reward_scale": 1.0}
"""A mixer passes on only a part of each agent's value: small rewards drown in what it starts from."""

BUDGET: dict[str, dict[str, dict]] = {
    "foraging": {
        "iql": ONE_WORLD | {"t_max": 60_000},
        "vdn": ONE_WORLD | {"t_max": 60_000},
        "qmix": ONE_WORLD | {"t_max": 60_000},
        "qtran": ONE_WORLD | {"t_max": 150_000},
        "iql_idv": ONE_WORLD | {"t_max": 60_000},
        "d3qn": ONE_WORLD | {"t_max": 60_000},
        "iql_beta": {"t_max": 300_000},
        "vdn_beta": {"t_max": 100_000},
        "qmix_beta": {"t_max": 300_000},
        "coma": {"t_max": 500_000},
    },
    "predator_prey": {
        "iql": ONE_WORLD | {"t_max": 200_000, "updates_per_iteration": 8},
        "vdn": ONE_WORLD | {"t_max": 200_000, "updates_per_iteration": 8},
        "qmix": ONE_WORLD | LARGE_REWARDS | {"t_max": 600_000, "updates_per_iteration": 8},
        "qtran": ONE_WORLD | LARGE_REWARDS | {"t_max": 600_000, "updates_per_iteration": 8},
        "iql_idv": ONE_WORLD | {"t_max": 500_000, "updates_per_iteration": 8},
        "d3qn": ONE_WORLD | {"t_max": 200_000, "updates_per_iteration": 8},
        "iql_beta": {"t_max": 3_000_000},
        "vdn_beta": {"t_max": 3_000_000},
        "qmix_beta": LARGE_REWARDS | {"t_max": 4_000_000},
        "coma": {"t_max": 1_000_000},
    },
}


def yardstick(world: str) -> tuple[float, float]:
    """What random play and the best scripted team earn."""
    env = make(world, **configuration("iql", world)["env_args"])
    return scripted_return(env, "random"), scripted_return(env, BEST_RULE[world])


def lower_bound(returns: list[float]) -> float:
    """The mean less two standard errors."""
    return float(np.mean(returns) - 2 * np.std(returns, ddof=1) / len(returns) ** 0.5)


def main() -> None:
    world, algorithms = sys.argv[1], sys.argv[2:] or list(BUDGET[sys.argv[1]])
    random, best = yardstick(world)
    wanted = random + (best - random) / 2
    print(f"{world}: random {random:.3f}, {BEST_RULE[world]} {best:.3f}, wanted {wanted:.3f}", flush=True)
    for name in algorithms:
        started = time.perf_counter()
        returns = learn(name, world, **(SEEDS | BUDGET[world][name]))
        bound = lower_bound(returns)
        verdict = "ok" if bound >= wanted else "SHORT"
        each = " ".join(f"{r:.2f}" for r in returns)
        seconds = time.perf_counter() - started
        print(
            f"{world} {name}: mean {np.mean(returns):.3f}, less 2 s.e. {bound:.3f} {verdict} [{each}] {seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
