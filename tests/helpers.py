"""Shared by tests: a configuration in one line, training without files, and scripted teams to compare with."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.build import Experiment, args_sanity_check, build, resolve
from omg.components.episode_buffer import make_scheme
from omg.config import Command, load
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import MultiAgentEnv, make
from omg.evaluation.metrics import summarise
from omg.opponents import REGISTRY as scripted
from omg.runners import VectorRunner
from omg.training.loop import TrainState
from omg.training.trainer import Trainer


def configuration(config: str, env_config: str, **updates: Any) -> dict[str, Any]:
    """The resolved configuration of `omg train`; `env_args__food=2` stands for `env_args.food=2`."""
    words = [(key.replace("__", "."), value) for key, value in updates.items()]
    command = Command(config=config, env_config=env_config, updates=words)
    return args_sanity_check(resolve(load(command), command.typed_keys())[0])[0]


def learn(config: str, env_config: str, **updates: Any) -> list[float]:
    """Trains for `t_max` steps per seed and returns each seed's mean test return."""
    experiment = build(configuration(config, env_config, **updates))
    return test_returns(experiment, train(experiment)[0])[1]


def train(experiment: Experiment, state: TrainState | None = None, episode: int = 0) -> tuple[TrainState, int]:
    """Trains until `t_max` steps per seed, from a state that has collected `episode` episodes."""
    state = experiment.loop.init() if state is None else state
    while True:
        t_env = int(np.mean(np.asarray(state.t_env)))
        if t_env >= experiment.settings.t_max:
            return state, episode
        iterations = max(1, (experiment.settings.t_max - t_env) // experiment.loop.steps_per_iteration)
        state, _ = experiment.loop.run(state, episode, iterations)
        episode += iterations * experiment.loop.collected


def test_returns(experiment: Experiment, state: TrainState) -> tuple[TrainState, list[float]]:
    """The mean return of `test_nepisode` test episodes of each seed. The state is donated."""
    state, stats = experiment.loop.test(state, 0, experiment.settings.test_nepisode)
    summaries = summarise(experiment.spec, stats, experiment.loop.n_seeds)
    return state, [summary["test_return_mean"] for summary in summaries]


test_returns.__test__ = False  # type: ignore[attr-defined]


def scripted_return(env: MultiAgentEnv, policy: str, episodes: int = 512) -> float:
    """The mean return of a team in which all agents follow the same scripted policy."""
    mac = ScriptedMAC(env.spec, scripted[env.spec.name][policy](env.spec))
    runner = VectorRunner(env, mac, *make_scheme(env.spec), episodes)
    stats = jax.jit(lambda key: runner.play(None, jnp.int32(0), key, True, keep=False).stats)(jax.random.key(0))
    return float(env.spec.team_reward(stats.agent_returns).mean())


def or_slow(*quick: Any, slow: Sequence[Any]) -> list[Any]:
    """Parameters of a test, of which the slow ones are left to `make test-all`."""
    rows = [value if isinstance(value, tuple) else (value,) for value in slow]
    return [*quick, *(pytest.param(*row, marks=pytest.mark.slow) for row in rows)]


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """What `make` makes in a new folder; the processes of one run of the suite share it, and the first one makes it."""
    base = factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / f"shared_{name}"
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = folder / "made"
        if not note.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            note.write_text(str(make(folder)))
        return Path(note.read_text())


def interrupt_at(monkeypatch: pytest.MonkeyPatch, t_env: int) -> None:
    """Ctrl-C in the middle of a training run, as soon as it has counted `t_env` environment steps."""
    count = Trainer._count

    def then_interrupt(trainer: Trainer, *arguments: Any) -> None:
        count(trainer, *arguments)
        if trainer.counters.t_env >= t_env:
            signal.raise_signal(signal.SIGINT)

    # One iteration per call, so that the run stops near this step.
    monkeypatch.setattr("omg.training.trainer.SECONDS_PER_CALL", 0.0)
    monkeypatch.setattr(Trainer, "_count", then_interrupt)


__all__ = [
    "configuration",
    "interrupt_at",
    "learn",
    "made_once",
    "make",
    "or_slow",
    "scripted_return",
    "test_returns",
    "train",
]
