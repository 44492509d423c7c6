"""No agent model: the policy gets an empty extra input."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from omg.modules.am.base import AgentModel, Inferred


@dataclass(frozen=True)
class NoSettings:
    """No settings."""


class NoneAM(AgentModel):
    Settings = NoSettings

    def infer(self, params, seen, memory):
        return jnp.zeros((*seen.own.shape[:-1], 0)), memory

    def infer_all(self, params, seen, memory):
        return Inferred(jnp.zeros((*seen.own.shape[:-1], 0)))

    def loss(self, params, seen, batch, inferred, chosen, key):
        return jnp.zeros(()), {}
