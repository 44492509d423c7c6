"""The oracle: the policy is given the identity of its partners. A bound on what modelling them can bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from omg.envs.multiagentenv import Spec
from omg.modules.am.base import AgentModel, Inferred
from omg.utils.settings import fill, setting


@dataclass(frozen=True)
class OracleSettings:
    identities: int = setting(0, "number of members of the pool, for am_model oracle_am; set by --pool", low=0)


class OracleAM(AgentModel):
    """The embedding is the identity of the partners, one-hot, which comes as the prior and never changes."""

    Settings = OracleSettings
    given_identity = True

    def __init__(self, spec: Spec, own_size: int, config: Mapping[str, Any]):
        super().__init__(spec, own_size, config)
        self.output_size = self.hidden_size = fill(OracleSettings, config).identities

    @property
    def prior_size(self) -> int:
        return self.output_size

    def init_memory(self, params, prior):
        return prior

    def infer(self, params, seen, memory):
        return memory, memory

    def infer_all(self, params, seen, memory):
        return Inferred(jnp.broadcast_to(memory, (len(seen.own), *memory.shape)))

    def loss(self, params, seen, batch, inferred, chosen, key):
        return jnp.zeros(()), {}
