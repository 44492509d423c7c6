"""What others are after, as chances: Bayes' rule within an episode, and what one episode says about the next."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def within(
    belief: Float[Array, "*rows goal"], likelihood: Float[Array, "*rows goal"], still_open: Bool[Array, "*rows goal"]
) -> Float[Array, "*rows goal"]:
    """b(g) ∝ b(g)·π(a | s, g) over the goals that are still open.

    What no goal explains says nothing: then only the closed goals lose their part. If even that leaves nothing, all
    open goals are as likely.
    """
    old = belief * still_open
    new = old * likelihood
    new = jnp.where(new.sum(-1, keepdims=True) > 0, new, old)
    new = jnp.where(new.sum(-1, keepdims=True) > 0, new, still_open.astype(belief.dtype))
    return new / _total(new)


def across(
    prior: Float[Array, "*rows kind"], pursued: Float[Array, "*rows kind"], alpha: float
) -> Float[Array, "*rows kind"]:
    """b_K(k) ∝ α·b_{K-1}(k) + (1-α)·1[the last episode was about k], or the chances that it was."""
    return alpha * prior + (1 - alpha) * pursued


def spread(
    prior: Float[Array, "*rows kind"], kind_of: Int[Array, " goal"], still_open: Bool[Array, "*rows goal"]
) -> Float[Array, "*rows goal"]:
    """Chances of kinds as chances of goals: a kind's part goes evenly to its goals that are open."""
    same = kind_of == jnp.arange(prior.shape[-1])[:, None]
    count = (same * still_open[..., None, :]).sum(-1)
    each = prior / jnp.maximum(count, 1)
    belief = each[..., kind_of] * still_open
    belief = jnp.where(belief.sum(-1, keepdims=True) > 0, belief, still_open.astype(belief.dtype))
    return belief / _total(belief)


def _total(chances: Float[Array, "*rows goal"]) -> Float[Array, "*rows 1"]:
    total = chances.sum(-1, keepdims=True)
    return jnp.where(total > 0, total, 1.0)
