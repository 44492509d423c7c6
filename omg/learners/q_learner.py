"""Q-learning for a team: independent (no mixer), or on the team's value through a mixer (vdn, qmix)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch, pick, time_first
from omg.controllers.basic_controller import BasicMAC
from omg.envs.multiagentenv import Spec
from omg.learners import td
from omg.learners.base import Metrics, MixerSettings, MixingLearner, Params
from omg.utils.settings import UserError


@dataclass(frozen=True)
class QLearnerSettings(td.QSettings, MixerSettings):
    pass


class QLearner(MixingLearner):
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

    def loss(
        self, params: Params, target: Params, batch: EpisodeBatch, t_env: Array, key: Array
    ) -> tuple[Array, Metrics]:
        """The TD loss of the actions taken, on each agent's own value or on the team's."""
        s = self.settings
        steps = td.steps_of(batch, s, self.spec.episode_limit, self.shared_reward)
        online, frozen = self.mac.unroll_with_target(params, target, batch)
        q, q_target = online.outputs, frozen.outputs
        q_taken = pick(q[:-1], steps.actions)
        q_next = self.next_value(q[1:], q_target[1:], steps.avail_next)
        if not self.mixer_class:
            return td.td_loss(q_taken, td.q_targets(steps, q_next, s.gamma, s.td_lambda), steps.counted)
        team, state = td.of_team(steps, self.spec, q.shape[2]), time_first(batch.state)[:, :, None]
        q_taken = params["mixer"](q_taken[:, :, None], state[:-1])
        q_next = target["mixer"](q_next[:, :, None], state[1:])
        return td.td_loss(q_taken, td.q_targets(team, q_next, s.gamma, s.td_lambda), team.counted)

    def next_value(self, online: Array, target: Array, avail_actions: Array) -> Array:
        """The value of the next state. Variants of Q-learning override this."""
        return td.value_of_best(online, target, avail_actions, self.settings.double_q)
