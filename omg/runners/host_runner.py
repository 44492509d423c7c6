"""Plays environments that run in Python: they fill the same episodes for the same compiled learner."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch, Groups, Scheme, shape_of
from omg.controllers.base import Controller
from omg.envs.host import HostEnv
from omg.envs.multiagentenv import MultiAgentEnv, Timestep
from omg.runners.vector_runner import EpisodeStats
from omg.runners.workers import EnvLost, LocalEnv, Recipe, RemoteEnv, Shown
from omg.utils.logging import say
from omg.utils.settings import UserError

PATIENCE = 3
"""How many failures in a row, per environment, end the run."""


class EnvsFailed(UserError):
    """All environments keep failing although they are replaced: the run ends."""


class HostRunner:
    """`batch_size` parallel environments. A failed environment is replaced, and its episode starts again."""

    n_seeds = None
    policies = ()

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
        self.env, self.mac, self.scheme, self.groups, self.batch_size = env, mac, scheme, groups, batch_size
        self.envs: Sequence[Any] = self.open(recipe, timeout)
        # Environments are closed however the run ends.
        self.close = weakref.finalize(self, _close, self.envs)
        self.dropped = 0
        """Episodes that were lost to failures."""
        self.lost_in_a_row = 0
        self.select = jax.jit(mac.select_actions, static_argnums=5)
        self.info_names = (
            env.info_names if isinstance(env, HostEnv) else tuple(jax.eval_shape(env.reset, jax.random.key(0))[1].info)
        )

    def open(self, recipe: Recipe, timeout: float) -> Sequence[Any]:
        raise NotImplementedError(f"{type(self).__name__} must define open")

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
        """Whole episodes from freshly reset environments."""
        spec, n = self.env.spec, self.batch_size
        data = {
            name: np.zeros((n, spec.episode_limit + 1, *shape_of(f, self.groups)), f.dtype)
            for name, f in self.scheme.items()
        }
        returns, t = np.zeros((n, spec.n_agents), np.float32), np.zeros(n, np.int32)
        info = {name: np.zeros(n, np.float32) for name in self.info_names}
        keys = jax.random.split(jax.random.fold_in(key, spec.episode_limit), n)
        fresh = memory = self.mac.init_memory(params, n)
        running = np.ones(n, bool)

        def begin(i: int) -> Shown:
            """An episode from its start, with as many replacements as it takes."""
            episode_key = jax.random.fold_in(keys[i], self.lost_in_a_row) if self.lost_in_a_row else keys[i]
            self.envs[i].ask(None, np.asarray(jax.random.key_data(episode_key)))
            try:
                return self.envs[i].hear()
            except EnvLost as lost:
                self._replace(i, lost)
                return begin(i)

        for i, k in enumerate(np.asarray(jax.random.key_data(keys))):
            self.envs[i].ask(None, k)
        seen: list[Shown] = [self._first(i, begin) for i in range(n)]
        count = 0
        while running.any():
            shown = _together(seen)
            actions, memory = self.select(params, shown, memory, t_env, jax.random.fold_in(key, count), test_mode)
            count += 1
            chosen, again = np.asarray(actions), np.zeros(n, bool)
            for i in np.flatnonzero(running).tolist():
                self._write(data, i, t[i], _shown(seen[i]))
                self.envs[i].ask(chosen[i])
            for i in np.flatnonzero(running).tolist():
                try:
                    new = self.envs[i].hear()
                except EnvLost as lost:
                    self._replace(i, lost)
                    for values in (*data.values(), returns, t, *info.values()):
                        values[i] = 0
                    seen[i], again[i] = begin(i), True
                    continue
                done = {"actions": chosen[i], "reward": new.reward, "terminated": new.terminated, "filled": True}
                self._write(data, i, t[i], done)
                returns[i] += new.reward
                t[i] += 1
                seen[i] = new
                for name in info:
                    info[name][i] = new.info.get(name, 0.0)
                if new.over or t[i] >= spec.episode_limit:
                    self._write(data, i, t[i], _shown(new))
                    running[i], self.lost_in_a_row = False, 0
            if again.any():
                memory = _where(again, fresh, memory)
        stats = EpisodeStats(jnp.asarray(returns), jnp.asarray(t), jax.tree.map(jnp.asarray, info))
        scales = tuple((name, f.scale) for name, f in self.scheme.items() if f.scale != 1.0)
        return EpisodeBatch(jax.tree.map(jnp.asarray, data), scales), stats

    def _first(self, i: int, begin: Callable[[int], Shown]) -> Shown:
        try:
            return self.envs[i].hear()
        except EnvLost as lost:
            self._replace(i, lost)
            return begin(i)

    def _replace(self, i: int, lost: EnvLost) -> None:
        self.dropped += 1
        self.lost_in_a_row += 1
        if self.lost_in_a_row >= PATIENCE * self.batch_size:
            self.close()
            raise EnvsFailed(
                f"all environments keep failing ({self.lost_in_a_row} failures in a row). The last one: {lost}."
            )
        say(
            f"environment {i} failed ({lost}) and is replaced; its episode is dropped ({self.dropped} so far).",
            "yellow",
        )
        self.envs[i].replace()

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


def _where(mask: np.ndarray, new: Any, old: Any) -> Any:
    """The values of one tree where the mask is true, of the other elsewhere."""
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape(-1, *[1] * (b.ndim - 1)), a, b), new, old)


def _shown(seen: Shown) -> dict[str, np.ndarray]:
    return {name: getattr(seen, name) for name in ("obs", "state", "avail_actions", "alive")}


def _together(seen: Sequence[Shown]) -> Timestep:
    """The observations of all environments, as the controller expects them."""
    columns = {name: np.stack([getattr(s, name) for s in seen]) for name in ("obs", "state", "avail_actions", "reward")}
    over = np.array([s.terminated for s in seen])
    return Timestep(**columns, terminated=over, alive=np.stack([s.alive for s in seen]), info={})  # type: ignore[arg-type]
