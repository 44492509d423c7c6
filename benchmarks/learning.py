"""Does every learner learn? Mean test return of 5 seeds, half-way and at the end, beside random and scripted teams.

`python benchmarks/learning.py ENV [ALGORITHM …]` prints one line per learner, with the settings that
`omg train --config=ALGORITHM --env-config=ENV` has. `make test-all` asserts that every learner reaches the goal.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from omg.build import build
from omg.envs import make
from tests.helpers import configuration, scripted_return, test_returns, train

LEARNERS = (
    "iql", "iql_idv", "d3qn", "vdn", "qmix", "qtran", "coma", "ppo", "ppo_lstm", "mappo", "pqn", "pqn_vdn",
)  # fmt: skip
BEST_POLICY = {"foraging": "nearest_food", "predator_prey": "chase"}
STEPS = {"foraging": 1_000_000, "predator_prey": 2_000_000}
GOAL = {"foraging": 0.96, "predator_prey": 50.0}
"""The mean return that every learner must reach, half-way and at the end."""
SEEDS = {"seeds": 5, "test_nepisode": 256}


def learn(name: str, env_name: str) -> tuple[list[float], list[float]]:
    """Each seed's mean test return half-way and at the end of one run."""
    experiment = build(configuration(name, env_name, t_max=STEPS[env_name], **SEEDS))
    half = experiment._replace(settings=dataclasses.replace(experiment.settings, t_max=STEPS[env_name] // 2))
    state, episode = train(half)
    state, halfway = test_returns(half, state)
    state, _ = train(experiment, state, episode)
    return halfway, test_returns(experiment, state)[1]


def bounds(env_name: str) -> tuple[float, float]:
    """Mean returns of random play and of the best scripted team."""
    env = make(env_name, **configuration("iql", env_name)["env_args"])
    return scripted_return(env, "random"), scripted_return(env, BEST_POLICY[env_name])


def main() -> None:
    env_name, algorithms = sys.argv[1], sys.argv[2:] or LEARNERS
    random, best = bounds(env_name)
    print(f"{env_name}: random {random:.3f}, {BEST_POLICY[env_name]} {best:.3f}, goal {GOAL[env_name]}", flush=True)
    for name in algorithms:
        started = time.perf_counter()
        halfway, end = learn(name, env_name)
        each = " ".join(f"{r:.3f}" for r in end)
        reached = "ok" if min(np.mean(halfway), np.mean(end)) >= GOAL[env_name] else "BELOW"
        print(
            f"{env_name} {name}: {np.mean(halfway):.3f} half-way, {np.mean(end):.3f} at the end [{each}] {reached},",
            f"{time.perf_counter() - started:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
