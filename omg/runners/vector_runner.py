"""Play: many worlds in lockstep inside the compiled program, until the last of them is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.components.episode_buffer import EpisodeBatch, Groups, Scheme, pack
from omg.envs.multiagentenv import MultiAgentEnv, Timestep

SEEN = ("obs", "state", "avail_actions", "alive")
"""Fields of a slot that are there before anybody acts in it."""


class EpisodeStats(NamedTuple):
    """How each episode went. With several seeds every array has a leading axis over them."""

    agent_returns: Float[Array, "world agent"]
    lengths: Int[Array, " world"]
    info: dict[str, Float[Array, " world"]]
    members: Int[Array, "world group"] | None = None
    """Which members of a pool sat in each world, where there is one."""


class _Play(NamedTuple):
    """Where a batch of episodes stands."""

    t: Int[Array, ""]
    world: Any
    seen: Timestep
    memory: Any
    running: Bool[Array, " world"]
    stats: EpisodeStats
    slots: EpisodeBatch | None


class VectorRunner:
    """`batch_size` worlds at once; with `n_seeds`, as many teams side by side, each with worlds of its own.

    The loop's condition is one flag for all seeds: a flag per seed would make the compiler copy every array of the
    loop at each step.
    """

    def __init__(
        self,
        env: MultiAgentEnv,
        mac: Any,
        scheme: Scheme,
        groups: Groups,
        batch_size: int,
        n_seeds: int | None = None,
    ):
        self.env = env
        self.mac = mac
        self.scheme = scheme
        self.groups = groups
        self.batch_size = batch_size
        self.n_seeds = n_seeds
        self.policies = ()
        self.plans = getattr(mac, "plans", False)
        self.leading = (batch_size,) if n_seeds is None else (n_seeds, batch_size)

    def each(self, function: Callable, in_axes: Any = 0) -> Callable:
        """The function for one seed, or for all of them side by side."""
        return function if self.n_seeds is None else jax.vmap(function, in_axes=in_axes)

    def run(
        self, agent: Any, t_env: Array, key: Array, test_mode: bool, keep: bool = True, policies: Any = None,
        number: Array | int = 0,
    ) -> tuple[EpisodeBatch | None, EpisodeStats]:  # fmt: skip
        """Whole episodes from fresh worlds, and how they went. The last two are for runners that seat others."""
        return self.play(agent, t_env, key, test_mode, keep)[:2]

    def play(
        self, agent: Any, t_env: Array, key: Array, test_mode: bool, keep: bool = True, prior: Any = None
    ) -> tuple[EpisodeBatch | None, EpisodeStats, Any]:
        """The same, and what the controller remembers at the end. `keep=False` forgets what happened in the episodes;
        `prior` is what the controller knows from earlier ones.
        """
        limit = self.env.spec.episode_limit
        slots = EpisodeBatch.zeros(self.scheme, self.groups, limit + 1, *self.leading) if keep else None
        world, seen, memory = self.each(self._reset)(agent, key, prior)
        running = jnp.ones(self.leading, bool)
        stats = EpisodeStats(
            jnp.zeros((*self.leading, self.env.spec.n_agents)),
            jnp.zeros(self.leading, jnp.int32),
            {name: jnp.zeros(self.leading) for name in seen.info},
        )
        play = _Play(jnp.zeros((), jnp.int32), world, seen, memory, running, stats, slots)
        play = play._replace(slots=self._write(slots, play.t, running, _shown(seen)))

        def step(play: _Play) -> _Play:
            one = self.each(self._step, in_axes=(0, 0, 0, 0, 0, 0, 0, None, None))
            actions, world, seen, memory, noted = one(
                agent, t_env, key, play.world, play.seen, play.memory, play.running, play.t, test_mode
            )
            running = play.running
            stats = EpisodeStats(
                play.stats.agent_returns + jnp.where(running[..., None], seen.reward, 0.0),
                play.stats.lengths + running,
                jax.tree.map(lambda new, old: jnp.where(running, new, old), seen.info, play.stats.info),
            )
            done = {"actions": actions, "reward": seen.reward, "terminated": seen.terminated, "filled": running}
            done |= {name: value for name, value in noted.items() if name in self.scheme}
            slots = self._write(play.slots, play.t, running, done)
            slots = self._write(slots, play.t + 1, running, _shown(seen))
            return _Play(play.t + 1, world, seen, memory, running & ~seen.terminated, stats, slots)

        play = jax.lax.while_loop(lambda play: (play.t < limit) & play.running.any(), step, play)
        return _episodes_first(play.slots, len(self.leading)), play.stats, play.memory

    def _reset(self, agent: Any, key: Array, prior: Any):
        keys = jax.random.split(jax.random.fold_in(key, self.env.spec.episode_limit), self.batch_size)
        world, seen = jax.vmap(self.env.reset)(keys)
        memory = self.mac.init_memory(agent, self.batch_size, **({} if prior is None else {"prior": prior}))
        return world, seen, memory

    def _step(self, agent, t_env, key, world, seen, memory, running, t, test_mode):
        k_act, k_world = jax.random.split(jax.random.fold_in(key, t))
        # Whoever plans looks into the world itself, and at what everybody did.
        plans = {"world": world} if self.plans else {}
        actions, memory = self.mac.select_actions(agent, seen, memory, t_env, k_act, test_mode, **plans)
        keys = jax.random.split(k_world, self.batch_size)
        world, shown = jax.vmap(self.env.step)(world, actions, keys)
        noted: dict[str, Array] = {}
        if "world_reached" in self.scheme:
            noted["world_reached"] = jax.vmap(self.env.goals)(world).reached
        if self.plans:
            memory, more = self.mac.observe(agent, memory, seen, actions, world, shown, running)
            noted |= more
        return actions, world, shown, memory, noted

    def _write(self, slots: EpisodeBatch | None, t: Array, running: Array, values: dict[str, Array]):
        """Puts values into slot t of every world that is still running; the others keep their zeros."""
        if slots is None:
            return None
        data = dict(slots.data)
        for name, value in values.items():
            mask = running.reshape(running.shape + (1,) * (value.ndim - running.ndim))
            value = pack(jnp.where(mask, value, jnp.zeros_like(value)), self.scheme[name])
            data[name] = jax.lax.dynamic_update_index_in_dim(data[name], value, t, 0)
        return EpisodeBatch(data, slots.scales)


def _shown(seen: Timestep) -> dict[str, Array]:
    return {name: getattr(seen, name) for name in SEEN}


def _episodes_first(slots: EpisodeBatch | None, leading: int) -> EpisodeBatch | None:
    """`[time, (seed,) world, …]` to `[(seed,) world, time, …]`."""
    return None if slots is None else jax.tree.map(lambda x: jnp.moveaxis(x, 0, leading), slots)
