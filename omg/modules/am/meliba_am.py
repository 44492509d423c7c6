"""MeLIBA (Zintgraf et al., 2021): who the partners are, and what they do now, as two Gaussian beliefs.

The permanent latent is the same for a whole episode: the belief about it after step t has that after step t-1 as its
prior. The temporal latent is inferred anew at every step. Both together must predict the others' next actions; the
permanent one alone must predict what the others do in what they see later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.episode_buffer import masked_mean, time_first
from omg.components.layers import GRU, MLP, Linear, unroll_rows
from omg.envs.multiagentenv import Spec
from omg.modules.am.base import AgentModel, Inferred
from omg.modules.am.base_am import action_loss, later_action_loss
from omg.modules.vae import Gaussian, gaussian_of, kl, unit_gaussian
from omg.utils.settings import fill, setting

NARROW = 3.0
"""Subtracted from the log variances."""


@dataclass(frozen=True)
class MeLIBASettings:
    am_hidden_dim: int = setting(64, "units of the agent model's memory", above=0)
    am_loss_coef: float = setting(1.0, "weight of the agent model's own loss", low=0)
    meliba_latent_dim: int = setting(8, "MeLIBA: size of each of the two latents", above=0)
    meliba_beta: float = setting(0.001, "MeLIBA: weight of the KL terms", low=0)


class MeLIBANetwork(eqx.Module):
    """The encoder of the own history, and two decoders of the others' actions."""

    fc1: Linear
    rnn: GRU
    permanent: Linear
    temporal: MLP
    now: MLP
    later: MLP

    def __init__(self, own_size: int, hidden: int, latent: int, obs_size: int, outputs: int, key: Array):
        k_in, k_rnn, k_permanent, k_temporal, k_now, k_later = jax.random.split(key, 6)
        self.fc1 = Linear(own_size, hidden, k_in)
        self.rnn = GRU(hidden, hidden, k_rnn)
        self.permanent = Linear(hidden, 2 * latent, k_permanent)
        self.temporal = MLP((hidden + latent, hidden, 2 * latent), k_temporal)
        self.now = MLP((2 * latent, hidden, outputs), k_now)
        self.later = MLP((latent + obs_size, hidden, outputs), k_later)


class MeLIBA(AgentModel):
    Settings = MeLIBASettings

    def __init__(self, spec: Spec, own_size: int, config: Mapping[str, Any]):
        super().__init__(spec, own_size, config)
        self.settings = fill(MeLIBASettings, config)
        self.hidden_size = self.settings.am_hidden_dim
        self.output_size = 4 * self.settings.meliba_latent_dim

    def init(self, key):
        s, others = self.settings, self.spec.n_agents - 1
        sizes = (self.own_size, s.am_hidden_dim, s.meliba_latent_dim, others * self.spec.obs_size)
        return {"meliba_am": MeLIBANetwork(*sizes, others * self.spec.n_actions, key)}

    def infer(self, params, seen, memory):
        net = params["meliba_am"]
        memory = net.rnn.step(jax.nn.relu(net.fc1(seen.own)), memory)
        return self._embedding(*self._beliefs(net, memory)), memory

    def infer_all(self, params, seen, memory):
        net = params["meliba_am"]
        hidden = unroll_rows(net.rnn, jax.nn.relu(net.fc1(seen.own)), memory)
        beliefs = self._beliefs(net, hidden)
        return Inferred(self._embedding(*beliefs), rest=beliefs, memory=hidden)

    def _beliefs(self, net: MeLIBANetwork, hidden: Array) -> tuple[Gaussian, Gaussian]:
        permanent = narrow(gaussian_of(net.permanent(hidden)))
        return permanent, narrow(gaussian_of(net.temporal(jnp.concatenate([hidden, permanent.mu], -1))))

    def _embedding(self, permanent: Gaussian, temporal: Gaussian) -> Array:
        """Means and standard deviations of both."""
        parts = [x for belief in (permanent, temporal) for x in (belief.mu, jnp.exp(belief.log_var / 2))]
        return jnp.concatenate(parts, -1)

    def loss(self, params, seen, batch, inferred, chosen, key):
        """Cross-entropy of the others' actions, now and later, and both KL terms."""
        s, net = self.settings, params["meliba_am"]
        permanent, temporal = inferred.rest
        k_permanent, k_temporal, k_later = jax.random.split(key, 3)
        m, m_t = permanent.sample(k_permanent), temporal.sample(k_temporal)
        now, accuracy = action_loss(self._split(net.now(jnp.concatenate([m, m_t], -1))), batch)
        later = later_action_loss(net.later, m, batch, k_later)
        mask = time_first(batch.mask)
        permanent_kl = masked_mean(kl(permanent, before(permanent)), mask)
        temporal_kl = masked_mean(kl(temporal, unit_gaussian(temporal)), mask)
        loss = now + later + s.meliba_beta * (permanent_kl + temporal_kl)
        metrics = {"am_loss": loss, "action_accuracy": accuracy, "later_loss": later, "permanent_kl": permanent_kl}
        return s.am_loss_coef * loss, metrics | {"temporal_kl": temporal_kl}

    def predicted_actions(self, params, inferred):
        permanent, temporal = inferred.rest
        return jax.nn.softmax(
            self._split(params["meliba_am"].now(jnp.concatenate([permanent.mu, temporal.mu], -1))), -1
        )

    def _split(self, flat: Float[Array, "*rows flat"]) -> Float[Array, "*rows other action"]:
        return flat.reshape(*flat.shape[:-1], self.spec.n_agents - 1, self.spec.n_actions)


def narrow(belief: Gaussian) -> Gaussian:
    """The same with a smaller variance at first: samples of untrained beliefs would be noise alone."""
    return belief._replace(log_var=belief.log_var - NARROW)


def before(belief: Gaussian) -> Gaussian:
    """The belief before each step: that after the previous one, without gradient, and the unit Gaussian at first."""
    return Gaussian(*(jax.lax.stop_gradient(jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])) for x in belief))
