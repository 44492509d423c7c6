"""The layers that networks are built of: affine layers, a small network of them, a GRU and an LSTM.

The GRU's `unroll` has a hand-written backward pass: the scan collects the gradients of the gates, and one large product
after the scan turns them into the gradients of the recurrent weights. On the CPU every gate has a product of its own
inside the scan, because slicing a wide product there makes XLA recompute it and lose vectorisation. On a GPU, where
kernel launches cost more than arithmetic, the three products are one, a step writes one array, and scans are unrolled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

ITERATIONS = 40
"""Of the orthogonalisation: enough for singular values down to a millionth of the largest."""


def few_launches() -> bool:
    """Whether a kernel launch costs more than its arithmetic (GPU), so that small products are better fused."""
    return jax.default_backend() != "cpu"


def uniform(key: Array, shapes: tuple[tuple[int, ...], ...], bound: float) -> list[Array]:
    """Arrays of these shapes with entries in ±bound, as in PyTorch. One call of the generator: it compiles slowly."""
    sizes = [math.prod(shape) for shape in shapes]
    noise = jax.random.uniform(key, (sum(sizes),), minval=-bound, maxval=bound)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [noise[end - size : end].reshape(shape) for end, size, shape in zip(ends, sizes, shapes, strict=True)]


def orthogonal(key: Array, shape: tuple[int, ...], gain: float = 1.0) -> Array:
    """A random matrix with orthonormal rows or columns, times a gain; leading axes: as many of them.

    All such matrices are equally likely: it is the orthogonal matrix nearest to one of normal entries, found by
    iterated products. (JAX's QR decomposition of several matrices can block for ever on a CPU with few cores: it waits
    for threads of the pool that runs it.)
    """
    *several, rows, columns = shape
    x = jax.random.normal(key, (*several, max(rows, columns), min(rows, columns)))
    # All singular values are now in (0, 1]; every iteration brings them closer to 1.
    x = x / jnp.sqrt((x**2).sum((-2, -1), keepdims=True))

    def closer(_: Array, x: Array) -> Array:
        squares = jnp.einsum("...ki,...kj->...ij", x, x, precision="highest")
        return 1.5 * x - 0.5 * jnp.einsum("...ki,...ij->...kj", x, squares, precision="highest")

    x = gain * jax.lax.fori_loop(0, ITERATIONS, closer, x)
    return x if rows >= columns else jnp.swapaxes(x, -1, -2)


def side_by_side(matrices: Float[Array, "gate input hidden"]) -> Float[Array, "input gates_hidden"]:
    return jnp.concatenate(list(matrices), -1)


class Linear(eqx.Module):
    """x W + b over the last axis. Initialised as in PyTorch, or with a `gain` orthogonally and without bias."""

    weight: Float[Array, "input output"]
    bias: Float[Array, " output"]

    def __init__(self, input_size: int, output_size: int, key: Array, gain: float | None = None):
        shapes = ((input_size, output_size), (output_size,))
        if gain is None:
            self.weight, self.bias = uniform(key, shapes, max(input_size, 1) ** -0.5)
        else:
            self.weight, self.bias = orthogonal(key, shapes[0], gain), jnp.zeros(output_size)

    def __call__(self, x: Float[Array, "*rows input"]) -> Float[Array, "*rows output"]:
        return x @ self.weight + self.bias


class LayerNorm(eqx.Module):
    """Mean 0 and variance 1 over the last axis, then a learned scale and offset."""

    scale: Float[Array, " size"]
    offset: Float[Array, " size"]

    def __init__(self, size: int):
        self.scale, self.offset = jnp.ones(size), jnp.zeros(size)

    def __call__(self, x: Float[Array, "*rows size"]) -> Float[Array, "*rows size"]:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * self.scale + self.offset


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


class Gates(NamedTuple):
    """The input's share of the three gates: reset, update, candidate."""

    reset: Float[Array, "*rows hidden"]
    update: Float[Array, "*rows hidden"]
    candidate: Float[Array, "*rows hidden"]


class Recurrent(NamedTuple):
    """The recurrent weights: one square matrix per gate, and the bias of the candidate."""

    reset: Float[Array, "hidden hidden"]
    update: Float[Array, "hidden hidden"]
    candidate: Float[Array, "hidden hidden"]
    bias: Float[Array, " hidden"]


