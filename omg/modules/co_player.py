"""π_ω(a | s, g): the goal-conditioned action model of a co-player."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.layers import MLP


class CoPlayerModel(eqx.Module):
    """A shared network compares every entity with the pursued goal; the sum of its outputs is an input.

    Weights are shared over goals, so what is learned about one hare (such as walking around it when another one is
    pursued) holds for every hare.
    """

    each: MLP
    head: MLP

    def __init__(self, obs_size: int, goal_size: int, way_size: int, hidden: int, n_actions: int, key: Array):
        k_each, k_head = jax.random.split(key)
        self.each = MLP((way_size + goal_size, hidden // 2, hidden // 2), k_each)
        self.head = MLP((obs_size + goal_size + hidden // 2, hidden, n_actions), k_head)

    def __call__(
        self,
        obs: Float[Array, "*rows obs"],
        goal: Float[Array, "*rows feature"],
        surroundings: Float[Array, "*rows entity way"],
    ) -> Float[Array, "*rows action"]:
        pursued = jnp.broadcast_to(goal[..., None, :], (*surroundings.shape[:-1], goal.shape[-1]))
        around = jax.nn.relu(self.each(jnp.concatenate([surroundings, pursued], -1))).sum(-2)
        return self.head(jnp.concatenate([obs, goal, around], -1))
