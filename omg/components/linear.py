"""An affine layer and a small network of them, initialised as PyTorch does."""

from __future__ import annotations

import equinox as eqx
import jax
from jaxtyping import Array, Float


def uniform(key: Array, shape: tuple[int, ...], bound: float) -> Array:
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


class Linear(eqx.Module):
    """x W + b over the last axis, whatever the leading axes."""

    weight: Float[Array, "input output"]
    bias: Float[Array, " output"]

    def __init__(self, input_size: int, output_size: int, key: Array):
        k_weight, k_bias = jax.random.split(key)
        bound = max(input_size, 1) ** -0.5
        self.weight = uniform(k_weight, (input_size, output_size), bound)
        self.bias = uniform(k_bias, (output_size,), bound)

    def __call__(self, x: Float[Array, "*rows input"]) -> Float[Array, "*rows output"]:
        return x @ self.weight + self.bias


class MLP(eqx.Module):
    """Affine layers with ReLU between them."""

    layers: tuple[Linear, ...]

    def __init__(self, sizes: tuple[int, ...], key: Array):
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(Linear(i, o, k) for i, o, k in zip(sizes[:-1], sizes[1:], keys, strict=True))

    def __call__(self, x: Float[Array, "*rows input"]) -> Float[Array, "*rows output"]:
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)
