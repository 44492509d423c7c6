"""Social influence (Jaques et al., 2019): PPO that is also paid for changing what the others do next.

A model of the others, learned from each agent's own history, predicts their next actions given the agent's own action.
The intrinsic reward is how far this prediction is from the one without knowing which action the agent takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from omg.components.episode_buffer import FocalBatch, masked_mean, pick, time_first
from omg.components.layers import GRU, MLP, Linear, unroll_rows
from omg.controllers.basic_controller import Unrolled
from omg.learners.base import LearnerState, Metrics, Params
from omg.learners.on_policy import Episodes
from omg.learners.ppo_learner import PPOLearner, PPOSettings, log_policy
from omg.modules.am import Seen
from omg.utils.settings import setting


@dataclass(frozen=True)
class InfluenceSettings(PPOSettings):
    influence_coef: float = setting(0.1, "social influence: weight of the intrinsic reward", low=0)
    influence_hidden_dim: int = setting(64, "social influence: units of the model of the others", above=0)


class OthersNetwork(eqx.Module):
    """p(others' actions at t+1 | own history until t, own action at t), as logits."""

    fc1: Linear
    rnn: GRU
    head: MLP

    def __init__(self, own_size: int, n_actions: int, others: int, hidden: int, key: Array):
        k_in, k_rnn, k_head = jax.random.split(key, 3)
        self.fc1 = Linear(own_size, hidden, k_in)
        self.rnn = GRU(hidden, hidden, k_rnn)
        self.head = MLP((hidden + n_actions, hidden, others * n_actions), k_head)

    def __call__(
        self, own: Float[Array, "time batch seat own"], n_actions: int
    ) -> Float[Array, "time batch seat action other theirs"]:
        """For every action that the agent may take."""
        start = jnp.zeros((*own.shape[1:3], self.rnn.carry_size))
        hidden = unroll_rows(self.rnn, jax.nn.relu(self.fc1(own)), start)
        shape = (*hidden.shape[:-1], n_actions)
        each = jnp.broadcast_to(hidden[..., None, :], (*shape, hidden.shape[-1]))
        taken = jnp.broadcast_to(jnp.eye(n_actions), (*shape, n_actions))
        return self.head(jnp.concatenate([each, taken], -1)).reshape(*shape, -1, n_actions)


class InfluenceLearner(PPOLearner):
    Settings = InfluenceSettings
    settings: InfluenceSettings

    def init_params(self, key: Array) -> Params:
        k_ppo, k_others = jax.random.split(key)
        s, hidden = self.spec, self.settings.influence_hidden_dim
        others = OthersNetwork(self.mac.own_size, s.n_actions, s.n_agents - 1, hidden, k_others)
        return {**super().init_params(k_ppo), "others": others}

    def acting(self, state: LearnerState) -> Params:
        return {name: network for name, network in super().acting(state).items() if name != "others"}

    def intrinsic(self, params: Params, seen: Seen, batch: FocalBatch, actor: Unrolled) -> Array:
        log_pi = log_policy(actor.outputs, time_first(batch.avail_actions))
        of_others = jax.nn.log_softmax(params["others"](seen.own, self.spec.n_actions), -1)
        gain = influence(of_others, log_pi, time_first(batch.actions))
        return time_first(self.settings.influence_coef * (gain * self._act_next(batch)).sum(-1))

    def total_loss(
        self, params: Params, chunks: Any, starts: Any, episodes: Episodes, t_env: Array, key: Array
    ) -> tuple[Array, Metrics]:
        """PPO's loss plus the cross-entropy of what the others do at the next step."""
        loss, metrics = super().total_loss(params, chunks, starts, episodes, t_env, key)
        batch = episodes.batch
        logits = params["others"](self.mac.seen(batch).own, self.spec.n_actions)
        of_own = jax.nn.one_hot(time_first(batch.actions), self.spec.n_actions)[..., None, None]
        log_next = jax.nn.log_softmax((logits * of_own).sum(-3), -1)
        following = jnp.roll(time_first(batch.others_actions), -1, 0)
        others_loss = masked_mean(-pick(log_next, following), self._act_next(batch))
        return loss + others_loss, {**metrics, "others_loss": others_loss}

    def _act_next(self, batch: FocalBatch) -> Float[Array, "time batch seat other"]:
        """1 where the agent takes a step and another one takes the next."""
        acts = batch.filled[..., None] * batch.others_alive
        following = jnp.concatenate([acts[:, 1:], jnp.zeros_like(acts[:, :1])], 1)
        return time_first(batch.mask[..., None] * following)


def influence(
    of_others: Float[Array, "*rows action other theirs"],
    log_pi: Float[Array, "*rows action"],
    actions: Int[Array, "*rows"],
) -> Float[Array, "*rows other"]:
    """KL(p(b | a, s) ‖ Σ_a' π(a' | s)·p(b | a', s)) for every other agent's next action b, given log p and log π."""
    expected = jax.nn.logsumexp(of_others + log_pi[..., None, None], axis=-3)
    given = jnp.take_along_axis(of_others, actions[..., None, None, None], -3)[..., 0, :, :]
    return (jnp.exp(given) * (given - expected)).sum(-1)
