"""PettingZoo both ways: our worlds as parallel environments, and parallel environments as worlds of ours.

Imported only where somebody asks for it: PettingZoo is an extra (`pip install omg-marl[pettingzoo]`).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from omg.envs.host import HostWorld
from omg.envs.multiagentenv import MultiAgentEnv
from omg.utils.settings import UserError, choose

INSTALL = "this needs PettingZoo: pip install 'omg-marl[pettingzoo]'."
KINDS = ("cooperative", "zero-sum", "mixed")

try:
    import gymnasium
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise UserError(INSTALL) from error


class OurParallelEnv(ParallelEnv):
    """A world of ours, stepped from Python. What an agent may do stands in its info as `action_mask`.

    An action that is not available is taken as the first one that is.
    """

    def __init__(self, world: MultiAgentEnv, seed: int = 0, render_mode: str | None = None):
        spec = world.spec
        self.world, self.spec, self.render_mode = world, spec, render_mode
        self.metadata = {"name": f"{spec.name}_v0", "render_modes": ["rgb_array"], "is_parallelizable": True}
        self.possible_agents = [f"agent_{i}" for i in range(spec.n_agents)]
        self.agents: list[str] = []
        self._reset, self._step = jax.jit(world.reset), jax.jit(world.step)
        self._key = jax.random.key(seed)
        self._next_key()

    def _next_key(self) -> jax.Array:
        self._key, key = jax.random.split(self._key)
        return key

    @functools.cache  # noqa: B019 (PettingZoo wants the same object every time; the world lives as long as it)
    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(-np.inf, np.inf, (self.spec.obs_size,), np.float32)

    @functools.cache  # noqa: B019
    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(self.spec.n_actions)

    @property
    def state_space(self) -> Any:
        return gymnasium.spaces.Box(-np.inf, np.inf, (self.spec.state_size,), np.float32)

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self._key = jax.random.key(seed)
        self._state, seen = self._reset(self._next_key())
        self._seen, self._t = jax.device_get(seen), 0
        self.agents = list(self.possible_agents)
        return self._observations(self.agents), self._infos(self.agents)

    def step(self, actions: Mapping[str, int]) -> tuple[dict, dict, dict, dict, dict]:
        acted, available = list(self.agents), self._seen.avail_actions
        chosen = available.argmax(-1).astype(np.int32)
        for i, name in enumerate(self.possible_agents):
            if name in actions and available[i, int(actions[name])]:
                chosen[i] = int(actions[name])
        self._state, seen = self._step(self._state, chosen, self._next_key())
        self._seen, self._t = jax.device_get(seen), self._t + 1
        over = bool(self._seen.terminated)
        out_of_time = not over and self._t >= self.spec.episode_limit
        index = {name: self.possible_agents.index(name) for name in acted}
        gone = {name: over or not bool(self._seen.alive[i]) for name, i in index.items()}
        late = {name: out_of_time and not gone[name] for name in acted}
        rewards = {name: float(self._seen.reward[i]) for name, i in index.items()}
        self.agents = [name for name in acted if not gone[name] and not late[name]]
        return self._observations(acted), rewards, gone, late, self._infos(acted)

    def _observations(self, names: list[str]) -> dict[str, np.ndarray]:
        return {name: np.asarray(self._seen.obs[self.possible_agents.index(name)], np.float32) for name in names}

    def _infos(self, names: list[str]) -> dict[str, dict]:
        masks = self._seen.avail_actions.astype(np.int8)
        return {name: {"action_mask": masks[self.possible_agents.index(name)]} for name in names}

    def state(self) -> np.ndarray:
        return np.asarray(self._seen.state, np.float32)

    def render(self) -> np.ndarray | None:
        picture = self.world.render(self._state)
        return None if picture is None else np.asarray(picture)

    def close(self) -> None:
        """Nothing is held open."""


class PettingZooGame:
    """Any parallel environment with discrete actions, behind SMAC's methods: padded to common sizes, and masked."""

    def __init__(self, game: Any, episode_limit: int, seed: int = 0):
        self.game, self.episode_limit, self._seed = game, episode_limit, seed
        self.names = list(game.possible_agents)
        spaces = {name: (game.observation_space(name), game.action_space(name)) for name in self.names}
        for name, (seen, acts) in spaces.items():
            if not isinstance(acts, gymnasium.spaces.Discrete):
                raise UserError(f"{name}'s actions are {acts}: only discrete actions can be learned here.")
            if not isinstance(seen, gymnasium.spaces.Box):
                raise UserError(f"{name} observes {seen}: only arrays of numbers (Box) can be learned from here.")
        self.actions = [int(acts.n) for _, acts in spaces.values()]
        self.sizes = [int(np.prod(seen.shape)) for seen, _ in spaces.values()]
        self.starts = [int(acts.start) for _, acts in spaces.values()]
        self.n_actions, self.obs_size = max(self.actions), max(self.sizes)

    def reset(self, key: Any = None) -> None:
        seed = self._seed if key is None else int(np.asarray(jax.random.key_data(key)).astype(np.uint32)[-1] >> 1)
        self._seed += 1
        self.seen, self.infos = self.game.reset(seed=seed)
        self.alive = np.array([name in self.game.agents for name in self.names])

    def step(self, actions: list[int]) -> tuple[float, bool, dict[str, Any]]:
        """Only those who still play act. The second number says whether everybody is done, in time or not."""
        playing = set(self.game.agents)
        chosen = {
            n: int(a) + self.starts[i] for i, (n, a) in enumerate(zip(self.names, actions, strict=True)) if n in playing
        }
        seen, rewards, terminated, truncated, self.infos = self.game.step(chosen)
        self.seen = seen
        self.alive = np.array([n in self.game.agents for n in self.names])
        each = np.array([float(rewards.get(n, 0.0)) for n in self.names], np.float32)
        over = not self.game.agents
        info: dict[str, Any] = {"agent_rewards": each}
        if over:
            # The end of everything is nobody's leaving; only who ended while the rest ran out of time has left.
            cut = any(truncated.values()) and not all(terminated.values())
            self.alive = np.array([n in playing and not (cut and terminated.get(n, False)) for n in self.names])
            info["episode_limit"] = cut
        return float(each.sum()), over, info

    def get_obs(self) -> list[np.ndarray]:
        rows = []
        for name, alive in zip(self.names, self.alive, strict=True):
            row = np.zeros(self.obs_size, np.float32)
            if alive and name in self.seen:
                flat = np.asarray(self.seen[name], np.float32).ravel()
                row[: flat.size] = flat
            rows.append(row)
        return rows

    def get_state(self) -> np.ndarray:
        return np.concatenate(self.get_obs())

    def get_avail_actions(self) -> np.ndarray:
        """What each has; of that what its mask allows, where it has one; who is gone can only do nothing."""
        available = np.arange(self.n_actions) < np.array(self.actions)[:, None]
        for i, name in enumerate(self.names):
            mask = self.infos.get(name, {}).get("action_mask")
            if mask is not None and np.any(mask):
                available[i, : self.actions[i]] &= np.asarray(mask, bool)
            if not self.alive[i]:
                available[i] = np.arange(self.n_actions) == 0
        return available

    def get_alive(self) -> np.ndarray:
        return self.alive

    def get_env_info(self) -> dict[str, int]:
        n = len(self.names)
        return {
            "n_agents": n,
            "n_actions": self.n_actions,
            "obs_shape": self.obs_size,
            "state_shape": n * self.obs_size,
            "episode_limit": self.episode_limit,
        }

    def close(self) -> None:
        self.game.close()


