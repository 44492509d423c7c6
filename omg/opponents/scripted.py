"""Written rules for the worlds' agents: from one agent's observation to its action."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from omg.envs.multiagentenv import Spec


def random_action(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
    lots = jax.random.uniform(key, avail_actions.shape)
    return jnp.where(avail_actions, lots, -1.0).argmax()


def nearest_food(spec: Spec):
    """Foraging: walk to the nearest food in sight and load it."""
    n_food = spec.obs_size // 3 - spec.n_agents

    def rule(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
        items = jnp.round(obs.reshape(-1, 3) / spec.obs_storage.scale)
        food, me = items[:n_food], items[n_food]
        there = food[:, 2] > 0
        way = food[:, :2] - me[:2]
        distance = jnp.where(there, abs(way).sum(-1), jnp.inf)
        dy, dx = way[distance.argmin()]
        # How far each action brings the agent: noop, up, down, left, right, load.
        gain = jnp.array([0.0, -dy, dy, -dx, dx, jnp.inf])
        gain = jnp.where(jnp.arange(6) == 0, -0.5, gain) + 0.1 * jax.random.uniform(key, (6,))
        return jnp.where(avail_actions, gain, -jnp.inf).argmax()

    return rule


def chase(spec: Spec):
    """Predator–prey: push towards where the prey is going."""

    def rule(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
        velocity, prey_velocity = obs[:2], obs[-2:]
        way = obs[-4:-2] + 0.3 * prey_velocity - 0.3 * velocity
        gain = jnp.array([0.0, -way[0], way[0], -way[1], way[1]])
        return gain.argmax()

    return rule


def _random(spec: Spec):
    return random_action


REGISTRY = {
    "foraging": {"random": _random, "nearest_food": nearest_food},
    "predator_prey": {"random": _random, "chase": chase},
}
"""World → rule → the rule made for that world's sizes."""
