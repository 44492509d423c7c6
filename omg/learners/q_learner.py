"""Q-learning for a team: independent (no mixer), or on the team's value through a mixer (vdn, qmix)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch, pick, time_first
from omg.controllers.basic_controller import BasicMAC
from omg.envs.multiagentenv import Spec
from omg.learners import td
from omg.learners.base import Learner, Metrics, Params
from omg.modules.mixers import REGISTRY as mixer_REGISTRY
from omg.utils.settings import UserError, choose, fill, setting


@dataclass(frozen=True)
class QLearnerSettings(td.QSettings):
    mixer: str | None = setting(None, "mixer of the agents' values: vdn, qmix or qtran; null: independent learners")


class QLearner(Learner):
    Settings = QLearnerSettings
    with_partners: ClassVar[str | None] = "q_learner_4am"
    settings: QLearnerSettings
    mac: BasicMAC

    def __init__(self, spec: Spec, mac: Any, config: Mapping[str, Any], *arguments: Any, **named: Any):
        super().__init__(spec, mac, config, *arguments, **named)
        if mac.am.output_size:
            raise UserError(
                f"{type(self).__name__} trains a team without agent models: for am_model="
                f"{mac.settings.am_model} use learner=q_learner_4am and mac=multi_module_mac."
            )
        name = self.settings.mixer
        self.mixer_class = choose(mixer_REGISTRY, name, "mixer") if name else None
        self.mixer_settings = fill(self.mixer_class.Settings, config) if self.mixer_class else None

    @classmethod
    def settings_classes(cls, config: Mapping[str, Any]) -> list[type]:
        mixer = fill(cls.Settings, config).mixer
        return [cls.Settings, *([choose(mixer_REGISTRY, mixer, "mixer").Settings] if mixer else [])]

    def init_params(self, key: Array) -> Params:
        k_agent, k_mixer = jax.random.split(key)
        params = self.mac.init_params(k_agent)
        if self.mixer_class:
            params["mixer"] = self.mixer_class(self.spec, self.mixer_settings, k_mixer)
        return params

    def loss(
        self, params: Params, target: Params, batch: EpisodeBatch, t_env: Array, key: Array
    ) -> tuple[Array, Metrics]:
        """The TD loss of the actions taken, on each agent's own value or on the team's."""
        s = self.settings
        steps = td.steps_of(batch, s, self.spec.episode_limit, self.shared_reward)
        q = self.mac.unroll(params, batch).outputs
        q_target = self.mac.unroll(target, batch).outputs[1:]
        q_taken = pick(q[:-1], steps.actions)
        q_next = self.next_value(q[1:], q_target, steps.avail_next)
        if not self.mixer_class:
            y = td.one_step_targets(steps.reward, steps.ended, q_next, s.gamma)
            return td.td_loss(q_taken, y, steps.counted)
        team, state = td.of_team(steps, self.spec), time_first(batch.state)
        q_taken = params["mixer"](q_taken, state[:-1])
        q_next = target["mixer"](q_next, state[1:])
        y = td.one_step_targets(team.reward, team.ended, q_next, s.gamma)
        return td.td_loss(q_taken, y, team.counted)

    def next_value(self, online: Array, target: Array, avail_actions: Array) -> Array:
        """The value of the next state. Variants of Q-learning override this."""
        return td.value_of_best(online, target, avail_actions, self.settings.double_q)
