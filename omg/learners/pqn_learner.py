"""PQN: Q-learning from fresh episodes, without replay and without target network (Gallici et al., 2024).

TD(λ) targets come from the online network before the update. Independent, or with a mixer on the team's value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from omg.components.episode_buffer import FocalBatch, masked_mean, pick, time_first
from omg.controllers.basic_controller import before_each_step
from omg.learners import td
from omg.learners.base import Metrics, MixerSettings, MixingLearner, Params
from omg.learners.on_policy import OnPolicyLearner, OnPolicySettings, Rollout, hindsight
from omg.modules.am import Judge


@dataclass(frozen=True)
class PQNSettings(td.LambdaSettings, OnPolicySettings, MixerSettings):
    """On-policy settings, a mixer or none, λ."""


class PQNSteps(NamedTuple):
    """What PQN needs of every step, `[time, batch, seat, …]`; with a mixer targets have one row per group."""

    inputs: Float[Array, "time batch seat input"]
    state: Float[Array, "time batch row state"]
    actions: Int[Array, "time batch seat"]
    targets: Float[Array, "time batch row"]
    filled: Float[Array, "time batch seat"]
    counted: Float[Array, "time batch row"]


class PQNLearner(MixingLearner, OnPolicyLearner):
    Settings = PQNSettings
    settings: PQNSettings

    def prepare(
        self, params: Params, target: Params, batch: FocalBatch, t_env: Array, key: Array
    ) -> tuple[Rollout, Metrics]:
        s = self.settings
        seen = self.mac.seen(batch)
        inferred = self.mac.infer_all(params, seen, batch)
        unrolled = self.mac.unroll_on(params["agent"], seen, inferred.embedding)
        before = before_each_step(unrolled.hidden, seen.start)
        judge = Judge(params["agent"], before, time_first(batch.avail_actions))
        chosen = hindsight(self, judge, target, seen, batch, inferred, t_env, key)
        steps = td.steps_of(batch, s, self.spec.episode_limit, self.shared_reward)
        q_next = unrolled.outputs[1:]
        value = td.value_of_best(q_next, q_next, steps.avail_next, False)
        state = time_first(batch.state)[:, :, :: self.mixed]
        if self.mixer_class:
            team = td.of_team(steps, self.spec, self.mixed)
            value = params["mixer"](td.by_group(value, self.mixed), state[1:])
            targets = td.q_targets(team, value, s.gamma, s.td_lambda)
            counted = team.counted
        else:
            targets = td.q_targets(steps, value, s.gamma, s.td_lambda)
            counted = steps.counted
        along = PQNSteps(
            inputs=jnp.concatenate([seen.own, inferred.embedding], -1)[:-1],
            state=state[:-1] if self.mixer_class else jnp.zeros((*steps.reward.shape[:2], 1, 0)),
            actions=steps.actions,
            targets=targets,
            filled=steps.filled,
            counted=counted,
        )
        return Rollout(along, before[:-1], inferred, chosen, target), {"target_mean": masked_mean(targets, counted)}

    def chunk_loss(self, params: Params, along: PQNSteps, memory: Array, t_env: Array) -> tuple[Array, Metrics]:
        """The mean squared error to the TD(λ) targets."""
        q_taken = pick(params["agent"].unroll(along.inputs, memory)[0], along.actions)
        if self.mixer_class:
            q_taken = params["mixer"](td.by_group(q_taken, self.mixed), along.state)
        loss, metrics = td.td_loss(q_taken, along.targets, along.counted)
        return loss, {name: value for name, value in metrics.items() if name != "target_mean"}
