"""Chunks of episodes, along which on-policy learners unroll recurrent networks. All arrays are time first."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped


def cut(x: Shaped[Array, "time batch *rest"], n: int) -> Shaped[Array, "step n_times_batch *rest"]:
    """`n` equal chunks of every episode, as rows: the first chunks of all episodes, then all second ones, and so on.

    The last chunks are padded with zeros.
    """
    time, batch, *rest = x.shape
    size = -(-time // n)
    x = jnp.pad(x, ((0, n * size - time), *((0, 0),) * (x.ndim - 1)))
    return jnp.moveaxis(x.reshape(n, size, batch, *rest), 0, 1).reshape(size, n * batch, *rest)


def joined(x: Shaped[Array, "step n_times_batch *rest"], n: int, time: int) -> Shaped[Array, "time batch *rest"]:
    """From the `n` chunks that `cut` returns to whole episodes of `time` time steps."""
    size, rows, *rest = x.shape
    return jnp.moveaxis(x.reshape(size, n, rows // n, *rest), 1, 0).reshape(n * size, rows // n, *rest)[:time]


def chop(seq_len: int, multiple: int, along: Any, memory: Any) -> tuple[Any, Any]:
    """`[time, batch, …]` to equal chunks `[step, chunks × batch, …]`, and the recurrent states at their start.

    They are as few as possible with at most `seq_len` steps. The last chunk of an episode and the number of chunks (a
    `multiple`) are padded with steps that were not taken.
    """
    time, batch = along.filled.shape[:2]
    n = -(-time // seq_len)
    size = -(-time // n)
    spare = -n * batch % multiple

    def padded(x: Array) -> Array:
        return jnp.pad(cut(x, n), ((0, 0), (0, spare), *((0, 0),) * (x.ndim - 2)))

    def start(x: Array) -> Array:
        x = x[::size].reshape(n * batch, *x.shape[2:])
        return jnp.pad(x, ((0, spare), *((0, 0),) * (x.ndim - 1)))

    return jax.tree.map(padded, along), jax.tree.map(start, memory)


def later_starts(
    memory: Float[Array, "time batch seat hidden"] | None, seq_len: int
) -> Float[Array, "chunk batch seat hidden"] | None:
    """From the memory after every step to those before all chunks but the first; None if there is one chunk only.

    An episode of `seq_len` steps, which has one time step more, is one chunk.
    """
    if memory is None or len(memory) - 1 <= seq_len:
        return None
    time = len(memory)
    size = -(-time // -(-(time - 1) // seq_len))
    return jax.lax.stop_gradient(memory[size - 1 : time - 1 : size])
