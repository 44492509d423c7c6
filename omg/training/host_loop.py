"""Training on environments in Python: the runner plays, the compiled program stores and learns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from omg.runners import EpisodeStats
from omg.training.loop import Report, Totals, TrainingLoop, TrainState


class HostLoop(TrainingLoop):
    """The same iterations, with playing between two calls of the compiled part."""

    # When the environments fail, the state before the call is still complete.
    at_most = 1

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.absorb = jax.jit(self._absorb, donate_argnums=0)

    def run(
        self, state: TrainState, episode: int, iterations: int, totals: Totals | None = None
    ) -> tuple[TrainState, Totals]:
        totals = self.no_totals() if totals is None else totals
        for i in range(iterations):
            before = episode + i * self.collected
            k_play, k_sample = jax.random.split(jax.random.fold_in(self.keys, before // self.collected + 1))
            acting = self.learner.acting(state.learner)
            number = before // self.collected
            batch, stats = self.runner.run(acting, state.t_env, k_play, test_mode=False, number=number)
            state, new = self.absorb(state, batch, stats, jnp.int32(before), k_sample, jnp.asarray(False))
            totals = jax.tree.map(jnp.add, totals, new)
        return state, totals

    def test(
        self, state: TrainState, number: int, episodes: int, report: Report = None
    ) -> tuple[TrainState, EpisodeStats]:
        return state, self.evaluate(self.learner.acting(state.learner), number, episodes, report)

    def evaluate(self, acting: Any, number: int, episodes: int, report: Report = None) -> EpisodeStats:
        key = jax.random.fold_in(jax.random.fold_in(self.keys, 2**31 - 1), number)
        played = [
            jax.device_get(self.runner.run(acting, jnp.int32(0), self._key_of(key, r), True, number=r)[1])
            for r in self.collections(episodes, report)
        ]
        return self._first_of(played, episodes)

    @staticmethod
    def _key_of(key: Array, collection: int) -> Array:
        """The key of one collection of a test, as in the compiled loop."""
        return jax.random.split(jax.random.fold_in(key, collection + 1))[0]
