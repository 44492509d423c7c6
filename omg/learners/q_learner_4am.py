"""Q-learning of one agent among others, told by an agent model what to make of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from omg.components.action_selectors import UNAVAILABLE
from omg.components.episode_buffer import EpisodeBatch
from omg.components.focal_batch import FocalBatch, refine
from omg.controllers import FocalMAC
from omg.envs.multiagentenv import Spec
from omg.learners.base import Learner, LearnerSettings, LearnerState, Metrics, Params
from omg.modules.agents import IDVRNNAgent
from omg.modules.am import Inferred, Seen
from omg.modules.am.base import time_first
from omg.utils.rl_utils import masked_mean, pick
from omg.utils.settings import UserError


@dataclass(frozen=True)
class QLearner4AMSettings(LearnerSettings):
    mixer: str | None = None


class Told(NamedTuple):
    """What the policy is told of the others at every step, and what hindsight chose, where somebody did."""

    embedding: Float[Array, "time batch slot embedding"]
    chosen: Any = None


class QLearner4AM(Learner):
    """Every update sees `batch_size` episodes for each seat the focal agent can have."""

    Settings: type[LearnerSettings] = QLearner4AMSettings
    focal = True
    mac: FocalMAC

    def __init__(self, spec: Spec, mac: FocalMAC, config: Mapping[str, Any]):
        super().__init__(spec, mac, config)
        if config.get("mixer"):
            raise UserError(
                f"one agent among others has no team to mix values with: mixer must be null, not {config['mixer']}."
            )

    def init_params(self, key: Array) -> Params:
        k_agent, k_model = jax.random.split(key)
        return {"agent": self.mac.init_agent(k_agent), **self.mac.am.init(k_model)}

    def target_of(self, params: Params) -> Params:
        return {"agent": params["agent"]}

    def acting(self, state: LearnerState) -> Params:
        return state.params

    def optimiser(self) -> optax.GradientTransformation:
        """One optimiser for policy and agent model; neither's large gradients shrink the other's."""
        return optax.chain(clip_each(self.settings.grad_norm_clip), self.step_rule())

    def _refine_batch(self, batch: EpisodeBatch) -> FocalBatch:
        """`batch_size × n_agents` episodes as `batch_size` rows: slot k holds the focal agent's data of seat k."""
        return refine(batch, self.spec.n_agents)

    def loss(
        self, params: Params, target: Params, batch: EpisodeBatch, t_env: Array, key: Array
    ) -> tuple[Array, Metrics]:
        focal = self._refine_batch(batch)
        k_told, k_model = jax.random.split(key)
        seen = self.mac.seen(focal)
        inferred = self.mac.infer_all(params, seen, focal)
        told = self.tell(params, target, seen, focal, inferred, t_env, k_told)

        mask = time_first(self.counted(focal.filled, focal.alive))[:-1]
        q_taken, q_next = self.values(params, target, seen, focal, told.embedding)
        reward = self.settings.reward_scale * time_first(focal.reward)[:-1]
        y = jax.lax.stop_gradient(reward + self.settings.gamma * (1 - self.over(focal)) * q_next)
        td_error = q_taken - y
        td_loss = masked_mean(td_error**2, mask)

        model_loss, model_metrics = self.mac.am.loss(params, seen, focal, inferred, told.chosen, k_model)
        metrics = {
            "td_loss": td_loss,
            "td_error_abs": masked_mean(abs(td_error), mask),
            "q_taken_mean": masked_mean(q_taken, mask),
            **model_metrics,
        }
        return td_loss + model_loss, metrics

    def tell(
        self,
        params: Params,
        target: Params,
        seen: Seen,
        batch: FocalBatch,
        inferred: Inferred,
        t_env: Array,
        key: Array,
    ) -> Told:
        """The policy learns on what was inferred, but does not teach the agent model."""
        return Told(jax.lax.stop_gradient(inferred.embedding))

    def values(
        self, params: Params, target: Params, seen: Seen, batch: FocalBatch, embedding: Array
    ) -> tuple[Array, Array]:
        """Q of what was done, and the older network's value of what came next."""
        (q, _), (older, _) = self.mac.unroll_both(params["agent"], target["agent"], seen, embedding)
        taken = pick(q[:-1], time_first(batch.actions)[:-1])
        return taken, self.value_of_best(q[1:], older[1:], time_first(batch.avail_actions)[1:])

    def value_of_best(self, q: Array, older: Array, avail_actions: Array) -> Array:
        judge = jax.lax.stop_gradient(q) if self.settings.double_q else older
        best = jnp.where(avail_actions, judge, UNAVAILABLE).argmax(-1)
        return pick(older, best)

    def over(self, batch: FocalBatch) -> Float[Array, "time batch slot"]:
        ended = self.out_of_time(time_first(batch.terminated)[:-1], time_axis=0)
        return self.ended_for(ended, time_first(batch.alive)[1:])


def clip_each(largest: float) -> optax.GradientTransformation:
    """Every named network's gradient is cut to the norm by itself."""

    def update(grads: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
        def clip(tree: Any) -> Any:
            factor = jnp.minimum(1.0, largest / jnp.maximum(optax.global_norm(tree), 1e-9))
            return jax.tree.map(lambda x: x * factor, tree)

        def cut(tree: Any) -> Any:
            # Seats with networks of their own are cut one by one.
            return jax.vmap(clip)(tree) if isinstance(tree, IDVRNNAgent) else clip(tree)

        return {name: cut(tree) for name, tree in grads.items()}, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
