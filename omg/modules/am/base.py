"""The interface of agent models: `infer` while acting (one recurrent step), `loss` while learning (whole episodes).

An agent model holds settings and shapes. Its networks are passed in: a dictionary, keyed by the names of their files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from omg.components.episode_buffer import FocalBatch
from omg.envs.multiagentenv import Spec
from omg.utils.settings import UserError

Params = dict[str, Any]


class Seen(NamedTuple):
    """The inputs of an agent model: the focal agent's own input, and s_t (its observation, or the global state)."""

    own: Float[Array, "*rows input"]
    s: Float[Array, "*rows s"]
    start: Float[Array, "batch seat hidden"] | None = None
    """Along whole episodes: the policy's recurrent state before the first step, if it is carried over."""


class Inferred(NamedTuple):
    """The result of inference along whole episodes."""

    embedding: Float[Array, "time batch seat embedding"]
    """The policy's extra input."""
    log_var: Float[Array, "time batch seat latent"] | None = None
    rest: Any = None
    """Further outputs that the model's own loss needs; with `memory`: arrays `[time, batch, …]`."""
    memory: Float[Array, "time batch seat hidden"] | None = None
    """The memory after every step. On-policy learners unroll models that return it by chunks, as they do the policy."""


class Conditioning(NamedTuple):
    """The policy's extra input while learning, and the subgoals chosen in hindsight, for models that have them."""

    embedding: Float[Array, "time batch seat embedding"]
    chosen: Any = None
    in_hindsight: Bool[Array, "time batch seat 1"] | None = None
    """Where the embedding is a hindsight subgoal; elsewhere it is inferred."""


class Judge(NamedTuple):
    """The network that values candidate subgoals: a Q-network, or a critic (then `avail_actions` is None)."""

    network: Any
    hidden: Float[Array, "time batch seat hidden"]
    """Its recurrent state before each time step."""
    avail_actions: Array | None
    present: Float[Array, "time batch seat latent"] | None = None
    """The latents of the present, if a candidate is valued by its difference to them."""


class AgentModel:
    """Subclasses define their networks (`init`), inference (`infer`, `infer_all`) and `loss`."""

    Settings: Any = None
    needs: ClassVar[tuple[str, ...]] = ()
    """Pre-trained artifacts that the model is built with, by name: ("vae",)."""
    obs_is_state = False
    """Whether s_t is the global state; otherwise it is the focal agent's own observation."""
    given_identity: ClassVar[bool] = False
    """Whether the prior is the identity of the partners (the oracle), not something carried over."""
    in_target = False
    """Whether the target networks of Q-learners are conditioned on the embedding of a target agent model."""
    output_size = 0
    hidden_size = 0

    def __init__(self, spec: Spec, own_size: int, config: Mapping[str, Any]):
        self.spec = spec
        self.own_size = own_size

    @property
    def prior_size(self) -> int:
        """Size of the vector carried from one episode to the next with the same partners; 0: nothing is carried."""
        return 0

    def init(self, key: Array) -> Params:
        return {}

    def init_memory(self, params: Params, prior: Float[Array, "*rows prior"]) -> Float[Array, "*rows hidden"]:
        """The memory before the first step. `prior` is the vector carried over from the previous episode."""
        return jnp.zeros((*prior.shape[:-1], self.hidden_size))

    def infer(
        self, params: Params, seen: Seen, memory: Float[Array, "*rows hidden"]
    ) -> tuple[Float[Array, "*rows embedding"], Float[Array, "*rows hidden"]]:
        raise UserError(f"agent model {type(self).__name__} must define infer.")

    def infer_all(self, params: Params, seen: Seen, memory: Float[Array, "batch seat hidden"]) -> Inferred:
        """Inference along episodes (`[time, batch, seat, …]`), as one unroll.

        If it returns `memory`, on-policy learners also call it on chunks (each is one row of the batch, and `memory` is
        that before its first step): what it returns may depend on `seen.own`, `seen.s` and `memory` only.
        """
        raise UserError(f"agent model {type(self).__name__} must define infer_all.")

    def loss(
        self, params: Params, seen: Seen, batch: FocalBatch, inferred: Inferred, chosen: Any, key: Array
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """The model's own loss. `chosen` are the subgoals chosen in hindsight, for models that use them."""
        raise UserError(f"agent model {type(self).__name__} must define loss.")

    def predicted_actions(self, params: Params, inferred: Inferred) -> Array | None:
        """Action probabilities of the other agents, `[time, batch, seat, other, action]`, if the model has them."""
        return None


def check_model(am: AgentModel, own_size: int, s_size: int) -> None:
    """Refuses a model of the user's own whose `infer` or `infer_all` returns other shapes than it declares."""
    if type(am).__module__.startswith("omg."):
        return
    name, rows = type(am).__name__, (2, am.spec.n_agents)
    seen = Seen(jnp.zeros((*rows, own_size)), jnp.zeros((*rows, s_size)))
    returned = jax.eval_shape(
        lambda key: am.infer(am.init(key), seen, jnp.zeros((*rows, am.hidden_size))), jax.random.key(0)
    )
    wanted = [(*rows, am.output_size), (*rows, am.hidden_size)]
    found = [jnp.shape(x) for x in returned] if isinstance(returned, tuple) else [jnp.shape(returned)]
    if found != wanted:
        raise UserError(
            f"agent model {name}: infer must return the embedding [batch, seat, output_size] = {wanted[0]} and the new "
            f"memory [batch, seat, hidden_size] = {wanted[1]}; it returns {' and '.join(map(str, found))}."
        )
    _check_along(am, seen)


def _check_along(am: AgentModel, seen: Seen, time: int = 3) -> None:
    """The same for `infer_all`."""
    name, rows = type(am).__name__, seen.own.shape[:-1]
    along = Seen(*(jnp.zeros((time, *x.shape)) for x in (seen.own, seen.s)))
    found = jax.eval_shape(
        lambda key: am.infer_all(am.init(key), along, jnp.zeros((*rows, am.hidden_size))), jax.random.key(0)
    )
    wanted = (time, *rows, am.output_size)
    if not isinstance(found, Inferred) or found.embedding.shape != wanted:
        raise UserError(
            f"agent model {name}: infer_all must return Inferred(embedding), with the embedding [time, batch, seat, "
            f"output_size] = {wanted}."
        )
    if found.memory is None:
        return
    wanted = (time, *rows, am.hidden_size)
    if found.memory.shape != wanted:
        raise UserError(
            f"agent model {name}: the memory that infer_all returns must be that after every step, [time, batch, seat, "
            f"hidden_size] = {wanted}; it is {found.memory.shape}."
        )
    if any(x.shape[:2] != wanted[:2] for x in jax.tree.leaves((found.log_var, found.rest))):
        raise UserError(
            f"agent model {name}: infer_all returns memory, so all arrays in log_var and rest must be [time, batch, …]."
        )
