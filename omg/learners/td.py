"""Temporal-difference learning: rewards, episode ends, masks and targets, all `[time, batch, agent]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.components.action_selectors import UNAVAILABLE
from omg.components.episode_buffer import EpisodeBatch, FocalBatch, masked_mean, pick, time_first
from omg.envs.multiagentenv import Spec
from omg.learners.base import LearnerSettings, Metrics, TargetSettings
from omg.utils.settings import setting


@dataclass(frozen=True)
class LambdaSettings:
    td_lambda: float = setting(0.6, "λ of the TD(λ) targets; 0: one-step targets", low=0, high=1)


@dataclass(frozen=True)
class QSettings(LambdaSettings, TargetSettings):
    double_q: bool = setting(True, "double Q-learning: the online network chooses the action of the target")


class Steps(NamedTuple):
    """Every step of a batch. With a mixer the arrays have one column for all agents that it mixes (`of_team`)."""

    actions: Int[Array, "time batch agent"]
    avail_actions: Bool[Array, "time batch agent action"]
    avail_next: Bool[Array, "time batch agent action"]
    reward: Float[Array, "time batch agent"]
    over: Float[Array, "time batch agent"]
    """1 where the episode ends: termination, and the time limit unless values are bootstrapped there."""
    ended: Float[Array, "time batch agent"]
    """1 where no value follows for this agent: `over`, and in non-cooperative games its own death or leaving."""
    filled: Float[Array, "time batch agent"]
    """1 where a step was taken."""
    acted: Float[Array, "time batch agent"]
    """1 where a living agent took a step."""
    counted: Float[Array, "time batch agent"]
    """1 where the value of an agent is learned: in cooperative games also after its death."""


class TeamSteps(NamedTuple):
    """The same for the value of a team, or of a group of agents that learn together."""

    reward: Float[Array, "time batch group"]
    ended: Float[Array, "time batch group"]
    counted: Float[Array, "time batch group"]


def steps_of(
    batch: EpisodeBatch | FocalBatch, settings: LearnerSettings, episode_limit: int, shared_reward: bool
) -> Steps:
    """The steps of a batch, of all agents or of the focal agent in every seat."""
    alive = time_first(batch.alive)

    def per_agent(x: Array) -> Array:
        return time_first(x if x.ndim == 3 else jnp.broadcast_to(x[..., None], batch.alive.shape))

    filled, terminated = per_agent(batch.filled)[:-1], per_agent(batch.terminated)[:-1]
    over = terminated
    if not settings.bootstrap_at_limit:
        at_limit = jnp.arange(len(terminated)) == episode_limit - 1
        over = jnp.maximum(terminated, at_limit[:, None, None])
    avail = time_first(batch.avail_actions)
    acted = filled * alive[:-1]
    return Steps(
        actions=time_first(batch.actions)[:-1],
        avail_actions=avail[:-1],
        avail_next=avail[1:],
        reward=settings.reward_scale * time_first(batch.reward)[:-1],
        over=over,
        ended=over if shared_reward else jnp.maximum(over, ~alive[1:]),
        filled=filled,
        acted=acted,
        counted=filled if shared_reward else acted,
    )


def by_group(x: Float[Array, "time batch agent"], size: int) -> Float[Array, "time batch group member"]:
    """The agents of a team (`size`: all of them), or those of every group that learns together."""
    return x.reshape(*x.shape[:-1], -1, size)


def of_team(steps: Steps, spec: Spec, size: int) -> TeamSteps:
    """The reward of every group of `size` agents, and the end of the episode for it."""
    return TeamSteps(spec.team_reward(by_group(steps.reward, size)), steps.over[..., ::size], steps.filled[..., ::size])


def best_action(q: Float[Array, "*rows action"], avail_actions: Bool[Array, "*rows action"]) -> Int[Array, "*rows"]:
    """The available action of the highest value."""
    return jnp.where(avail_actions, q, UNAVAILABLE).argmax(-1)


def value_of_best(
    online: Float[Array, "*rows action"],
    target: Float[Array, "*rows action"],
    avail_actions: Bool[Array, "*rows action"],
    double_q: bool,
) -> Float[Array, "*rows"]:
    """max_a Q'(s, a). With double Q-learning the online network chooses the action and the target network values it."""
    chooser = jax.lax.stop_gradient(online) if double_q else target
    return pick(target, best_action(chooser, avail_actions))


def q_targets(
    steps: Steps | TeamSteps, next_value: Float[Array, "*axes"], gamma: float, td_lambda: float
) -> Float[Array, "*axes"]:
    """The targets of Q-learning, without gradient."""
    if td_lambda == 0:
        return one_step_targets(steps.reward, steps.ended, next_value, gamma)
    targets = lambda_targets(steps.reward, steps.ended, steps.counted, next_value, gamma, td_lambda)
    return jax.lax.stop_gradient(targets)


def one_step_targets(
    reward: Float[Array, "*axes"], ended: Float[Array, "*axes"], next_value: Float[Array, "*axes"], gamma: float
) -> Float[Array, "*axes"]:
    """y_t = r_t + γ(1 - ended_t)·V_{t+1}, without gradient."""
    return jax.lax.stop_gradient(reward + gamma * (1 - ended) * next_value)


def lambda_targets(
    reward: Float[Array, "time batch *agent"],
    ended: Float[Array, "time batch *agent"],
    filled: Float[Array, "time batch *agent"],
    next_value: Float[Array, "time batch *agent"],
    gamma: float,
    td_lambda: float,
) -> Float[Array, "time batch *agent"]:
    """G_t = r_t + γ(1 - ended_t)·[(1-λ)·V_{t+1} + λ·G_{t+1}]; at the last step of an episode G_{t+1} is V_{t+1}."""
    continues = jnp.concatenate([filled[1:], jnp.zeros_like(filled[:1])])

    def step(later: Array, t: tuple[Array, ...]) -> tuple[Array, Array]:
        r, end, value, goes_on = t
        following = jnp.where(goes_on > 0, (1 - td_lambda) * value + td_lambda * later, value)
        target = r + gamma * (1 - end) * following
        return target, target

    return jax.lax.scan(step, jnp.zeros_like(reward[0]), (reward, ended, next_value, continues), reverse=True)[1]


def td_loss(
    q_taken: Float[Array, "*axes"], targets: Float[Array, "*axes"], mask: Float[Array, "*axes"]
) -> tuple[Float[Array, ""], Metrics]:
    """The mean squared TD error over the steps that count."""
    error = q_taken - targets
    loss = masked_mean(error**2, mask)
    return loss, {
        "td_loss": loss,
        "td_error_abs": masked_mean(abs(error), mask),
        "q_taken_mean": masked_mean(q_taken, mask),
        "target_mean": masked_mean(targets, mask),
    }
