"""OMG's agent model: infers the subgoal that the others are after, as the latent of a situation still to come.

While acting, ĝ_t is the mean of q_φ(· | τ_t, s_t). While learning, q_φ is held to the pre-trained VAE's distribution of
the state that hindsight chose (`omg/learners/subgoals.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.gru import GRU
from omg.components.linear import Linear
from omg.envs.multiagentenv import Spec
from omg.modules.am.base import AgentModel, Inferred, time_first, unroll_rows
from omg.modules.vae import CVAE, VAE, Gaussian, kl
from omg.utils.rl_utils import masked_mean
from omg.utils.settings import fill


@dataclass(frozen=True)
class OMGSettings:
    obs_is_state: bool = False
    vae_latent_dim: int = 64
    vae_hidden_dim: int = 128
    cond_fc_dim: int = 32
    cond_rnn_dim: int = 96
    cvae_beta: float = 1.0
    am_loss_coef: float = 1.0
    carry_over: bool = False


class Chosen(NamedTuple):
    """What hindsight chose: each step's subgoal, how far ahead it lies, and where there is one."""

    subgoal: Gaussian
    ahead: Float[Array, "time batch slot"]
    there: Float[Array, "time batch slot"]
    vae: VAE


class CondRNN(eqx.Module):
    """The history's part of the condition; with `carry_over` it starts from what the last episode left."""

    rnn: GRU
    prior: Float[Array, "latent hidden"]

    def __init__(self, input_size: int, hidden: int, prior_size: int, key: Array):
        self.rnn = GRU(input_size, hidden, key)
        self.prior = jnp.zeros((prior_size, hidden))


class OMGAM(AgentModel):
    Settings = OMGSettings
    names = ("cvae", "cond_rnn", "fc")
    needs_vae = True

    def __init__(self, spec: Spec, own_size: int, config: Mapping[str, Any]):
        super().__init__(spec, own_size, config)
        s = self.settings = fill(OMGSettings, config)
        self.hidden_size, self.output_size = s.cond_rnn_dim, s.vae_latent_dim
        self.s_size = spec.state_size if s.obs_is_state else spec.obs_size

    def init(self, key):
        s = self.settings
        k_cvae, k_rnn, k_fc = jax.random.split(key, 3)
        condition = s.cond_fc_dim + s.cond_rnn_dim
        return {
            "cvae": CVAE(condition, s.vae_hidden_dim, s.vae_latent_dim, self.s_size, k_cvae),
            "cond_rnn": CondRNN(self.own_size, s.cond_rnn_dim, s.vae_latent_dim if s.carry_over else 0, k_rnn),
            "fc": Linear(self.s_size, s.cond_fc_dim, k_fc),
        }

    def init_memory(self, params, prior):
        # Tanh keeps the start inside the GRU's own range; without a prior it is nothing.
        return jnp.tanh(prior @ params["cond_rnn"].prior) if prior.shape[-1] else super().init_memory(params, prior)

    def infer(self, params, seen, memory):
        memory = params["cond_rnn"].rnn.step(seen.own, memory)
        return self._posterior(params, seen, memory)[0].mu, memory

    def infer_all(self, params, seen, memory):
        hidden = unroll_rows(params["cond_rnn"].rnn, seen.own, memory)
        posterior, condition = self._posterior(params, seen, hidden)
        return Inferred(posterior.mu, posterior.log_var, condition)

    def loss(self, params, seen, batch, inferred, chosen: Chosen, key):
        """Squared error of s_t from (ĝ, c_t), and β·KL(q_φ ‖ the VAE's distribution of what hindsight chose)."""
        posterior = Gaussian(inferred.embedding, inferred.log_var)
        decoded = params["cvae"].decode(posterior.sample(key), inferred.rest)
        mask = time_first(batch.mask)
        error = ((decoded - chosen.vae.standard(seen.s)) ** 2).sum(-1)
        recons_loss = masked_mean(error, mask)
        kl_loss = masked_mean(kl(posterior, chosen.subgoal), mask * chosen.there)
        distance = jnp.sqrt(((posterior.mu - chosen.subgoal.mu) ** 2).sum(-1) + 1e-12)
        metrics = {
            "recons_loss": recons_loss,
            "kl_loss": kl_loss,
            "latent_distance": masked_mean(distance, mask * chosen.there),
            "subgoal_ahead": masked_mean(chosen.ahead, mask * chosen.there),
        }
        return self.settings.am_loss_coef * (recons_loss + self.settings.cvae_beta * kl_loss), metrics

    def _posterior(self, params, seen, hidden: Array) -> tuple[Gaussian, Array]:
        """q_φ(ĝ | τ_t, s_t), and the condition c_t = [fc(s_t) ; GRU(τ_t)]."""
        condition = jnp.concatenate([jax.nn.relu(params["fc"](seen.s)), hidden], -1)
        return params["cvae"].posterior(condition), condition
