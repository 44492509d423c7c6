"""Value decomposition: the team's value is the sum of the agents' values."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
from jaxtyping import Array, Float

from omg.envs.multiagentenv import Spec


@dataclass(frozen=True)
class VDNSettings:
    """No settings."""


class VDNMixer(eqx.Module):
    Settings = VDNSettings

    def __init__(self, spec: Spec, settings: VDNSettings, key: Array):
        pass

    def __call__(
        self, agent_qs: Float[Array, "*rows agent"], state: Float[Array, "*rows state"]
    ) -> Float[Array, "*rows"]:
        return agent_qs.sum(-1)
