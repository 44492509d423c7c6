"""Controllers of scripted policies: opponents, and baselines to compare learners with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.controllers.base import Controller
from omg.envs.multiagentenv import Spec, Timestep


class ScriptedPolicy(Protocol):
    """One agent's action from its own observation, its seat and random noise."""

    def __call__(
        self, obs: Float[Array, " obs"], avail_actions: Bool[Array, " action"], seat: Array, key: Array
    ) -> Int[Array, ""]: ...


class WithMemory(NamedTuple):
    """A scripted policy that remembers a number during an episode; it is 0 before the first step.

    `act` is called like a `ScriptedPolicy`, with the number first, and returns the action and the new number.
    """

    act: Callable[[Array, Array, Array, Array, Array], tuple[Array, Array]]


class OfFamily:
    """A policy of a family whose members differ in numbers alone: all of them are computed as one.

    Where many policies act side by side, each of them is computed for everybody. A family costs as much as one policy.
    """

    def __init__(self, act: Callable[..., Array], spec: Spec, numbers: np.ndarray):
        self.act, self.spec, self.numbers = act, spec, numbers

    def __call__(self, obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
        return self.act(self.spec, jnp.asarray(self.numbers), obs, avail_actions, seat, key)


class ScriptedMAC(Controller):
    """One scripted policy, or several: then `params` is the index of the one that acts.

    The memory is one number per agent, which most policies do not use.
    """

    can_be_focal = False

    def __init__(self, spec: Spec, *policies: ScriptedPolicy | WithMemory):
        self.spec = spec
        self.policies: Sequence[ScriptedPolicy | WithMemory] = policies
        # Each policy's branch, and its row in the numbers of its family.
        branches: dict[Any, list[ScriptedPolicy | WithMemory]] = {}
        for i, policy in enumerate(policies):
            branches.setdefault(policy.act if isinstance(policy, OfFamily) else i, []).append(policy)
        self.branches = [_branch(members) for members in branches.values()]
        place = {id(p): (b, r) for b, members in enumerate(branches.values()) for r, p in enumerate(members)}
        self.places = np.array([place[id(policy)] for policy in policies]).reshape(-1, 2)

    def init_memory(self, params: Array | None, batch: int, seats: int | None = None, prior: Any = None) -> Array:
        return jnp.zeros((batch, self.spec.n_agents if seats is None else seats), jnp.int32)

    def select_actions(
        self,
        params: Array | None,
        seen: Timestep,
        memory: Int[Array, "batch seat"],
        t_env: Array,
        key: Array,
        test_mode: bool | Array,
        seats: Int[Array, " seat"] | None = None,
        env_state: Any = None,
    ) -> tuple[Int[Array, "batch seat"], Int[Array, "batch seat"]]:
        batch, n = seen.obs.shape[:2]
        keys = jax.random.split(key, (batch, n))
        seat = jnp.arange(n) if seats is None else seats
        act = jax.vmap(jax.vmap(self.decide, in_axes=(None, 0, 0, 0, 0, 0)), in_axes=(None, 0, 0, 0, None, 0))
        return act(params, memory, seen.obs, seen.avail_actions, seat, keys)

    def decide(
        self, index: Array | None, memory: Array, obs: Array, avail_actions: Array, seat: Array, key: Array
    ) -> tuple[Array, Array]:
        """One agent's action and its new memory."""
        branch, row = jnp.asarray(self.places)[0 if index is None else index]
        seen = (row, memory, obs, avail_actions, seat, key)
        return self.branches[0](*seen) if len(self.branches) == 1 else jax.lax.switch(branch, self.branches, *seen)


def _branch(members: Sequence[ScriptedPolicy | WithMemory]) -> Callable[..., tuple[Array, Array]]:
    """A policy, or a family; it is told which row of the family's numbers counts."""
    first = members[0]

    def act(row: Array, memory: Array, *seen: Array) -> tuple[Array, Array]:
        if isinstance(first, OfFamily):
            numbers = np.stack([member.numbers for member in members if isinstance(member, OfFamily)])
            action = first.act(first.spec, jnp.asarray(numbers)[row], *seen)
        elif isinstance(first, WithMemory):
            action, memory = first.act(memory, *seen)
        else:
            action = first(*seen)
        return action.astype(jnp.int32), memory.astype(jnp.int32)

    return act


class Mood(NamedTuple):
    """Whether the other agents cooperated in the previous episode of the encounter, and the policies' own memory."""

    friendly: Bool[Array, " batch"]
    scripted: Int[Array, "batch seat"]


class ReciprocalMAC(Controller):
    """Scripted policies over the episodes of an encounter.

    For each of the seats that it fills, `params` holds two indices: the policy after an episode in which the others
    cooperated (and in the first episode), and the policy after one in which they did not. Tit-for-tat has two different
    ones, other policies the same twice. Who changes half-way has two as well; the caller then says when.
    """

    can_be_focal = False

    def __init__(self, spec: Spec, *policies: ScriptedPolicy):
        self.spec = spec
        self.scripted = ScriptedMAC(spec, *policies)

    def init_memory(self, params: Array, batch: int, seats: int | None = None, prior: Any = None) -> Mood:
        friendly = jnp.ones(batch, bool) if prior is None else prior
        return Mood(friendly, self.scripted.init_memory(None, batch, seats))

    def select_actions(
        self,
        params: Int[Array, "seat 2"],
        seen: Timestep,
        memory: Mood,
        t_env: Array,
        key: Array,
        test_mode: bool | Array,
        seats: Int[Array, " seat"] | None = None,
        env_state: Any = None,
    ) -> tuple[Int[Array, "batch seat"], Mood]:
        batch, n = seen.obs.shape[:2]
        index = jnp.where(memory.friendly[:, None], params[:, 0], params[:, 1])
        seat = jnp.broadcast_to(jnp.arange(n) if seats is None else seats, (batch, n))
        act = jax.vmap(jax.vmap(self.scripted.decide))
        keys = jax.random.split(key, (batch, n))
        actions, notes = act(index, memory.scripted, seen.obs, seen.avail_actions, seat, keys)
        return actions, memory._replace(scripted=notes)
