"""The recurrent agent: one network shared by all seats. Fully connected → GRU or LSTM → one output per action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from omg.components.layers import GRU, LSTM, Linear
from omg.utils.settings import setting


@dataclass(frozen=True)
class AgentSettings:
    rnn_hidden_dim: int = setting(64, "units of the recurrent layer", above=0)
    rnn_cell: Literal["gru", "lstm"] = setting("gru", "recurrent cell: gru or lstm")


class DuellingHead(eqx.Module):
    """Q = V + A - mean A: a state value and an advantage per action."""

    value: Linear
    advantage: Linear

    def __init__(self, input_size: int, n_actions: int, key: Array):
        k_value, k_advantage = jax.random.split(key)
        self.value = Linear(input_size, 1, k_value)
        self.advantage = Linear(input_size, n_actions, k_advantage)

    def __call__(self, x: Float[Array, "*rows input"]) -> Float[Array, "*rows action"]:
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(-1, keepdims=True)


class RNNAgent(eqx.Module):
    """One network for all seats: batch rows and seats form one axis."""

    Settings = AgentSettings

    fc1: Linear
    rnn: GRU | LSTM
    fc2: Linear | DuellingHead

    def __init__(self, input_size: int, n_actions: int, n_agents: int, settings: AgentSettings, key: Array):
        k_in, k_rnn, k_out = jax.random.split(key, 3)
        hidden = settings.rnn_hidden_dim
        self.fc1 = Linear(input_size, hidden, k_in)
        self.rnn = (GRU if settings.rnn_cell == "gru" else LSTM)(hidden, hidden, k_rnn)
        self.fc2 = self.make_head(hidden, n_actions, k_out)

    @staticmethod
    def make_head(hidden: int, n_actions: int, key: Array) -> Linear | DuellingHead:
        return Linear(hidden, n_actions, key)

    def init_hidden(self, batch: int, n_agents: int) -> Float[Array, "batch agent hidden"]:
        return jnp.zeros((batch, n_agents, self.rnn.carry_size))

    def step(
        self,
        inputs: Float[Array, "*rows input"],
        hidden: Float[Array, "*rows hidden"],
        seats: Int[Array, " agent"] | None = None,
    ) -> tuple[Float[Array, "*rows action"], Float[Array, "*rows hidden"]]:
        """One time step. `seats` is ignored: all seats share the weights."""
        hidden = self.rnn.step(jax.nn.relu(self.fc1(inputs)), hidden)
        return self.fc2(self.rnn.output(hidden)), hidden

    def unroll(
        self, inputs: Float[Array, "time batch agent input"], hidden: Float[Array, "batch agent hidden"]
    ) -> tuple[Float[Array, "time batch agent action"], Float[Array, "time batch agent hidden"]]:
        time, batch, n_agents, _ = inputs.shape
        x = jax.nn.relu(self.fc1(inputs.reshape(time, batch * n_agents, -1)))
        hiddens = self.rnn.unroll(x, hidden.reshape(batch * n_agents, -1))
        hiddens = hiddens.reshape(time, batch, n_agents, -1)
        return self.fc2(self.rnn.output(hiddens)), hiddens

    def consider(
        self,
        own: Float[Array, "time batch agent own"],
        latents: Float[Array, "time_and_one batch agent latent"],
        hidden: Float[Array, "time batch agent hidden"],
        horizon: int,
    ) -> Float[Array, "ahead time batch agent action"]:
        """One step from `hidden` at every time step t, conditioned on each of the latents of t+1 … t+H in turn.

        The first layer is linear, so its products with `own` and with the latents are computed once per time step and
        added for every pair.
        """
        split, steps = own.shape[-1], own.shape[0]
        shared = own @ self.fc1.weight[:split] + self.fc1.bias
        by_latent = jnp.pad((latents @ self.fc1.weight[split:])[1:], ((0, horizon - 1), (0, 0), (0, 0), (0, 0)))
        ahead = jnp.stack([by_latent[j : j + steps] for j in range(horizon)])
        x = jax.nn.relu(shared + ahead)
        if isinstance(self.rnn, LSTM):
            hidden = jnp.broadcast_to(hidden, (horizon, *hidden.shape))
        return self.fc2(self.rnn.output(self.rnn.step(x, hidden)))


class DuellingRNNAgent(RNNAgent):
    """The recurrent agent with a duelling head (`d3qn`)."""

    @staticmethod
    def make_head(hidden: int, n_actions: int, key: Array) -> Linear | DuellingHead:
        return DuellingHead(hidden, n_actions, key)
