"""No agent model: the policy gets an empty vector."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class NoneAM(eqx.Module):
    """The interface of an agent model with nothing behind it."""

    output_size: int = eqx.field(static=True, default=0)

    def infer(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows 0"]:
        return jnp.zeros((*obs.shape[:-1], 0))
