"""PPO of independent agents or of one agent with frozen partners, and MAPPO (PPO with a central critic).

Recurrent, with or without an agent model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.components.action_selectors import UNAVAILABLE
from omg.components.episode_buffer import FocalBatch, masked_mean, pick, time_first
from omg.controllers.basic_controller import Unrolled, before_each_step
from omg.envs.multiagentenv import Spec
from omg.learners import td
from omg.learners.base import LearnerState, Metrics, Params
from omg.learners.on_policy import OnPolicyLearner, OnPolicySettings, Rollout, hindsight
from omg.modules.am import Judge, Seen
from omg.modules.critics import CentralCritic
from omg.utils.settings import UserError, setting

FORGET = 0.01
"""The weight of the newest batch in the running statistics of returns."""


@dataclass(frozen=True)
class PPOSettings(OnPolicySettings):
    ppo_clip: float = setting(0.2, "clip range of the probability ratio", above=0)
    gae_lambda: float = setting(0.95, "λ of the generalised advantage estimate", low=0, high=1)
    value_coef: float = setting(0.5, "weight of the value loss", low=0)
    entropy_coef: float = setting(0.01, "weight of the entropy bonus", low=0)
    entropy_decay: bool = setting(False, "the entropy bonus falls linearly to zero over t_max")
    value_norm: bool = setting(True, "the critic learns returns with mean 0 and standard deviation 1")
    central_critic: bool = setting(False, "the critic sees also the global state (MAPPO); false: the agent's input")
    prosocial: float = setting(
        0.0, "weight of the mean reward of all agents in place of the agent's own", low=0, high=1
    )


class PPOSteps(NamedTuple):
    """What PPO needs of every step, `[time, batch, seat, …]`; `state` only for a central critic, else of size 0."""

    inputs: Float[Array, "time batch seat input"]
    state: Float[Array, "time batch one_or_seat state"]
    avail_actions: Bool[Array, "time batch seat action"]
    actions: Int[Array, "time batch seat"]
    log_pi: Float[Array, "time batch seat"]
    advantage: Float[Array, "time batch seat"]
    returns: Float[Array, "time batch seat"]
    filled: Float[Array, "time batch seat"]
    acted: Float[Array, "time batch seat"]
    counted: Float[Array, "time batch seat"]


class Memories(NamedTuple):
    """The recurrent states of both networks."""

    agent: Float[Array, "time batch seat hidden"]
    critic: Float[Array, "time batch seat hidden"]


class ReturnStatistics(NamedTuple):
    """Running means of returns and their squares, of all seats or of each; `weight` corrects the initial bias."""

    mean: Float[Array, "*seat"]
    square: Float[Array, "*seat"]
    weight: Float[Array, "*seat"]

    @classmethod
    def none(cls, *shape: int) -> ReturnStatistics:
        return cls(*(jnp.zeros(shape) for _ in range(3)))

    def scale(self) -> tuple[Array, Array]:
        """Mean and standard deviation; 0 and 1 before the first update."""
        weight = jnp.maximum(self.weight, 1e-8)
        mean = self.mean / weight
        deviation = jnp.sqrt(jnp.maximum(self.square / weight - mean**2, 1e-4))
        return mean, jnp.where(self.weight > 0, deviation, 1.0)

    def updated(self, returns: Array, mask: Array) -> ReturnStatistics:
        axes = tuple(range(returns.ndim - self.mean.ndim))

        def mean(x: Array) -> Array:
            return (x * mask).sum(axes) / jnp.maximum(mask.sum(axes), 1)

        new = ReturnStatistics(mean(returns), mean(returns**2), jnp.ones_like(self.weight))
        return jax.tree.map(lambda old, now: (1 - FORGET) * old + FORGET * now, self, new)


class PPOLearner(OnPolicyLearner):
    Settings = PPOSettings
    settings: PPOSettings

    def __init__(self, spec: Spec, mac: Any, config: Mapping[str, Any], *arguments: Any, **named: Any):
        super().__init__(spec, mac, config, *arguments, **named)
        s = self.settings
        self.shared_reward |= s.prosocial > 0
        if s.central_critic and mac.needs:
            raise UserError("OMG's hindsight choice needs a critic of subgoals: central_critic must be false.")

    # --- networks

    def init_params(self, key: Array) -> Params:
        k_agent, k_critic = jax.random.split(key)
        return {**self.mac.init_params(k_agent), "critic": self.new_critic(k_critic)}

    def new_critic(self, key: Array) -> Any:
        """Each agent's value from its own input and, if it is central, the global state."""
        if not self.settings.central_critic:
            return self.mac.new_network(1, key)
        return CentralCritic(self.mac.input_size, self.spec.state_size, self.mac.agent_settings, key)

    def init(self, key: Array) -> LearnerState:
        state = super().init(key)
        statistics = ReturnStatistics.none(self.spec.n_agents) if self.per_seat else ReturnStatistics.none()
        return state._replace(target={**state.target, "returns": statistics})

    def criticise(
        self, critic: Any, inputs: Array, state: Array, hidden: Array
    ) -> tuple[Float[Array, "time batch seat"], Float[Array, "time batch seat hidden"]]:
        """The critic's values and recurrent states, from the inputs of the agents and the global state."""
        central = self.settings.central_critic
        outputs, hidden = critic.unroll_with(state, inputs, hidden) if central else critic.unroll(inputs, hidden)
        return outputs[..., 0], hidden

    # --- learning

    def prepare(
        self, params: Params, target: Params, batch: FocalBatch, t_env: Array, key: Array
    ) -> tuple[Rollout, Metrics]:
        """Everything the update takes from the networks before it: recurrent states, log π, advantages, returns."""
        s = self.settings
        seen = self.mac.seen(batch)
        inferred = self.mac.infer_all(params, seen, batch)
        # The policy learns on the embedding it acted on; only the agent model uses the hindsight choice.
        inputs = jnp.concatenate([seen.own, inferred.embedding], -1)
        actor = self.mac.unroll_on(params["agent"], seen, inferred.embedding)
        network = params["critic"]
        # A team's agents share the state; with frozen partners every seat has an episode of its own.
        seats, size = (None if self.focal else 1), (None if s.central_critic else 0)
        state = time_first(batch.state)[:, :, :seats, :size]
        # The critic starts from the policy's memory, if that is carried over; a central one has a memory of other size.
        start = None if s.central_critic else seen.start
        zero = network.init_hidden(*inputs.shape[1:3])
        values, hidden = self.criticise(network, inputs, state, zero if start is None else start)
        judge = Judge(network, before_each_step(hidden, start), None)
        chosen = hindsight(self, judge, target, seen, batch, inferred, t_env, key)
        rewarded = self.mixed_rewards(batch)
        extra = self.intrinsic(params, seen, batch, actor)
        if extra is not None:
            rewarded = rewarded._replace(reward=rewarded.reward + extra)
        steps = td.steps_of(rewarded, s, self.spec.episode_limit, self.shared_reward)
        mean, deviation = target["returns"].scale()
        values = values * deviation + mean
        returns = td.lambda_targets(steps.reward, steps.ended, steps.filled, values[1:], s.gamma, s.gae_lambda)
        advantage = normalised(returns - values[:-1], steps.acted, (0, 1) if self.per_seat else None)
        metrics = {"value_mean": masked_mean(values[:-1], steps.acted)}
        if extra is not None:
            metrics["intrinsic_reward"] = masked_mean(time_first(extra)[:-1], steps.acted)
        if s.value_norm:
            target = {**target, "returns": target["returns"].updated(returns, steps.counted)}
            mean, deviation = target["returns"].scale()
        along = PPOSteps(
            inputs=inputs[:-1],
            state=state[:-1],
            avail_actions=steps.avail_actions,
            actions=steps.actions,
            log_pi=pick(log_policy(actor.outputs[:-1], steps.avail_actions), steps.actions),
            advantage=advantage,
            returns=(returns - mean) / deviation,
            filled=steps.filled,
            acted=steps.acted,
            counted=steps.counted,
        )
        memory = Memories(before_each_step(actor.hidden, seen.start)[:-1], before_each_step(hidden, start)[:-1])
        return Rollout(along, memory, inferred, chosen, target), metrics

    def mixed_rewards(self, batch: FocalBatch) -> FocalBatch:
        """The batch with the reward (1 - p)·r_i + p·mean_j r_j, where p is `prosocial`."""
        share = self.settings.prosocial
        return batch._replace(reward=(1 - share) * batch.reward + share * batch.mean_reward) if share else batch

    def intrinsic(
        self, params: Params, seen: Seen, batch: FocalBatch, actor: Unrolled
    ) -> Float[Array, "batch time seat"] | None:
        """A reward that the learner gives to its agents besides those of the environment; here none."""
        return None

    def chunk_loss(self, params: Params, along: PPOSteps, memory: Memories, t_env: Array) -> tuple[Array, Metrics]:
        """-min(ρ·A, clip(ρ)·A) + c_v·(V - G)² - c_e·H(π)."""
        s = self.settings
        outputs = params["agent"].unroll(along.inputs, memory.agent)[0]
        values = self.criticise(params["critic"], along.inputs, along.state, memory.critic)[0]
        log_pi = log_policy(outputs, along.avail_actions)
        ratio = jnp.exp(pick(log_pi, along.actions) - along.log_pi)
        clipped = jnp.clip(ratio, 1 - s.ppo_clip, 1 + s.ppo_clip)
        gain = jnp.minimum(ratio * along.advantage, clipped * along.advantage)
        entropy = masked_mean(-(jnp.exp(log_pi) * jnp.where(along.avail_actions, log_pi, 0.0)).sum(-1), along.acted)
        actor_loss = -masked_mean(gain, along.acted)
        value_loss = masked_mean((values - along.returns) ** 2, along.counted)
        metrics = {"policy_loss": actor_loss, "value_loss": value_loss, "entropy": entropy}
        metrics["clipped"] = masked_mean((abs(ratio - 1) > s.ppo_clip).astype(jnp.float32), along.acted)
        bonus = s.entropy_coef * entropy * (self.left(t_env) if s.entropy_decay else 1.0)
        return actor_loss + s.value_coef * value_loss - bonus, metrics


def normalised(
    advantage: Float[Array, "time batch seat"], mask: Float[Array, "time batch seat"], axes: tuple[int, ...] | None
) -> Float[Array, "time batch seat"]:
    """Mean 0 and standard deviation 1 over these axes (None: all)."""
    count = jnp.maximum(mask.sum(axes, keepdims=True), 1)
    centred = advantage - (advantage * mask).sum(axes, keepdims=True) / count
    deviation = jnp.sqrt((centred**2 * mask).sum(axes, keepdims=True) / count)
    return centred / (deviation + 1e-6)


def log_policy(logits: Array, avail_actions: Array) -> Array:
    return jax.nn.log_softmax(jnp.where(avail_actions, logits, UNAVAILABLE), -1)
