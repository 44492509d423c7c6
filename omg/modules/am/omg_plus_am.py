"""OMG+: one subgoal for each other agent; what differs from OMG can be switched off setting by setting.

The subgoal of another agent is how the latent of what describes it changes within some steps: its own places in the
global state (position, health, last action) where the environment names them, or its observation. Subgoals say what
the others do next; beside them the policy sees an embedding of who they are (`who_dim`), trained to predict what they
do in what they see later. Training reads the state and the others' observations and actions; inference sees the focal
agent's history only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.components.episode_buffer import FocalBatch, masked_mean, time_first
from omg.components.layers import GRU, MLP, Linear, unroll_rows
from omg.envs.multiagentenv import Spec
from omg.modules.am.base import Inferred, Judge, Seen
from omg.modules.am.base_am import action_loss, later_action_loss, observation_loss
from omg.modules.am.omg_am import OMGAM, Encoded, OMGSettings
from omg.modules.vae import VAE, Gaussian, gaussian_of, kl
from omg.utils.settings import UserError, fill, setting


@dataclass(frozen=True)
class OMGPlusSettings(OMGSettings):
    subgoal_of: Literal["others", "state"] = setting(
        "others", "OMG+: subgoals are observations of the others, one for each; or those of the focal agent (state)"
    )
    subgoal_features: Literal["agent", "obs"] = setting(
        "agent", "OMG+: what describes another agent: its places in the global state, or its observation (obs)"
    )
    subgoal_form: Literal["state", "change"] = setting(
        "change", "OMG+: a subgoal is the change of the latent until a later observation, or that latent (state)"
    )
    subgoal_loss: Literal["likelihood", "kl"] = setting(
        "likelihood", "OMG+: the chosen subgoal's weighted log-likelihood, or OMG's KL to its distribution"
    )
    normalise: bool = setting(True, "OMG+: latents have mean 0 and standard deviation 1 on the VAE's training data")
    mask_dead: bool = setting(True, "OMG+: no subgoal is learned from agents that died or left")
    eta_by: Literal["episode", "step"] = setting("episode", "OMG+: η decides for whole episodes or for every step")
    target_model: bool = setting(True, "OMG+: target networks of Q-learners see the embedding of a target agent model")
    present_coef: float = setting(
        1.0, "OMG+: weight of the others' present observations and actions, decoded from the embedding", low=0
    )
    who_dim: int = setting(32, "OMG+: size of the embedding of who the others are; 0: subgoals alone", low=0)
    later_coef: float = setting(
        1.0, "OMG+: weight of the others' later actions, predicted from who they are and what they see then", low=0
    )


class ChosenOfOthers(NamedTuple):
    """The hindsight choice, and for whom it counts: `[time, batch, seat, other]` (one column for `state`)."""

    subgoal: Gaussian
    ahead: Float[Array, "time batch seat"]
    counts: Float[Array, "time batch seat other"]

    def rows(self, ids: Int[Array, " row"]) -> ChosenOfOthers:
        """Only these episodes."""
        return jax.tree.map(lambda x: x[:, ids], self)


class Others(NamedTuple):
    """How many numbers all others see together, and how many actions they have."""

    obs_size: int
    n_actions: int


class OMGPlusNetwork(eqx.Module):
    """The encoder (history and s_t → a distribution over subgoals, and who the others are) and the decoders."""

    fc1: Linear
    rnn: GRU
    fc_s: Linear
    posterior: MLP
    decoder: MLP
    who: Linear | None
    later: MLP | None

    def __init__(self, own_size: int, s_size: int, settings: OMGPlusSettings, goals: int, others: Others, key: Array):
        k_in, k_rnn, k_s, k_posterior, k_decoder, k_who, k_later = jax.random.split(key, 7)
        s, condition = settings, settings.cond_fc_dim + settings.cond_rnn_dim
        self.fc1 = Linear(own_size, s.cond_rnn_dim, k_in)
        self.rnn = GRU(s.cond_rnn_dim, s.cond_rnn_dim, k_rnn)
        self.fc_s = Linear(s_size, s.cond_fc_dim, k_s)
        self.posterior = MLP((condition, s.vae_hidden_dim, 2 * goals), k_posterior)
        self.decoder = MLP((s.who_dim + goals, s.vae_hidden_dim, others.obs_size + others.n_actions), k_decoder)
        self.who = Linear(condition, s.who_dim, k_who) if s.who_dim else None
        sizes = (s.who_dim + others.obs_size, s.vae_hidden_dim, others.n_actions)
        self.later = MLP(sizes, k_later) if s.who_dim and s.later_coef else None


class OMGPlusAM(OMGAM):
    Settings = OMGPlusSettings
    settings: OMGPlusSettings

    def __init__(self, spec: Spec, own_size: int, config: Mapping[str, Any]):
        super().__init__(spec, own_size, config)
        self.settings = fill(OMGPlusSettings, config)
        if self.settings.obs_is_state and self.settings.subgoal_of == "others":
            raise UserError(
                "OMG+ with subgoal_of=others encodes observations: set obs_is_state=false or subgoal_of=state."
            )
        if self.settings.carry_over:
            raise UserError(
                "OMG+ carries no embedding over: leave carry_over out, or carry the policy's (carry_memory)."
            )
        s = self.settings
        if s.who_dim and not (s.later_coef or s.present_coef):
            raise UserError(
                "nothing trains OMG+'s embedding of who the others are: set later_coef above 0, or who_dim=0."
            )
        self.others = spec.n_agents - 1
        self.modelled = self.others if self.settings.subgoal_of == "others" else 1
        self.output_size = self.settings.who_dim + self.modelled * self.settings.vae_latent_dim
        self.in_target = self.settings.target_model
        self.of_agents = self.encodes(spec, config) == "agents"

    @property
    def prior_size(self) -> int:
        return 0

    def init(self, key):
        goals = self.output_size - self.settings.who_dim
        others = Others(self.others * self.spec.obs_size, self.others * self.spec.n_actions)
        return {"omg_plus_am": OMGPlusNetwork(self.own_size, self.s_size, self.settings, goals, others, key)}

    def init_memory(self, params, prior):
        return jnp.zeros((*prior.shape[:-1], self.hidden_size))

    # --- inference

    def infer(self, params, seen, memory):
        net = params["omg_plus_am"]
        memory = net.rnn.step(jax.nn.relu(net.fc1(seen.own)), memory)
        return self._inferred(net, seen, memory).embedding, memory

    def infer_all(self, params, seen, memory):
        net = params["omg_plus_am"]
        hidden = unroll_rows(net.rnn, jax.nn.relu(net.fc1(seen.own)), memory)
        return self._inferred(net, seen, hidden)

    def _inferred(self, net: OMGPlusNetwork, seen: Seen, hidden: Array) -> Inferred:
        """Who the others are, and a distribution over their subgoals."""
        condition = jnp.concatenate([jax.nn.relu(net.fc_s(seen.s)), hidden], -1)
        subgoal = gaussian_of(net.posterior(condition))
        who = [] if net.who is None else [net.who(condition)]
        return Inferred(jnp.concatenate([*who, subgoal.mu], -1), subgoal.log_var, memory=hidden)

    def subgoals_in(self, embedding):
        return embedding[..., self.settings.who_dim :]

    def who_in(self, embedding: Float[Array, "*rows embedding"]) -> Float[Array, "*rows who"]:
        """The part of the policy's extra input that says who the others are."""
        return embedding[..., : self.settings.who_dim]

    def with_subgoals(self, embedding, goals):
        return jnp.concatenate([self.who_in(embedding), goals], -1)

    # --- learning

    def latents(self, vae: VAE, seen: Seen, batch: FocalBatch) -> Gaussian:
        """What every time step stands for: one distribution per modelled agent, side by side."""
        if self.settings.subgoal_of == "state":
            of_agents = jax.tree.map(lambda x: x[..., None, :], vae.encode(seen.s))
        else:
            of_agents = vae.encode(time_first(self._described(batch)))
        if self.settings.normalise:
            of_agents = vae.standard_latents(of_agents)
        return jax.tree.map(lambda x: x.reshape(*x.shape[:-2], -1), of_agents)

    @classmethod
    def encodes(cls, spec: Spec, config: Mapping[str, Any]) -> Encoded:
        s = fill(OMGPlusSettings, config)
        own = s.subgoal_of == "others" and s.subgoal_features == "agent" and spec.agents_in_state
        return "agents" if own else super().encodes(spec, config)

    def _described(self, batch: FocalBatch) -> Float[Array, "batch time seat other feature"]:
        """What is encoded of the others: their own places in the global state, or their observations."""
        if not self.of_agents:
            return batch.others_obs
        return jnp.take_along_axis(batch.state[..., None, :], self._places(batch), axis=-1)

    def _places(self, batch: FocalBatch) -> Int[Array, "batch time seat other feature"]:
        """Where the global state describes the others."""
        assert batch.seat is not None
        n = self.spec.n_agents
        others = (batch.seat[..., None] + np.arange(1, n)) % n
        places = jnp.asarray(self.spec.agents_in_state)[others][:, None]
        return jnp.broadcast_to(places, (len(places), batch.state.shape[1], *places.shape[2:]))

    def _counted(self, batch: FocalBatch) -> Float[Array, "time batch seat other"]:
        """1 where a modelled agent is there (with `mask_dead`: alive), the state after the last step included."""
        shown = time_first(batch.shown)
        if self.settings.subgoal_of == "state":
            alive = time_first(batch.alive)[..., None]
        else:
            alive = time_first(batch.others_alive)
        return shown[..., None] * (alive if self.settings.mask_dead else jnp.ones_like(alive))

    def exists(self, batch: FocalBatch) -> Bool[Array, "ahead steps batch seat"]:
        """Candidates lie within the episode; with `mask_dead` some modelled agent is alive in them."""
        exists, horizon = super().exists(batch), self.settings.H
        there = self._counted(batch).any(-1)
        ahead = [jnp.pad(there[j + 1 :], ((0, j), (0, 0), (0, 0))) for j in range(horizon)]
        return exists & jnp.stack([x[: exists.shape[1]] for x in ahead])

    def goals_ahead(self, of_states: Gaussian, ahead: Array) -> Gaussian:
        chosen = super().goals_ahead(of_states, ahead)
        if self.settings.subgoal_form == "state":
            return chosen
        return chosen._replace(mu=chosen.mu - of_states.mu)

    def as_state(self, goals: Array, of_states: Gaussian) -> Array:
        return goals if self.settings.subgoal_form == "state" else goals + of_states.mu

    def decoded(self, vae, points, batch, obs_is_state):
        """The present state, in which the others are as their subgoals describe them."""
        s, of_each = self.settings, self._split(points)
        of_each = vae.own_latents(of_each) if s.normalise else of_each
        if self.settings.subgoal_of == "state":
            return super().decoded(vae, of_each[..., 0, :], batch, obs_is_state)
        if not self.of_agents:
            return None
        places, state = time_first(self._places(batch)), time_first(batch.state)
        return jnp.put_along_axis(
            state, places.reshape(*places.shape[:-2], -1), vae.decode(of_each).reshape(*state.shape[:-1], -1), -1,
            inplace=False,
        )  # fmt: skip

    def considered(self, of_states: Gaussian, judge: Judge, seen: Seen, embedding: Array) -> Array:
        if self.settings.subgoal_form == "change":
            judge = judge._replace(present=of_states.mu)
        # Who the others are stands before the subgoals and is the same for every candidate.
        own = jnp.concatenate([seen.own, self.who_in(embedding)], -1)
        return super().considered(of_states, judge, seen._replace(own=own), embedding)

    def mixing_noise(self, shape: tuple[int, ...], key: Array) -> Array:
        if self.settings.eta_by == "step":
            return super().mixing_noise(shape, key)
        return jnp.broadcast_to(jax.random.uniform(key, (1, *shape[1:])), shape)

    def chosen_of(self, subgoal: Gaussian, ahead: Array, batch: FocalBatch, vae: VAE) -> ChosenOfOthers:
        counted = self._counted(batch)
        at = jnp.arange(ahead.shape[0])[:, None, None] + ahead.astype(jnp.int32)
        then = jnp.take_along_axis(counted, jnp.minimum(at, len(counted) - 1)[..., None], axis=0)
        return ChosenOfOthers(subgoal, ahead, then * counted)

    def loss(self, params, seen, batch, inferred, chosen: Any, key):
        """The chosen subgoals' weighted log-likelihood (or KL), and what the others do now and later."""
        s = self.settings
        posterior = Gaussian(self.subgoals_in(inferred.embedding), inferred.log_var)
        mask = time_first(batch.mask)[..., None] * chosen.counts
        of_each, target = (jax.tree.map(self._split, g) for g in (posterior, chosen.subgoal))
        if s.subgoal_loss == "kl":
            goal_loss = masked_mean(kl(of_each, target), mask)
        else:
            goal_loss = masked_mean(weighted_likelihood(of_each, target.mu), mask)
        distance = jnp.sqrt(((of_each.mu - target.mu) ** 2).sum(-1) + 1e-12)
        metrics = {
            "subgoal_loss": goal_loss,
            "latent_distance": masked_mean(distance, mask),
            "subgoal_ahead": masked_mean(chosen.ahead, time_first(batch.mask)),
        }
        total = goal_loss
        if s.present_coef:
            obs, logits = self._decode(params, inferred.embedding)
            obs_loss = observation_loss(obs, batch)
            act_loss, accuracy = action_loss(logits, batch)
            total = total + s.present_coef * (obs_loss + act_loss)
            metrics |= {"am_obs_loss": obs_loss, "action_accuracy": accuracy}
        decoder = params["omg_plus_am"].later
        if decoder is not None:
            metrics["later_loss"] = later_action_loss(decoder, self.who_in(inferred.embedding), batch, key)
            total = total + s.later_coef * metrics["later_loss"]
        return s.am_loss_coef * total, {"am_loss": total, **metrics}

    def predicted_actions(self, params, inferred):
        if not self.settings.present_coef:
            return None
        return jax.nn.softmax(self._decode(params, inferred.embedding)[1], -1)

    def _split(self, flat: Float[Array, "*rows flat"]) -> Float[Array, "*rows other latent"]:
        return flat.reshape(*flat.shape[:-1], self.modelled, -1)

    def _decode(self, params, embedding: Array) -> tuple[Array, Array]:
        others = params["omg_plus_am"].decoder(embedding).reshape(*embedding.shape[:-1], self.others, -1)
        return others[..., : self.spec.obs_size], others[..., self.spec.obs_size :]


def weighted_likelihood(believed: Gaussian, point: Float[Array, "*rows latent"]) -> Float[Array, "*rows"]:
    """-log N(point; μ, σ²) without its constant, weighted by σ² (β-NLL, Seitzer et al. 2022), as a mean over latents.

    The gradient of μ is that of the squared error: without the weight, latents that are easily predicted (σ² near 0)
    give gradients that drown all others.
    """
    unlikely = 0.5 * (believed.log_var + (point - believed.mu) ** 2 * jnp.exp(-believed.log_var))
    return (jax.lax.stop_gradient(jnp.exp(believed.log_var)) * unlikely).mean(-1)
