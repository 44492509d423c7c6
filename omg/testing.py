"""Tests: whole episodes with a team's networks, all of them at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from omg.runners import EpisodeStats, TeamRunner, VectorRunner


class Tester:
    """Plays test episodes with a team's networks, all of them at once."""

    def __init__(self, runner: VectorRunner | TeamRunner, keys: Array):
        self.runner = runner
        self.keys = keys
        self.compiled = jax.jit(self._play)

    def play(self, agent: Any, number: int) -> EpisodeStats:
        """The `number`-th test of a run: the same worlds whenever it is asked for."""
        return jax.device_get(self.compiled(agent, jnp.int32(number), self.runner.policies))

    def _play(self, agent: Any, number: Array, policies: Any) -> EpisodeStats:
        # Apart from the keys of training, which count upwards from 0.
        keys = self.runner.each(lambda key: jax.random.fold_in(jax.random.fold_in(key, 2**31 - 1), number))(self.keys)
        t_env = self.runner.each(lambda key: jnp.int32(0))(self.keys)
        return self.runner.run(agent, t_env, keys, test_mode=True, keep=False, policies=policies, number=number)[1]
