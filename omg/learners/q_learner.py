"""Q-learning for a team: independent (no mixer), or on the team's value through a mixer (vdn, qmix)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from omg.components.action_selectors import UNAVAILABLE
from omg.components.episode_buffer import EpisodeBatch
from omg.controllers.basic_controller import BasicMAC
from omg.envs.multiagentenv import Spec
from omg.learners.base import Learner, LearnerSettings, Metrics, Params
from omg.modules.mixers import REGISTRY as mixer_REGISTRY
from omg.utils.rl_utils import masked_mean, pick
from omg.utils.settings import choose, fill


@dataclass(frozen=True)
class QLearnerSettings(LearnerSettings):
    mixer: str | None = None


class QLearner(Learner):
    Settings = QLearnerSettings
    settings: QLearnerSettings

    def __init__(self, spec: Spec, mac: BasicMAC, config: Mapping[str, Any]):
        super().__init__(spec, mac, config)
        self.mixer_class = choose(mixer_REGISTRY, self.settings.mixer, "mixer") if self.settings.mixer else None
        self.mixer_settings = fill(self.mixer_class.Settings, config) if self.mixer_class else None

    def init_params(self, key: Array) -> Params:
        k_agent, k_mixer = jax.random.split(key)
        params: Params = {"agent": self.mac.init_agent(k_agent)}
        if self.mixer_class:
            params["mixer"] = self.mixer_class(self.spec, self.mixer_settings, k_mixer)
        return params

    def loss(
        self, params: Params, target: Params, batch: EpisodeBatch, t_env: Array, key: Array
    ) -> tuple[Array, Metrics]:
        """The TD error of the actions taken, on each agent's own value or on the team's."""
        q = self.mac.unroll(params["agent"], batch).outputs
        q_target = self.mac.unroll(target["agent"], batch).outputs[:, 1:]
        q_taken = pick(q[:, :-1], batch.actions[:, :-1])
        q_next = self.value_of_best(q[:, 1:], q_target, batch.avail_actions[:, 1:])

        filled = batch.filled[:, :-1]
        if self.mixer_class:
            reward, terminated, mask = self.team_reward(batch), self.ended(batch), filled
            q_taken = params["mixer"](q_taken, batch.state[:, :-1])
            q_next = target["mixer"](q_next, batch.state[:, 1:])
        else:
            reward, terminated = (
                self.own_reward(batch),
                self.ended_for(self.ended(batch)[..., None], batch.alive[:, 1:]),
            )
            mask = self.counted(filled[..., None], batch.alive[:, :-1])

        y = jax.lax.stop_gradient(reward + self.settings.gamma * (1 - terminated) * q_next)
        td_error = q_taken - y
        metrics = {
            "td_error_abs": masked_mean(abs(td_error), mask),
            "q_taken_mean": masked_mean(q_taken, mask),
            "target_mean": masked_mean(y, mask),
        }
        return masked_mean(td_error**2, mask), metrics

    def value_of_best(self, q: Array, q_target: Array, avail_actions: Array) -> Array:
        """The older network's value of the best available action: the newer network's choice with double Q."""
        judge = jax.lax.stop_gradient(q) if self.settings.double_q else q_target
        best = jnp.where(avail_actions, judge, UNAVAILABLE).argmax(-1)
        return pick(q_target, best)
