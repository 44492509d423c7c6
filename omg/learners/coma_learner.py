"""COMA: a policy per agent, judged by what its action adds to the team's value while the others' stay as they were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch
from omg.controllers.basic_controller import BasicMAC
from omg.envs.multiagentenv import Spec
from omg.learners.base import Learner, LearnerSettings, LearnerState, Metrics, Params
from omg.modules.critics import REGISTRY as critic_REGISTRY
from omg.utils.rl_utils import masked_mean, pick, td_lambda_targets
from omg.utils.settings import choose, fill


@dataclass(frozen=True)
class COMALearnerSettings(LearnerSettings):
    critic: str = "coma"
    critic_lr: float = 5e-4
    critic_steps: int = 8
    td_lambda: float = 0.8
    entropy_coef: float = 0.01


class COMALearner(Learner):
    """Per batch: `critic_steps` steps of the critic towards TD(λ) targets, then one of the policy."""

    Settings = COMALearnerSettings
    settings: COMALearnerSettings
    on_policy = True

    def __init__(self, spec: Spec, mac: BasicMAC, config: Mapping[str, Any]):
        super().__init__(spec, mac, config)
        self.critic_class = choose(critic_REGISTRY, self.settings.critic, "critic")
        self.critic_settings = fill(self.critic_class.Settings, config)

    def init_params(self, key: Array) -> Params:
        k_agent, k_critic = jax.random.split(key)
        critic = self.critic_class(self.spec, self.critic_settings, k_critic)
        return {"agent": self.mac.init_agent(k_agent), "critic": critic}

    def target_of(self, params: Params) -> Params:
        return {"critic": params["critic"]}

    def critic_optimiser(self) -> optax.GradientTransformation:
        s = self.settings
        rms = optax.rmsprop(s.critic_lr, decay=s.optim_alpha, eps=s.optim_eps, eps_in_sqrt=False)
        return optax.chain(optax.clip_by_global_norm(s.grad_norm_clip), rms)

    def init_optimiser(self, params: Params) -> Any:
        return {
            "agent": self.optimiser().init(params["agent"]),
            "critic": self.critic_optimiser().init(params["critic"]),
        }

    def critic_targets(self, target_critic: Any, batch: EpisodeBatch) -> Array:
        """TD(λ) targets of the actions taken, by the older critic."""
        taken = pick(target_critic(batch), batch.actions)
        shape = taken[:, :-1].shape

        def for_each_agent(x: Array) -> Array:
            return jnp.broadcast_to(x[..., None], shape)

        reward = for_each_agent(self.team_reward(batch))
        terminated, filled = for_each_agent(self.ended(batch)), for_each_agent(batch.filled[:, :-1])
        return td_lambda_targets(reward, terminated, filled, taken[:, 1:], self.settings.gamma, self.settings.td_lambda)

    def critic_loss(self, critic: Any, batch: EpisodeBatch, targets: Array) -> Array:
        taken = pick(critic(batch), batch.actions)[:, :-1]
        # The team's reward goes on for whoever has fallen.
        return masked_mean((taken - targets) ** 2, jnp.broadcast_to(batch.filled[:, :-1, None], taken.shape))

    def policy_loss(self, agent: Any, critic: Any, batch: EpisodeBatch, t_env: Array) -> tuple[Array, Metrics]:
        """-log π(a) · (Q(a) - Σ π Q): the counterfactual advantage."""
        logits = self.mac.unroll(agent, batch).outputs[:, :-1]
        avail = batch.avail_actions[:, :-1]
        pi = self.mac.policy(logits, avail, self.mac.selector.epsilon(t_env))
        q = jax.lax.stop_gradient(critic(batch)[:, :-1])
        baseline = (jax.lax.stop_gradient(pi) * q).sum(-1)
        advantage = pick(q, batch.actions[:, :-1]) - baseline
        mask = self.mask(batch)
        log_pi = jnp.log(jnp.where(mask > 0, pick(pi, batch.actions[:, :-1]), 1.0) + 1e-10)
        entropy = masked_mean(-(pi * jnp.log(pi + 1e-10)).sum(-1), mask)
        coma_loss = -masked_mean(advantage * log_pi, mask)
        metrics = {"advantage_mean": masked_mean(advantage, mask), "entropy": entropy, "coma_loss": coma_loss}
        return coma_loss - self.settings.entropy_coef * entropy, metrics

    def mask(self, batch: EpisodeBatch) -> Array:
        return batch.filled[:, :-1, None] * batch.alive[:, :-1]

    def train(
        self, state: LearnerState, batch: EpisodeBatch, t_env: Array, since: Array, episode: Array, key: Array
    ) -> tuple[LearnerState, Metrics]:
        targets = self.critic_targets(state.target["critic"], batch)
        critic_optimiser, optimiser = self.critic_optimiser(), self.optimiser()

        def improve(carry, _):
            critic, opt_state = carry
            loss, grads = jax.value_and_grad(self.critic_loss)(critic, batch, targets)
            updates, opt_state = critic_optimiser.update(grads, opt_state, critic)
            return (optax.apply_updates(critic, updates), opt_state), loss

        start = (state.params["critic"], state.opt_state["critic"])
        (critic, critic_opt), critic_losses = jax.lax.scan(improve, start, None, length=self.settings.critic_steps)

        gradient = jax.value_and_grad(self.policy_loss, has_aux=True)
        (loss, metrics), grads = gradient(state.params["agent"], critic, batch, t_env)
        updates, agent_opt = optimiser.update(grads, state.opt_state["agent"], state.params["agent"])
        agent = optax.apply_updates(state.params["agent"], updates)

        metrics = {"loss": loss, "grad_norm": optax.global_norm(grads), "critic_loss": critic_losses[-1], **metrics}
        opt_state = {"agent": agent_opt, "critic": critic_opt}
        state = LearnerState({"agent": agent, "critic": critic}, state.target, opt_state, state.updates + 1)
        return self.refresh_target(state, since, episode), metrics
