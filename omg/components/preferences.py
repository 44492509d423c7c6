"""What co-players prefer, remembered across boards: P(g | s, θ) = softmax(θ·φ(g, s)).

Goals change from board to board, the reasons to choose one do not: its type, how near it is, how near it is to the
others. A co-player's θ is unknown: some vectors (`particles`) each have a weight, and Bayes' rule acts on particles and
goals together. What an agent does is evidence about its goal, and its goal is evidence about its θ.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

DISTANCES = 2
"""Features beside the goal types: distance to the agent itself, and mean distance to the others."""
OUT_OF_SIGHT = 20.0
"""The distance in steps of a goal that an agent does not see."""
SPREAD = 3.0
"""Standard deviation of a goal type's utility among particles."""
STRENGTH = (1.0, 6.0)
"""How much utility a step of distance costs: between these, for particles that prefer near goals."""
PREFER_NEAR = (0.95, 1 / 3)
"""The share of particles that prefer goals near the agent itself, and near the others."""
ACCIDENT = 0.1
"""How likely an agent reaches a goal that it did not pursue, compared with its own."""


class Preferences(NamedTuple):
    """The particles and the weights that they have for an unknown co-player."""

    theta: Float[Array, "particle feature"]
    weights: Float[Array, " particle"]


def particles(number: int, n_types: int, seed: int = 0) -> Preferences:
    """Utilities of goal types from a normal distribution. Of two goals of a type almost all prefer the nearer one.

    A third of them prefer goals that are near the others. The last goal type is "none": to pursue nothing.
    """
    random = np.random.default_rng(seed)
    types = random.normal(0.0, SPREAD, (number, n_types))
    types[:, -1] -= SPREAD
    weakest, strongest = np.log(STRENGTH)
    strength = np.exp(random.uniform(weakest, strongest, (number, DISTANCES)))
    near = -strength * (random.uniform(size=(number, DISTANCES)) < PREFER_NEAR)
    theta = jnp.asarray(np.concatenate([types, near], 1), jnp.float32)
    return Preferences(theta, jnp.full(number, 1 / number))


def describe(
    distance: Float[Array, "batch agent goal"],
    is_open: Bool[Array, "batch goal"],
    playing: Bool[Array, "batch agent"],
    type_of: Int[Array, " goal_and_none"],
    n_types: int,
) -> Float[Array, "batch agent goal_and_none feature"]:
    """φ(g, s): the goal's type, and in steps how much farther it is than the nearest goal, from the agent and from the
    others that still play. The last goal is "none".
    """
    distance = jnp.where(jnp.isfinite(distance), distance, OUT_OF_SIGHT)
    others = distance * playing[..., None]
    count = playing.sum(1)[:, None, None] - playing[..., None]
    from_others = (others.sum(1, keepdims=True) - others) / jnp.maximum(count, 1)

    def farther(x: Array) -> Array:
        nearest = jnp.where(is_open[:, None], x, jnp.inf).min(-1, keepdims=True)
        return jnp.where(jnp.isfinite(nearest), x - nearest, 0.0)

    far = jnp.stack([farther(distance), farther(from_others)], -1)
    far = jnp.pad(far, ((0, 0), (0, 0), (0, 1), (0, 0)))
    types = jax.nn.one_hot(type_of, n_types)
    return jnp.concatenate([jnp.broadcast_to(types, (*far.shape[:-1], types.shape[-1])), far], -1)


def choices(
    theta: Float[Array, "particle feature"],
    goals: Float[Array, "*rows goal feature"],
    is_open: Bool[Array, "*rows goal"],
) -> Float[Array, "*rows particle goal"]:
    """P(g | s, θ) over the open goals."""
    utility = jnp.einsum("...gf,pf->...pg", goals, theta)
    return jax.nn.softmax(jnp.where(is_open[..., None, :], utility, -jnp.inf), -1)


def explained(
    joint: Float[Array, "*rows particle goal"], likelihood: Float[Array, "*rows goal"]
) -> Float[Array, "*rows particle goal"]:
    """b(θ, g) ∝ b(θ, g)·π(a | s, g). An action that no goal explains is ignored."""
    posterior = joint * likelihood[..., None, :]
    total = posterior.sum((-2, -1), keepdims=True)
    return jnp.where(total > 0, posterior / jnp.where(total > 0, total, 1.0), joint)


def of_reaching(reached: Int[Array, "*rows"], goals: int) -> Float[Array, "*rows goal"]:
    """The likelihood of reaching this goal (-1: none) given the goal that the agent pursued."""
    hit = (1 - ACCIDENT) * jax.nn.one_hot(reached, goals) + ACCIDENT
    return jnp.where((reached >= 0)[..., None], hit, 1.0)


def chosen_again(
    joint: Float[Array, "*rows particle goal"],
    stays: Float[Array, "*rows goal"],
    choice: Float[Array, "*rows particle goal"],
) -> Float[Array, "*rows particle goal"]:
    """A goal is kept with probability `stays` (0 if it closed or was reached); otherwise θ chooses a new one."""
    kept = joint * stays[..., None, :]
    free = (joint - kept).sum(-1, keepdims=True)
    return kept + free * choice


def remembered(
    joint: Float[Array, "*rows particle goal"], first: Float[Array, " particle"], forgotten: float
) -> Float[Array, "*rows particle"]:
    """The weights at the start of the next episode: mixed with those of an unknown co-player, which it may be."""
    return (1 - forgotten) * joint.sum(-1) + forgotten * first
