"""LIAM (Papoudakis et al., 2021): an embedding of the own history that reconstructs the others' obs and actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from omg.components.layers import GRU, MLP, Linear, unroll_rows
from omg.envs.multiagentenv import Spec
from omg.modules.am.base import AgentModel, Inferred
from omg.modules.am.base_am import action_loss, observation_loss
from omg.utils.settings import fill, setting


@dataclass(frozen=True)
class LIAMSettings:
    am_hidden_dim: int = setting(64, "units of the agent model's memory", above=0)
    am_loss_coef: float = setting(1.0, "weight of the agent model's own loss", low=0)
    liam_embed_dim: int = setting(32, "size of LIAM's embedding", above=0)


class LIAMNetwork(eqx.Module):
    """The encoder (own history → z) and the decoder (z → the others' observations and actions)."""

    fc1: Linear
    rnn: GRU
    to_z: Linear
    decoder: MLP

    def __init__(self, input_size: int, hidden: int, embed: int, output_size: int, key: Array):
        k_in, k_rnn, k_z, k_decoder = jax.random.split(key, 4)
        self.fc1 = Linear(input_size, hidden, k_in)
        self.rnn = GRU(hidden, hidden, k_rnn)
        self.to_z = Linear(hidden, embed, k_z)
        self.decoder = MLP((embed, hidden, output_size), k_decoder)


class LIAM(AgentModel):
    Settings = LIAMSettings

    def __init__(self, spec: Spec, own_size: int, config: Mapping[str, Any]):
        super().__init__(spec, own_size, config)
        self.settings = fill(LIAMSettings, config)
        self.hidden_size = self.settings.am_hidden_dim
        self.output_size = self.settings.liam_embed_dim

    def init(self, key):
        decoded = (self.spec.n_agents - 1) * (self.spec.obs_size + self.spec.n_actions)
        return {"liam_am": LIAMNetwork(self.own_size, self.hidden_size, self.output_size, decoded, key)}

    def infer(self, params, seen, memory):
        net = params["liam_am"]
        memory = net.rnn.step(jax.nn.relu(net.fc1(seen.own)), memory)
        return net.to_z(memory), memory

    def infer_all(self, params, seen, memory):
        net = params["liam_am"]
        hidden = unroll_rows(net.rnn, jax.nn.relu(net.fc1(seen.own)), memory)
        return Inferred(net.to_z(hidden), memory=hidden)

    def loss(self, params, seen, batch, inferred, chosen, key):
        """Squared error of the others' observations and cross-entropy of their actions."""
        obs, logits = self._decode(params, inferred.embedding)
        obs_loss = observation_loss(obs, batch)
        act_loss, accuracy = action_loss(logits, batch)
        metrics = {"am_loss": obs_loss + act_loss, "am_obs_loss": obs_loss, "action_accuracy": accuracy}
        return self.settings.am_loss_coef * (obs_loss + act_loss), metrics

    def predicted_actions(self, params, inferred):
        return jax.nn.softmax(self._decode(params, inferred.embedding)[1], -1)

    def _decode(self, params, z: Array) -> tuple[Array, Array]:
        others = params["liam_am"].decoder(z).reshape(*z.shape[:-1], self.spec.n_agents - 1, -1)
        return others[..., : self.spec.obs_size], others[..., self.spec.obs_size :]
