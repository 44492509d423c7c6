"""OMG's agent model: infers a subgoal of the other agents as a point in the latent space of a pre-trained VAE.

While acting, ĝ_t is the mean of q_φ(· | τ_t, s_t) (a CVAE). While learning, one of the next H states is chosen in
hindsight by the policy's own value (`choose_subgoals`), and q_φ is trained towards the VAE's posterior of that state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.components.episode_buffer import FocalBatch, masked_mean, time_first
from omg.components.layers import GRU, Linear, unroll_rows
from omg.envs.multiagentenv import Spec
from omg.modules.am.base import AgentModel, Conditioning, Inferred, Judge, Seen
from omg.modules.vae import CVAE, VAE, Gaussian, VAESize, kl
from omg.utils.settings import T_MAX_HELP, UserError, fill, setting

SubgoalMode = Literal["optimistic", "conservative", "random", "next", "fixed"]
Encoded = Literal["obs", "state", "agents"]
"""What a VAE encodes: observations, global states, or what the global state says of each agent."""


@dataclass(frozen=True)
class OMGSettings(VAESize):
    obs_is_state: bool = setting(False, "subgoals are global states; false: the focal agent's own observations")
    subgoal_mode: SubgoalMode = setting(
        "optimistic", "hindsight choice: optimistic, conservative, random, next, or fixed (fixed_k steps ahead)"
    )
    H: int = setting(5, "horizon: how many steps ahead a subgoal may lie", above=0)
    fixed_k: int = setting(1, "subgoal_mode fixed: this many steps ahead", above=0)
    eta_start: float = setting(1.0, "probability of learning on the hindsight subgoal, at the start", low=0, high=1)
    eta_finish: float = setting(0.0, "the same after the schedule", low=0, high=1)
    eta_anneal_time: int | None = setting(None, "steps over which η falls to eta_finish; null: 30 % of t_max", low=0)
    cvae_beta: float = setting(1.0, "weight of the CVAE's KL term", low=0)
    am_loss_coef: float = setting(1.0, "weight of the agent model's own loss", low=0)
    cond_fc_dim: int = setting(32, "units of the CVAE's layer that encodes the current state", above=0)
    cond_rnn_dim: int = setting(96, "units of the condition's GRU over the history", above=0)
    carry_over: bool = setting(
        False, "the mean embedding of an episode initialises the next one with the same partners"
    )
    vae_path: str | None = setting(None, "the pre-trained VAE; null: the newest one that fits (omg pretrain)")
    vae_latent_dim: int = setting(64, "latent size of the VAE", above=0)
    t_max: int = setting(200_000, T_MAX_HELP, above=0)

    def __post_init__(self) -> None:
        if self.fixed_k > self.H:
            raise UserError(f"fixed_k is {self.fixed_k}; it lies between 1 and H ({self.H}).")


class Chosen(NamedTuple):
    """The hindsight choice: the subgoal of each time step, and its distance in steps. Every step taken has one."""

    subgoal: Gaussian
    ahead: Float[Array, "time batch seat"]
    vae: VAE

    def rows(self, ids: Int[Array, " row"]) -> Chosen:
        """Only these episodes."""
        subgoal, ahead = jax.tree.map(lambda x: x[:, ids], (self.subgoal, self.ahead))
        return self._replace(subgoal=subgoal, ahead=ahead)


class CondRNN(eqx.Module):
    """The GRU over the history. With `carry_over` its initial state depends on the previous episode's embedding."""

    rnn: GRU
    prior: Float[Array, "latent hidden"]

    def __init__(self, input_size: int, hidden: int, prior_size: int, key: Array):
        self.rnn = GRU(input_size, hidden, key)
        self.prior = jnp.zeros((prior_size, hidden))


