"""The controller of agents that follow written rules: a yardstick for what learns, and opponents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.envs.multiagentenv import Spec, Timestep


class Rule(Protocol):
    """One agent's decision from what it sees."""

    def __call__(
        self, obs: Float[Array, " obs"], avail_actions: Bool[Array, " action"], seat: Array, key: Array
    ) -> Int[Array, ""]: ...


class NoMemory(NamedTuple):
    """Rules decide from the moment alone."""


class RuleMAC:
    """One rule, or several: then `agent` is the number of the one that is followed."""

    def __init__(self, spec: Spec, *rules: Rule):
        self.spec = spec
        self.rules: Sequence[Rule] = rules

    def init_memory(self, agent: Array | None, batch: int, seats: int | None = None) -> NoMemory:
        return NoMemory()

    def select_actions(
        self,
        agent: Array | None,
        seen: Timestep,
        memory: NoMemory,
        t_env: Array,
        key: Array,
        test_mode: bool,
        seats: Int[Array, " agent"] | None = None,
    ) -> tuple[Int[Array, "batch agent"], NoMemory]:
        batch, n = seen.obs.shape[:2]

        def decide(obs: Array, avail_actions: Array, seat: Array, k: Array) -> Array:
            if agent is None or len(self.rules) == 1:
                return self.rules[0](obs, avail_actions, seat, k).astype(jnp.int32)
            rules = [lambda *x, rule=rule: rule(*x).astype(jnp.int32) for rule in self.rules]
            return jax.lax.switch(agent, rules, obs, avail_actions, seat, k)

        keys = jax.random.split(key, (batch, n))
        who = jnp.arange(n) if seats is None else seats
        actions = jax.vmap(jax.vmap(decide), in_axes=(0, 0, None, 0))(seen.obs, seen.avail_actions, who, keys)
        return actions, memory
