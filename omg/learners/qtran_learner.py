"""QTRAN-base: a free joint value learns by TD; the sum of the agents' values is constrained by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch, masked_mean, pick, time_first
from omg.envs.multiagentenv import Spec
from omg.learners import td
from omg.learners.base import Metrics, Params
from omg.learners.q_learner import QLearner, QLearnerSettings
from omg.utils.settings import UserError, setting


@dataclass(frozen=True)
class QTranLearnerSettings(QLearnerSettings):
    opt_loss: float = setting(1.0, "QTRAN: weight of the loss at the agents' best actions", low=0)
    nopt_min_loss: float = setting(0.1, "QTRAN: weight of the loss at the actions taken", low=0)


class QTranLearner(QLearner):
    Settings = QTranLearnerSettings
    with_partners = None
    joint = True
    settings: QTranLearnerSettings

    def __init__(self, spec: Spec, mac: Any, config: Mapping[str, Any], *arguments: Any, **named: Any):
        super().__init__(spec, mac, config, *arguments, **named)
        if self.settings.mixer != "qtran":
            raise UserError(f"qtran_learner needs mixer=qtran, not {self.settings.mixer}.")
        if mac.agent_settings.rnn_cell != "gru":
            raise UserError("qtran reads the recurrent state of the agents, which must be a GRU's: rnn_cell=gru.")

    def loss(
        self, params: Params, target: Params, batch: EpisodeBatch, t_env: Array, key: Array
    ) -> tuple[Array, Metrics]:
        mixer = params["mixer"]
        steps = td.steps_of(batch, self.settings, self.spec.episode_limit, self.shared_reward)
        team = jax.tree.map(lambda x: x[..., 0], td.of_team(steps, self.spec, self.spec.n_agents))
        state = time_first(batch.state)
        online, frozen = self.mac.unroll_with_target(params, target, batch)

        def one_hot(actions: Array) -> Array:
            return jax.nn.one_hot(actions, self.spec.n_actions)

        # TD: the joint value of the actions taken.
        chooser = online.outputs if self.settings.double_q else frozen.outputs
        best_next = td.best_action(chooser[1:], steps.avail_next)
        joint_next = target["mixer"].joint_q(frozen.hidden[1:], one_hot(best_next), state[1:])
        y = td.q_targets(team, joint_next, self.settings.gamma, self.settings.td_lambda)
        hidden, q, state = online.hidden[:-1], online.outputs[:-1], state[:-1]
        joint = mixer.joint_q(hidden, one_hot(steps.actions), state)
        td_loss, metrics = td.td_loss(joint, y, team.counted)

        # At the agents' best actions the sum of their values plus V(s) equals the joint value; elsewhere it is no less.
        value = mixer.state_value(state)
        best = td.best_action(q, steps.avail_actions)
        joint_best = jax.lax.stop_gradient(mixer.joint_q(hidden, one_hot(best), state))
        opt_error = pick(q, best).sum(-1) - joint_best + value
        opt_loss = masked_mean(opt_error**2, team.counted)
        nopt_error = pick(q, steps.actions).sum(-1) - jax.lax.stop_gradient(joint) + value
        nopt_loss = masked_mean(jnp.minimum(nopt_error, 0.0) ** 2, team.counted)

        loss = td_loss + self.settings.opt_loss * opt_loss + self.settings.nopt_min_loss * nopt_loss
        return loss, {**metrics, "opt_loss": opt_loss, "nopt_loss": nopt_loss}
