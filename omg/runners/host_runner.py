"""Plays environments that run in Python: they fill the same episodes for the same compiled learner."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch, Groups, Scheme, shape_of
from omg.controllers.base import Controller
from omg.envs.host import HostEnv
from omg.envs.multiagentenv import MultiAgentEnv, Timestep
from omg.runners.vector_runner import EpisodeStats, Played
from omg.runners.workers import EnvLost, LocalEnv, Recipe, RemoteEnv, Shown
from omg.utils.logging import say
from omg.utils.settings import UserError

PATIENCE = 3
"""How many failures in a row, per environment, end the run."""


class EnvsFailed(UserError):
    """All environments keep failing although they are replaced: the run ends."""


@dataclass
class Losses:
    """Failures of environments: episodes that were lost, and how many without a complete one in between."""

    dropped: int = 0
    in_a_row: int = 0


class Records(NamedTuple):
    """What is known of each episode of a collection so far."""

    data: dict[str, np.ndarray]
    returns: np.ndarray
    lengths: np.ndarray
    info: dict[str, np.ndarray]

    def add(self, i: int, new: Shown) -> None:
        """One more step."""
        self.returns[i] += new.reward
        self.lengths[i] += 1
        for name in self.info:
            self.info[name][i] = new.info.get(name, 0.0)

    def forget(self, i: int) -> None:
        for values in (*self.data.values(), self.returns, self.lengths, *self.info.values()):
            values[i] = 0


class HostRunner:
    """`batch_size` episodes in a collection, in parallel environments.

    A failed environment is replaced, and its episode starts again.
    """

    n_seeds = None
    policies = ()
    on_played: Callable[[int], None] = staticmethod(lambda episodes: None)
    """Called after each turn, with the number of its episodes."""

    def __init__(
        self,
        env: MultiAgentEnv,
        mac: Controller,
        scheme: Scheme,
        groups: Groups,
        batch_size: int,
        recipe: Recipe,
        timeout: float,
    ):
        self.env, self.scheme, self.groups, self.batch_size = env, scheme, groups, batch_size
        self.envs: Sequence[Any] = self.open(recipe, timeout)
        # Environments are closed however the run ends.
        self.close = weakref.finalize(self, _close, self.envs)
        self.losses = Losses()
        self.info_names = (
            env.info_names if isinstance(env, HostEnv) else tuple(jax.eval_shape(env.reset, jax.random.key(0))[1].info)
        )
        self._use(mac)

    def _use(self, mac: Controller) -> None:
        self.mac, self.leading = mac, (self.batch_size,)
        self.start = jax.jit(lambda params, prior: mac.init_memory(params, self.batch_size, prior=prior))
        self.select = jax.jit(mac.select_actions, static_argnums=5)
        self.restart = jax.jit(mac.restarted)

    def seated(self, mac: Controller, episodes: int) -> HostRunner:
        """The same environments for another controller, with so many episodes in a collection.

        If there are fewer environments, the episodes are played in turns.
        """
        other = copy(self)
        other.batch_size = episodes
        other._use(mac)
        return other

    @property
    def host(self) -> HostRunner:
        """Whose environments are played in."""
        return self

    def open(self, recipe: Recipe, timeout: float) -> Sequence[Any]:
        raise NotImplementedError(f"{type(self).__name__} must define open")

    @property
    def dropped(self) -> int:
        """Episodes that were lost to failures."""
        return self.losses.dropped

    def each(self, function: Callable, in_axes: Any = 0) -> Callable:
        return function

    def rounds(self, episodes: int) -> int:
        """How many collections a test of so many episodes takes."""
        return -(-episodes // self.batch_size)

    def empty_stats(self) -> EpisodeStats:
        """Results of the right shapes, all zero."""
        returns = jnp.zeros((self.batch_size, self.env.spec.n_agents))
        info = {name: jnp.zeros(self.batch_size) for name in self.info_names}
        return EpisodeStats(returns, jnp.zeros(self.batch_size, jnp.int32), info)

    def run(
        self,
        params: Any,
        t_env: Array,
        key: Array,
        test_mode: bool,
        policies: Any = None,
        number: Array | int = 0,
    ) -> tuple[EpisodeBatch, EpisodeStats]:
        """One collection. `policies` and `number` are for runners that seat opponents."""
        played = self.play(params, t_env, key, test_mode)
        assert played.batch is not None
        return played.batch, played.stats

    def play(self, params: Any, t_env: Array, key: Array, test_mode: bool, prior: Any = None) -> Played:
        """Whole episodes from freshly reset environments, with the random keys of the compiled runner."""
        spec, n = self.env.spec, self.batch_size
        data = {
            name: np.zeros((n, spec.episode_limit + 1, *shape_of(f, self.groups)), f.dtype)
            for name, f in self.scheme.items()
        }
        records = Records(
            data,
            np.zeros((n, spec.n_agents), np.float32),
            np.zeros(n, np.int32),
            {name: np.zeros(n, np.float32) for name in self.info_names},
        )
        keys = jax.random.split(jax.random.fold_in(key, spec.episode_limit), n)
        memory = fresh = self.start(params, prior)
        for first in range(0, n, len(self.envs)):
            turn = list(range(first, min(first + len(self.envs), n)))
            memory = self._play_turn(turn, records, keys, params, fresh, t_env, key, test_mode)
            self.on_played(len(turn))
        scales = tuple((name, f.scale) for name, f in self.scheme.items() if f.scale != 1.0)
        stats = EpisodeStats(*(jax.tree.map(jnp.asarray, x) for x in records[1:]))
        return Played(EpisodeBatch(jax.tree.map(jnp.asarray, data), scales), stats, memory)

    def _play_turn(
        self,
        turn: list[int],
        records: Records,
        keys: Array,
        params: Any,
        fresh: Any,
        t_env: Array,
        key: Array,
        test_mode: bool,
    ) -> Any:
        """The episodes of one turn, the i-th of them in the i-th environment; the memory after it."""
        spec, n = self.env.spec, self.batch_size
        env_of, memory, count = dict(zip(turn, self.envs, strict=False)), fresh, 0
        running = np.isin(np.arange(n), turn)

        def begin(i: int) -> Shown:
            """An episode from its start, with as many replacements as it takes."""
            lost = self.losses.in_a_row
            env_of[i].ask(None, np.asarray(jax.random.key_data(jax.random.fold_in(keys[i], lost) if lost else keys[i])))
            return hear(i)

        def hear(i: int) -> Shown:
            try:
                return env_of[i].hear()
            except EnvLost as lost:
                self._replace(i, env_of[i], lost)
                return begin(i)

        for i in turn:
            env_of[i].ask(None, np.asarray(jax.random.key_data(keys[i])))
        seen = [self._nothing()] * n
        for i in turn:
            seen[i] = hear(i)
        while running.any():
            k_act = jax.random.split(jax.random.fold_in(key, count))[0]
            actions, memory = self.select(params, _together(seen), memory, t_env, k_act, test_mode)
            count += 1
            chosen, again = np.asarray(actions), np.zeros(n, bool)
            for i in np.flatnonzero(running).tolist():
                self._write(records.data, i, records.lengths[i], _shown(seen[i]))
                env_of[i].ask(chosen[i])
            for i in np.flatnonzero(running).tolist():
                try:
                    new = env_of[i].hear()
                except EnvLost as lost:
                    self._replace(i, env_of[i], lost)
                    records.forget(i)
                    seen[i], again[i] = begin(i), True
                    continue
                done = {"actions": chosen[i], "reward": new.reward, "terminated": new.terminated, "filled": True}
                self._write(records.data, i, records.lengths[i], done)
                records.add(i, new)
                seen[i] = new
                if new.over or records.lengths[i] >= spec.episode_limit:
                    self._write(records.data, i, records.lengths[i], _shown(new))
                    running[i], self.losses.in_a_row = False, 0
            if again.any():
                memory = self.restart(again, fresh, memory)
        return memory

    def _nothing(self) -> Shown:
        """In the place of an episode that is not played now."""
        spec = self.env.spec
        n, obs, state = spec.n_agents, spec.obs_size, spec.state_size
        zeros = np.zeros((n, obs), np.float32), np.zeros(state, np.float32)
        return Shown(*zeros, np.ones((n, spec.n_actions), bool), np.ones(n, bool), np.zeros(n, np.float32))

    def _replace(self, i: int, env: Any, lost: EnvLost) -> None:
        self.losses.dropped += 1
        self.losses.in_a_row += 1
        if self.losses.in_a_row >= PATIENCE * len(self.envs):
            self.close()
            raise EnvsFailed(
                f"all environments keep failing ({self.losses.in_a_row} failures in a row). The last one: {lost}."
            )
        say(
            f"an environment failed in episode {i} of a collection ({lost}) and is replaced; the episode is dropped "
            f"({self.losses.dropped} so far).",
            "yellow",
        )
        env.replace()

    def _write(self, data: dict[str, np.ndarray], i: int, t: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            scale = self.scheme[name].scale
            data[name][i, t] = value if scale == 1.0 else np.round(np.asarray(value) / scale)


class EpisodeRunner(HostRunner):
    """One environment in this process, as SMAC is usually run."""

    def open(self, recipe: Recipe, timeout: float) -> Sequence[Any]:
        if self.batch_size != 1:
            raise UserError(
                f"runner: episode plays one environment, and batch_size_run is {self.batch_size}: set "
                "--batch_size_run=1, or use --runner=parallel."
            )
        return [LocalEnv(recipe)]


class ParallelRunner(HostRunner):
    """`batch_size_run` environments, each in a process of its own."""

    def open(self, recipe: Recipe, timeout: float) -> Sequence[Any]:
        return [RemoteEnv(recipe._replace(seed=recipe.seed + 1000 * i), timeout) for i in range(self.batch_size)]


def _close(envs: Sequence[Any]) -> None:
    for env in envs:
        env.close()


def _shown(seen: Shown) -> dict[str, np.ndarray]:
    return {name: getattr(seen, name) for name in ("obs", "state", "avail_actions", "alive")}


def _together(seen: Sequence[Shown]) -> Timestep:
    """The observations of all environments, as the controller expects them."""
    columns = {name: np.stack([getattr(s, name) for s in seen]) for name in ("obs", "state", "avail_actions", "reward")}
    over = np.array([s.terminated for s in seen])
    return Timestep(**columns, terminated=over, alive=np.stack([s.alive for s in seen]), info={})  # type: ignore[arg-type]
