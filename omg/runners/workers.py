"""An environment in a process of its own: called over a pipe, replaced when it dies or hangs."""

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

from omg.envs import to_smac, trust
from omg.envs.host import open_sc2
from omg.utils.plugins import load_plugins


class Recipe(NamedTuple):
    """What a process needs to build the environment: modules to import first, and modules the user trusts."""

    env: str
    env_args: Mapping[str, Any]
    seed: int
    imports: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()


class Shown(NamedTuple):
    """What an environment returns: after reset, or after a step."""

    obs: np.ndarray
    state: np.ndarray
    avail_actions: np.ndarray
    alive: np.ndarray
    reward: np.ndarray
    over: bool = False
    terminated: bool = False
    info: Mapping[str, float] = {}


GRACE = 5.0
"""Seconds that a process gets to close its environment."""


class EnvLost(Exception):
    """An environment died, hung or raised an error in the middle of an episode."""


def open_env(recipe: Recipe) -> Any:
    """An environment with SMAC's methods: of SMAC, PettingZoo or Melting Pot, or one of ours behind its interface."""
    load_plugins(recipe.imports)
    for module in recipe.trusted:
        trust.allow(module)
    if recipe.env == "sc2":
        return open_sc2(recipe.env_args, recipe.seed)
    if recipe.env == "pettingzoo":
        from omg.envs.pettingzoo_adapter import open_pettingzoo

        return open_pettingzoo(recipe.env_args, recipe.seed)
    if recipe.env == "melting_pot":
        from omg.envs.melting_pot import open_melting_pot

        return open_melting_pot(recipe.env_args, recipe.seed)
    return to_smac(recipe.env, recipe.seed, **recipe.env_args)


class LocalEnv:
    """An environment in this process."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.env = open_env(recipe)
        self.answer: Shown | str = "not asked yet"

    def ask(self, actions: np.ndarray | None, key: np.ndarray | None = None) -> None:
        """Reset (without actions), or one step."""
        self.answer = answer(self.env, actions, key)

    def hear(self) -> Shown:
        if isinstance(self.answer, str):
            raise EnvLost(self.answer)
        return self.answer

    def replace(self) -> None:
        self.close()
        self.env = open_env(self.recipe)

    def close(self) -> None:
        self.env.close()


class RemoteEnv:
    """The same in another process."""

    def __init__(self, recipe: Recipe, timeout: float):
        self.recipe, self.timeout = recipe, timeout
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.recipe), daemon=True)
        # Environments run on the CPU there, whatever device this process learns on.
        before = os.environ.get("JAX_PLATFORMS")
        os.environ["JAX_PLATFORMS"] = "cpu"
        try:
            self.process.start()
        finally:
            os.environ.pop("JAX_PLATFORMS") if before is None else os.environ.update(JAX_PLATFORMS=before)
        theirs.close()

    def ask(self, actions: np.ndarray | None, key: np.ndarray | None = None) -> None:
        # A broken pipe means that the process ended; `hear` reports it.
        with contextlib.suppress(BrokenPipeError, OSError):
            self.pipe.send((actions, key))

    def hear(self) -> Shown:
        try:
            if not self.pipe.poll(self.timeout):
                raise EnvLost(f"no answer for {self.timeout:g} seconds")
            answer = self.pipe.recv()
        except (EOFError, OSError) as error:
            self.process.join(5)
            raise EnvLost(f"its process ended (exit code {self.process.exitcode})") from error
        if isinstance(answer, str):
            raise EnvLost(answer)
        return answer

    def replace(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        """Asks the process to close its environment (SMAC's game is a further process), and kills it if it does not."""
        with contextlib.suppress(BrokenPipeError, OSError):
            self.pipe.send(None)
        self.process.join(GRACE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def serve(pipe: Any, recipe: Recipe) -> None:
    """The loop of the other process: answers until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    env = None
    try:
        while (question := pipe.recv()) is not None:
            try:
                env = env or open_env(recipe)
            except Exception as error:  # any failure is reported to the main process
                pipe.send(f"{type(error).__name__}: {error}")
                continue
            pipe.send(answer(env, *question))
    except (EOFError, OSError):
        return
    finally:
        if env is not None:
            env.close()


def answer(env: Any, actions: np.ndarray | None, key: np.ndarray | None) -> Shown | str:
    """The environment's answer, or the error as text."""
    try:
        return reset(env, key) if actions is None else step(env, actions)
    except Exception as error:  # as above
        return f"{type(error).__name__}: {error}"


def reset(env: Any, key: np.ndarray | None) -> Shown:
    """A new episode. Environments of ours take a key; SMAC continues its own random sequence."""
    if hasattr(env, "get_alive") and key is not None:
        env.reset(jax.random.wrap_key_data(jnp.asarray(key)))
    else:
        env.reset()
    n = env.get_env_info()["n_agents"]
    return show(env, np.zeros(n, np.float32), False, {})


def step(env: Any, actions: np.ndarray) -> Shown:
    reward, over, info = env.step(actions.tolist())
    if over and not info:
        # SMAC returns this after its game crashed and was restarted.
        raise EnvLost("the game was lost")
    n = len(actions)
    rewards = np.asarray(info.get("agent_rewards", np.full(n, reward)), np.float32)
    return show(env, rewards, bool(over), info)


def show(env: Any, reward: np.ndarray, over: bool, info: Mapping[str, Any]) -> Shown:
    available = np.asarray(env.get_avail_actions(), bool)
    # In SMAC dead agents are those whose only available action is no-op.
    alive = env.get_alive() if hasattr(env, "get_alive") else available[:, 1:].any(-1)
    numbers = {k: float(v) for k, v in info.items() if np.ndim(v) == 0 and k != "episode_limit"}
    in_time = over and not info.get("episode_limit", False)
    obs, state = np.asarray(env.get_obs(), np.float32), np.asarray(env.get_state(), np.float32)
    return Shown(obs, state, available, np.asarray(alive, bool), reward, over, in_time, numbers)
