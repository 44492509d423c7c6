"""COMA: independent policies with a central critic and a counterfactual baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch, masked_mean, pick, time_first
from omg.controllers.basic_controller import BasicMAC
from omg.envs.multiagentenv import Spec
from omg.learners import td
from omg.learners.base import Learner, LearnerState, Metrics, Params, TargetSettings
from omg.modules.critics import REGISTRY as critic_REGISTRY
from omg.utils.settings import UserError, choose, fill, setting


@dataclass(frozen=True)
class COMALearnerSettings(td.LambdaSettings, TargetSettings):
    critic: str = setting("coma", "critic network: coma")
    critic_lr: float = setting(5e-4, "learning rate of the critic", above=0)
    critic_steps: int = setting(8, "critic updates per policy update", above=0)
    entropy_coef: float = setting(0.01, "weight of the entropy bonus", low=0)


class COMALearner(Learner):
    """Per batch: `critic_steps` steps of the critic towards TD(λ) targets, then one step of the policy."""

    Settings = COMALearnerSettings
    settings: COMALearnerSettings
    on_policy = True
    mac: BasicMAC

    def __init__(self, spec: Spec, mac: Any, config: Mapping[str, Any], *arguments: Any, **named: Any):
        super().__init__(spec, mac, config, *arguments, **named)
        if mac.am.output_size:
            raise UserError(f"coma trains a team without agent models, not with am_model={mac.settings.am_model}.")
        self.critic_class = choose(critic_REGISTRY, self.settings.critic, "critic")
        self.critic_settings = fill(self.critic_class.Settings, config)

    @classmethod
    def settings_classes(cls, config: Mapping[str, Any]) -> list[type]:
        return [cls.Settings, choose(critic_REGISTRY, fill(cls.Settings, config).critic, "critic").Settings]

    def init_params(self, key: Array) -> Params:
        k_agent, k_critic = jax.random.split(key)
        critic = self.critic_class(self.spec, self.critic_settings, k_critic)
        return {**self.mac.init_params(k_agent), "critic": critic}

    def target_of(self, params: Params) -> Params:
        return {"critic": params["critic"]}

    def init_optimiser(self, params: Params) -> Any:
        return {
            "agent": self.optimiser().init(params["agent"]),
            "critic": self.optimiser(self.settings.critic_lr).init(params["critic"]),
        }

    def critic_targets(self, target_critic: Any, batch: EpisodeBatch) -> Array:
        """TD(λ) targets of the actions taken, by the target critic; `[time, batch, agent]`."""
        s, steps = self.settings, self._steps(batch)
        taken = time_first(pick(target_critic(batch), batch.actions))
        reward = jnp.broadcast_to(self.spec.team_reward(steps.reward)[..., None], steps.reward.shape)
        return td.lambda_targets(reward, steps.over, steps.filled, taken[1:], s.gamma, s.td_lambda)

    def critic_loss(self, critic: Any, batch: EpisodeBatch, targets: Array) -> Array:
        """Squared error; the team's reward counts after an agent's own death, too."""
        taken = time_first(pick(critic(batch), batch.actions))[:-1]
        return masked_mean((taken - targets) ** 2, self._steps(batch).filled)

    def policy_loss(self, agent: Any, critic: Any, batch: EpisodeBatch, t_env: Array) -> tuple[Array, Metrics]:
        """-log π(a) · (Q(a) - Σ_a π(a) Q(a)): the counterfactual advantage."""
        steps = self._steps(batch)
        logits = self.mac.unroll({"agent": agent}, batch).outputs[:-1]
        pi = self.mac.policy(logits, steps.avail_actions, self.mac.selector.epsilon(t_env))
        q = jax.lax.stop_gradient(time_first(critic(batch))[:-1])
        baseline = (jax.lax.stop_gradient(pi) * q).sum(-1)
        advantage = pick(q, steps.actions) - baseline
        mask = steps.acted
        log_pi = jnp.log(jnp.where(mask > 0, pick(pi, steps.actions), 1.0) + 1e-10)
        entropy = masked_mean(-(pi * jnp.log(pi + 1e-10)).sum(-1), mask)
        coma_loss = -masked_mean(advantage * log_pi, mask)
        metrics = {"advantage_mean": masked_mean(advantage, mask), "entropy": entropy, "coma_loss": coma_loss}
        return coma_loss - self.settings.entropy_coef * entropy, metrics

    def _steps(self, batch: EpisodeBatch) -> td.Steps:
        return td.steps_of(batch, self.settings, self.spec.episode_limit, self.shared_reward)

    def gradient(self, state: LearnerState, batch: EpisodeBatch, t_env: Array, key: Array) -> tuple[Any, Metrics]:
        """All steps of critic and policy on a batch; the result is the new networks and optimiser states."""
        targets = self.critic_targets(state.target["critic"], batch)

        def improve(carry, _):
            critic, opt_state = carry
            loss, grads = jax.value_and_grad(self.critic_loss)(critic, batch, targets)
            return self.step(critic, grads, opt_state, t_env, self.settings.critic_lr), loss

        start = (state.params["critic"], state.opt_state["critic"])
        (critic, critic_opt), critic_losses = jax.lax.scan(improve, start, None, length=self.settings.critic_steps)

        gradient = jax.value_and_grad(self.policy_loss, has_aux=True)
        (loss, metrics), grads = gradient(state.params["agent"], critic, batch, t_env)
        agent, agent_opt = self.step(state.params["agent"], grads, state.opt_state["agent"], t_env)

        metrics = {"loss": loss, "grad_norm": optax.global_norm(grads), "critic_loss": critic_losses[-1], **metrics}
        return ({"agent": agent, "critic": critic}, {"agent": agent_opt, "critic": critic_opt}), metrics

    def apply(self, state: LearnerState, found: Any, t_env: Array) -> LearnerState:
        params, opt_state = found
        return self.refresh_target(LearnerState(params, state.target, opt_state, state.updates + 1))
