"""Transforms applied to fields of an episode batch on their way into a network."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float, Int


@dataclass(frozen=True)
class OneHot:
    """Indices to unit vectors; an index outside the range (a missing last action is -1) becomes all zeros."""

    out_dim: int

    def transform(self, indices: Int[Array, "*axes"]) -> Float[Array, "*axes out"]:
        return jax.nn.one_hot(indices, self.out_dim)
