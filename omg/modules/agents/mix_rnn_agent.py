"""The recurrent agent for several embeddings side by side (`am_model: mix_am`): it learns how to mix them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.layers import Linear
from omg.modules.agents.rnn_agent import AgentSettings, Layout, RNNAgent
from omg.utils.settings import setting

PARTS = 4
"""Embeddings at the end of the input."""


@dataclass(frozen=True)
class MixSize:
    """Shared by the agent and the agent model."""

    mix_embed_dim: int = setting(16, "mix_am: size of each of its embeddings", above=0)


@dataclass(frozen=True)
class MixAgentSettings(AgentSettings, MixSize):
    """Those of the recurrent agent, and the size of an embedding."""


class MixRNNAgent(RNNAgent):
    """The embeddings enter as a weighted sum; the weights are a softmax of all inputs."""

    Settings: ClassVar[type[AgentSettings]] = MixAgentSettings

    gate: Linear
    size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        n_actions: int,
        n_agents: int,
        settings: MixAgentSettings,
        key: Array,
        layout: Layout = (),
    ):
        self.size = settings.mix_embed_dim
        k_agent, k_gate = jax.random.split(key)
        super().__init__(input_size - (PARTS - 1) * self.size, n_actions, n_agents, settings, k_agent)
        self.gate = Linear(input_size, PARTS, k_gate, settings.output_gain if settings.init == "orthogonal" else None)

    def mixed(self, inputs: Float[Array, "*rows input"]) -> Float[Array, "*rows mixed"]:
        """The own input and the weighted sum."""
        own, flat = inputs[..., : -PARTS * self.size], inputs[..., -PARTS * self.size :]
        weights = jax.nn.softmax(self.gate(inputs), -1)[..., None]
        parts = flat.reshape(*flat.shape[:-1], PARTS, self.size)
        return jnp.concatenate([own, PARTS * (weights * parts).sum(-2)], -1)

    def step(self, inputs, hidden, seats=None):
        return super().step(self.mixed(inputs), hidden, seats)

    def unroll(self, inputs, hidden):
        return super().unroll(self.mixed(inputs), hidden)
