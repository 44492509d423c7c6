"""What an agent model is: two verbs. `infer` while acting (one step, recurrent), `loss` while learning.

An agent model holds settings and shapes; its networks are passed in, a dictionary by the names they are saved under.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.focal_batch import FocalBatch
from omg.envs.multiagentenv import Spec

Params = dict[str, Any]


class Seen(NamedTuple):
    """What an agent model may look at: the focal agent's own input, and the situation s (see `obs_is_state`)."""

    own: Float[Array, "*rows input"]
    s: Float[Array, "*rows s"]


class Inferred(NamedTuple):
    """Along whole episodes: what the policy sees, the distribution it came from, and what the losses need besides."""

    embedding: Float[Array, "time batch slot embedding"]
    log_var: Float[Array, "time batch slot embedding"] | None = None
    rest: Any = None


class AgentModel:
    """Subclasses say what their networks are, how they infer, and what they learn from."""

    names: tuple[str, ...] = ()
    output_size = 0
    hidden_size = 0
    needs_vae = False

    def __init__(self, spec: Spec, own_size: int, config: Mapping[str, Any]):
        self.spec = spec
        self.own_size = own_size

    def init(self, key: Array) -> Params:
        return {}

    def init_memory(self, params: Params, prior: Float[Array, "*rows prior"]) -> Float[Array, "*rows hidden"]:
        """Before the first step; `prior` is what an earlier episode with the same others left (or nothing)."""
        return jnp.zeros((*prior.shape[:-1], self.hidden_size))

    def infer(
        self, params: Params, seen: Seen, memory: Float[Array, "*rows hidden"]
    ) -> tuple[Float[Array, "*rows embedding"], Float[Array, "*rows hidden"]]:
        raise NotImplementedError(f"{type(self).__name__} does not say how it infers")

    def infer_all(self, params: Params, seen: Seen, memory: Float[Array, "batch slot hidden"]) -> Inferred:
        """The same along whole episodes (`[time, batch, slot, …]`), as one unroll."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it infers along an episode")

    def loss(
        self, params: Params, seen: Seen, batch: FocalBatch, inferred: Inferred, chosen: Any, key: Array
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """What the model itself minimises. `chosen` is what hindsight chose, for models that want it."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it learns from")

    def predicted_actions(self, params: Params, inferred: Inferred) -> Array | None:
        """Chances of each other agent's action, `[time, batch, slot, other, action]`, where the model has them."""
        return None


def unroll_rows(rnn: Any, x: Float[Array, "time batch slot input"], memory: Float[Array, "batch slot hidden"]) -> Array:
    """A GRU along time over every batch row and slot at once."""
    time, batch, slot, _ = x.shape
    hidden = rnn.unroll(x.reshape(time, batch * slot, -1), memory.reshape(batch * slot, -1))
    return hidden.reshape(time, batch, slot, -1)


def time_first(x: Array) -> Array:
    return jnp.swapaxes(x, 0, 1)