class OMGAM(AgentModel):
    Settings = OMGSettings
    needs = ("vae",)

    def __init__(self, spec: Spec, own_size: int, config: Mapping[str, Any]):
        super().__init__(spec, own_size, config)
        s = self.settings = fill(OMGSettings, config)
        self.hidden_size, self.output_size = s.cond_rnn_dim, s.vae_latent_dim
        self.obs_is_state = s.obs_is_state
        self.s_size = spec.state_size if s.obs_is_state else spec.obs_size

    @property
    def prior_size(self) -> int:
        return self.output_size if self.settings.carry_over else 0

    def init(self, key):
        s = self.settings
        k_cvae, k_rnn, k_fc = jax.random.split(key, 3)
        condition = s.cond_fc_dim + s.cond_rnn_dim
        return {
            "cvae": CVAE(condition, s.vae_hidden_dim, s.vae_latent_dim, self.s_size, k_cvae),
            "cond_rnn": CondRNN(self.own_size, s.cond_rnn_dim, self.prior_size, k_rnn),
            "fc": Linear(self.s_size, s.cond_fc_dim, k_fc),
        }

    def init_memory(self, params, prior):
        # Tanh keeps the initial state inside the range of the GRU.
        return jnp.tanh(prior @ params["cond_rnn"].prior) if prior.shape[-1] else _zeros(prior, self.hidden_size)

    # --- inference

    def infer(self, params, seen, memory):
        memory = params["cond_rnn"].rnn.step(seen.own, memory)
        return self._posterior(params, seen, memory)[0].mu, memory

    def infer_all(self, params, seen, memory):
        hidden = unroll_rows(params["cond_rnn"].rnn, seen.own, memory)
        posterior, condition = self._posterior(params, seen, hidden)
        return Inferred(posterior.mu, posterior.log_var, condition, hidden)

    def _posterior(self, params, seen, hidden: Array) -> tuple[Gaussian, Array]:
        """q_φ(ĝ | τ_t, s_t), and the condition c_t = [fc(s_t) ; GRU(τ_t)]."""
        condition = jnp.concatenate([jax.nn.relu(params["fc"](seen.s)), hidden], -1)
        return params["cvae"].posterior(condition), condition

    # --- learning

    def choose_subgoals(
        self, vae: VAE, judge: Judge, seen: Seen, batch: FocalBatch, inferred: Inferred, t_env: Array, key: Array
    ) -> Conditioning:
        """g_t for the policy: the hindsight subgoal ḡ_t with probability η, else the inferred ĝ_t."""
        k_choose, k_mix = jax.random.split(key)
        of_states, exists = self.latents(vae, seen, batch), self.exists(batch)
        embedding = jax.lax.stop_gradient(inferred.embedding)
        values = self.considered(of_states, judge, seen, embedding)
        ahead = choose(values, exists, self.settings, k_choose)
        subgoal = jax.lax.stop_gradient(self.goals_ahead(of_states, ahead))
        any_exists = jnp.pad(exists.any(0), ((0, 1), (0, 0), (0, 0)))
        steps_ahead = jnp.pad(ahead, ((0, 1), (0, 0), (0, 0))).astype(jnp.float32)

        noise = self.mixing_noise(any_exists.shape, k_mix)
        use_chosen = ((noise < self.eta(t_env)) & any_exists)[..., None]
        given = jnp.where(use_chosen, self.with_subgoals(embedding, subgoal.mu), embedding)
        return Conditioning(given, self.chosen_of(subgoal, steps_ahead, batch, vae), use_chosen)

    def subgoals_in(self, embedding: Float[Array, "*rows embedding"]) -> Float[Array, "*rows latent"]:
        """The inferred subgoals in the policy's extra input."""
        return embedding

    def with_subgoals(
        self, embedding: Float[Array, "*rows embedding"], goals: Float[Array, "*rows latent"]
    ) -> Float[Array, "*rows embedding"]:
        """The policy's extra input with these subgoals in the place of the inferred ones."""
        return goals

    @classmethod
    def encodes(cls, spec: Spec, config: Mapping[str, Any]) -> Encoded:
        """What its VAE is pre-trained on."""
        return "state" if fill(OMGSettings, config).obs_is_state else "obs"

    def latents(self, vae: VAE, seen: Seen, batch: FocalBatch) -> Gaussian:
        """The distribution that the state of every time step stands for, in the space of the embedding."""
        return vae.encode(seen.s)

    def exists(self, batch: FocalBatch) -> Bool[Array, "ahead steps batch seat"]:
        """Which of the next H states are candidates."""
        return candidates(time_first(batch.filled), self.settings.H)

    def considered(
        self, of_states: Gaussian, judge: Judge, seen: Seen, embedding: Float[Array, "time batch seat embedding"]
    ) -> Float[Array, "ahead steps batch seat"]:
        """The value of every candidate in the place of the inferred subgoals."""
        return candidate_values(judge, seen, of_states.mu, self.settings.H)

    def goals_ahead(self, of_states: Gaussian, ahead: Int[Array, "steps batch seat"]) -> Gaussian:
        """The subgoals that lie so many steps ahead, padded by the last time step, at which nothing is chosen."""
        return Gaussian(*_with_last(pick_ahead(of_states, ahead), of_states))

    def as_state(self, goals: Float[Array, "time batch seat latent"], of_states: Gaussian) -> Array:
        """Subgoals as points among the latents of states."""
        return goals

    def decoded(
        self, vae: VAE, points: Float[Array, "time batch seat latent"], batch: FocalBatch, obs_is_state: bool
    ) -> Float[Array, "time batch seat state"] | None:
        """The global states that points among the latents of states describe; None: they describe something else.

        `obs_is_state` says whether observations happen to be global states.
        """
        return vae.decode(points) if self.obs_is_state or obs_is_state else None

    def mixing_noise(self, shape: tuple[int, ...], key: Array) -> Array:
        """Where this is below η, the policy learns on the hindsight subgoal."""
        return jax.random.uniform(key, shape)

    def chosen_of(self, subgoal: Gaussian, ahead: Array, batch: FocalBatch, vae: VAE) -> Any:
        """What the loss needs of the hindsight choice."""
        return Chosen(subgoal, ahead, vae)

    def eta(self, t_env: Array) -> Float[Array, ""]:
        """η falls linearly from `eta_start` to `eta_finish`."""
        s = self.settings
        duration = 0.3 * s.t_max if s.eta_anneal_time is None else s.eta_anneal_time
        passed = jnp.clip(t_env / max(duration, 1), 0.0, 1.0)
        return s.eta_start + passed * (s.eta_finish - s.eta_start)

    def loss(self, params, seen, batch, inferred, chosen: Chosen, key):
        """‖decoder(ĝ, c_t) - s_t‖² + β·KL(q_φ(· | τ_t, s_t) ‖ the VAE's posterior of the chosen state)."""
        posterior = Gaussian(inferred.embedding, inferred.log_var)
        decoded = params["cvae"].decode(posterior.sample(key), inferred.rest)
        mask = time_first(batch.mask)
        error = ((decoded - chosen.vae.standard(seen.s)) ** 2).sum(-1)
        recons_loss = masked_mean(error, mask)
        kl_loss = masked_mean(kl(posterior, chosen.subgoal), mask)
        distance = jnp.sqrt(((posterior.mu - chosen.subgoal.mu) ** 2).sum(-1) + 1e-12)
        metrics = {
            "recons_loss": recons_loss,
            "kl_loss": kl_loss,
            "latent_distance": masked_mean(distance, mask),
            "subgoal_ahead": masked_mean(chosen.ahead, mask),
        }
        return self.settings.am_loss_coef * (recons_loss + self.settings.cvae_beta * kl_loss), metrics


