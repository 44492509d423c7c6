"""The recurrent agent: one network shared by all seats. Fully connected → GRU or LSTM → one output per action."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from omg.components.layers import GRU, LSTM, LayerNorm, Linear
from omg.utils.settings import setting

Layout = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of an observation's components (`Spec.obs_layout`)."""


@dataclass(frozen=True)
class AgentSettings:
    rnn_hidden_dim: int = setting(64, "units of the recurrent layer", above=0)
    rnn_cell: Literal["gru", "lstm"] = setting("gru", "recurrent cell: gru or lstm")
    layer_norm: bool = setting(True, "layer normalisation before the recurrent layer and before the outputs")
    init: Literal["pytorch", "orthogonal"] = setting("orthogonal", "initial weights: pytorch (uniform) or orthogonal")
    output_gain: float = setting(0.01, "init orthogonal: scale of the output layer's initial weights", above=0)
    """Near zero, a policy starts almost uniform, and the maximum over actions does not overestimate values."""


class DuellingHead(eqx.Module):
    """Q = V + A - mean A: a state value and an advantage per action."""

    value: Linear
    advantage: Linear

    def __init__(self, input_size: int, n_actions: int, key: Array, gain: float | None = None):
        k_value, k_advantage = jax.random.split(key)
        self.value = Linear(input_size, 1, k_value, gain)
        self.advantage = Linear(input_size, n_actions, k_advantage, gain)

    def __call__(self, x: Float[Array, "*rows input"]) -> Float[Array, "*rows action"]:
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(-1, keepdims=True)


class RNNAgent(eqx.Module):
    """One network for all seats: batch rows and seats form one axis."""

    Settings: ClassVar[type[AgentSettings]] = AgentSettings

    fc1: Linear
    rnn: GRU | LSTM
    fc2: Linear | DuellingHead
    norm_in: LayerNorm | None
    norm_out: LayerNorm | None

    def __init__(
        self, input_size: int, n_actions: int, n_agents: int, settings: AgentSettings, key: Array, layout: Layout = ()
    ):
        k_in, k_rnn, k_out = jax.random.split(key, 3)
        hidden, orthogonal = settings.rnn_hidden_dim, settings.init == "orthogonal"
        self.fc1 = Linear(input_size, hidden, k_in, math.sqrt(2) if orthogonal else None)
        self.rnn = (GRU if settings.rnn_cell == "gru" else LSTM)(hidden, hidden, k_rnn, orthogonal)
        self.fc2 = self.make_head(hidden, n_actions, k_out, settings.output_gain if orthogonal else None)
        self.norm_in = LayerNorm(hidden) if settings.layer_norm else None
        self.norm_out = LayerNorm(hidden) if settings.layer_norm else None

    @staticmethod
    def make_head(hidden: int, n_actions: int, key: Array, gain: float | None) -> Linear | DuellingHead:
        return Linear(hidden, n_actions, key, gain)

    def enter(self, x: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        """From the first layer's outputs to the recurrent layer's inputs."""
        return jax.nn.relu(x if self.norm_in is None else self.norm_in(x))

    def head(self, hidden: Float[Array, "*rows hidden"]) -> Float[Array, "*rows action"]:
        """From the recurrent state to the outputs."""
        x = self.rnn.output(hidden)
        return self.fc2(x if self.norm_out is None else self.norm_out(x))

    def init_hidden(self, batch: int, n_agents: int) -> Float[Array, "batch agent hidden"]:
        return jnp.zeros((batch, n_agents, self.rnn.carry_size))

    def step(
        self,
        inputs: Float[Array, "*rows input"],
        hidden: Float[Array, "*rows hidden"],
        seats: Int[Array, " agent"] | None = None,
    ) -> tuple[Float[Array, "*rows action"], Float[Array, "*rows hidden"]]:
        """One time step. `seats` is ignored: all seats share the weights."""
        hidden = self.rnn.step(self.enter(self.fc1(inputs)), hidden)
        return self.head(hidden), hidden

    def unroll(
        self, inputs: Float[Array, "time batch agent input"], hidden: Float[Array, "batch agent hidden"]
    ) -> tuple[Float[Array, "time batch agent action"], Float[Array, "time batch agent hidden"]]:
        return self.unroll_from(self.fc1(inputs), hidden)

    def unroll_from(
        self, x: Float[Array, "time batch agent unit"], hidden: Float[Array, "batch agent hidden"]
    ) -> tuple[Float[Array, "time batch agent action"], Float[Array, "time batch agent hidden"]]:
        """The rest of `unroll` after the first layer's products."""
        time, batch, n_agents, _ = x.shape
        x = self.enter(x).reshape(time, batch * n_agents, -1)
        hiddens = self.rnn.unroll(x, hidden.reshape(batch * n_agents, -1))
        hiddens = hiddens.reshape(time, batch, n_agents, -1)
        return self.head(hiddens), hiddens

    def consider(
        self,
        own: Float[Array, "time batch agent own"],
        latents: Float[Array, "time_and_one batch agent latent"],
        hidden: Float[Array, "time batch agent hidden"],
        horizon: int,
        present: Float[Array, "time batch agent latent"] | None = None,
    ) -> Float[Array, "ahead time batch agent action"]:
        """One step from `hidden` at every time step t, conditioned on each of the latents of t+1 … t+H in turn.

        With `present` they are conditioned on the difference to it.

        The first layer is linear, so its products with `own` and with the latents are computed once per time step and
        added for every pair.
        """
        split, steps = own.shape[-1], own.shape[0]
        shared = own @ self.fc1.weight[:split] + self.fc1.bias
        if present is not None:
            shared = shared - present @ self.fc1.weight[split:]
        by_latent = jnp.pad((latents @ self.fc1.weight[split:])[1:], ((0, horizon - 1), (0, 0), (0, 0), (0, 0)))
        ahead = jnp.stack([by_latent[j : j + steps] for j in range(horizon)])
        x = self.enter(shared + ahead)
        if isinstance(self.rnn, LSTM):
            hidden = jnp.broadcast_to(hidden, (horizon, *hidden.shape))
        return self.head(self.rnn.step(x, hidden))


class DuellingRNNAgent(RNNAgent):
    """The recurrent agent with a duelling head (`d3qn`)."""

    @staticmethod
    def make_head(hidden: int, n_actions: int, key: Array, gain: float | None) -> Linear | DuellingHead:
        return DuellingHead(hidden, n_actions, key, gain)