def open_pettingzoo(env_args: Mapping[str, Any], seed: int) -> PettingZooGame:
    """`name` is a module with a `parallel_env` (mpe2.simple_tag_v3); everything else is handed to it."""
    settings = dict(env_args)
    name, limit = settings.pop("name", None), settings.pop("episode_limit", None)
    choose(dict.fromkeys(KINDS), settings.pop("kind", "mixed"), "env_args.kind")
    if not isinstance(name, str):
        raise UserError("which world? Add with env_args.name=mpe2.simple_tag_v3 (a module that has a parallel_env).")
    try:
        make = importlib.import_module(name).parallel_env
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UserError(
            f"there is no PettingZoo world {name!r}: it must be a module with a parallel_env, like mpe2.simple_tag_v3 "
            "(pip install mpe2)."
        ) from error
    try:
        game = make(**settings)
    except TypeError as error:
        raise UserError(f"{name} does not take these settings: {error}.") from error
    limit = limit or settings.get("max_cycles") or getattr(game.unwrapped, "max_cycles", None)
    if not isinstance(limit, int) or limit < 1:
        raise UserError(f"how long may an episode of {name} last? Add with env_args.episode_limit=100.")
    return PettingZooGame(game, limit, seed)


class PettingZooWorld(HostWorld):
    """A parallel environment, played by `runner: episode` or `runner: parallel`."""

    def __init__(self, env_args: Mapping[str, Any]):
        world = open_pettingzoo(env_args, 0)
        self.spec = self.sizes("pettingzoo", world, env_args.get("kind", "mixed"))
        world.close()
