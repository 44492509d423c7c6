"""Plays whole episodes: parallel environments in lockstep inside the compiled program, until the last one ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from omg.components.episode_buffer import EpisodeBatch, Groups, Scheme, pack
from omg.controllers.base import Controller
from omg.envs.host import HostEnv
from omg.envs.multiagentenv import MultiAgentEnv, Timestep
from omg.utils.device import ENVS
from omg.utils.settings import UserError

SEEN = ("obs", "state", "avail_actions", "alive")
"""Fields of a time step that are known before the agents act."""


class EpisodeStats(NamedTuple):
    """Results of each episode. With several seeds every array has a leading seed axis."""

    agent_returns: Float[Array, "env agent"]
    lengths: Int[Array, " env"]
    info: dict[str, Float[Array, " env"]]
    members: Int[Array, "env group"] | None = None
    """The pool members in each environment, if there is a pool."""
    focal_returns: Float[Array, " env"] | None = None
    """The focal agent's own return, if there is one."""


class Played(NamedTuple):
    """Episodes (None if not kept), their results, the final memory, and the environments' states if recorded."""

    batch: EpisodeBatch | None
    stats: EpisodeStats
    memory: Any
    states: Any = None


class _Progress(NamedTuple):
    """The carry of the loop over time."""

    t: Int[Array, ""]
    env_state: Any
    seen: Timestep
    memory: Any
    running: Bool[Array, " env"]
    stats: EpisodeStats
    steps: EpisodeBatch | None
    states: Any


