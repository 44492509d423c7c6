"""Controllers that model the others, and teams of different minds.

`FocalMAC` is a policy with an agent model in front of it. `MultiModuleMAC` seats it among others: for every seat k
there is a stretch of worlds in which the trained agent sits in seat k and the rest of the team follows in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from omg.components.focal_batch import FocalBatch
from omg.controllers.basic_controller import BasicMAC, Memory, Unrolled
from omg.envs.multiagentenv import Spec, Timestep
from omg.modules.am import REGISTRY as am_REGISTRY
from omg.modules.am import Inferred, Seen
from omg.modules.am.base import time_first
from omg.utils import device
from omg.utils.settings import choose


class FocalMemory(NamedTuple):
    """What the policy remembers, and what its agent model does."""

    policy: Memory
    model: Float[Array, "batch agent hidden"]


class FocalMAC(BasicMAC):
    """`agent` is a dictionary: the policy under `agent`, and the agent model's networks under their own names."""

    def __init__(self, spec: Spec, config: Mapping[str, Any]):
        super().__init__(spec, config)
        model = choose(am_REGISTRY, self.settings.am_model, "am_model")
        self.am = model(spec, super().input_size, config)
        self.obs_is_state = bool(config.get("obs_is_state", False))
        self.carry_over = bool(config.get("carry_over", False)) and self.am.needs_vae

    @property
    def input_size(self) -> int:
        return super().input_size + self.am.output_size

    @property
    def prior_size(self) -> int:
        return self.am.output_size if self.carry_over else 0

    def init_memory(  # type: ignore[override]
        self, agent: Any, batch: int, seats: int | None = None, prior: Array | None = None
    ) -> FocalMemory:
        agents = seats or self.spec.n_agents
        if prior is None:
            prior = jnp.zeros((batch, agents, self.prior_size))
        empty = super().init_memory(agent["agent"], batch, agents)
        return FocalMemory(empty, self.am.init_memory(agent, prior))

    def select_actions(self, agent, seen, memory, t_env, key, test_mode, seats=None):
        obs = seen.obs.astype(jnp.float32)
        own = self.build_inputs(obs, memory.policy.last_actions, seats)
        embedding, model = self.am.infer(agent, Seen(own, self.situation(obs, seen.state)), memory.model)
        outputs, hidden = agent["agent"].step(jnp.concatenate([own, embedding], -1), memory.policy.hidden, seats)
        actions = self.choose(outputs, seen.avail_actions, t_env, key, test_mode)
        return actions, FocalMemory(Memory(hidden, actions), model)

    def situation(self, obs: Float[Array, "*rows agent obs"], state: Float[Array, "*rows state"]) -> Array:
        """s_t: the agent's own observation, or by choice the state of the world."""
        if not self.obs_is_state:
            return obs
        return jnp.broadcast_to(state[..., None, :], (*obs.shape[:-1], state.shape[-1])).astype(jnp.float32)

    def seen(self, batch: FocalBatch) -> Seen:
        """Whole episodes as the agent model may see them, time first."""
        own = self.build_inputs(batch.obs, batch.last_actions)
        return Seen(time_first(own), time_first(batch.state if self.obs_is_state else batch.obs))

    def infer_all(self, params: Any, seen: Seen, batch: FocalBatch) -> Inferred:
        return self.am.infer_all(params, seen, self.am.init_memory(params, self._prior(batch)))

    def summary(self, params: Any, batch: FocalBatch) -> Float[Array, "batch slot embedding"]:
        """The mean of what was inferred in each episode: what it leaves for the next one with the same others."""
        inferred = self.infer_all(params, self.seen(batch), batch).embedding
        mask = time_first(batch.mask)
        return (inferred * mask[..., None]).sum(0) / jnp.maximum(mask.sum(0), 1)[..., None]

    def _prior(self, batch: FocalBatch) -> Array:
        return batch.prior if self.prior_size else jnp.zeros((*batch.prior.shape[:-1], 0))

    def unroll_on(self, agent: Any, seen: Seen, embedding: Float[Array, "time batch slot embedding"]) -> Unrolled:
        """The policy along whole episodes on what it is told of the others. Time first, as everything here."""
        inputs = jnp.concatenate([seen.own, embedding], -1)
        return Unrolled(*agent.unroll(inputs, agent.init_hidden(inputs.shape[1], inputs.shape[2])))

    def unroll_both(self, agent: Any, older: Any, seen: Seen, embedding: Array) -> tuple[Unrolled, Unrolled]:
        """Two networks of one shape on the same inputs: on a GPU in one scan, with half the launches."""
        if not device.few_launches():
            return self.unroll_on(agent, seen, embedding), self.unroll_on(older, seen, embedding)
        stacked = jax.tree.map(lambda a, b: jnp.stack([a, jax.lax.stop_gradient(b)]), agent, older)
        both = jax.vmap(lambda network: self.unroll_on(network, seen, embedding))(stacked)
        return Unrolled(*(x[0] for x in both)), Unrolled(*(x[1] for x in both))


class Side(NamedTuple):
    """Opponents of one kind in the seats `offsets` places after the focal agent; `blocks` members share the worlds."""

    mac: Any
    offsets: tuple[int, ...]
    blocks: int


class TeamPolicies(NamedTuple):
    """The trained networks, and for every side its members' networks with a leading axis over blocks."""

    trained: Any
    sides: tuple[Any, ...]


class TeamMemory(NamedTuple):
    trained: Any
    sides: tuple[Any, ...]


class TeamPrior(NamedTuple):
    """What everybody brings from earlier episodes: the trained agent's own, and each side's (nothing: none)."""

    trained: Any
    sides: tuple[Any, ...] = ()


