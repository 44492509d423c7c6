"""QTRAN-base: a free joint value learns by TD; the agents' values are held to it where it matters."""

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
from omg.learners.base import Metrics, Params
from omg.learners.q_learner import QLearner, QLearnerSettings
from omg.utils.rl_utils import masked_mean, pick
from omg.utils.settings import UserError


@dataclass(frozen=True)
class QTranLearnerSettings(QLearnerSettings):
    mixer: str | None = "qtran"
    opt_loss: float = 1.0
    nopt_min_loss: float = 0.1


class QTranLearner(QLearner):
    Settings = QTranLearnerSettings
    settings: QTranLearnerSettings

    def __init__(self, spec: Spec, mac: BasicMAC, config: Mapping[str, Any]):
        super().__init__(spec, mac, config)
        if mac.agent_settings.rnn_cell != "gru":
            raise UserError("qtran reads the agents' memory, which must be a GRU's: rnn_cell=gru.")

    def loss(
        self, params: Params, target: Params, batch: EpisodeBatch, t_env: Array, key: Array
    ) -> tuple[Array, Metrics]:
        mixer, one_hot = params["mixer"], self.mac.one_hot.transform
        online, older = self.mac.unroll(params["agent"], batch), self.mac.unroll(target["agent"], batch)
        avail, state, mask = batch.avail_actions, batch.state, batch.filled[:, :-1]

        judge = online.outputs if self.settings.double_q else older.outputs
        best_next = jnp.where(avail, judge, UNAVAILABLE).argmax(-1)[:, 1:]
        best = jnp.where(avail, online.outputs, UNAVAILABLE).argmax(-1)[:, :-1]

        # TD: the joint value of what was done.
        joint_next = target["mixer"].joint_q(older.hidden[:, 1:], one_hot(best_next), state[:, 1:])
        reward = self.team_reward(batch)
        y = reward + self.settings.gamma * (1 - self.ended(batch)) * joint_next
        hidden, actions, state = online.hidden[:, :-1], batch.actions[:, :-1], state[:, :-1]
        joint = mixer.joint_q(hidden, one_hot(actions), state)
        td_loss = masked_mean((joint - jax.lax.stop_gradient(y)) ** 2, mask)

        # At the agents' best actions their sum equals the joint value; elsewhere it is not below it.
        value = mixer.state_value(state)
        joint_best = jax.lax.stop_gradient(mixer.joint_q(hidden, one_hot(best), state))
        opt_error = pick(online.outputs[:, :-1], best).sum(-1) - joint_best + value
        opt_loss = masked_mean(opt_error**2, mask)
        nopt_error = pick(online.outputs[:, :-1], actions).sum(-1) - jax.lax.stop_gradient(joint) + value
        nopt_loss = masked_mean(jnp.minimum(nopt_error, 0.0) ** 2, mask)

        loss = td_loss + self.settings.opt_loss * opt_loss + self.settings.nopt_min_loss * nopt_loss
        metrics = {"td_loss": td_loss, "opt_loss": opt_loss, "nopt_loss": nopt_loss}
        return loss, {**metrics, "q_taken_mean": masked_mean(joint, mask)}
