"""Beliefs over the goals of other agents: Bayes' rule within an episode, exponential forgetting across episodes."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def within(
    belief: Float[Array, "*rows goal"], likelihood: Float[Array, "*rows goal"], is_open: Bool[Array, "*rows goal"]
) -> Float[Array, "*rows goal"]:
    """b(g) ∝ b(g)·π(a | s, g) over the goals that are still open.

    If the likelihood of every open goal is zero, the action is ignored and only closed goals lose their probability.
    If no probability is left on open goals, the belief is uniform over them.
    """
    prior = belief * is_open
    posterior = prior * likelihood
    posterior = jnp.where(posterior.sum(-1, keepdims=True) > 0, posterior, prior)
    posterior = jnp.where(posterior.sum(-1, keepdims=True) > 0, posterior, is_open.astype(belief.dtype))
    return posterior / _total(posterior)


def across(
    prior: Float[Array, "*rows goal_type"], pursued: Float[Array, "*rows goal_type"], alpha: float
) -> Float[Array, "*rows goal_type"]:
    """b_K(c) = α·b_{K-1}(c) + (1-α)·p(c), where p(c) is the probability that goal type c was pursued in episode K-1."""
    return alpha * prior + (1 - alpha) * pursued


def spread(
    prior: Float[Array, "*rows goal_type"], type_of: Int[Array, " goal"], is_open: Bool[Array, "*rows goal"]
) -> Float[Array, "*rows goal"]:
    """Probabilities of goal types as probabilities of goals: a type's share is split evenly over its open goals."""
    same = type_of == jnp.arange(prior.shape[-1])[:, None]
    count = (same * is_open[..., None, :]).sum(-1)
    each = prior / jnp.maximum(count, 1)
    belief = each[..., type_of] * is_open
    belief = jnp.where(belief.sum(-1, keepdims=True) > 0, belief, is_open.astype(belief.dtype))
    return belief / _total(belief)


def _total(weights: Float[Array, "*rows goal"]) -> Float[Array, "*rows 1"]:
    total = weights.sum(-1, keepdims=True)
    return jnp.where(total > 0, total, 1.0)
