"""The compiled loop: collect, insert, sample, update, as many iterations per call as the caller asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from omg.components.episode_buffer import EpisodeBatch, ReplayBuffer
from omg.learners.base import Learner, LearnerState, Metrics
from omg.runners import EpisodeStats, HostRunner, TeamRunner, VectorRunner

T_ENV_MAX = 2**31 - 1
"""Where the compiled step counter stops counting: schedules are long over by then, and the caller's goes on."""


@dataclass(frozen=True)
class LoopSettings:
    batch_size_run: int = 1
    batch_size: int = 32
    buffer_size: int = 5000
    buffer_gib: float = 4.0
    updates_per_iteration: int = 1
    length_buckets: int = 4


class TrainState(NamedTuple):
    """Everything that learning changes. With several seeds every array has a leading axis over them."""

    learner: LearnerState
    replay: EpisodeBatch
    t_env: Int[Array, ""]


class Totals(NamedTuple):
    """Sums over the iterations of one call."""

    metrics: Metrics
    updates: Int[Array, ""]
    episodes: Int[Array, ""]
    steps: Int[Array, ""]
    returns: Array


class TrainingLoop:
    """Static: shapes, parts, seeds. `init` makes a state, `run` carries it some iterations further."""

    def __init__(
        self,
        runner: VectorRunner | TeamRunner | HostRunner,
        buffer: ReplayBuffer,
        learner: Learner,
        settings: LoopSettings,
        seeds: list[int],
    ):
        self.runner = runner
        self.buffer = buffer
        self.learner = learner
        self.settings = settings
        self.each = runner.each
        keys = jnp.stack([jax.random.key(seed) for seed in seeds])
        self.keys = keys[0] if runner.n_seeds is None else keys
        limit = runner.env.spec.episode_limit
        self.lengths = bucket_lengths(limit, settings.length_buckets)
        self.collected = runner.batch_size
        """Episodes per iteration: `batch_size_run`, among others for every seat."""
        self.sampled = settings.batch_size * (runner.env.spec.n_agents if learner.focal else 1)
        self.steps_per_iteration = self.collected * limit
        self.compiled = jax.jit(self._run, donate_argnums=0)
        self.at_most: int | None = None
        """Iterations per call, where the caller may not ask for more."""

    def init(self) -> TrainState:
        def one(key: Array) -> TrainState:
            learner = self.learner.init(jax.random.fold_in(key, 0))
            return TrainState(learner, self.buffer.init(), jnp.zeros((), jnp.int32))

        return jax.jit(self.each(one))(self.keys)

    def run(self, state: TrainState, episode: int, iterations: int) -> tuple[TrainState, Totals]:
        """`iterations` more iterations of a state that has collected `episode` episodes. Consumes the state."""
        return self.compiled(state, jnp.int32(episode), jnp.int32(iterations), self.runner.policies)

    def _run(self, state: TrainState, episode: Array, iterations: Array, policies: Any) -> tuple[TrainState, Totals]:
        def body(i: Array, carry: tuple[TrainState, Totals]) -> tuple[TrainState, Totals]:
            state, totals = carry
            state, new = self._iteration(state, episode + i * self.collected, policies)
            return state, jax.tree.map(jnp.add, totals, new)

        nothing = jax.eval_shape(self._iteration, state, episode, policies)[1]
        totals = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), nothing)
        return jax.lax.fori_loop(0, iterations, body, (state, totals))

    def _iteration(self, state: TrainState, episode: Array, policies: Any) -> tuple[TrainState, Totals]:
        number = episode // self.collected
        keys = self.each(lambda key: jax.random.split(jax.random.fold_in(key, number + 1)))(self.keys)
        k_play, k_sample = self._two(keys)

        acting = self.learner.acting(state.learner)
        batch, stats = self.runner.run(acting, state.t_env, k_play, test_mode=False, policies=policies, number=number)
        assert batch is not None
        return self._absorb(state, batch, stats, episode, k_sample)

    def _absorb(
        self, state: TrainState, batch: EpisodeBatch, stats: EpisodeStats, episode: Array, k_sample: Array
    ) -> tuple[TrainState, Totals]:
        """Keeps what was played, and learns."""
        insert = self.each(self.buffer.insert_episode_batch, in_axes=(0, 0, None))
        replay = insert(state.replay, batch, episode)
        steps = stats.lengths.sum(-1)
        t_env = jnp.minimum(state.t_env, T_ENV_MAX - self.steps_per_iteration) + steps
        state = TrainState(state.learner, replay, t_env)

        learn = partial(self._learn, keys=k_sample, before=episode)
        shapes = jax.eval_shape(learn, state)[1]
        skip = lambda state: (state.learner, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))  # noqa: E731
        ready = self.buffer.can_sample(self.sampled, episode + self.collected)
        learner, metrics = jax.lax.cond(ready, learn, skip, state)
        return state._replace(learner=learner), self._totals(metrics, ready, stats)

    def _learn(self, state: TrainState, keys: Array, before: Array) -> tuple[LearnerState, Metrics]:
        """All updates of one iteration; the metrics are their sums."""
        s = self.settings
        now = before + self.collected

        def update(u: Array | int, learner: LearnerState) -> tuple[LearnerState, Metrics]:
            k_sample, k_train = self._two(self.each(lambda key: jax.random.split(jax.random.fold_in(key, u)))(keys))
            sample = self.each(lambda store, key: self._sample(store, now, key))
            # Each update of an iteration stands for an equal share of the episodes just collected.
            since, until = (before + self.collected * k // s.updates_per_iteration for k in (u, u + 1))
            return self._train(learner, sample(state.replay, k_sample), state.t_env, since, until, k_train)

        if s.updates_per_iteration == 1:
            return update(0, state.learner)

        def body(u: Array, carry: tuple[LearnerState, Metrics]) -> tuple[LearnerState, Metrics]:
            learner, metrics = update(u, carry[0])
            return learner, jax.tree.map(jnp.add, carry[1], metrics)

        shapes = jax.eval_shape(update, jnp.int32(0), state.learner)[1]
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.fori_loop(0, s.updates_per_iteration, body, (state.learner, zeros))

    def _two(self, keys: Array) -> tuple[Array, Array]:
        return (keys[0], keys[1]) if self.runner.n_seeds is None else (keys[:, 0], keys[:, 1])

    def _sample(self, store: EpisodeBatch, episode: Array, key: Array) -> EpisodeBatch:
        size = self.settings.batch_size
        if self.learner.focal:
            seats = self.runner.env.spec.n_agents
            return self.buffer.sample_seats(store, size, episode, key, seats, self.collected)
        return self.buffer.sample(store, size, episode, key)

    def _train(self, learner: LearnerState, batch: EpisodeBatch, t_env: Array, since: Array, until: Array, keys: Array):
        """One update on no more slots than the longest episode of the sample needs, rounded up to a known length."""
        train = self.each(self.learner.train, in_axes=(0, 0, 0, None, None, 0))

        def at_length(steps: int):
            def branch(learner: LearnerState, batch: EpisodeBatch):
                short = self.each(lambda b: b.truncate(steps))(batch)
                return train(learner, short, t_env, since, until, keys)

            return branch

        longest = self.each(EpisodeBatch.max_t_filled)(batch).max()
        bucket = jnp.searchsorted(jnp.array(self.lengths), longest)
        return jax.lax.switch(bucket, [at_length(steps) for steps in self.lengths], learner, batch)

    def _totals(self, metrics: Metrics, ready: Array, stats: EpisodeStats) -> Totals:
        team = total_return(self.runner, stats)
        shape = () if self.runner.n_seeds is None else (self.runner.n_seeds,)
        updates = jnp.where(ready, self.settings.updates_per_iteration, 0)
        return Totals(
            metrics=metrics,
            updates=jnp.broadcast_to(updates, shape),
            episodes=jnp.full(shape, self.collected),
            steps=stats.lengths.sum(-1),
            returns=team.sum(-1),
        )


def total_return(runner: VectorRunner | TeamRunner | HostRunner, stats: EpisodeStats) -> Array:
    """The team's return of each episode: rewards combine linearly, so the returns combine as they do."""
    return runner.env.spec.team_reward(stats.agent_returns)


def bucket_lengths(limit: int, buckets: int) -> list[int]:
    """A few episode lengths up to the limit. Short games need only one."""
    if limit <= 8:
        return [limit]
    return sorted({math.ceil(limit * k / buckets) for k in range(1, buckets + 1)})