class VectorRunner:
    """`batch_size` parallel environments; with `n_seeds`, as many independent teams, each with its own environments.

    The loop's condition is one flag for all seeds: a flag per seed would make the compiler copy every array of the
    loop at each step.
    """

    policies: Any = ()
    host = None
    mesh: Mesh | None = None
    """The devices over which environments are spread (of a single seed)."""

    def __init__(
        self,
        env: MultiAgentEnv,
        mac: Controller,
        scheme: Scheme,
        groups: Groups,
        batch_size: int,
        n_seeds: int | None = None,
    ):
        if isinstance(env, HostEnv):
            raise UserError(
                f"{env.spec.name} runs in Python, and this plays it in the compiled program. There omg train, omg "
                "collect, omg pretrain and omg evaluate work (runner: episode or parallel)."
            )
        self.env = env
        self.mac = mac
        self.scheme = scheme
        self.groups = groups
        self.batch_size = batch_size
        self.n_seeds = n_seeds
        self.leading = (batch_size,) if n_seeds is None else (n_seeds, batch_size)

    def each(self, function: Callable, in_axes: Any = 0) -> Callable:
        """The function for one seed, or mapped over all of them."""
        return function if self.n_seeds is None else jax.vmap(function, in_axes=in_axes)

    def run(
        self,
        params: Any,
        t_env: Array,
        key: Array,
        test_mode: bool | Array,
        policies: Any = None,
        number: Array | int = 0,
    ) -> tuple[EpisodeBatch, EpisodeStats]:
        """One collection. `policies` and `number` are for runners that seat opponents."""
        played = self.play(params, t_env, key, test_mode)
        assert played.batch is not None
        return played.batch, played.stats

    def rounds(self, episodes: int) -> int:
        """How many collections a test of so many episodes takes."""
        return -(-episodes // self.batch_size)

    def empty_stats(self) -> EpisodeStats:
        """Results of the right shapes, all zero."""
        info = jax.eval_shape(self.env.reset, jax.random.key(0))[1].info
        return EpisodeStats(
            jnp.zeros((*self.leading, self.env.spec.n_agents)),
            jnp.zeros(self.leading, jnp.int32),
            {name: jnp.zeros(self.leading) for name in info},
        )

    def play(
        self,
        params: Any,
        t_env: Array,
        key: Array,
        test_mode: bool | Array,
        keep: bool = True,
        prior: Any = None,
        record: bool = False,
    ) -> Played:
        """Whole episodes from freshly reset environments.

        `keep=False` returns results only. `prior` is what the controller carries over from earlier episodes. `record`
        also returns the environment's state at every time step, for drawing.
        """
        limit = self.env.spec.episode_limit
        steps = EpisodeBatch.zeros(self.scheme, self.groups, limit + 1, *self.leading) if keep else None
        env_state, seen, memory = self._spread(self.each(self._reset)(params, key, prior))
        running = jnp.ones(self.leading, bool)
        stats = self.empty_stats()
        states = jax.tree.map(lambda x: jnp.zeros((limit + 1, *x.shape), x.dtype), env_state) if record else None
        start = jnp.zeros((), jnp.int32)
        steps = self._write(steps, start, running, _shown(seen))
        progress = _Progress(start, env_state, seen, memory, running, stats, steps, _put(states, env_state, start))

        def step(p: _Progress) -> _Progress:
            one = self.each(self._step, in_axes=(0, 0, 0, 0, 0, 0, 0, None, None))
            actions, env_state, seen, memory, record_of_step = one(
                params, t_env, key, p.env_state, p.seen, p.memory, p.running, p.t, test_mode
            )
            env_state, seen, memory = self._spread((env_state, seen, memory))
            running = p.running
            stats = EpisodeStats(
                p.stats.agent_returns + jnp.where(running[..., None], seen.reward, 0.0),
                p.stats.lengths + running,
                jax.tree.map(lambda new, old: jnp.where(running, new, old), seen.info, p.stats.info),
            )
            done = {"actions": actions, "reward": seen.reward, "terminated": seen.terminated, "filled": running}
            done |= {name: value for name, value in record_of_step.items() if name in self.scheme}
            steps = self._write(p.steps, p.t, running, done)
            steps = self._write(steps, p.t + 1, running, _shown(seen))
            states = _put(p.states, env_state, p.t + 1)
            return _Progress(p.t + 1, env_state, seen, memory, running & ~seen.terminated, stats, steps, states)

        last = jax.lax.while_loop(lambda p: (p.t < limit) & p.running.any(), step, progress)
        return Played(_batch_first(last.steps, len(self.leading)), last.stats, last.memory, last.states)

    def _spread(self, tree: Any) -> Any:
        if self.mesh is None:
            return tree
        by_env = NamedSharding(self.mesh, PartitionSpec(ENVS))

        def one(x: Array) -> Array:
            return jax.lax.with_sharding_constraint(x, by_env) if x.shape[:1] == self.leading else x

        return jax.tree.map(one, tree)

    def _reset(self, params: Any, key: Array, prior: Any):
        keys = jax.random.split(jax.random.fold_in(key, self.env.spec.episode_limit), self.batch_size)
        env_state, seen = jax.vmap(self.env.reset)(keys)
        return env_state, seen, self.mac.init_memory(params, self.batch_size, prior=prior)

    def _step(self, params, t_env, key, env_state, seen, memory, running, t, test_mode):
        k_act, k_env = jax.random.split(jax.random.fold_in(key, t))
        actions, memory = self.mac.select_actions(
            params, seen, memory, t_env, k_act, test_mode, env_state=env_state if self.mac.plans else None
        )
        env_state, shown = jax.vmap(self.env.step)(env_state, actions, jax.random.split(k_env, self.batch_size))
        memory, record = self.mac.observe(params, memory, seen, actions, env_state, shown, running)
        if "env_reached" in self.scheme:
            record["env_reached"] = jax.vmap(self.env.goals)(env_state).reached
        return actions, env_state, shown, memory, record

    def _write(self, steps: EpisodeBatch | None, t: Array, running: Array, values: dict[str, Array]):
        """Writes time step t of every environment that is still running; the others keep their zeros."""
        if steps is None:
            return None
        data = dict(steps.data)
        for name, value in values.items():
            mask = running.reshape(running.shape + (1,) * (value.ndim - running.ndim))
            value = pack(jnp.where(mask, value, jnp.zeros_like(value)), self.scheme[name])
            data[name] = jax.lax.dynamic_update_index_in_dim(data[name], value, t, 0)
        return EpisodeBatch(data, steps.scales)


def _shown(seen: Timestep) -> dict[str, Array]:
    return {name: getattr(seen, name) for name in SEEN}


def _put(states: Any, state: Any, t: Array) -> Any:
    if states is None:
        return None
    return jax.tree.map(
        lambda old, new: jax.lax.dynamic_update_index_in_dim(old, new.astype(old.dtype), t, 0), states, state
    )


def _batch_first(steps: EpisodeBatch | None, leading: int) -> EpisodeBatch | None:
    """`[time, (seed,) env, …]` to `[(seed,) env, time, …]`."""
    return None if steps is None else jax.tree.map(lambda x: jnp.moveaxis(x, 0, leading), steps)
