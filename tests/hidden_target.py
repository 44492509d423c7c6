"""A game in which the partner's habit alone decides the reward, and nothing but its earlier actions betrays it.

Two agents choose one of four actions for twelve steps. At the last step each earns 1 if both choose the same action.
Each scripted partner shows five actions of its own first; then it acts at random until the last step, at which its
action is one of those five again: the second. So an agent must keep across six random steps what it saw before them.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from omg.envs import REGISTRY as env_REGISTRY
from omg.envs.multiagentenv import MultiAgentEnv, Spec, Timestep
from omg.opponents import REGISTRY as scripted_REGISTRY
from omg.utils.settings import fill_exactly

STEPS, ACTIONS, PERIOD, PARTNERS = 12, 4, 5, 16
HABIT_NAMES = tuple(f"habit_{k}" for k in range(PARTNERS))
HABITS = np.random.default_rng(3).integers(ACTIONS, size=(PARTNERS, PERIOD))


@dataclass(frozen=True)
class HiddenTargetSettings:
    """None."""


class HiddenTarget(MultiAgentEnv):
    def __init__(self, settings: HiddenTargetSettings):
        size = 2 * ACTIONS + STEPS
        self.spec = Spec("hidden_target", 2, ACTIONS, size, size, STEPS, "mixed")

    def reset(self, key):
        state = (jnp.int32(0), jnp.full(2, -1))
        return state, self.timestep(state, jnp.zeros(2))

    def step(self, state, actions, key):
        last = state[0] == STEPS - 1
        reward = jnp.where(last & (actions[0] == actions[1]), jnp.ones(2), 0.0)
        return (state[0] + 1, actions), self.timestep((state[0] + 1, actions), reward)

    def timestep(self, state, reward):
        time, actions = state
        shown, clock = jax.nn.one_hot(actions, ACTIONS), jax.nn.one_hot(time, STEPS)
        obs = jnp.stack([jnp.concatenate([shown[i], shown[1 - i], clock]) for i in range(2)])
        return Timestep(obs, obs[0], jnp.ones((2, ACTIONS), bool), reward, time >= STEPS, jnp.ones(2, bool), {})


def habit(k: int):
    def of(spec: Spec):
        def policy(obs, avail_actions, seat, key):
            time = obs[2 * ACTIONS :].argmax()
            shows = (time < PERIOD) | (time == STEPS - 1)
            return jnp.where(shows, jnp.asarray(HABITS)[k, time % PERIOD], jax.random.randint(key, (), 0, ACTIONS))

        return policy

    return of


env_REGISTRY["hidden_target"] = lambda env_args: HiddenTarget(fill_exactly(HiddenTargetSettings, env_args, "env_args"))
scripted_REGISTRY["hidden_target"] = {name: habit(k) for k, name in enumerate(HABIT_NAMES)}
