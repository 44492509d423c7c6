"""Several intentions side by side: the others' next actions, their observations, their future, and the own return.

Each is an embedding of the same history with a loss of its own. `policy_model: mix_rnn` learns by the policy's loss
how much of each it takes at every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.episode_buffer import FocalBatch, masked_mean, time_first
from omg.components.layers import GRU, MLP, Linear, unroll_rows
from omg.envs.multiagentenv import Spec
from omg.modules.agents.mix_rnn_agent import PARTS, MixSize
from omg.modules.am.base import AgentModel, Inferred
from omg.modules.am.base_am import action_loss, observation_loss
from omg.utils.settings import fill, setting

RIVALS = 64
"""Episodes among which the one with a given return is to be found."""


@dataclass(frozen=True)
class MixSettings(MixSize):
    am_hidden_dim: int = setting(64, "units of the agent model's memory", above=0)
    am_loss_coef: float = setting(1.0, "weight of the agent model's own loss", low=0)
    mix_ahead: int = setting(5, "mix_am: how many steps ahead the others' observations are predicted", above=0)


class MixNetwork(eqx.Module):
    """One encoder of the own history, and one decoder for each embedding; the last one embeds returns."""

    fc1: Linear
    rnn: GRU
    to_z: Linear
    actions: MLP
    obs: MLP
    future: MLP
    returns: MLP

    def __init__(self, own_size: int, hidden: int, embed: int, obs_size: int, n_logits: int, key: Array):
        k_in, k_rnn, k_z, *k_decoders = jax.random.split(key, 7)
        self.fc1 = Linear(own_size, hidden, k_in)
        self.rnn = GRU(hidden, hidden, k_rnn)
        self.to_z = Linear(hidden, PARTS * embed, k_z)
        outputs = (n_logits, obs_size, obs_size)
        self.actions, self.obs, self.future = (
            MLP((embed, hidden, size), k) for size, k in zip(outputs, k_decoders, strict=False)
        )
        self.returns = MLP((1, hidden, embed), k_decoders[3])


class MixAM(AgentModel):
    Settings = MixSettings

    def __init__(self, spec: Spec, own_size: int, config: Mapping[str, Any]):
        super().__init__(spec, own_size, config)
        self.settings = fill(MixSettings, config)
        self.hidden_size = self.settings.am_hidden_dim
        self.output_size = PARTS * self.settings.mix_embed_dim
        self.others = spec.n_agents - 1

    def init(self, key):
        s, spec = self.settings, self.spec
        sizes = (self.own_size, s.am_hidden_dim, s.mix_embed_dim, self.others * spec.obs_size)
        return {"mix_am": MixNetwork(*sizes, self.others * spec.n_actions, key)}

    def infer(self, params, seen, memory):
        net = params["mix_am"]
        memory = net.rnn.step(jax.nn.relu(net.fc1(seen.own)), memory)
        return net.to_z(memory), memory

    def infer_all(self, params, seen, memory):
        net = params["mix_am"]
        hidden = unroll_rows(net.rnn, jax.nn.relu(net.fc1(seen.own)), memory)
        return Inferred(net.to_z(hidden), memory=hidden)

    def loss(self, params, seen, batch, inferred, chosen, key):
        """The sum of the four losses."""
        net, others_obs = params["mix_am"], time_first(batch.others_obs)
        z_actions, z_obs, z_future, z_return = jnp.split(inferred.embedding, PARTS, -1)
        there = time_first(batch.filled[..., None] * batch.others_alive)
        act_loss, accuracy = action_loss(self._split(net.actions(z_actions)), batch)
        obs_loss = observation_loss(self._split(net.obs(z_obs)), batch)
        shown = time_first(batch.shown[..., None] * batch.others_alive)
        change, still = later(others_obs, there, shown, self.settings.mix_ahead)
        future_loss = masked_mean(((self._split(net.future(z_future)) - change) ** 2).mean(-1), still)
        return_loss = info_nce(z_return, net.returns(returns_of(batch)[..., None]), time_first(batch.mask))
        loss = act_loss + obs_loss + future_loss + return_loss
        metrics = {"am_loss": loss, "action_accuracy": accuracy, "am_obs_loss": obs_loss}
        metrics |= {"future_loss": future_loss, "return_loss": return_loss}
        return self.settings.am_loss_coef * loss, metrics

    def predicted_actions(self, params, inferred):
        z = jnp.split(inferred.embedding, PARTS, -1)[0]
        return jax.nn.softmax(self._split(params["mix_am"].actions(z)), -1)

    def _split(self, flat: Float[Array, "*rows flat"]) -> Float[Array, "*rows other size"]:
        return flat.reshape(*flat.shape[:-1], self.others, -1)


def later(
    obs: Float[Array, "time batch *rows obs"],
    there: Float[Array, "time batch *rows"],
    shown: Float[Array, "time batch *rows"],
    ahead: int,
) -> tuple[Array, Array]:
    """The change of observations within so many steps, from where a step was taken to where something is shown."""
    ahead = min(ahead, len(obs) - 1)
    spare = ((0, ahead), *((0, 0),) * (there.ndim - 1))
    return jnp.pad(obs[ahead:] - obs[:-ahead], (*spare, (0, 0))), jnp.pad(shown[ahead:] * there[:-ahead], spare)


def returns_of(batch: FocalBatch) -> Float[Array, "time batch seat"]:
    """The focal agent's own rewards from each step to the end, with mean 0 and deviation 1 over the batch."""
    filled = time_first(batch.filled)
    to_go = jnp.cumsum((time_first(batch.reward) * filled)[::-1], 0)[::-1]
    mean = masked_mean(to_go, filled)
    return (to_go - mean) / jnp.sqrt(masked_mean((to_go - mean) ** 2, filled) + 1e-4)


def info_nce(
    z: Float[Array, "time batch seat embed"], keys: Float[Array, "time batch seat embed"], mask: Array
) -> Float[Array, ""]:
    """InfoNCE: at every time step, which of up to `RIVALS` episodes has the return that belongs to z."""
    time, rows = z.shape[0], z.shape[1] * z.shape[2]
    group = min(RIVALS, rows)
    groups = rows // group

    def grouped(x: Array) -> Array:
        return x.reshape(time, rows, *x.shape[3:])[:, : groups * group].reshape(time, groups, group, *x.shape[3:])

    z, keys, mask = grouped(z), grouped(keys), grouped(mask)
    scores = jnp.einsum("tgie,tgje->tgij", z, keys) / jnp.sqrt(z.shape[-1])
    scores = jnp.where(mask[..., None, :] > 0, scores, -1e9)
    return masked_mean(-jnp.diagonal(jax.nn.log_softmax(scores, -1), axis1=-2, axis2=-1), mask)
