"""PPO for one agent among others, or for a team of independent agents. Recurrent, with or without an agent model.

One update takes the fresh episodes, cuts them into chunks of `seq_len` steps that start from the memory the network had
there while acting, and makes `ppo_epochs` steps on all of them.
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
from omg.components.episode_buffer import EpisodeBatch
from omg.components.focal_batch import FocalBatch, everybody, refine
from omg.controllers import FocalMAC
from omg.envs.multiagentenv import Spec
from omg.learners.base import Learner, LearnerSettings, LearnerState, Metrics, Params
from omg.learners.omg_learner import Hindsight, before_each_step, check_vae
from omg.learners.q_learner_4am import Told, clip_each
from omg.learners.subgoals import SubgoalSettings
from omg.modules.agents import IDVRNNAgent
from omg.modules.am.base import time_first
from omg.utils.rl_utils import masked_mean, pick, td_lambda_targets
from omg.utils.settings import UserError, fill


@dataclass(frozen=True)
class PPOSettings(LearnerSettings):
    ppo_epochs: int = 4
    ppo_clip: float = 0.2
    gae_lambda: float = 0.95
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    seq_len: int = 20
    prosocial: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.prosocial <= 1:
            raise UserError(
                f"prosocial is {self.prosocial}; it goes from 0 (one's own reward) to 1 (everybody's mean)."
            )
        if self.seq_len < 1 or self.ppo_epochs < 1:
            raise UserError(f"seq_len ({self.seq_len}) and ppo_epochs ({self.ppo_epochs}) must be 1 or more.")


class Chunks(NamedTuple):
    """Stretches of `seq_len` steps: `[step, chunk, slot, …]`, and each chunk's memory at its start."""

    inputs: Float[Array, "step chunk slot input"]
    avail_actions: Array
    actions: Int[Array, "step chunk slot"]
    log_pi: Float[Array, "step chunk slot"]
    advantage: Float[Array, "step chunk slot"]
    returns: Float[Array, "step chunk slot"]
    mask: Float[Array, "step chunk slot"]
    """Where an agent acted; its value is learned wherever it goes on earning (`counted`)."""
    counted: Float[Array, "step chunk slot"]
    agent_memory: Float[Array, "chunk slot hidden"]
    critic_memory: Float[Array, "chunk slot hidden"]


