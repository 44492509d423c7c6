"""The compiled training loop: collect, store, sample, update. On-policy learners update on what was just collected.

One call runs as many iterations as the caller asks for. Tests run in the same compiled program: an iteration in test
mode plays one collection and learns nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int

from omg.components.episode_buffer import EpisodeBatch, ReplayBuffer
from omg.learners.base import Learner, LearnerState, Metrics
from omg.runners import EpisodeStats
from omg.training import hosts
from omg.training.devices import Devices
from omg.training.settings import LoopSettings, ReplaySettings

T_ENV_MAX = 2**31 - 1
"""Where the compiled step counter saturates; all schedules have ended by then, and the caller counts on."""
Report = Callable[[int, int], None] | None
"""Called before every collection of a test, with its number and how many there are."""


class TrainState(NamedTuple):
    """Everything that learning changes. With several seeds every array has a leading seed axis."""

    learner: LearnerState
    replay: EpisodeBatch | tuple[()]
    """Empty for on-policy learners."""
    t_env: Int[Array, ""]


class Totals(NamedTuple):
    """Sums over the iterations of one call."""

    metrics: Metrics
    updates: Int[Array, ""]
    episodes: Int[Array, ""]
    steps: Int[Array, ""]
    returns: Array
    focal_returns: Array | None = None


class TrainingLoop:
    """Static: shapes, components, seeds. `init` makes a state, `run` advances it. An on-policy learner has no
    replay: its `buffer` says only what a collection looks like."""

    at_most: int | None = None
    """The largest number of iterations per call, if there is one."""

    def __init__(
        self,
        runner: Any,
        buffer: ReplayBuffer,
        learner: Learner,
        settings: LoopSettings,
        seeds: list[int],
        replay: ReplaySettings | None = None,
        mesh: Mesh | None = None,
    ):
        """`mesh`: the devices that share the work. If they share the seeds, the runner has those of one device."""
        self.runner, self.learner, self.settings, self.seeds = runner, learner, settings, seeds
        self.n_seeds = None if len(seeds) == 1 else len(seeds)
        self.devices = Devices(mesh, len(seeds))
        if self.devices.share_seeds:
            runner.first_seed = self.devices.first_seed
        elif mesh:
            runner.mesh = mesh
        self.buffer, self.replay_settings = buffer, replay
        self.updates_per_iteration = replay.updates_per_iteration if replay else 1
        self.each = runner.each
        # Under `jit`, JAX traces it once for each length of a batch: the shapes of its metrics, the map over seeds and
        # the loop share that trace. So a learner must not change after its first update.
        self.gradient = jax.jit(learner.gradient)
        keys = jnp.stack([jax.random.key(seed) for seed in seeds])
        self.keys = keys[0] if self.n_seeds is None else (self.devices.place(keys) if hosts.several() else keys)
        spec = runner.env.spec
        self.lengths = bucket_lengths(spec.episode_limit, settings.length_buckets)
        self.collected = runner.batch_size
        """Episodes per iteration: `batch_size_run`, for one agent with frozen partners times the seats."""
        self.sampled = self.collected
        """Episodes per update: `batch_size`, for one agent with frozen partners times the seats."""
        if replay:
            self.sampled = replay.batch_size * (spec.n_agents if learner.focal else 1)
        self.steps_per_iteration = self.collected * spec.episode_limit
        # A planner's tests search more than its training: two programs. All others test in the training program.
        planner = learner.mac.plans
        shared = self.devices.shared
        run = shared(self._run, 3)
        if planner:
            run = lambda *values, test_mode: shared(partial(self._run, test_mode=test_mode), 3)(*values)  # noqa: E731
        self.compiled = jax.jit(run, donate_argnums=0, static_argnames=("test_mode",) if planner else ())
        self.play = jax.jit(shared(partial(self._play, test_mode=True), 3))
        self.begin = jax.jit(shared(self.each(self._begin), 1))

    def init(self) -> TrainState:
        return self.begin(self.keys)

    def place(self, state: TrainState) -> TrainState:
        """The state on the devices of the run."""
        return self.devices.place(state)

    def _begin(self, key: Array) -> TrainState:
        learner = self.learner.init(jax.random.fold_in(key, 0))
        return TrainState(learner, self.buffer.init() if self.replay_settings else (), jnp.zeros((), jnp.int32))

    def run(
        self, state: TrainState, episode: int, iterations: int, totals: Totals | None = None
    ) -> tuple[TrainState, Totals]:
        """`iterations` more iterations of a state that has collected `episode` episodes. The state is donated.

        `totals` are sums of earlier calls to continue: the result does not depend on how iterations are split.
        """
        totals = self.no_totals() if totals is None else totals
        state, totals, _ = self._call(state, totals, episode, iterations, 0, test=False)
        return state, totals

    def _call(self, state: TrainState, totals: Totals, episode: int, iterations: int, number: int, test: bool):
        numbers = (np.int32(episode), np.int32(iterations), np.int32(number))
        arguments = (state, totals, self.keys, *numbers, self.devices.everywhere(self.runner.policies))
        if self.learner.mac.plans:
            return self.compiled(*arguments, test_mode=test)
        return self.compiled(*arguments, np.bool_(test))

    def no_totals(self) -> Totals:
        """Sums over no iterations."""
        shapes = jax.eval_shape(lambda: self._totals(self._no_metrics(), jnp.asarray(False), self.runner.empty_stats()))
        whole = () if self.n_seeds is None else (self.n_seeds,)
        local = 0 if self.runner.n_seeds is None else 1
        return jax.tree.map(lambda x: np.zeros((*whole, *x.shape[local:]), x.dtype), shapes)

    def test(
        self, state: TrainState, number: int, episodes: int, report: Report = None
    ) -> tuple[TrainState, EpisodeStats]:
        """The `number`-th test of a run: `episodes` episodes, the same ones whenever it is repeated."""
        played, totals = [], self.no_totals()
        for r in self.collections(episodes, report):
            state, _, stats = self._call(state, totals, r * self.collected, 1, number, test=True)
            played.append(hosts.fetch(stats))
        return state, self._first_of(played, episodes)

    def collections(self, episodes: int, report: Report) -> Iterator[int]:
        """The collections of a test, each of them reported before it is played."""
        rounds = self.runner.rounds(episodes)
        for r in range(rounds):
            if report:
                report(r + 1, rounds)
            yield r

    def evaluate(self, acting: Any, number: int, episodes: int, report: Report = None) -> EpisodeStats:
        """The same test of given networks, in a program that does not contain learning."""
        t_env, policies, played = jnp.zeros(self.keys.shape, jnp.int32), self.runner.policies, []
        for r in self.collections(episodes, report):
            found = self.play(acting, t_env, self.keys, np.int32(r * self.collected), np.int32(number), policies)
            played.append(jax.device_get(found[1]))
        return self._first_of(played, episodes)

    def _first_of(self, played: list[EpisodeStats], episodes: int) -> EpisodeStats:
        """Exactly as many episodes as were asked for, equally many with every member of a pool."""
        axis = 0 if self.n_seeds is None else 1
        together = jax.tree.map(lambda *x: np.concatenate(x, axis), *played)
        chosen = np.arange(episodes) * (len(played) * self.collected) // episodes
        if together.members is not None:
            members = together.members if axis == 0 else together.members[0]
            chosen = np.sort(equally_often(members, self.runner.env.spec.n_agents)[:episodes])
        return jax.tree.map(lambda x: np.take(x, chosen, axis), together)

    # --- compiled

    def _run(
        self,
        state: TrainState,
        totals: Totals,
        keys: Array,
        episode: Array,
        iterations: Array,
        number: Array,
        policies: Any,
        test_mode: bool | Array,
    ) -> tuple[TrainState, Totals, EpisodeStats]:
        def body(i: Array, carry: tuple[TrainState, Totals, EpisodeStats]):
            state, totals, _ = carry
            before = episode + i * self.collected
            state, new, stats = self._iteration(state, keys, before, policies, test_mode, number)
            return state, jax.tree.map(jnp.add, totals, new), stats

        return jax.lax.fori_loop(0, iterations, body, (state, totals, self.runner.empty_stats()))

    def _iteration(
        self, state: TrainState, keys: Array, episode: Array, policies: Any, test_mode: bool | Array, number: Array
    ) -> tuple[TrainState, Totals, EpisodeStats]:
        acting = self.learner.acting(state.learner)
        batch, stats, k_sample = self._play(acting, state.t_env, keys, episode, number, policies, test_mode)
        if test_mode is True:
            return state, self._totals(self._no_metrics(), jnp.asarray(False), stats), stats
        state, totals = self._absorb(state, batch, stats, episode, k_sample, jnp.asarray(test_mode))
        return state, totals, stats

    def _play(
        self, acting: Any, t_env: Array, keys: Array, episode: Array, number: Array, policies: Any,
        test_mode: bool | Array,
    ):  # fmt: skip
        """One collection. The keys of tests never coincide with those of training, which count upwards from 1."""
        collection = episode // self.collected

        def keys_of(key: Array) -> Array:
            in_test = jax.random.fold_in(jax.random.fold_in(key, 2**31 - 1), number)
            seeded = jax.tree.map(
                lambda a, b: jnp.where(test_mode, a, b), *(jax.random.key_data(k) for k in (in_test, key))
            )
            return jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(seeded), collection + 1))

        k_play, k_sample = self._two(self.each(keys_of)(keys))
        batch, stats = self.runner.run(acting, t_env, k_play, test_mode, policies=policies, number=collection)
        return batch, stats, k_sample

    def _absorb(
        self, state: TrainState, batch: EpisodeBatch, stats: EpisodeStats, episode: Array, k_sample: Array, test: Array
    ) -> tuple[TrainState, Totals]:
        """Stores what was played, and learns; in a test neither."""
        ready, replay = ~test, state.replay
        if self.replay_settings:
            ready &= self.buffer.can_sample(self.sampled, episode + self.collected)
            insert = self.each(self.buffer.insert_episode_batch, in_axes=(0, 0, None, None))
            replay = insert(replay, batch, episode, test)
        steps = stats.lengths.sum(-1)
        t_env = jnp.minimum(state.t_env, T_ENV_MAX - self.steps_per_iteration) + jnp.where(test, 0, steps)
        state = state._replace(replay=replay)
        learner, metrics = jax.lax.cond(
            ready,
            lambda s: self._learn(s, batch, k_sample, episode),
            lambda s: (s.learner, self._no_metrics()),
            state,
        )
        # The update itself counts the steps before this collection: its learning rate is never zero.
        return TrainState(learner, state.replay, t_env), self._totals(metrics, ready, stats)

    def _no_metrics(self) -> Metrics:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self._metric_shapes())

    def _metric_shapes(self) -> Any:
        """The shapes of one update's metrics, found once."""
        if not hasattr(self, "_shapes"):
            key = jax.eval_shape(lambda: self.keys.reshape(-1)[0])
            state = jax.eval_shape(self._begin, key)
            batch = jax.eval_shape(
                lambda: jax.tree.map(lambda x: x[: self.sampled], self.buffer.init()).truncate(min(self.lengths))
            )
            of_one = jax.eval_shape(self.gradient, state.learner, batch, state.t_env, key)[1]
            seeds = () if self.runner.n_seeds is None else (self.runner.n_seeds,)
            self._shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*seeds, *x.shape), x.dtype), of_one)
        return self._shapes

    def _learn(
        self, state: TrainState, fresh: EpisodeBatch, keys: Array, before: Array
    ) -> tuple[LearnerState, Metrics]:
        """All updates of one iteration, on samples or on what was just collected; the metrics are their sums."""
        now = before + self.collected

        def update(u: Array | int, learner: LearnerState) -> tuple[LearnerState, Metrics]:
            k_sample, k_train = self._two(self.each(lambda key: jax.random.split(jax.random.fold_in(key, u)))(keys))
            if not self.replay_settings:
                return self._train(learner, fresh, state.t_env, k_train)
            sample = self.each(lambda store, key: self._sample(store, now, key))
            return self._train(learner, sample(state.replay, k_sample), state.t_env, k_train)

        if self.updates_per_iteration == 1:
            return update(0, state.learner)

        def body(u: Array, carry: tuple[LearnerState, Metrics]) -> tuple[LearnerState, Metrics]:
            learner, metrics = update(u, carry[0])
            return learner, jax.tree.map(jnp.add, carry[1], metrics)

        return jax.lax.fori_loop(0, self.updates_per_iteration, body, (state.learner, self._no_metrics()))

    def _two(self, keys: Array) -> tuple[Array, Array]:
        return (keys[0], keys[1]) if self.runner.n_seeds is None else (keys[:, 0], keys[:, 1])

    def _sample(self, store: EpisodeBatch, episode: Array, key: Array) -> EpisodeBatch:
        if self.learner.focal:
            seats = self.runner.env.spec.n_agents
            return self.buffer.sample_seats(store, self.sampled // seats, episode, key, seats, self.collected)
        return self.buffer.sample(store, self.sampled, episode, key)

    def _train(self, learner: LearnerState, batch: EpisodeBatch, t_env: Array, keys: Array):
        """One update on a batch truncated to its longest episode, rounded up to one of the static lengths."""
        gradient = self.each(self.gradient)

        def at_length(steps: int):
            def branch(learner: LearnerState, batch: EpisodeBatch):
                return gradient(learner, self.each(lambda b: b.truncate(steps))(batch), t_env, keys)

            return branch

        longest = self.each(EpisodeBatch.max_t_filled)(batch).max()
        bucket = jnp.searchsorted(jnp.array(self.lengths), longest)
        found, metrics = jax.lax.switch(bucket, [at_length(steps) for steps in self.lengths], learner, batch)
        return self.each(self.learner.apply)(learner, found, t_env), metrics

    def _totals(self, metrics: Metrics, ready: Array, stats: EpisodeStats) -> Totals:
        # Rewards combine linearly over agents, so returns combine as rewards do.
        team = self.runner.env.spec.team_reward(stats.agent_returns)
        shape = () if self.runner.n_seeds is None else (self.runner.n_seeds,)
        updates = jnp.where(ready, self.updates_per_iteration, 0)
        return Totals(
            metrics=metrics,
            updates=jnp.broadcast_to(updates, shape),
            episodes=jnp.full(shape, self.collected),
            steps=stats.lengths.sum(-1),
            returns=team.sum(-1),
            focal_returns=None if stats.focal_returns is None else stats.focal_returns.sum(-1),
        )


def equally_often(members: np.ndarray, seats: int) -> np.ndarray:
    """Episodes in an order that meets every member once before any twice, in the next seat each time.

    Episodes are numbered by collection and, within one, by the seat of the focal agent.
    """
    met: dict[tuple, list[int]] = {}
    for episode, row in enumerate(map(tuple, members.tolist())):
        met.setdefault(row, []).append(episode)
    turns = []
    for first, of_member in enumerate(met.values()):
        per_seat = max(len(of_member) // seats, 1)
        in_turn = [of_member[i] for start in range(per_seat) for i in range(start, len(of_member), per_seat)]
        shift = first % len(in_turn)
        turns.append(in_turn[shift:] + in_turn[:shift])
    longest = max(len(turn) for turn in turns)
    return np.array([turn[i] for i in range(longest) for turn in turns if i < len(turn)])


def bucket_lengths(limit: int, buckets: int) -> list[int]:
    """A few episode lengths up to the limit. Short games need only one."""
    if limit <= 8:
        return [limit]
    return sorted({math.ceil(limit * k / buckets) for k in range(1, buckets + 1)})
