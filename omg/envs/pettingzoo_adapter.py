"""PettingZoo in both directions: our environments as `ParallelEnv`, and parallel environments of PettingZoo as ours.

PettingZoo is an optional package; this module is imported only where it is needed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from omg.envs import trust
from omg.envs.host import HostEnv
from omg.envs.multiagentenv import MultiAgentEnv, check_game_type
from omg.envs.packages import missing_package
from omg.utils.settings import UserError, convert

if trust.in_current_folder("pettingzoo"):
    raise UserError("pettingzoo in the current folder hides the package PettingZoo: rename it or use another folder.")

try:
    import gymnasium
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise missing_package(
        "this", "pettingzoo", "pip install pettingzoo mpe2 (or pip install 'omg-marl[pettingzoo]')", error
    ) from error


MASK = "action_mask"


class ToParallelEnv(ParallelEnv):
    """One of our environments as a `ParallelEnv`. The info of an agent has its available actions as `action_mask`.

    If an action is not available, the first available action replaces it.
    """

    def __init__(self, env: MultiAgentEnv, seed: int = 0, render_mode: str | None = None):
        spec = env.spec
        self.env, self.spec, self.render_mode = env, spec, render_mode
        self.metadata = {"name": f"{spec.name}_v0", "render_modes": ["rgb_array"], "is_parallelizable": True}
        self.possible_agents = [f"agent_{i}" for i in range(spec.n_agents)]
        self.agents: list[str] = []
        self._reset, self._step = jax.jit(env.reset), jax.jit(env.step)
        self._key = jax.random.key(seed)
        self._next_key()

    def _next_key(self) -> jax.Array:
        self._key, key = jax.random.split(self._key)
        return key

    @functools.cache  # noqa: B019 (PettingZoo requires the same object at every call)
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
        self._state, timestep = self._reset(self._next_key())
        self._timestep, self._t = jax.device_get(timestep), 0
        self.agents = list(self.possible_agents)
        return self._observations(self.agents), self._infos(self.agents)

    def step(self, actions: Mapping[str, int]) -> tuple[dict, dict, dict, dict, dict]:
        acted, available = list(self.agents), self._timestep.avail_actions
        chosen = available.argmax(-1).astype(np.int32)
        for i, name in enumerate(self.possible_agents):
            if name in actions and available[i, int(actions[name])]:
                chosen[i] = int(actions[name])
        self._state, timestep = self._step(self._state, chosen, self._next_key())
        self._timestep, self._t = jax.device_get(timestep), self._t + 1
        ended = bool(self._timestep.terminated)
        at_limit = not ended and self._t >= self.spec.episode_limit
        index = {name: self.possible_agents.index(name) for name in acted}
        terminated = {name: ended or not bool(self._timestep.alive[i]) for name, i in index.items()}
        truncated = {name: at_limit and not terminated[name] for name in acted}
        rewards = {name: float(self._timestep.reward[i]) for name, i in index.items()}
        self.agents = [name for name in acted if not terminated[name] and not truncated[name]]
        return self._observations(acted), rewards, terminated, truncated, self._infos(acted)

    def _observations(self, names: list[str]) -> dict[str, np.ndarray]:
        return {name: np.asarray(self._timestep.obs[self.possible_agents.index(name)], np.float32) for name in names}

    def _infos(self, names: list[str]) -> dict[str, dict]:
        masks = self._timestep.avail_actions.astype(np.int8)
        return {name: {MASK: masks[self.possible_agents.index(name)]} for name in names}

    def state(self) -> np.ndarray:
        return np.asarray(self._timestep.state, np.float32)

    def render(self) -> np.ndarray | None:
        picture = self.env.render(self._state)
        return None if picture is None else np.asarray(picture)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


class View:
    """An agent's observation space as one vector.

    Frames (three axes of bytes) come first, shrunk and between 0 and 1; everything else follows as it is.
    """

    def __init__(self, agent: str, space: Any, shrink: int, hidden: Collection[str] = ()):
        self.shrink, self.is_dict = shrink, isinstance(space, gymnasium.spaces.Dict)
        shown = space.spaces if self.is_dict else {"": space}
        spaces = {k: v for k, v in shown.items() if k not in (MASK, *hidden)}
        for one in spaces.values():
            if not isinstance(one, gymnasium.spaces.Box):
                raise UserError(f"the observation space of {agent} is {space}; only Box and Dict of Box are supported.")
        self.frames = [k for k, one in spaces.items() if len(one.shape) == 3 and one.dtype == np.uint8]
        self.others = [k for k in spaces if k not in self.frames]
        smallest = min((n for k in self.frames for n in spaces[k].shape[:2]), default=shrink)
        if not 1 <= shrink <= smallest:
            raise UserError(f"env_args.shrink takes a number from 1 to {smallest} here, not {shrink}.")
        sizes = {k: shrunk(np.zeros(spaces[k].shape, np.uint8), shrink).shape for k in self.frames}
        sizes |= {k: spaces[k].shape for k in self.others}
        self.layout = tuple((k or "obs", sizes[k]) for k in (*self.frames, *self.others))
        self.size = sum(int(np.prod(shape)) for _, shape in self.layout)

    def vector(self, observation: Any) -> np.ndarray:
        shown = observation if self.is_dict else {"": observation}
        frames = [shrunk(np.asarray(shown[k]), self.shrink) for k in self.frames]
        others = [np.asarray(shown[k], np.float32) for k in self.others]
        return np.concatenate([x.ravel() for x in (*frames, *others)])


def shrunk(pixels: np.ndarray, by: int) -> np.ndarray:
    """A frame of bytes as colours between 0 and 1: means of `by` × `by` pixels. Its last rows and columns are repeated
    where they do not suffice."""
    height, width, channels = pixels.shape
    pixels = np.pad(pixels, ((0, -height % by), (0, -width % by), (0, 0)), "edge").astype(np.float32)
    blocks = pixels.reshape(-(-height // by), by, -(-width // by), by, channels)
    return blocks.mean((1, 3)) / 255


class PettingZooGame:
    """A parallel environment with discrete actions, with SMAC's interface.

    Observations and action sets are padded to one size and masked. `shrink` is for frames; components of observations
    in `hidden` are left out.
    """

    def __init__(self, game: Any, episode_limit: int, seed: int = 0, shrink: int = 1, hidden: Collection[str] = ()):
        self.game, self.episode_limit, self._seed, self.shrink = game, episode_limit, seed, shrink
        self.names = list(game.possible_agents)
        spaces = {name: game.action_space(name) for name in self.names}
        for name, actions in spaces.items():
            if not isinstance(actions, gymnasium.spaces.Discrete):
                raise UserError(f"the action space of {name} is {actions}; only discrete action spaces are supported.")
        self.views = [View(name, game.observation_space(name), shrink, hidden) for name in self.names]
        self.actions = [int(actions.n) for actions in spaces.values()]
        self.starts = [int(actions.start) for actions in spaces.values()]
        self.n_actions, self.obs_size = max(self.actions), max(view.size for view in self.views)
        alike = all(view.layout == self.views[0].layout for view in self.views)
        self.layout = self.views[0].layout if alike else ()

    def reset(self, key: Any = None) -> None:
        seed = self._seed if key is None else int(np.asarray(jax.random.key_data(key)).astype(np.uint32)[-1] >> 1)
        self._seed += 1
        self.obs, self.infos = self.game.reset(seed=seed)
        self.alive = np.array([name in self.game.agents for name in self.names])

    def step(self, actions: list[int]) -> tuple[float, bool, dict[str, Any]]:
        """One step. Agents that are done do not act.

        Returns:
            The sum of the rewards, whether the episode ended (terminated or truncated), and `info`.
        """
        playing = set(self.game.agents)
        chosen = {
            n: int(a) + self.starts[i] for i, (n, a) in enumerate(zip(self.names, actions, strict=True)) if n in playing
        }
        self.obs, rewards, terminated, truncated, self.infos = self.game.step(chosen)
        self.alive = np.array([n in self.game.agents for n in self.names])
        each = np.array([float(rewards.get(n, 0.0)) for n in self.names], np.float32)
        ended = not self.game.agents
        info: dict[str, Any] = {"agent_rewards": each}
        if ended:
            # The end of the episode is not a death. An agent died only if it terminated while others were truncated.
            cut = any(truncated.values()) and not all(terminated.values())
            self.alive = np.array([n in playing and not (cut and terminated.get(n, False)) for n in self.names])
            info["episode_limit"] = cut
        return float(each.sum()), ended, info

    def get_obs(self) -> list[np.ndarray]:
        rows = []
        for name, view, alive in zip(self.names, self.views, self.alive, strict=True):
            row = np.zeros(self.obs_size, np.float32)
            if alive and name in self.obs:
                row[: view.size] = view.vector(self.obs[name])
            rows.append(row)
        return rows

    def get_state(self) -> np.ndarray:
        return np.concatenate(self.get_obs())

    def get_avail_actions(self) -> np.ndarray:
        """`[agent, action]`: the agent's action set, restricted by its `action_mask` if it has one.

        The mask is in the agent's info or in its observation. Agents that are done have only action 0.
        """
        available = np.arange(self.n_actions) < np.array(self.actions)[:, None]
        for i, name in enumerate(self.names):
            mask = self.infos.get(name, {}).get(MASK)
            if mask is None and self.views[i].is_dict:
                mask = self.obs.get(name, {}).get(MASK)
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
    """Opens a parallel environment.

    Args:
        env_args: `name` is a module with a `parallel_env` (mpe2.simple_tag_v3). `episode_limit`, `game_type`,
            `shrink`, `obs_layout`, `agents_in_obs` and `cell_size` belong to this adapter. All other settings are
            passed to `parallel_env`.
        seed: the seed of the first episode.
    """
    settings = dict(env_args)
    name, limit = settings.pop("name", None), settings.pop("episode_limit", None)
    shrink = convert(settings.pop("shrink", 1), int, "env_args.shrink")
    check_game_type(settings.pop("game_type", "mixed"))
    for key in ("obs_layout", "agents_in_obs", "cell_size"):
        settings.pop(key, None)
    if not isinstance(name, str):
        raise UserError("env_args.name is missing: add with env_args.name=mpe2.simple_tag_v3.")
    no_environment = (
        f"there is no PettingZoo environment {name!r}: the name must be a module with a parallel_env, as in "
        "env_args.name=mpe2.simple_tag_v3 (pip install pettingzoo mpe2)."
    )
    if not all(word.isidentifier() for word in name.split(".")):
        raise UserError(no_environment)
    trust.check(name)
    try:
        with _current_folder(name in trust.allowed()):
            make = importlib.import_module(name).parallel_env
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UserError(no_environment) from error
    try:
        game = make(**settings)
    except TypeError as error:
        raise UserError(f"{name} does not accept these settings: {error}.") from error
    limit = limit or settings.get("max_cycles") or getattr(game.unwrapped, "max_cycles", None)
    if not isinstance(limit, int) or limit < 1:
        raise UserError(f"{name} has no time limit: add with env_args.episode_limit=100.")
    return PettingZooGame(game, limit, seed, shrink)


@contextlib.contextmanager
def _current_folder(importable: bool) -> Iterator[None]:
    """Lets Python import modules of the current folder, which the program `omg` cannot by itself."""
    folder = str(Path.cwd())
    if not importable or folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


class PettingZooEnv(HostEnv):
    """A parallel environment of PettingZoo, run by `runner: episode` or `runner: parallel`."""

    def __init__(self, env_args: Mapping[str, Any]):
        env = open_pettingzoo(env_args, 0)
        sizes = self.sizes("pettingzoo", env, check_game_type(env_args.get("game_type", "mixed")))
        env.close()
        layout = _layout(env_args.get("obs_layout"), sizes.obs_size) or env.layout
        agents = env_args.get("agents_in_obs") or ""
        if agents not in ("", *(name for name, _ in layout)):
            raise UserError(f"env_args.agents_in_obs is {agents!r}; obs_layout has {', '.join(n for n, _ in layout)}.")
        cell = convert(env_args.get("cell_size") or 0.0, float, "env_args.cell_size")
        self.spec = replace(sizes, obs_layout=layout, agents_in_obs=agents, cell_size=cell)


def _layout(given: Any, obs_size: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The components of an observation from `env_args.obs_layout`: names and shapes."""
    if given is None:
        return ()
    example = "{hunters: [4, 3], time: [1]}"
    if not isinstance(given, Mapping):
        raise UserError(f"env_args.obs_layout gives the shape of every component, as in {example}, not {given!r}.")
    layout = []
    for name, shape in given.items():
        if not isinstance(shape, list) or not shape or not all(type(n) is int and n > 0 for n in shape):
            raise UserError(f"env_args.obs_layout.{name} is a shape, as in {example}, not {shape!r}.")
        layout.append((str(name), tuple(shape)))
    size = sum(math.prod(shape) for _, shape in layout)
    if size != obs_size:
        raise UserError(f"env_args.obs_layout describes {size} numbers, and an observation has {obs_size}.")
    return tuple(layout)
