"""No agent model: the policy gets an empty vector."""

from __future__ import annotations

import jax.numpy as jnp

from omg.modules.am.base import AgentModel, Inferred


class NoneAM(AgentModel):
    """The interface of an agent model with nothing behind it."""

    class Settings:
        """Nothing to set."""

    def infer(self, params, seen, memory):
        return jnp.zeros((*seen.own.shape[:-1], 0)), memory

    def infer_all(self, params, seen, memory):
        return Inferred(jnp.zeros((*seen.own.shape[:-1], 0)))

    def loss(self, params, seen, batch, inferred, chosen, key):
        return jnp.zeros(()), {}
