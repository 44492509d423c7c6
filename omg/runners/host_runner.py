"""Play from Python: worlds that are not part of the compiled program feed the same episodes to the same learner."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch, Groups, Scheme, shape_of
from omg.envs.host import HostWorld
from omg.envs.multiagentenv import MultiAgentEnv, Timestep
from omg.runners.vector_runner import EpisodeStats
from omg.runners.workers import LocalWorld, Recipe, RemoteWorld, Shown, WorldLost
from omg.utils.logging import say
from omg.utils.settings import UserError

PATIENCE = 3
"""How often each world may be lost in a row before the run gives up."""


class WorldsFailed(UserError):
    """The end of a run whose worlds keep failing, however often they are replaced."""


class HostRunner:
    """`batch_size` worlds side by side. A world that is lost is replaced, and its game starts anew."""

    n_seeds = None
    policies = ()

    def __init__(
        self,
        env: MultiAgentEnv,
        mac: Any,
        scheme: Scheme,
        groups: Groups,
        batch_size: int,
        recipe: Recipe,
        timeout: float,
    ):
        self.env, self.mac, self.scheme, self.groups, self.batch_size = env, mac, scheme, groups, batch_size
        self.worlds: Sequence[Any] = self.open(recipe, timeout)
        # However the run ends, and whether it ever began.
        self.close = weakref.finalize(self, _close, self.worlds)
        self.dropped = 0
        """Games that were lost and are in no batch."""
        self.lost_in_a_row = 0
        self.select = jax.jit(mac.select_actions, static_argnums=5)
        self.info_names = (
            env.info_names
            if isinstance(env, HostWorld)
            else tuple(jax.eval_shape(env.reset, jax.random.key(0))[1].info)
        )

    def open(self, recipe: Recipe, timeout: float) -> Sequence[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not say where its worlds run")

    def each(self, function: Callable, in_axes: Any = 0) -> Callable:
        return function

    def run(
        self, agent: Any, t_env: Array, key: Array, test_mode: bool, keep: bool = True, policies: Any = None,
        number: Array | int = 0,
    ) -> tuple[EpisodeBatch | None, EpisodeStats]:  # fmt: skip
        """Whole games from fresh worlds, and how they went."""
        spec, n = self.env.spec, self.batch_size
        data = {
            name: np.zeros((n, spec.episode_limit + 1, *shape_of(f, self.groups)), f.dtype)
            for name, f in self.scheme.items()
        }
        returns, t = np.zeros((n, spec.n_agents), np.float32), np.zeros(n, np.int32)
        info = {name: np.zeros(n, np.float32) for name in self.info_names}
        keys = jax.random.split(jax.random.fold_in(key, spec.episode_limit), n)
        fresh = memory = self.mac.init_memory(agent, n)
        running = np.ones(n, bool)

        def begin(i: int) -> Shown:
            """A game from its start, however many worlds it takes."""
            game = jax.random.fold_in(keys[i], self.lost_in_a_row) if self.lost_in_a_row else keys[i]
            self.worlds[i].ask(None, np.asarray(jax.random.key_data(game)))
            try:
                return self.worlds[i].hear()
            except WorldLost as lost:
                self._replace(i, lost)
                return begin(i)

        for i, k in enumerate(np.asarray(jax.random.key_data(keys))):
            self.worlds[i].ask(None, k)
        seen: list[Shown] = [self._first(i, begin) for i in range(n)]
        count = 0
        while running.any():
            shown = _together(seen)
            actions, memory = self.select(agent, shown, memory, t_env, jax.random.fold_in(key, count), test_mode)
            count += 1
            chosen, again = np.asarray(actions), np.zeros(n, bool)
            for i in np.flatnonzero(running).tolist():
                self._write(data, i, t[i], _shown(seen[i]))
                self.worlds[i].ask(chosen[i])
            for i in np.flatnonzero(running).tolist():
                try:
                    new = self.worlds[i].hear()
                except WorldLost as lost:
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
        return (EpisodeBatch(jax.tree.map(jnp.asarray, data), scales) if keep else None), stats

    def _first(self, i: int, begin: Callable[[int], Shown]) -> Shown:
        try:
            return self.worlds[i].hear()
        except WorldLost as lost:
            self._replace(i, lost)
            return begin(i)

    def _replace(self, i: int, lost: WorldLost) -> None:
        self.dropped += 1
        self.lost_in_a_row += 1
        if self.lost_in_a_row >= PATIENCE * self.batch_size:
            self.close()
            raise WorldsFailed(f"every world keeps failing ({self.lost_in_a_row} in a row). The last one: {lost}.")
        say(f"world {i} is lost ({lost}): a new one plays instead ({self.dropped} dropped so far).", "yellow")
        self.worlds[i].replace()

    def _write(self, data: dict[str, np.ndarray], i: int, t: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            scale = self.scheme[name].scale
            data[name][i, t] = value if scale == 1.0 else np.round(np.asarray(value) / scale)


class EpisodeRunner(HostRunner):
    """One world in this process, as SMAC is usually run."""

    def open(self, recipe: Recipe, timeout: float) -> Sequence[Any]:
        if self.batch_size != 1:
            raise UserError(
                f"runner: episode plays one world, and batch_size_run is {self.batch_size}: set --batch_size_run=1, or "
                "take --runner=parallel."
            )
        return [LocalWorld(recipe)]


class ParallelRunner(HostRunner):
    """`batch_size_run` worlds, each in a process of its own."""

    def open(self, recipe: Recipe, timeout: float) -> Sequence[Any]:
        return [RemoteWorld(recipe._replace(seed=recipe.seed + 1000 * i), timeout) for i in range(self.batch_size)]


def _close(worlds: Sequence[Any]) -> None:
    for world in worlds:
        world.close()


def _where(mask: np.ndarray, new: Any, old: Any) -> Any:
    """One tree's values for some worlds, another's for the rest."""
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape(-1, *[1] * (b.ndim - 1)), a, b), new, old)


def _shown(seen: Shown) -> dict[str, np.ndarray]:
    return {name: getattr(seen, name) for name in ("obs", "state", "avail_actions", "alive")}


def _together(seen: Sequence[Shown]) -> Timestep:
    """What all worlds show, as the controller expects it."""
    columns = {name: np.stack([getattr(s, name) for s in seen]) for name in ("obs", "state", "avail_actions", "reward")}
    over = np.array([s.terminated for s in seen])
    return Timestep(**columns, terminated=over, alive=np.stack([s.alive for s in seen]), info={})  # type: ignore[arg-type]
