"""HOP while learning: the action model of co-players, and the policy and value that guide the search.

For the action model, goals are labelled in hindsight: the goal of a time step is the one that the agent reached next.
Where it reached none, its goal is uncertain: every goal has a probability, given the agent's actions. Policy and value
are learned for the goals that were sampled from the belief while acting, because the search asks for them with such
goals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.components.beliefs import spread
from omg.components.episode_buffer import EpisodeBatch, masked_mean, pick, time_first
from omg.controllers.hop_controller import HopMAC
from omg.envs.multiagentenv import Spec
from omg.learners.base import Learner, LearnerSettings, Metrics, Params
from omg.modules.co_player import CoPlayerModel
from omg.utils.settings import setting


@dataclass(frozen=True)
class HopLearnerSettings(LearnerSettings):
    value_coef: float = setting(0.5, "weight of the value loss", low=0)
    model_coef: float = setting(1.0, "weight of the loss of the co-players' action model", low=0)
    exclusive_coef: float = setting(
        1.0, "within it: weight of -log(1 - π(a | s, g')) for actions that reached a goal other than g'", low=0
    )


class HopLearner(Learner):
    Settings = HopLearnerSettings
    plans = True
    can_be_focal = True
    settings: HopLearnerSettings
    mac: HopMAC

    def __init__(self, spec: Spec, mac: Any, config: Mapping[str, Any], *arguments: Any, **named: Any):
        super().__init__(spec, mac, config, *arguments, **named)
        self.exclusive_goals = mac.settings.use_goals and mac.models.goals.exclusive and mac.models.goals.n > 0

    def target_of(self, params: Params) -> Params:
        return {}

    def loss(
        self, params: Params, target: Params, batch: EpisodeBatch, t_env: Array, key: Array
    ) -> tuple[Array, Metrics]:
        models, n, s = self.mac.models, self.spec.n_agents, self.settings
        seen, actions, avail = self.mac.env.own_first(batch.obs), batch.actions[:, :-1], batch.avail_actions[:, :-1]
        obs = seen[:, :-1]
        filled, alive = batch.filled[:, :-1, None], batch.alive
        acted = filled * alive[:, :-1]
        seats = jnp.broadcast_to(jnp.arange(n), actions.shape)
        planned = jnp.ones(actions.shape, bool)
        if self.focal:
            planned = seats == batch["agent_idx"].astype(jnp.int32)[..., None]
        next_goal = label(batch["reached"][:, :-1].astype(jnp.int32), batch.filled[:, :-1])

        # The action model: cross-entropy of the co-players' actions given the goals they pursued.
        observed = acted * (~planned if self.focal else 1.0)
        log_model = jax.nn.log_softmax(models.logits_of_goals(params["model"], obs, avail), -1)
        of_taken = pick(log_model, jnp.broadcast_to(actions[..., None], log_model.shape[:-1]))
        likelihood = jnp.log(jnp.maximum(self.mac.smoothed(jnp.exp(of_taken), avail[..., None, :]), 1e-30))
        pursued = jax.lax.stop_gradient(
            pursued_in_hindsight(
                next_goal, acted, likelihood, batch["is_open"][:, :-1], self.mac.first_prior, models.type_of
            )
        )
        model_loss = masked_mean(-(pursued * of_taken).sum(-1), observed)
        expected = (pursued[..., None] * jnp.exp(log_model)).sum(-2)
        correct = (expected.argmax(-1) == actions).astype(jnp.float32)
        exclusive_loss = self.exclusive(params["model"], batch, observed, key)

        # The policy learns from the search, the value from the returns; both see the goals that the search assumed.
        mask = acted * planned
        counted = (jnp.broadcast_to(filled, acted.shape) if self.shared_reward else acted) * planned
        assumed = batch["sample"][:, :-1].astype(jnp.int32)
        others = models.goals_of_others(obs, assumed, seats)
        logits, value = models.policy_value(params["agent"], obs, others, avail)
        search = batch["search"][:, :-1].astype(jnp.float32)
        log_pi = jnp.where(avail, jax.nn.log_softmax(logits, -1), 0.0)
        policy_loss = masked_mean(-(search * log_pi).sum(-1), mask)
        reward, goes_on = s.reward_scale * batch.reward[:, :-1], alive[:, 1:] | self.shared_reward
        if s.bootstrap_at_limit:
            ahead = models.goals_of_others(seen[:, 1:], assumed, seats)
            _, later = models.policy_value(params["agent"], seen[:, 1:], ahead, batch.avail_actions[:, 1:])
            at_limit = jnp.arange(reward.shape[1]) == self.spec.episode_limit - 1
            unfinished = at_limit[:, None] * filled * (1 - batch.terminated[:, :-1, None]) * goes_on
            reward = reward + s.gamma * unfinished * jax.lax.stop_gradient(later)
        returns = discounted(reward, goes_on, s.gamma)
        value_loss = masked_mean((value - returns) ** 2, counted)

        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "model_loss": model_loss,
            **({"exclusive_loss": exclusive_loss} if self.exclusive_goals else {}),
            "model_accuracy": masked_mean(correct, observed),
            "search_entropy": masked_mean(-(search * jnp.log(search + 1e-9)).sum(-1), mask),
        }
        co_players = s.model_coef * (model_loss + s.exclusive_coef * exclusive_loss)
        return policy_loss + s.value_coef * value_loss + co_players, metrics

    def exclusive(
        self, model: CoPlayerModel, batch: EpisodeBatch, observed: Float[Array, "batch time agent"], key: Array
    ) -> Float[Array, ""]:
        """-log(1 - π(a | s, g')) of the actions that reached a goal g, for one other goal g' sampled uniformly.

        An agent that pursues g' would not have taken the action that reached g.
        """
        if not self.exclusive_goals:
            return jnp.zeros(())
        models, obs, actions = self.mac.models, self.mac.env.own_first(batch.obs)[:, :-1], batch.actions[:, :-1]
        reached = batch["reached"][:, :-1].astype(jnp.int32)
        other = (reached + jax.random.randint(key, reached.shape, 1, models.n_goals)) % models.n_goals
        logits = models.co_player_logits(model, obs, models.goal(obs, other), batch.avail_actions[:, :-1])
        probability = pick(jax.nn.softmax(logits, -1), actions)
        return masked_mean(-jnp.log1p(-0.999 * probability), observed * (reached >= 0))


def label(
    reached: Int[Array, "batch time agent"], filled: Float[Array, "batch time"]
) -> Int[Array, "batch time agent"]:
    """The goal that each agent reached next; -1 where it reached no goal before the end."""

    def step(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        goal, real = now
        pursued = jnp.where((goal >= 0) & (real[:, None] > 0), goal, later)
        return pursued, pursued

    start = jnp.full_like(reached[:, 0], -1)
    _, pursued = jax.lax.scan(step, start, (time_first(reached), filled.T), reverse=True)
    return time_first(pursued)


def pursued_in_hindsight(
    next_goal: Int[Array, "batch time agent"],
    acted: Float[Array, "batch time agent"],
    log_likelihood: Float[Array, "batch time agent goal"],
    is_open: Bool[Array, "batch time goal"],
    prior: Float[Array, " goal_type"],
    type_of: Int[Array, " goal"],
) -> Float[Array, "batch time agent goal"]:
    """The probability that an agent pursued each goal: 1 for the goal that it reached next.

    After the last goal that it reached, r(g) ∝ b_0(g)·Π_t π(a_t | s_t, g) over the steps that it still took. Who
    pursues a goal that closes pursues none from then on.
    """
    n_goals = is_open.shape[-1]
    closed = ~is_open[:, :, None]
    failed = (next_goal < 0).astype(jnp.float32) * acted
    first = jnp.take_along_axis(is_open, failed.argmax(1)[..., None], 1)
    # The last goal is "none", which never closes.
    of_steps = jnp.where(closed, log_likelihood[..., -1:], log_likelihood) * failed[..., None]
    log_prior = jnp.log(spread(jnp.broadcast_to(prior, (*first.shape[:2], len(prior))), type_of, first) + 1e-30)
    believed = jax.nn.softmax(log_prior + of_steps.sum(1), -1)[:, None]
    left = (believed * closed).sum(-1)
    believed = jnp.where(closed, 0.0, believed).at[..., -1].add(left)
    reached = jax.nn.one_hot(next_goal, n_goals)
    return jnp.where((next_goal < 0)[..., None], believed, reached)


def discounted(
    reward: Float[Array, "batch time agent"], continues: Bool[Array, "batch time agent"], gamma: float
) -> Float[Array, "batch time agent"]:
    """G_t = r_t + γ·G_{t+1}, where the agent continues after step t."""

    def step(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        r, goes_on = now
        total = r + gamma * goes_on * later
        return total, total

    start = jnp.zeros_like(reward[:, 0])
    _, returns = jax.lax.scan(step, start, (time_first(reward), time_first(continues)), reverse=True)
    return time_first(returns)
