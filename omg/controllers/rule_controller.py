"""The controller of a team that follows a written rule: a yardstick for what learns, later an opponent."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
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
    def __init__(self, spec: Spec, rule: Rule):
        self.spec = spec
        self.rule = rule

    def init_memory(self, agent: None, batch: int) -> NoMemory:
        return NoMemory()

    def select_actions(
        self, agent: None, seen: Timestep, memory: NoMemory, t_env: Array, key: Array, test_mode: bool
    ) -> tuple[Int[Array, "batch agent"], NoMemory]:
        batch, n = seen.obs.shape[:2]
        keys = jax.random.split(key, (batch, n))
        seats = jax.numpy.arange(n)
        per_agent = jax.vmap(self.rule, in_axes=(0, 0, 0, 0))
        actions = jax.vmap(per_agent, in_axes=(0, 0, None, 0))(seen.obs, seen.avail_actions, seats, keys)
        return actions, memory