class PPOLearner(Learner):
    Settings = PPOSettings
    settings: PPOSettings
    on_policy = True
    mac: FocalMAC

    def __init__(self, spec: Spec, mac: FocalMAC, config: Mapping[str, Any]):
        super().__init__(spec, mac, config)
        if not isinstance(mac, FocalMAC):
            raise UserError("ppo_learner needs mac=am_mac (a team) or mac=multi_module_mac (one agent among others).")
        self.focal = config.get("mac") == "multi_module_mac"
        # Networks of their own: what one agent earns changes nothing for another.
        self.apart = issubclass(mac.agent_class, IDVRNNAgent)
        self.shared |= self.settings.prosocial > 0
        if self.focal and self.settings.prosocial:
            raise UserError("prosocial is for a team that learns together: one agent among others has its own reward.")
        self.vae = check_vae(config.get("vae")) if mac.am.needs_vae else None
        t_max = int(config.get("t_max", 1)) * (spec.n_agents if self.focal else 1)
        self.hindsight = Hindsight(fill(SubgoalSettings, config), t_max)

    def init_params(self, key: Array) -> Params:
        k_agent, k_critic, k_model = jax.random.split(key, 3)
        mac = self.mac
        critic = mac.agent_class(mac.input_size, 1, self.spec.n_agents, mac.agent_settings, k_critic)
        return {"agent": mac.init_agent(k_agent), "critic": critic, **mac.am.init(k_model)}

    def init_target(self, params: Params) -> Params:
        return {} if self.vae is None else {"vae": jax.tree.map(jnp.asarray, self.vae)}

    def target_of(self, params: Params) -> Params:
        return {}

    def acting(self, state: LearnerState) -> Params:
        return {name: network for name, network in state.params.items() if name != "critic"}

    def parts(self, state: LearnerState) -> dict[str, Any]:
        return {**super().parts(state), **state.target}

    def optimiser(self) -> optax.GradientTransformation:
        """Every network, and with `idv_rnn` every seat's, has its own gradient's norm cut."""
        return optax.chain(clip_each(self.settings.grad_norm_clip), self.step_rule())

    def train(
        self, state: LearnerState, batch: EpisodeBatch, t_env: Array, since: Array, episode: Array, key: Array
    ) -> tuple[LearnerState, Metrics]:
        n = self.spec.n_agents
        focal = refine(batch, n) if self.focal else everybody(batch, n)
        chunks, told, metrics = self.prepare(state.params, state.target, focal, t_env, key)

        def epoch(carry: tuple[Params, Any], k: Array):
            params, opt_state = carry
            (loss, found), grads = jax.value_and_grad(self.total_loss, has_aux=True)(params, chunks, focal, told, k)
            updates, opt_state = self.optimiser().update(grads, opt_state, params)
            found = {"loss": loss, "grad_norm": optax.global_norm(grads), **found}
            return (optax.apply_updates(params, updates), opt_state), found

        keys = jax.random.split(jax.random.fold_in(key, 1), self.settings.ppo_epochs)
        (params, opt_state), found = jax.lax.scan(epoch, (state.params, state.opt_state), keys)
        metrics |= {name: value.mean() for name, value in found.items()}
        return LearnerState(params, state.target, opt_state, state.updates + 1), metrics

    def prepare(
        self, params: Params, target: Params, batch: FocalBatch, t_env: Array, key: Array
    ) -> tuple[Chunks, Told, Metrics]:
        """What the networks made of the episodes before this update: memories, chances, values, advantages."""
        s = self.settings
        seen = self.mac.seen(batch)
        inferred = self.mac.infer_all(params, seen, batch)
        # The policy learns on what it acted on: only the agent model is told what hindsight chose.
        told = Told(inferred.embedding)
        actor = self.mac.unroll_on(params["agent"], seen, told.embedding)
        critic = self.mac.unroll_on(params["critic"], seen, told.embedding)
        if self.mac.am.needs_vae:
            memory = before_each_step(critic.hidden)
            found = self.hindsight.tell(
                target["vae"], params["critic"], memory, None, seen, batch, inferred, t_env, key
            )
            told = told._replace(chosen=found.chosen)
        values, mask = critic.outputs[..., 0], time_first(batch.mask)[:-1]
        counted = time_first(self.counted(batch.filled, batch.alive))[:-1]
        avail, actions = time_first(batch.avail_actions)[:-1], time_first(batch.actions)[:-1]

        reward = s.reward_scale * self.wanted_reward(time_first(batch.reward)[:-1])
        over = self.out_of_time(time_first(batch.terminated)[:-1], time_axis=0)
        over = self.ended_for(over, time_first(batch.alive)[1:])
        filled = time_first(batch.filled)[:-1]
        reward, over, filled, ahead = (time_first(x) for x in (reward, over, filled, values[1:]))
        returns = time_first(td_lambda_targets(reward, over, filled, ahead, s.gamma, s.gae_lambda))
        advantage = returns - values[:-1]
        advantage = normalised(advantage, mask, (0, 1) if self.apart else None)
        inputs = jnp.concatenate([seen.own, told.embedding], -1)[:-1]
        log_pi = pick(log_policy(actor.outputs[:-1], avail), actions)
        starts = (before_each_step(actor.hidden)[:-1], before_each_step(critic.hidden)[:-1])
        chunks = chop(s.seq_len, (inputs, avail, actions, log_pi, advantage, returns, mask, counted), starts)
        return jax.lax.stop_gradient(chunks), told, {"value_mean": masked_mean(values[:-1], mask)}

    def wanted_reward(self, reward: Float[Array, "time batch slot"]) -> Float[Array, "time batch slot"]:
        """One's own, or with `prosocial` a part of everybody's mean instead: only a whole team knows that."""
        share = self.settings.prosocial
        return (1 - share) * reward + share * reward.mean(-1, keepdims=True) if share else reward

    def total_loss(
        self, params: Params, chunks: Chunks, batch: FocalBatch, told: Told, key: Array
    ) -> tuple[Array, Metrics]:
        policy_loss, metrics = self.policy_loss(params, chunks)
        seen = self.mac.seen(batch)
        inferred = self.mac.infer_all(params, seen, batch)
        model_loss, found = self.mac.am.loss(params, seen, batch, inferred, told.chosen, key)
        return policy_loss + model_loss, {**metrics, **found}

    def policy_loss(self, params: Params, chunks: Chunks) -> tuple[Array, Metrics]:
        """-min(ρ·A, clip(ρ)·A) + value error - entropy, chunk by chunk."""
        s = self.settings
        outputs = params["agent"].unroll(chunks.inputs, chunks.agent_memory)[0]
        values = params["critic"].unroll(chunks.inputs, chunks.critic_memory)[0][..., 0]
        log_pi = log_policy(outputs, chunks.avail_actions)
        ratio = jnp.exp(pick(log_pi, chunks.actions) - chunks.log_pi)
        clipped = jnp.clip(ratio, 1 - s.ppo_clip, 1 + s.ppo_clip)
        gain = jnp.minimum(ratio * chunks.advantage, clipped * chunks.advantage)
        entropy = masked_mean(-(jnp.exp(log_pi) * jnp.where(chunks.avail_actions, log_pi, 0.0)).sum(-1), chunks.mask)
        actor_loss = -masked_mean(gain, chunks.mask)
        value_loss = masked_mean((values - chunks.returns) ** 2, chunks.counted)
        metrics = {"policy_loss": actor_loss, "value_loss": value_loss, "entropy": entropy}
        metrics["clipped"] = masked_mean((abs(ratio - 1) > s.ppo_clip).astype(jnp.float32), chunks.mask)
        return actor_loss + s.value_coef * value_loss - s.entropy_coef * entropy, metrics


