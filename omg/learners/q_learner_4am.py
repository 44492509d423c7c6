"""Q-learning with frozen partners, of one agent or of a group, on an agent model's embedding.

A group can have a mixer (`5any3qmix`): it mixes the values of those who learn together.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch, FocalBatch, pick, refine, time_first
from omg.controllers.basic_controller import BasicMAC, before_each_step
from omg.learners import td
from omg.learners.base import Metrics, MixerSettings, MixingLearner, Params
from omg.modules.am import Conditioning, Inferred, Judge, Seen


@dataclass(frozen=True)
class QLearner4AMSettings(td.QSettings, MixerSettings):
    """Those of Q-learning."""


class QLearner4AM(MixingLearner):
    """Every update sees `batch_size` episodes for each seat of the focal agent."""

    Settings = QLearner4AMSettings
    can_be_team = False
    can_be_focal = True
    settings: QLearner4AMSettings
    mac: BasicMAC

    def target_of(self, params: Params) -> Params:
        mine = [name for name in params if name in ("agent", "mixer") or self.mac.am.in_target]
        return {name: params[name] for name in mine}

    def _refine_batch(self, batch: EpisodeBatch) -> FocalBatch:
        """`batch_size × n_agents` episodes as `batch_size` rows: column k holds the focal agent's data of seat k."""
        return refine(batch, self.spec.n_agents, self.mac.group)

    def loss(
        self, params: Params, target: Params, batch: EpisodeBatch, t_env: Array, key: Array
    ) -> tuple[Array, Metrics]:
        """The TD loss of the focal agent plus the agent model's own loss."""
        s, focal = self.settings, self._refine_batch(batch)
        k_goals, k_model = jax.random.split(key)
        seen = self.mac.seen(focal)
        inferred = self.mac.infer_all(params, seen, focal)
        condition = self.condition(params, target, seen, focal, inferred, t_env, k_goals)

        steps = td.steps_of(focal, s, self.spec.episode_limit, self.shared_reward)
        frozen = self.target_embedding(target, seen, focal, condition)
        q_taken, q_next = self.values(params, target, seen, steps, condition.embedding, frozen)
        valued: td.Steps | td.TeamSteps = steps
        if self.mixer_class:
            valued, state = td.of_team(steps, self.spec, self.mixed), time_first(focal.state)[:, :, :: self.mixed]
            q_taken = params["mixer"](td.by_group(q_taken, self.mixed), state[:-1])
            q_next = target["mixer"](td.by_group(q_next, self.mixed), state[1:])
        loss, metrics = td.td_loss(q_taken, td.q_targets(valued, q_next, s.gamma, s.td_lambda), valued.counted)

        model_loss, model_metrics = self.mac.am.loss(params, seen, focal, inferred, condition.chosen, k_model)
        return loss + model_loss, {**metrics, **model_metrics}

    def condition(
        self,
        params: Params,
        target: Params,
        seen: Seen,
        batch: FocalBatch,
        inferred: Inferred,
        t_env: Array,
        key: Array,
    ) -> Conditioning:
        """The policy's extra input: the inferred embedding; with OMG also the subgoals chosen in hindsight.

        The policy's loss does not train the agent model.
        """
        embedding = jax.lax.stop_gradient(inferred.embedding)
        if "vae" not in self.artifacts:
            return Conditioning(embedding)
        agent = jax.lax.stop_gradient(params["agent"])
        hidden = before_each_step(self.mac.unroll_on(agent, seen, embedding).hidden, seen.start)
        judge = Judge(agent, hidden, time_first(batch.avail_actions))
        return self.mac.am.choose_subgoals(target["vae"], judge, seen, batch, inferred, t_env, key)  # type: ignore[attr-defined]

    def target_embedding(self, target: Params, seen: Seen, batch: FocalBatch, condition: Conditioning) -> Array:
        """The target network's extra input: inferred by the target agent model, where the model asks for it."""
        if not self.mac.am.in_target:
            return condition.embedding
        inferred = self.mac.infer_all(target, seen, batch).embedding
        if condition.in_hindsight is not None:
            am: Any = self.mac.am
            chosen = am.with_subgoals(inferred, am.subgoals_in(condition.embedding))
            inferred = jnp.where(condition.in_hindsight, chosen, inferred)
        return jax.lax.stop_gradient(inferred)

    def values(
        self, params: Params, target: Params, seen: Seen, steps: td.Steps, embedding: Array, target_embedding: Array
    ) -> tuple[Array, Array]:
        """Q of the actions taken, and the value of the next states."""
        online, frozen = self.mac.unroll_both(params["agent"], target["agent"], seen, embedding, target_embedding)
        q_next = td.value_of_best(online.outputs[1:], frozen.outputs[1:], steps.avail_next, self.settings.double_q)
        return pick(online.outputs[:-1], steps.actions), q_next
