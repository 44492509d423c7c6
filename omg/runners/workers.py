"""A world in a process of its own: asked over a pipe, replaced when it dies or hangs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from omg.envs import to_smac
from omg.envs.host import open_sc2


class Recipe(NamedTuple):
    """What a process needs to make the world by itself."""

    env: str
    env_args: Mapping[str, Any]
    seed: int


class Shown(NamedTuple):
    """What a world shows: at the start of a game, or after a step (with what the step brought)."""

    obs: np.ndarray
    state: np.ndarray
    avail_actions: np.ndarray
    alive: np.ndarray
    reward: np.ndarray
    over: bool = False
    terminated: bool = False
    info: Mapping[str, float] = {}


GRACE = 5.0
"""Seconds that a process has to close its world."""


class WorldLost(Exception):
    """A world that died, hung or raised an error in the middle of a game."""


def open_world(recipe: Recipe) -> Any:
    """A world with SMAC's methods: SMAC's own, one of PettingZoo's, or one of ours behind its interface."""
    if recipe.env == "sc2":
        return open_sc2(recipe.env_args, recipe.seed)
    if recipe.env == "pettingzoo":
        from omg.envs.pettingzoo_worlds import open_pettingzoo

        return open_pettingzoo(recipe.env_args, recipe.seed)
    return to_smac(recipe.env, recipe.seed, **recipe.env_args)


class LocalWorld:
    """A world in this process."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.world = open_world(recipe)
        self.answer: Shown | str = "not asked yet"

    def ask(self, actions: np.ndarray | None, key: np.ndarray | None = None) -> None:
        """A new game (without actions), or one step."""
        self.answer = answer(self.world, actions, key)

    def hear(self) -> Shown:
        if isinstance(self.answer, str):
            raise WorldLost(self.answer)
        return self.answer

    def replace(self) -> None:
        self.close()
        self.world = open_world(self.recipe)

    def close(self) -> None:
        self.world.close()


class RemoteWorld:
    """The same in another process."""

    def __init__(self, recipe: Recipe, timeout: float):
        self.recipe, self.timeout = recipe, timeout
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.recipe), daemon=True)
        # Worlds of ours run on the CPU there, whatever this process learns on.
        before = os.environ.get("JAX_PLATFORMS")
        os.environ["JAX_PLATFORMS"] = "cpu"
        try:
            self.process.start()
        finally:
            os.environ.pop("JAX_PLATFORMS") if before is None else os.environ.update(JAX_PLATFORMS=before)
        theirs.close()

    def ask(self, actions: np.ndarray | None, key: np.ndarray | None = None) -> None:
        # A pipe to a process that is gone: its silence is heard later.
        with contextlib.suppress(BrokenPipeError, OSError):
            self.pipe.send((actions, key))

    def hear(self) -> Shown:
        try:
            if not self.pipe.poll(self.timeout):
                raise WorldLost(f"no answer for {self.timeout:g} seconds")
            answer = self.pipe.recv()
        except (EOFError, OSError) as error:
            self.process.join(5)
            raise WorldLost(f"its process ended (exit code {self.process.exitcode})") from error
        if isinstance(answer, str):
            raise WorldLost(answer)
        return answer

    def replace(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        """Asks the process to close its world (a game is a process of its own); one that does not is killed."""
        with contextlib.suppress(BrokenPipeError, OSError):
            self.pipe.send(None)
        self.process.join(GRACE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def serve(pipe: Any, recipe: Recipe) -> None:
    """The other process: answers until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    world = None
    try:
        while (question := pipe.recv()) is not None:
            try:
                world = world or open_world(recipe)
            except Exception as error:  # whatever is wrong with a world is the other side's to count and to tell
                pipe.send(f"{type(error).__name__}: {error}")
                continue
            pipe.send(answer(world, *question))
    except (EOFError, OSError):
        return
    finally:
        if world is not None:
            world.close()


def answer(world: Any, actions: np.ndarray | None, key: np.ndarray | None) -> Shown | str:
    """What the world shows, or what went wrong."""
    try:
        return reset(world, key) if actions is None else step(world, actions)
    except Exception as error:  # as above
        return f"{type(error).__name__}: {error}"


def reset(world: Any, key: np.ndarray | None) -> Shown:
    """A new game. Worlds of ours play the game of a key; SMAC plays its next."""
    if hasattr(world, "get_alive") and key is not None:
        world.reset(jax.random.wrap_key_data(jnp.asarray(key)))
    else:
        world.reset()
    n = world.get_env_info()["n_agents"]
    return show(world, np.zeros(n, np.float32), False, {})


def step(world: Any, actions: np.ndarray) -> Shown:
    reward, over, info = world.step(actions.tolist())
    if over and not info:
        # What SMAC returns when its game has crashed and was started anew.
        raise WorldLost("the game was lost")
    n = len(actions)
    rewards = np.asarray(info.get("agent_rewards", np.full(n, reward)), np.float32)
    return show(world, rewards, bool(over), info)


def show(world: Any, reward: np.ndarray, over: bool, info: Mapping[str, Any]) -> Shown:
    available = np.asarray(world.get_avail_actions(), bool)
    # In SMAC only the dead have nothing to choose but no-op.
    alive = world.get_alive() if hasattr(world, "get_alive") else available[:, 1:].any(-1)
    numbers = {k: float(v) for k, v in info.items() if np.ndim(v) == 0 and k != "episode_limit"}
    in_time = over and not info.get("episode_limit", False)
    obs, state = np.asarray(world.get_obs(), np.float32), np.asarray(world.get_state(), np.float32)
    return Shown(obs, state, available, np.asarray(alive, bool), reward, over, in_time, numbers)
