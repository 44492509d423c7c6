"""One gated recurrent unit, as a step while acting and as a whole unroll while learning.

`unroll` has a hand-written backward pass: the gates' gradients are collected by the scan and turned into the
recurrent weights' gradients by one large product afterwards. Inside the scan every gate has a product and an input of
its own on the CPU, because slicing a wide one there makes XLA recompute it and lose vectorisation; on a GPU, where
every product is a launch to wait for, the three are one. Outside the scan they always are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.linear import uniform
from omg.utils import device


class Gates(NamedTuple):
    """The three contributions of the input: reset, update, candidate."""

    reset: Float[Array, "*rows hidden"]
    update: Float[Array, "*rows hidden"]
    candidate: Float[Array, "*rows hidden"]


class Recurrent(NamedTuple):
    """What acts on the hidden state: a square matrix per gate, and the candidate's own bias."""

    reset: Float[Array, "hidden hidden"]
    update: Float[Array, "hidden hidden"]
    candidate: Float[Array, "hidden hidden"]
    bias: Float[Array, " hidden"]


class GRU(eqx.Module):
    """h' = z·h + (1-z)·n with n = tanh(x_n + r·(h W_n + b)); the layout of PyTorch's GRUCell."""

    input_weight: Float[Array, "input three_hidden"]
    input_bias: Float[Array, " three_hidden"]
    recurrent: Recurrent

    def __init__(self, input_size: int, hidden_size: int, key: Array):
        bound = hidden_size**-0.5
        k_weight, k_bias, k_recurrent, k_own = jax.random.split(key, 4)
        self.input_weight = uniform(k_weight, (input_size, 3 * hidden_size), bound)
        self.input_bias = uniform(k_bias, (3 * hidden_size,), bound)
        reset, update, candidate = uniform(k_recurrent, (3, hidden_size, hidden_size), bound)
        self.recurrent = Recurrent(reset, update, candidate, uniform(k_own, (hidden_size,), bound))

    @property
    def carry_size(self) -> int:
        return self.recurrent.bias.shape[-1]

    def output(self, carry: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        """What the next layer sees of what is carried on."""
        return carry

    def project(self, x: Float[Array, "*rows input"]) -> Gates:
        """The input's share of every gate; for a sequence, one product over all of time."""
        rows = x.reshape(-1, x.shape[-1])
        wide = (rows @ self.input_weight + self.input_bias).reshape(*x.shape[:-1], -1)
        return Gates(*jnp.split(wide, 3, axis=-1))

    def step(
        self, x: Float[Array, "*rows input"], hidden: Float[Array, "*rows hidden"]
    ) -> Float[Array, "*rows hidden"]:
        return _cell(self.project(x), hidden, _recurrence(self.recurrent), self.recurrent.bias)[0]

    def unroll(
        self, x: Float[Array, "time rows input"], hidden: Float[Array, "rows hidden"]
    ) -> Float[Array, "time rows hidden"]:
        """The hidden state after every step."""
        return _unroll(self.project(x), hidden, self.recurrent)


class _Trace(NamedTuple):
    """What one step leaves for the backward pass."""

    hidden: Array
    reset: Array
    update: Array
    candidate: Array
    memory: Array


Recurrence = Callable[[Array], tuple[Array, ...]]


def _recurrence(w: Recurrent) -> Recurrence:
    """From a hidden state to its share of every gate; for an unroll made once, outside of the scan."""
    if device.few_launches():
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
    # Factors that do not depend on the gradient: formed for all of time at once.
    to_update = (before - n) * z * (1 - z)
    to_candidate = (1 - z) * (1 - n * n)
    to_reset = trace.memory * r * (1 - r)
    w_r, w_z, w_n = w.reset.T, w.update.T, w.candidate.T
    tall = jnp.concatenate([w_r, w_z, w_n]) if device.few_launches() else None

    def back(d_r: Array, d_z: Array, d_m: Array) -> Array:
        if tall is not None:
            return jnp.concatenate([d_r, d_z, d_m], -1) @ tall
        return d_r @ w_r + d_z @ w_z + d_m @ w_n

    def step(d_h: Array, t):
        d_out, z_t, r_t, to_update_t, to_candidate_t, to_reset_t = t
        d_h = d_h + d_out
        d_n = d_h * to_candidate_t
        d = Gates(d_n * to_reset_t, d_h * to_update_t, d_n)
        return d_h * z_t + back(d.reset, d.update, d_n * r_t), d

    scanned = (d_hidden, z, r, to_update, to_candidate, to_reset)
    d_first, d = jax.lax.scan(step, jnp.zeros_like(first), scanned, reverse=True)
    d_memory = d.candidate * r
    hidden_size = first.shape[-1]
    wide = jnp.concatenate([d.reset, d.update, d_memory], -1).reshape(-1, 3 * hidden_size)
    reset, update, candidate = jnp.split(before.reshape(-1, hidden_size).T @ wide, 3, axis=-1)
    return d, d_first, Recurrent(reset, update, candidate, d_memory.sum((0, 1)))


_unroll.defvjp(_unroll_forward, _unroll_backward)
