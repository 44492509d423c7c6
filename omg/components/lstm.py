"""A long short-term memory with the GRU's interface: its carry is the output and the cell, side by side."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.linear import uniform


class LSTM(eqx.Module):
    """The layout of PyTorch's LSTMCell: input, forget, candidate, output."""

    input_weight: Float[Array, "input four_hidden"]
    recurrent_weight: Float[Array, "hidden four_hidden"]
    bias: Float[Array, " four_hidden"]

    def __init__(self, input_size: int, hidden_size: int, key: Array):
        bound = hidden_size**-0.5
        k_input, k_recurrent, k_bias = jax.random.split(key, 3)
        self.input_weight = uniform(k_input, (input_size, 4 * hidden_size), bound)
        self.recurrent_weight = uniform(k_recurrent, (hidden_size, 4 * hidden_size), bound)
        self.bias = uniform(k_bias, (4 * hidden_size,), bound)

    @property
    def carry_size(self) -> int:
        return 2 * self.recurrent_weight.shape[-2]

    def output(self, carry: Float[Array, "*rows two_hidden"]) -> Float[Array, "*rows hidden"]:
        return jnp.split(carry, 2, -1)[0]

    def step(self, x: Float[Array, "*rows input"], carry: Float[Array, "*rows two_hidden"]) -> Array:
        return self._cell(x @ self.input_weight + self.bias, carry)

    def unroll(self, x: Float[Array, "time rows input"], carry: Float[Array, "rows two_hidden"]) -> Array:
        """The carry after every step."""

        def step(c: Array, x_t: Array) -> tuple[Array, Array]:
            c = self._cell(x_t, c)
            return c, c

        return jax.lax.scan(step, carry, x @ self.input_weight + self.bias)[1]

    def _cell(self, x: Array, carry: Array) -> Array:
        hidden, cell = jnp.split(carry, 2, -1)
        enter, forget, candidate, out = jnp.split(x + hidden @ self.recurrent_weight, 4, -1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
        return jnp.concatenate([jax.nn.sigmoid(out) * jnp.tanh(cell), cell], -1)
