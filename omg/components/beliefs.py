"""Beliefs over the goals of other agents: Bayes' rule within an episode, exponential forgetting across episodes."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def within(belief: Float[Array, "*rows goal"], likelihood: Float[Array, "*rows goal"]) -> Float[Array, "*rows goal"]:
    """b(g) ∝ b(g)·π(a | s, g). An action that no goal explains is ignored."""
    posterior = belief * likelihood
    posterior = jnp.where(posterior.sum(-1, keepdims=True) > 0, posterior, belief)
    return posterior / _total(posterior)


def close(
    belief: Float[Array, "*rows goal"], is_open: Bool[Array, "*rows goal"], type_of: Int[Array, " goal"]
) -> Float[Array, "*rows goal"]:
    """The belief after some goals closed: who went for a hare that is gone goes for another hare first.

    The probability of a closed goal moves to the open goals of its type, in proportion to theirs (evenly if they have
    none), and only if the type has no open goal to those of other types.
    """
    same = (type_of[:, None] == type_of).astype(belief.dtype)
    kept, lost = belief * is_open, belief * ~is_open
    evenly = is_open / jnp.maximum(is_open @ same, 1)
    of_type = kept @ same
    share = jnp.where(of_type > 0, kept / jnp.where(of_type > 0, of_type, 1.0), evenly)
    moved = kept + (lost @ same) * share
    moved = jnp.where(moved.sum(-1, keepdims=True) > 0, moved, is_open.astype(belief.dtype))
    return moved / _total(moved)


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
