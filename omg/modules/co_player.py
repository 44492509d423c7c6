"""π_ω(a | s, g): what a co-player does for what it is after."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.linear import MLP


class CoPlayerModel(eqx.Module):
    """Every goal of the world is compared with the one pursued by the same small network; their sum goes on.

    So what is learned of one hare holds for every hare: to walk round it, if it is not the one that is wanted.
    """

    each: MLP
    head: MLP

    def __init__(self, obs_size: int, goal_size: int, way_size: int, hidden: int, n_actions: int, key: Array):
        k_each, k_head = jax.random.split(key)
        self.each = MLP((way_size + goal_size, hidden // 2, hidden // 2), k_each)
        self.head = MLP((obs_size + goal_size + hidden // 2, hidden, n_actions), k_head)

    def __call__(
        self, obs: Float[Array, "*rows obs"], goal: Float[Array, "*rows feature"], ways: Float[Array, "*rows goal way"]
    ) -> Float[Array, "*rows action"]:
        pursued = jnp.broadcast_to(goal[..., None, :], (*ways.shape[:-1], goal.shape[-1]))
        around = jax.nn.relu(self.each(jnp.concatenate([ways, pursued], -1))).sum(-2)
        return self.head(jnp.concatenate([obs, goal, around], -1))
