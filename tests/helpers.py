"""What tests share: a configuration in a line, learning without files, and scripted teams to compare with."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from omg.components.episode_buffer import make_scheme
from omg.config import Command, load
from omg.controllers import RuleMAC
from omg.envs import MultiAgentEnv, make
from omg.evaluation.metrics import summarise
from omg.opponents import REGISTRY as rules
from omg.parts import Parts, args_sanity_check, build, known_keys
from omg.runners import VectorRunner


def configuration(config: str, env_config: str, **updates: Any) -> dict[str, Any]:
    words = [(key.replace("__", "."), value) for key, value in updates.items()]
    merged = load(Command(config=config, env_config=env_config, updates=words), known_keys())
    return args_sanity_check(merged)[0]


def learn(config: str, env_config: str, **updates: Any) -> list[float]:
    """Trains for `t_max` steps per seed and returns each seed's mean test return."""
    parts = build(configuration(config, env_config, **updates))
    return test_returns(parts, train(parts))


def train(parts: Parts) -> Any:
    state, episode = parts.loop.init(), 0
    while True:
        t_env = int(np.mean(np.asarray(state.t_env)))
        if t_env >= parts.settings.t_max:
            return state
        iterations = max(1, (parts.settings.t_max - t_env) // parts.loop.steps_per_iteration)
        state, _ = parts.loop.run(state, episode, iterations)
        episode += iterations * parts.loop.collected


def test_returns(parts: Parts, state: Any) -> list[float]:
    stats = parts.tester.play(parts.learner.acting(state.learner), 0)
    return [s["test_return_mean"] for s in summarise(parts.spec, stats, parts.loop.runner.n_seeds)]


test_returns.__test__ = False  # type: ignore[attr-defined]


def scripted_return(env: MultiAgentEnv, rule: str, episodes: int = 512) -> float:
    """The mean return of a team in which everybody follows the rule."""
    mac = RuleMAC(env.spec, rules[env.spec.name][rule](env.spec))
    runner = VectorRunner(env, mac, *make_scheme(env.spec), episodes)
    _, stats = jax.jit(lambda key: runner.run(None, jnp.int32(0), key, True, keep=False))(jax.random.key(0))
    return float(env.spec.team_reward(stats.agent_returns).mean())


__all__ = ["configuration", "learn", "make", "scripted_return", "test_returns", "train"]
