"""Small formulas that several learners share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def masked_mean(x: Float[Array, "*axes"], mask: Float[Array, "*axes"]) -> Float[Array, ""]:
    """Mean over the entries that are real; nothing real gives 0."""
    return (x * mask).sum() / jnp.maximum(mask.sum(), 1.0)


def pick(values: Float[Array, "*axes action"], actions: Int[Array, "*axes"]) -> Float[Array, "*axes"]:
    """The value of the action taken. A product with a unit vector: cheaper to differentiate than a gather."""
    return (values * jax.nn.one_hot(actions, values.shape[-1])).sum(-1)


def td_lambda_targets(
    rewards: Float[Array, "batch time agent"],
    terminated: Float[Array, "batch time agent"],
    filled: Float[Array, "batch time agent"],
    next_values: Float[Array, "batch time agent"],
    gamma: float,
    td_lambda: float,
) -> Float[Array, "batch time agent"]:
    """G_t = r_t + γ(1-terminated_t)·[(1-λ)·V_{t+1} + λ·G_{t+1}]; at an episode's last step G_{t+1} is V_{t+1}."""
    following = jnp.pad(filled[:, 1:], ((0, 0), (0, 1), (0, 0)))

    def step(later: Array, t):
        reward, ends, value, goes_on = t
        ahead = jnp.where(goes_on > 0, (1 - td_lambda) * value + td_lambda * later, value)
        target = reward + gamma * (1 - ends) * ahead
        return target, target

    scanned = tuple(jnp.swapaxes(x, 0, 1) for x in (rewards, terminated, next_values, following))
    _, targets = jax.lax.scan(step, jnp.zeros_like(rewards[:, 0]), scanned, reverse=True)
    return jnp.swapaxes(targets, 0, 1)
