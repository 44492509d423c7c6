"""Training and tests where worlds run in Python: the compiled program keeps and learns, the runner plays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from omg.runners import EpisodeStats
from omg.runners.host_runner import HostRunner
from omg.training import Totals, TrainingLoop, TrainState


class HostLoop(TrainingLoop):
    """The same iterations, with playing between two calls of the compiled part."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.absorb = jax.jit(self._absorb, donate_argnums=0)
        # When worlds give up, the state before the call is still whole.
        self.at_most = 1

    def run(self, state: TrainState, episode: int, iterations: int) -> tuple[TrainState, Totals]:
        totals: Any = None
        for i in range(iterations):
            before = episode + i * self.collected
            key = jax.random.fold_in(self.keys, before // self.collected + 1)
            k_play, k_sample = jax.random.split(key)
            acting = self.learner.acting(state.learner)
            batch, stats = self.runner.run(acting, state.t_env, k_play, test_mode=False)
            state, new = self.absorb(state, batch, stats, jnp.int32(before), k_sample)
            totals = new if totals is None else jax.tree.map(jnp.add, totals, new)
        return state, totals


class HostTester:
    """As many rounds of the runner's worlds as make up the test."""

    def __init__(self, runner: HostRunner, keys: Any, episodes: int):
        self.runner, self.keys = runner, keys
        self.rounds = max(1, episodes // runner.batch_size)

    def play(self, agent: Any, number: int) -> EpisodeStats:
        key = jax.random.fold_in(jax.random.fold_in(self.keys, 2**31 - 1), number)
        played = [
            self.runner.run(agent, jnp.int32(0), jax.random.fold_in(key, r), True, keep=False)[1]
            for r in range(self.rounds)
        ]
        return jax.tree.map(lambda *x: np.concatenate([np.asarray(part) for part in x]), *played)
