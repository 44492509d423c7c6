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


class Mood(NamedTuple):
    """Whether the others were friendly when they last met."""

    friendly: Bool[Array, " batch"]


class MoodMAC:
    """Rules over episodes: `agent` has the number of the one after a friendly meeting (and at first) and of the one
    after an unfriendly one. Tit-for-tat has two, everybody else the same twice.
    """

    def __init__(self, spec: Spec, *rules: Rule):
        self.spec = spec
        self.rules = RuleMAC(spec, *rules)

    def init_memory(self, agent: Array | None, batch: int, seats: int | None = None) -> Mood:
        return Mood(jnp.ones(batch, bool))

    def remembering(self, friendly: Bool[Array, " batch"]) -> Mood:
        return Mood(friendly)

    def select_actions(
        self, agent: Int[Array, " 2"], seen: Timestep, memory: Mood, t_env: Array, key: Array, test_mode: bool,
        seats: Int[Array, " agent"] | None = None,
    ) -> tuple[Int[Array, "batch agent"], Mood]:  # fmt: skip
        def one(friendly: Array, seen_w: Timestep, k: Array) -> Array:
            rule, alone = jnp.where(friendly, agent[0], agent[1]), jax.tree.map(lambda x: x[None], seen_w)
            return self.rules.select_actions(rule, alone, NoMemory(), t_env, k, test_mode, seats)[0][0]

        actions = jax.vmap(one)(memory.friendly, seen, jax.random.split(key, len(memory.friendly)))
        return actions, memory
