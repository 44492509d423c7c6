"""The controller of a whole team in which one group is trained and frozen policies fill the other seats.

Environments come as `seats × blocks × environments of a block`: for every seat k there is a stretch of environments in
which the focal agent sits in seat k, with the rest of the team after it in order. Each block is played by one member of
a pool. The seating is known before compiling.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from omg.controllers.base import Controller
from omg.envs.multiagentenv import Spec, Timestep


class Side(NamedTuple):
    """Opponents of one architecture group in the seats `offsets` places after the focal agent.

    `blocks` members share the environments equally.
    """

    mac: Controller
    offsets: tuple[int, ...]
    blocks: int


class TeamPolicies(NamedTuple):
    """The trained networks, and for every side the networks of its members with a leading axis over blocks."""

    trained: Any
    sides: tuple[Any, ...]


class TeamMemory(NamedTuple):
    trained: Any
    sides: tuple[Any, ...]


class TeamPrior(NamedTuple):
    """What is carried over from earlier episodes: by the trained agent, and by each side (empty: nothing)."""

    trained: Any
    sides: tuple[Any, ...] = ()


class MultiModuleMAC(Controller):
    def __init__(self, spec: Spec, trained: Controller, offsets: tuple[int, ...], sides: tuple[Side, ...]):
        self.spec = spec
        self.trained = trained
        self.plans = trained.plans  # type: ignore[misc]
        self.prior_size = trained.prior_size
        self.sides = sides
        self.offsets = offsets
        seats = np.arange(spec.n_agents)[:, None]
        self.seats = tuple((seats + np.array(o)) % spec.n_agents for o in (offsets, *(s.offsets for s in sides)))
        self.order = np.argsort(np.concatenate(self.seats, -1), -1)

    def init_memory(
        self, params: TeamPolicies, batch: int, seats: int | None = None, prior: Array | TeamPrior | None = None
    ) -> TeamMemory:
        n = self.spec.n_agents
        envs = batch // n
        carried = prior if isinstance(prior, TeamPrior) else TeamPrior(prior)
        trained = self._trained_memory(params.trained, envs, carried.trained)

        def memory_of(i: int, side: Side, policies: Any) -> Any:
            size, agents = envs // side.blocks, len(side.offsets)
            if i < len(carried.sides):
                given = jax.tree.map(lambda x: x.reshape(n, side.blocks, size, *x.shape[1:]), carried.sides[i])
                start = jax.vmap(lambda p, g: side.mac.init_memory(p, size, agents, g))
                return jax.vmap(start, in_axes=(None, 0))(policies, given)
            one = jax.vmap(lambda p: side.mac.init_memory(p, size, agents))(policies)
            return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), one)

        sides = zip(range(len(self.sides)), self.sides, params.sides, strict=True)
        return TeamMemory(trained, tuple(memory_of(*side) for side in sides))

    def _trained_memory(self, trained: Any, envs: int, prior: Any) -> Any:
        n, agents = self.spec.n_agents, len(self.offsets)
        if self.plans:
            return self.trained.init_memory(trained, n * envs, agents, prior)
        if prior is None or not self.prior_size:
            one = self.trained.init_memory(trained, envs, agents)
            return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), one)
        prior = jnp.broadcast_to(prior.reshape(n, envs, 1, -1), (n, envs, agents, self.prior_size))
        return jax.vmap(lambda p: self.trained.init_memory(trained, envs, agents, p))(prior)

    def restarted(self, again: Bool[Array, " batch"], fresh: TeamMemory, memory: TeamMemory) -> TeamMemory:
        n = self.spec.n_agents
        restarted = super().restarted
        of_sides = zip(self.sides, fresh.sides, memory.sides, strict=True)
        return TeamMemory(
            restarted(again.reshape(n, -1), fresh.trained, memory.trained),
            tuple(restarted(again.reshape(n, side.blocks, -1), *memories) for side, *memories in of_sides),
        )

    def select_actions(
        self,
        params: TeamPolicies,
        seen: Timestep,
        memory: TeamMemory,
        t_env: Array,
        key: Array,
        test_mode: bool | Array,
        seats: Int[Array, "*batch seat"] | None = None,
        env_state: Any = None,
    ) -> tuple[Int[Array, "batch agent"], TeamMemory]:
        n = self.spec.n_agents
        k_trained, *k_sides = jax.random.split(key, 1 + len(self.sides))
        by_seat = jax.tree.map(lambda x: x.reshape(n, -1, *x.shape[1:]), seen)

        def act(seen_k: Timestep, memory_k: Any, k: Array, seats_k: Array) -> tuple[Array, Any]:
            return self.trained.select_actions(
                params.trained, _of(seen_k, seats_k), memory_k, t_env, k, test_mode, seats_k
            )

        if self.plans:
            in_rows = jnp.repeat(jnp.asarray(self.seats[0]), seen.obs.shape[0] // n, axis=0)
            taken, trained = self.trained.select_actions(
                params.trained, seen, memory.trained, t_env, k_trained, test_mode, in_rows, env_state
            )
            taken = taken.reshape(n, -1, len(self.offsets))
        else:
            taken, trained = jax.vmap(act)(by_seat, memory.trained, jax.random.split(k_trained, n), self.seats[0])
        actions, memories = [taken], []
        for side, policies, side_memory, k_side, side_seats in zip(
            self.sides, params.sides, memory.sides, k_sides, self.seats[1:], strict=True
        ):
            taken, after = self._act_side(side, policies, by_seat, side_memory, t_env, k_side, side_seats)
            actions.append(taken)
            memories.append(after)
        columns = jnp.concatenate(actions, -1)
        in_order = jnp.take_along_axis(columns, jnp.asarray(self.order)[:, None], axis=-1)
        return in_order.reshape(-1, n), TeamMemory(trained, tuple(memories))

    def observe(
        self,
        params: TeamPolicies,
        memory: TeamMemory,
        seen: Timestep,
        actions: Int[Array, "batch agent"],
        env_state: Any,
        shown: Timestep,
        running: Bool[Array, " batch"],
    ) -> tuple[TeamMemory, dict[str, Array]]:
        if not self.plans:
            return memory, {}
        trained, record = self.trained.observe(params.trained, memory.trained, seen, actions, env_state, shown, running)
        return memory._replace(trained=trained), record

    def _act_side(self, side: Side, policies: Any, seen: Timestep, memory: Any, t_env: Array, key: Array, seats: Any):
        """Every block is played by its own member. Frozen policies do not explore."""
        n = self.spec.n_agents
        blocks = jax.tree.map(lambda x: x.reshape(n, side.blocks, -1, *x.shape[2:]), seen)

        def block(policy: Any, seen_b: Timestep, memory_b: Any, k: Array, seats_k: Array):
            return side.mac.select_actions(policy, _of(seen_b, seats_k), memory_b, t_env, k, True, seats_k)

        each_block = jax.vmap(block, in_axes=(0, 0, 0, 0, None))
        each_seat = jax.vmap(each_block, in_axes=(None, 0, 0, 0, 0))
        taken, memory = each_seat(policies, blocks, memory, jax.random.split(key, (n, side.blocks)), seats)
        return taken.reshape(n, -1, len(side.offsets)), memory


def _of(seen: Timestep, seats: Array) -> Timestep:
    """The observations of some of the agents."""
    return seen._replace(
        obs=seen.obs[:, seats], avail_actions=seen.avail_actions[:, seats], alive=seen.alive[:, seats],
        reward=seen.reward[:, seats],
    )  # fmt: skip