def normalised(
    advantage: Float[Array, "time batch slot"], mask: Float[Array, "time batch slot"], axes: tuple[int, ...] | None
) -> Float[Array, "time batch slot"]:
    """Mean 0 and spread 1 over these axes (all of them, where none are named)."""
    count = jnp.maximum(mask.sum(axes, keepdims=True), 1)
    centred = advantage - (advantage * mask).sum(axes, keepdims=True) / count
    spread = jnp.sqrt((centred**2 * mask).sum(axes, keepdims=True) / count)
    return centred / (spread + 1e-6)


def log_policy(logits: Array, avail_actions: Array) -> Array:
    return jax.nn.log_softmax(jnp.where(avail_actions, logits, UNAVAILABLE), -1)


def chop(seq_len: int, along: tuple[Array, ...], memories: tuple[Array, Array]) -> Chunks:
    """`[time, batch, …]` to `[seq_len, chunks × batch, …]`; steps that fill up the last chunk are masked by zeros."""
    time = along[0].shape[0]
    n = -(-time // seq_len)

    def cut(x: Array) -> Array:
        x = jnp.pad(x, ((0, n * seq_len - time), *((0, 0),) * (x.ndim - 1)))
        x = x.reshape(n, seq_len, *x.shape[1:])
        return jnp.moveaxis(x, 0, 1).reshape(seq_len, n * x.shape[2], *x.shape[3:])

    starts = (m[::seq_len].reshape(-1, *m.shape[2:]) for m in memories)
    return Chunks(*(cut(x) for x in along), *starts)