class MultiModuleMAC:
    """Worlds come as `seats × blocks × worlds of a block`. Who sits where is known before compiling."""

    def __init__(self, spec: Spec, trained: Any, offsets: tuple[int, ...], sides: tuple[Side, ...]):
        self.spec = spec
        self.trained = trained
        self.plans = getattr(trained, "plans", False)
        self.prior_size = getattr(trained, "prior_size", 0)
        self.sides = sides
        self.offsets = offsets
        seats = np.arange(spec.n_agents)[:, None]
        self.seats = tuple((seats + np.array(o)) % spec.n_agents for o in (offsets, *(s.offsets for s in sides)))
        self.back = np.argsort(np.concatenate(self.seats, -1), -1)

    def init_memory(self, agent: TeamPolicies, batch: int, prior: Array | TeamPrior | None = None) -> TeamMemory:
        n = self.spec.n_agents
        worlds = batch // n
        given = prior if isinstance(prior, TeamPrior) else TeamPrior(prior)
        own = self._own_memory(agent.trained, worlds, given.trained)

        def of(i: int, side: Side, policies: Any) -> Any:
            size = worlds // side.blocks
            if i < len(given.sides):
                brought = jax.tree.map(lambda x: x.reshape(n, side.blocks, size, *x.shape[1:]), given.sides[i])
                return jax.vmap(jax.vmap(side.mac.remembering))(brought)
            one = jax.vmap(lambda p: side.mac.init_memory(p, size, len(side.offsets)))(policies)
            return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), one)

        sides = zip(range(len(self.sides)), self.sides, agent.sides, strict=True)
        return TeamMemory(own, tuple(of(*side) for side in sides))

    def _own_memory(self, trained: Any, worlds: int, prior: Array | None) -> Any:
        n, agents = self.spec.n_agents, len(self.offsets)
        if self.plans:
            return self.trained.init_memory(trained, n * worlds, agents, prior)
        if prior is None or not self.prior_size:
            one = self.trained.init_memory(trained, worlds, agents)
            return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), one)
        prior = jnp.broadcast_to(prior.reshape(n, worlds, 1, -1), (n, worlds, agents, self.prior_size))
        return jax.vmap(lambda p: self.trained.init_memory(trained, worlds, agents, p))(prior)

    def select_actions(
        self, agent: TeamPolicies, seen: Timestep, memory: TeamMemory, t_env: Array, key: Array, test_mode: bool,
        world: Any = None,
    ) -> tuple[Int[Array, "batch agent"], TeamMemory]:  # fmt: skip
        n = self.spec.n_agents
        everything = seen
        k_own, *k_sides = jax.random.split(key, 1 + len(self.sides))
        seen = jax.tree.map(lambda x: x.reshape(n, -1, *x.shape[1:]), seen)

        def own(seen_k: Timestep, memory_k: Any, k: Array, seats: Array):
            return self.trained.select_actions(agent.trained, _of(seen_k, seats), memory_k, t_env, k, test_mode, seats)

        if self.plans:
            seats = jnp.repeat(jnp.asarray(self.seats[0]), everything.obs.shape[0] // n, axis=0)
            taken, trained = self.trained.select_actions(
                agent.trained, everything, memory.trained, t_env, k_own, test_mode, seats, world
            )
            taken = taken.reshape(n, -1, len(self.offsets))
        else:
            taken, trained = jax.vmap(own)(seen, memory.trained, jax.random.split(k_own, n), self.seats[0])
        actions, remembered = [taken], []
        for side, policies, remembers, k_side, seats in zip(
            self.sides, agent.sides, memory.sides, k_sides, self.seats[1:], strict=True
        ):
            taken, after = self._side(side, policies, seen, remembers, t_env, k_side, seats)
            actions.append(taken)
            remembered.append(after)
        columns = jnp.concatenate(actions, -1)
        in_order = jnp.take_along_axis(columns, jnp.asarray(self.back)[:, None], axis=-1)
        return in_order.reshape(-1, n), TeamMemory(trained, tuple(remembered))

    def observe(
        self, agent: TeamPolicies, memory: TeamMemory, seen: Timestep, actions: Array, world: Any, shown: Timestep,
        running: Array,
    ) -> tuple[TeamMemory, dict[str, Array]]:  # fmt: skip
        trained, noted = self.trained.observe(agent.trained, memory.trained, seen, actions, world, shown, running)
        return memory._replace(trained=trained), noted

    def _side(self, side: Side, policies: Any, seen: Timestep, memory: Any, t_env: Array, key: Array, seats: Any):
        """Every block is played by its own member; a frozen policy does not explore."""
        n = self.spec.n_agents
        blocks = jax.tree.map(lambda x: x.reshape(n, side.blocks, -1, *x.shape[2:]), seen)

        def block(policy: Any, seen_b: Timestep, memory_b: Any, k: Array, seats_k: Array):
            return side.mac.select_actions(policy, _of(seen_b, seats_k), memory_b, t_env, k, True, seats_k)

        each_block = jax.vmap(block, in_axes=(0, 0, 0, 0, None))
        each_seat = jax.vmap(each_block, in_axes=(None, 0, 0, 0, 0))
        taken, memory = each_seat(policies, blocks, memory, jax.random.split(key, (n, side.blocks)), seats)
        return taken.reshape(n, -1, len(side.offsets)), memory


def _of(seen: Timestep, seats: Array) -> Timestep:
    """What some of the agents see."""
    return seen._replace(
        obs=seen.obs[:, seats], avail_actions=seen.avail_actions[:, seats], alive=seen.alive[:, seats],
        reward=seen.reward[:, seats],
    )  # fmt: skip
