"""PPO of independent agents or of one agent with frozen partners. Recurrent, with or without an agent model.

One update takes the fresh episodes, cuts them into chunks of `seq_len` steps that start from the recurrent state the
network had there while acting, and makes `ppo_epochs` gradient steps on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from omg.components.action_selectors import UNAVAILABLE
from omg.components.episode_buffer import EpisodeBatch, FocalBatch, all_agents, masked_mean, pick, refine
from omg.controllers.basic_controller import BasicMAC, before_each_step
from omg.envs.multiagentenv import Spec
from omg.learners import td
from omg.learners.base import BootstrapSettings, Learner, LearnerState, Metrics, Params, clip_each
from omg.modules.agents import IDVRNNAgent
from omg.modules.am import Conditioning, Judge
from omg.utils.settings import UserError, setting


@dataclass(frozen=True)
class PPOSettings(BootstrapSettings):
    ppo_epochs: int = setting(4, "gradient steps per update", above=0)
    ppo_clip: float = setting(0.2, "clip range of the probability ratio", above=0)
    gae_lambda: float = setting(0.95, "λ of the generalised advantage estimate", low=0, high=1)
    value_coef: float = setting(0.5, "weight of the value loss", low=0)
    entropy_coef: float = setting(0.01, "weight of the entropy bonus", low=0)
    seq_len: int = setting(20, "steps of back-propagation through time", above=0)
    prosocial: float = setting(0.0, "weight of the team's mean reward in place of the agent's own", low=0, high=1)


class Chunks(NamedTuple):
    """Stretches of `seq_len` steps: `[step, chunk, seat, …]`, and the recurrent states at their start."""

    inputs: Float[Array, "step chunk seat input"]
    avail_actions: Array
    actions: Int[Array, "step chunk seat"]
    log_pi: Float[Array, "step chunk seat"]
    advantage: Float[Array, "step chunk seat"]
    returns: Float[Array, "step chunk seat"]
    acted: Float[Array, "step chunk seat"]
    counted: Float[Array, "step chunk seat"]
    agent_memory: Float[Array, "chunk seat hidden"]
    critic_memory: Float[Array, "chunk seat hidden"]


class PPOLearner(Learner):
    Settings = PPOSettings
    settings: PPOSettings
    on_policy = True
    can_be_focal = True
    mac: BasicMAC

    def __init__(self, spec: Spec, mac: Any, config: Mapping[str, Any], *arguments: Any, **named: Any):
        super().__init__(spec, mac, config, *arguments, **named)
        self.per_seat = issubclass(mac.agent_class, IDVRNNAgent)
        """Every seat has its own network: advantages are normalised seat by seat, so that seats do not interact."""
        self.shared_reward |= self.settings.prosocial > 0
        if self.focal and self.settings.prosocial:
            raise UserError("prosocial is for a team: one agent with frozen partners learns from its own reward.")

    def init_params(self, key: Array) -> Params:
        k_agent, k_critic = jax.random.split(key)
        return {**self.mac.init_params(k_agent), "critic": self.mac.new_network(1, k_critic)}

    def target_of(self, params: Params) -> Params:
        return {}

    def acting(self, state: LearnerState) -> Params:
        return {name: network for name, network in state.params.items() if name != "critic"}

    def clip(self) -> optax.GradientTransformation:
        """Every network by itself, and with one network per seat every seat's."""
        return clip_each(self.settings.grad_norm_clip)

    def gradient(self, state: LearnerState, batch: EpisodeBatch, t_env: Array, key: Array) -> tuple[Any, Metrics]:
        """All epochs on a batch; the result is the new networks and the optimiser's state."""
        n = self.spec.n_agents
        focal = refine(batch, n) if self.focal else all_agents(batch, n)
        chunks, condition, metrics = self.prepare(state.params, state.target, focal, t_env, key)

        def epoch(carry: tuple[Params, Any], k: Array):
            params, opt_state = carry
            gradient = jax.value_and_grad(self.total_loss, has_aux=True)
            (loss, found), grads = gradient(params, chunks, focal, condition, k)
            found = {"loss": loss, "grad_norm": optax.global_norm(grads), **found}
            return self.step(params, grads, opt_state), found

        keys = jax.random.split(jax.random.fold_in(key, 1), self.settings.ppo_epochs)
        updated, found = jax.lax.scan(epoch, (state.params, state.opt_state), keys)
        return updated, metrics | {name: value.mean() for name, value in found.items()}

    def apply(self, state: LearnerState, found: Any, since: Array, episode: Array) -> LearnerState:
        params, opt_state = found
        return LearnerState(params, state.target, opt_state, state.updates + 1)

    def prepare(
        self, params: Params, target: Params, batch: FocalBatch, t_env: Array, key: Array
    ) -> tuple[Chunks, Conditioning, Metrics]:
        """Everything the update takes from the networks before it: recurrent states, log π, advantages, returns."""
        s = self.settings
        seen = self.mac.seen(batch)
        inferred = self.mac.infer_all(params, seen, batch)
        # The policy learns on the embedding it acted on; only the agent model uses the hindsight choice.
        condition = Conditioning(inferred.embedding)
        actor = self.mac.unroll_on(params["agent"], seen, condition.embedding)
        critic = self.mac.unroll_on(params["critic"], seen, condition.embedding)
        if "vae" in self.artifacts:
            judge = Judge(params["critic"], before_each_step(critic.hidden), None)
            chosen = self.mac.am.choose_subgoals(target["vae"], judge, seen, batch, inferred, t_env, key)  # type: ignore[attr-defined]
            condition = condition._replace(chosen=chosen.chosen)
        steps = td.steps_of(batch, s, self.spec.episode_limit, self.shared_reward)
        values, reward = critic.outputs[..., 0], self.mixed_reward(steps.reward)
        returns = td.lambda_targets(reward, steps.ended, steps.filled, values[1:], s.gamma, s.gae_lambda)
        advantage = normalised(returns - values[:-1], steps.acted, (0, 1) if self.per_seat else None)
        inputs = jnp.concatenate([seen.own, condition.embedding], -1)[:-1]
        log_pi = pick(log_policy(actor.outputs[:-1], steps.avail_actions), steps.actions)
        starts = (before_each_step(actor.hidden)[:-1], before_each_step(critic.hidden)[:-1])
        along = (inputs, steps.avail_actions, steps.actions, log_pi, advantage, returns, steps.acted, steps.counted)
        chunks = chop(s.seq_len, along, starts)
        return jax.lax.stop_gradient(chunks), condition, {"value_mean": masked_mean(values[:-1], steps.acted)}

    def mixed_reward(self, reward: Float[Array, "time batch seat"]) -> Float[Array, "time batch seat"]:
        """(1 - p)·r_i + p·mean_j r_j, where p is `prosocial`. Only a whole team has the mean."""
        share = self.settings.prosocial
        return (1 - share) * reward + share * reward.mean(-1, keepdims=True) if share else reward

    def total_loss(
        self, params: Params, chunks: Chunks, batch: FocalBatch, condition: Conditioning, key: Array
    ) -> tuple[Array, Metrics]:
        loss, metrics = self.policy_loss(params, chunks)
        seen = self.mac.seen(batch)
        inferred = self.mac.infer_all(params, seen, batch)
        model_loss, found = self.mac.am.loss(params, seen, batch, inferred, condition.chosen, key)
        return loss + model_loss, {**metrics, **found}

    def policy_loss(self, params: Params, chunks: Chunks) -> tuple[Array, Metrics]:
        """-min(ρ·A, clip(ρ)·A) + c_v·(V - G)² - c_e·H(π)."""
        s = self.settings
        outputs = params["agent"].unroll(chunks.inputs, chunks.agent_memory)[0]
        values = params["critic"].unroll(chunks.inputs, chunks.critic_memory)[0][..., 0]
        log_pi = log_policy(outputs, chunks.avail_actions)
        ratio = jnp.exp(pick(log_pi, chunks.actions) - chunks.log_pi)
        clipped = jnp.clip(ratio, 1 - s.ppo_clip, 1 + s.ppo_clip)
        gain = jnp.minimum(ratio * chunks.advantage, clipped * chunks.advantage)
        entropy = masked_mean(-(jnp.exp(log_pi) * jnp.where(chunks.avail_actions, log_pi, 0.0)).sum(-1), chunks.acted)
        actor_loss = -masked_mean(gain, chunks.acted)
        value_loss = masked_mean((values - chunks.returns) ** 2, chunks.counted)
        metrics = {"policy_loss": actor_loss, "value_loss": value_loss, "entropy": entropy}
        metrics["clipped"] = masked_mean((abs(ratio - 1) > s.ppo_clip).astype(jnp.float32), chunks.acted)
        return actor_loss + s.value_coef * value_loss - s.entropy_coef * entropy, metrics


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


def chop(seq_len: int, along: tuple[Array, ...], memories: tuple[Array, Array]) -> Chunks:
    """`[time, batch, …]` to `[seq_len, chunks × batch, …]`; the last chunk is padded with masked steps."""
    time = along[0].shape[0]
    n = -(-time // seq_len)

    def cut(x: Array) -> Array:
        x = jnp.pad(x, ((0, n * seq_len - time), *((0, 0),) * (x.ndim - 1)))
        x = x.reshape(n, seq_len, *x.shape[1:])
        return jnp.moveaxis(x, 0, 1).reshape(seq_len, n * x.shape[2], *x.shape[3:])

    starts = (m[::seq_len].reshape(-1, *m.shape[2:]) for m in memories)
    return Chunks(*(cut(x) for x in along), *starts)