def candidates(filled: Float[Array, "time batch seat"], horizon: int) -> Bool[Array, "ahead steps batch seat"]:
    """Which of s_{t+1} … s_{t+H} exist: a state exists if the step that leads to it was taken."""
    steps = filled[:-1] > 0
    ahead = [jnp.pad(steps[j:], ((0, j), (0, 0), (0, 0)))[: len(steps)] for j in range(horizon)]
    return jnp.stack(ahead) & steps


def candidate_values(
    judge: Judge, seen: Seen, latents: Float[Array, "time batch seat latent"], horizon: int
) -> Float[Array, "ahead steps batch seat"]:
    """V(s_t, f_ψ(s_{t+j})) for j = 1 … H: the mean of Q over available actions, or the critic's value."""
    present = None if judge.present is None else judge.present[:-1]
    outputs = judge.network.consider(seen.own[:-1], latents, judge.hidden[:-1], horizon, present)
    if judge.avail_actions is None:
        return outputs[..., 0]
    available = judge.avail_actions[:-1]
    return jnp.where(available, outputs, 0.0).sum(-1) / jnp.maximum(available.sum(-1), 1)


def choose(
    values: Float[Array, "ahead steps batch seat"],
    exists: Bool[Array, "ahead steps batch seat"],
    settings: OMGSettings,
    key: Array,
) -> Int[Array, "steps batch seat"]:
    """How many steps ahead the subgoal lies (1 … H). Where no candidate exists the result is 1 and is not used."""
    mode, horizon = settings.subgoal_mode, values.shape[0]
    if mode == "optimistic":
        return jnp.where(exists, values, -jnp.inf).argmax(0) + 1
    if mode == "conservative":
        return jnp.where(exists, values, jnp.inf).argmin(0) + 1
    if mode == "random":
        return jnp.where(exists, jax.random.uniform(key, exists.shape), -1.0).argmax(0) + 1
    wanted = 1 if mode == "next" else min(settings.fixed_k, horizon)
    return jnp.clip(jnp.minimum(wanted, exists.sum(0)), 1)


def pick_ahead(of_states: Gaussian, ahead: Int[Array, "steps batch seat"]) -> Gaussian:
    """The distribution of the state `ahead` steps after each step."""
    at = jnp.arange(ahead.shape[0])[:, None, None] + ahead
    at = jnp.minimum(at, of_states.mu.shape[0] - 1)[..., None]
    return Gaussian(*(jnp.take_along_axis(x, at, axis=0) for x in of_states))


def _with_last(chosen: Gaussian, of_states: Gaussian) -> tuple[Array, Array]:
    """Pads the last time step, at which there is nothing to choose."""
    mu, log_var = (jnp.concatenate([c, s[-1:]]) for c, s in zip(chosen, of_states, strict=True))
    return mu, log_var


def _zeros(like: Float[Array, "*rows size"], size: int) -> Float[Array, "*rows hidden"]:
    return jnp.zeros((*like.shape[:-1], size))