class GRU(eqx.Module):
    """h' = z·h + (1-z)·n with n = tanh(x_n + r·(h W_n + b)); the layout of PyTorch's GRUCell."""

    input_weight: Float[Array, "input three_hidden"]
    input_bias: Float[Array, " three_hidden"]
    recurrent: Recurrent

    def __init__(self, input_size: int, hidden_size: int, key: Array, orthogonally: bool = False):
        square = (hidden_size, hidden_size)
        shapes = ((input_size, 3 * hidden_size), (3 * hidden_size,), square, square, square, (hidden_size,))
        if not orthogonally:
            self.input_weight, self.input_bias, *recurrent = uniform(key, shapes, hidden_size**-0.5)
            self.recurrent = Recurrent(*recurrent)
        else:
            k_input, k_recurrent = jax.random.split(key)
            self.input_weight = side_by_side(orthogonal(k_input, (3, input_size, hidden_size)))
            self.input_bias = jnp.zeros(3 * hidden_size)
            reset, update, candidate = orthogonal(k_recurrent, (3, *square))
            self.recurrent = Recurrent(reset, update, candidate, jnp.zeros(hidden_size))

    @property
    def carry_size(self) -> int:
        return self.recurrent.bias.shape[-1]

    def output(self, carry: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        """The part of the carry that the next layer reads."""
        return carry

    def project(self, x: Float[Array, "*rows input"]) -> Float[Array, "*rows three_hidden"]:
        """The input's share of the gates, side by side; for a sequence, one product over all time steps."""
        rows = x.reshape(-1, x.shape[-1])
        return (rows @ self.input_weight + self.input_bias).reshape(*x.shape[:-1], -1)

    def step(
        self, x: Float[Array, "*rows input"], hidden: Float[Array, "*#rows hidden"]
    ) -> Float[Array, "*#rows hidden"]:
        """One step. The hidden state may lack leading axes of the input: then it is broadcast over them."""
        gates = Gates(*jnp.split(self.project(x), 3, -1))
        return _cell(gates, hidden, _recurrence(self.recurrent), self.recurrent.bias)[0]

    def unroll(
        self, x: Float[Array, "time rows input"], hidden: Float[Array, "rows hidden"]
    ) -> Float[Array, "time rows hidden"]:
        """The hidden state after every step."""
        wide = self.project(x)
        if few_launches():
            return _unroll_wide(wide, hidden, jnp.concatenate(self.recurrent[:3], -1), self.recurrent.bias)
        return _unroll(Gates(*jnp.split(wide, 3, -1)), hidden, self.recurrent)


class _Trace(NamedTuple):
    """What one forward step stores for the backward pass."""

    hidden: Array
    reset: Array
    update: Array
    candidate: Array
    memory: Array


Recurrence = Callable[[Array], tuple[Array, ...]]


def _recurrence(w: Recurrent) -> Recurrence:
    """A function from a hidden state to its share of every gate. Weights are concatenated once, outside the scan."""
    if few_launches():
        wide = jnp.concatenate(w[:3], -1)
        return lambda hidden: tuple(jnp.split(hidden @ wide, 3, -1))
    return lambda hidden: (hidden @ w.reset, hidden @ w.update, hidden @ w.candidate)


def _cell(x: Gates, hidden: Array, recurrence: Recurrence, bias: Array) -> tuple[Array, _Trace]:
    to_reset, to_update, memory = recurrence(hidden)
    reset = jax.nn.sigmoid(x.reset + to_reset)
    update = jax.nn.sigmoid(x.update + to_update)
    memory = memory + bias
    candidate = jnp.tanh(x.candidate + reset * memory)
    new = candidate + update * (hidden - candidate)
    return new, _Trace(new, reset, update, candidate, memory)


@jax.custom_vjp
def _unroll(x: Gates, hidden: Array, w: Recurrent) -> Array:
    recurrence = _recurrence(w)

    def step(h: Array, x_t: Gates) -> tuple[Array, Array]:
        h, _ = _cell(x_t, h, recurrence, w.bias)
        return h, h

    return jax.lax.scan(step, hidden, x)[1]


def _unroll_forward(x: Gates, hidden: Array, w: Recurrent):
    recurrence = _recurrence(w)
    _, trace = jax.lax.scan(lambda h, x_t: _cell(x_t, h, recurrence, w.bias), hidden, x)
    return trace.hidden, (trace, hidden, w)


def _unroll_backward(saved, d_hidden: Array):
    trace, first, w = saved
    before = jnp.concatenate([first[None], trace.hidden[:-1]])
    r, z, n = trace.reset, trace.update, trace.candidate
    # Factors that do not depend on the gradient are computed for all time steps at once.
    to_update = (before - n) * z * (1 - z)
    to_candidate = (1 - z) * (1 - n * n)
    to_reset = trace.memory * r * (1 - r)
    w_r, w_z, w_n = w.reset.T, w.update.T, w.candidate.T

    def step(d_h: Array, t):
        d_out, z_t, r_t, to_update_t, to_candidate_t, to_reset_t = t
        d_h = d_h + d_out
        d_n = d_h * to_candidate_t
        d = Gates(d_n * to_reset_t, d_h * to_update_t, d_n)
        return d_h * z_t + d.reset @ w_r + d.update @ w_z + (d_n * r_t) @ w_n, d

    scanned = (d_hidden, z, r, to_update, to_candidate, to_reset)
    d_first, d = jax.lax.scan(step, jnp.zeros_like(first), scanned, reverse=True)
    d_memory = d.candidate * r
    hidden_size = first.shape[-1]
    wide = jnp.concatenate([d.reset, d.update, d_memory], -1).reshape(-1, 3 * hidden_size)
    reset, update, candidate = jnp.split(before.reshape(-1, hidden_size).T @ wide, 3, axis=-1)
    return d, d_first, Recurrent(reset, update, candidate, d_memory.sum((0, 1)))


_unroll.defvjp(_unroll_forward, _unroll_backward)

AT_ONCE = 20
"""On a GPU, steps per iteration of the scan: chunks of on-policy learners need no loop at all."""


def _wide_cell(x: Array, hidden: Array, w: Array, bias: Array) -> tuple[Array, Array]:
    """One step, and all of it that the backward pass needs: new state, reset, update, candidate, memory."""
    new, trace = _cell(Gates(*jnp.split(x, 3, -1)), hidden, lambda h: tuple(jnp.split(h @ w, 3, -1)), bias)
    return new, jnp.concatenate(trace, -1)


@jax.custom_vjp
def _unroll_wide(x: Array, hidden: Array, w: Array, bias: Array) -> Array:
    def step(h: Array, x_t: Array) -> tuple[Array, Array]:
        h, _ = _wide_cell(x_t, h, w, bias)
        return h, h

    return jax.lax.scan(step, hidden, x, unroll=min(AT_ONCE, len(x)))[1]


def _wide_forward(x: Array, hidden: Array, w: Array, bias: Array):
    _, trace = jax.lax.scan(lambda h, x_t: _wide_cell(x_t, h, w, bias), hidden, x, unroll=min(AT_ONCE, len(x)))
    return trace[..., : hidden.shape[-1]], (trace, hidden, w)


def _wide_backward(saved, d_hidden: Array):
    trace, first, w = saved
    size = first.shape[-1]
    before = jnp.concatenate([first[None], trace[:-1, ..., :size]])
    tall = w.T

    def step(d_h: Array, t):
        d_out, trace_t, before_t = t
        _, r, z, n, memory = jnp.split(trace_t, 5, -1)
        d_h = d_h + d_out
        d_n = d_h * (1 - z) * (1 - n * n)
        # The gradients of reset, update, memory (what enters the product) and candidate.
        d = jnp.concatenate([d_n * memory * r * (1 - r), d_h * (before_t - n) * z * (1 - z), d_n * r, d_n], -1)
        return d_h * z + d[..., : 3 * size] @ tall, d

    d_first, d = jax.lax.scan(
        step, jnp.zeros_like(first), (d_hidden, trace, before), reverse=True, unroll=min(AT_ONCE, len(trace))
    )
    d_w = before.reshape(-1, size).T @ d[..., : 3 * size].reshape(-1, 3 * size)
    d_x = jnp.concatenate([d[..., : 2 * size], d[..., 3 * size :]], -1)
    return d_x, d_first, d_w, d[..., 2 * size : 3 * size].sum((0, 1))


_unroll_wide.defvjp(_wide_forward, _wide_backward)


class LSTM(eqx.Module):
    """PyTorch's LSTMCell (gates: input, forget, candidate, output). Its carry is [output, cell], concatenated."""

    input_weight: Float[Array, "input four_hidden"]
    recurrent_weight: Float[Array, "hidden four_hidden"]
    bias: Float[Array, " four_hidden"]

    def __init__(self, input_size: int, hidden_size: int, key: Array, orthogonally: bool = False):
        wide = 4 * hidden_size
        shapes = ((input_size, wide), (hidden_size, wide), (wide,))
        if not orthogonally:
            self.input_weight, self.recurrent_weight, self.bias = uniform(key, shapes, hidden_size**-0.5)
        else:
            k_input, k_recurrent = jax.random.split(key)
            self.input_weight = side_by_side(orthogonal(k_input, (4, input_size, hidden_size)))
            self.recurrent_weight = side_by_side(orthogonal(k_recurrent, (4, hidden_size, hidden_size)))
            self.bias = jnp.zeros(wide)

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


def unroll_rows(
    rnn: GRU | LSTM, x: Float[Array, "time batch seat input"], memory: Float[Array, "batch seat hidden"]
) -> Float[Array, "time batch seat hidden"]:
    """A recurrent layer along time, over all batch rows and seats at once."""
    time, batch, seat, _ = x.shape
    hidden = rnn.unroll(x.reshape(time, batch * seat, -1), memory.reshape(batch * seat, -1))
    return hidden.reshape(time, batch, seat, -1)
