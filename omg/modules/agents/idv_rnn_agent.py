"""The individual recurrent agent: one network per seat, all evaluated as one batched program."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from omg.modules.agents.rnn_agent import AgentSettings, Layout, RNNAgent


class IDVRNNAgent(eqx.Module):
    """One RNNAgent whose arrays have a leading axis over seats."""

    Settings = AgentSettings

    seats: RNNAgent

    def __init__(
        self, input_size: int, n_actions: int, n_agents: int, settings: AgentSettings, key: Array, layout: Layout = ()
    ):
        def one(k: Array) -> RNNAgent:
            return RNNAgent(input_size, n_actions, 1, settings, k)

        self.seats = jax.vmap(one)(jax.random.split(key, n_agents))

    def init_hidden(self, batch: int, n_agents: int) -> Float[Array, "batch agent hidden"]:
        return jnp.zeros((batch, n_agents, self.seats.rnn.carry_size))

    def step(
        self,
        inputs: Float[Array, "batch agent input"],
        hidden: Float[Array, "batch agent hidden"],
        seats: Int[Array, " agent"] | None = None,
    ):
        """One time step. `seats` are the seats of the agent axis; None: all of them in order."""
        networks = self.seats if seats is None else jax.tree.map(lambda x: x[seats], self.seats)
        each = jax.vmap(RNNAgent.step, in_axes=(0, 1, 1), out_axes=1)
        return each(networks, inputs, hidden)

    def consider(self, own: Array, latents: Array, hidden: Array, horizon: int, present: Array | None = None):
        def one(agent: RNNAgent, *arrays: Array):
            x, g, h, *now = (array[:, :, None] for array in arrays)
            return agent.consider(x, g, h, horizon, *now)[..., 0, :]

        arrays = (own, latents, hidden, *(() if present is None else (present,)))
        return jax.vmap(one, in_axes=(0, *(2 for _ in arrays)), out_axes=3)(self.seats, *arrays)

    def unroll(self, inputs: Float[Array, "time batch agent input"], hidden: Float[Array, "batch agent hidden"]):
        def one(agent: RNNAgent, x: Array, h: Array):
            outputs, hiddens = agent.unroll(x[:, :, None], h[:, None])
            return outputs[:, :, 0], hiddens[:, :, 0]

        return jax.vmap(one, in_axes=(0, 2, 1), out_axes=2)(self.seats, inputs, hidden)
