"""Controllers of scripted policies: opponents, and baselines to compare learners with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.controllers.base import Controller
from omg.envs.multiagentenv import Spec, Timestep


class ScriptedPolicy(Protocol):
    """One agent's action from its own observation, its seat and random noise."""

    def __call__(
        self, obs: Float[Array, " obs"], avail_actions: Bool[Array, " action"], seat: Array, key: Array
    ) -> Int[Array, ""]: ...


class NoMemory(NamedTuple):
    """Scripted policies depend on the current observation only."""


class ScriptedMAC(Controller):
    """One scripted policy, or several: then `params` is the index of the one that acts."""

    can_be_focal = False

    def __init__(self, spec: Spec, *policies: ScriptedPolicy):
        self.spec = spec
        self.policies: Sequence[ScriptedPolicy] = policies

    def init_memory(self, params: Array | None, batch: int, seats: int | None = None, prior: Any = None) -> NoMemory:
        return NoMemory()

    def select_actions(
        self,
        params: Array | None,
        seen: Timestep,
        memory: NoMemory,
        t_env: Array,
        key: Array,
        test_mode: bool | Array,
        seats: Int[Array, " seat"] | None = None,
        env_state: Any = None,
    ) -> tuple[Int[Array, "batch seat"], NoMemory]:
        batch, n = seen.obs.shape[:2]
        keys = jax.random.split(key, (batch, n))
        seat = jnp.arange(n) if seats is None else seats
        act = jax.vmap(jax.vmap(self.decide, in_axes=(None, 0, 0, 0, 0)), in_axes=(None, 0, 0, None, 0))
        return act(params, seen.obs, seen.avail_actions, seat, keys), memory

    def decide(self, index: Array | None, obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
        if index is None or len(self.policies) == 1:
            return self.policies[0](obs, avail_actions, seat, key).astype(jnp.int32)
        branches = [lambda *x, policy=policy: policy(*x).astype(jnp.int32) for policy in self.policies]
        return jax.lax.switch(index, branches, obs, avail_actions, seat, key)


class Mood(NamedTuple):
    """Whether the other agents cooperated in the previous episode of the encounter."""

    friendly: Bool[Array, " batch"]


class ReciprocalMAC(Controller):
    """Scripted policies over the episodes of an encounter.

    `params` holds two indices: the policy after an episode in which the others cooperated (and in the first episode),
    and the policy after one in which they did not. Tit-for-tat has two different ones, other policies the same twice.
    """

    can_be_focal = False

    def __init__(self, spec: Spec, *policies: ScriptedPolicy):
        self.spec = spec
        self.scripted = ScriptedMAC(spec, *policies)

    def init_memory(self, params: Array, batch: int, seats: int | None = None, prior: Any = None) -> Mood:
        return Mood(jnp.ones(batch, bool) if prior is None else prior)

    def select_actions(
        self,
        params: Int[Array, " 2"],
        seen: Timestep,
        memory: Mood,
        t_env: Array,
        key: Array,
        test_mode: bool | Array,
        seats: Int[Array, " seat"] | None = None,
        env_state: Any = None,
    ) -> tuple[Int[Array, "batch seat"], Mood]:
        def one(friendly: Array, seen_row: Timestep, k: Array) -> Array:
            index, row = jnp.where(friendly, params[0], params[1]), jax.tree.map(lambda x: x[None], seen_row)
            return self.scripted.select_actions(index, row, NoMemory(), t_env, k, test_mode, seats)[0][0]

        actions = jax.vmap(one)(memory.friendly, seen, jax.random.split(key, len(memory.friendly)))
        return actions, memory
