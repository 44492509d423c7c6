"""OMG: Q-learning on subgoals. The policy learns on what hindsight chose, later on what is inferred while acting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from omg.components.focal_batch import FocalBatch
from omg.controllers import FocalMAC
from omg.envs.multiagentenv import Spec
from omg.learners.base import LearnerState, Params
from omg.learners.q_learner_4am import QLearner4AM, QLearner4AMSettings, Told
from omg.learners.subgoals import SubgoalSettings, candidate_values, candidates, choose, eta, pick_ahead
from omg.modules.am import Inferred, Seen
from omg.modules.am.base import time_first
from omg.modules.am.omg_am import Chosen
from omg.modules.vae import VAE, Gaussian
from omg.utils.rl_utils import pick
from omg.utils.settings import UserError, fill


@dataclass(frozen=True)
class OMGLearnerSettings(SubgoalSettings, QLearner4AMSettings):
    """Those of Q-learning, and those of the choice of subgoals."""


class Hindsight:
    """The choice of subgoals, for any learner that can say what a situation is worth given one."""

    def __init__(self, settings: SubgoalSettings, t_max: int):
        self.settings = settings
        self.t_max = t_max

    def tell(
        self, vae: VAE, network: Any, hidden: Array, avail_actions: Array | None, seen: Seen, batch: FocalBatch,
        inferred: Inferred, t_env: Array, key: Array,
    ) -> Told:  # fmt: skip
        """g_t: ḡ_t with probability η, else ĝ_t. `hidden` is the network's memory before each step, told ĝ so far."""
        k_choose, k_mix = jax.random.split(key)
        of_states = vae.encode(seen.s)
        there = candidates(time_first(batch.filled), self.settings.H)
        values = candidate_values(network, seen, hidden, of_states.mu, avail_actions, self.settings.H)
        ahead = choose(values, there, self.settings, k_choose)
        subgoal = Gaussian(*jax.lax.stop_gradient(_with_last(pick_ahead(of_states, ahead), of_states)))
        any_there = jnp.pad(there.any(0), ((0, 1), (0, 0), (0, 0)))

        lots = jax.random.uniform(k_mix, any_there.shape) < eta(self.settings, t_env, self.t_max)
        use_chosen = (lots & any_there)[..., None]
        goals = jnp.where(use_chosen, subgoal.mu, jax.lax.stop_gradient(inferred.embedding))
        far = jnp.pad(ahead, ((0, 1), (0, 0), (0, 0))).astype(jnp.float32)
        return Told(goals, Chosen(subgoal, far, any_there.astype(jnp.float32), vae))


def _with_last(chosen: Gaussian, of_states: Gaussian) -> tuple[Array, Array]:
    """After the last step there is nothing to choose; the slot is filled so that shapes agree."""
    mu, log_var = (jnp.concatenate([c, s[-1:]]) for c, s in zip(chosen, of_states, strict=True))
    return mu, log_var


def before_each_step(hidden: Array) -> Array:
    """From the memory after every step to the memory before it."""
    return jnp.concatenate([jnp.zeros_like(hidden[:1]), hidden[:-1]])


def check_vae(vae: VAE | None) -> VAE:
    if vae is None:
        raise UserError("this learner needs a pre-trained VAE: make one with omg pretrain.")
    return vae


class OMGLearner(QLearner4AM):
    Settings = OMGLearnerSettings
    settings: OMGLearnerSettings

    def __init__(self, spec: Spec, mac: FocalMAC, config: Mapping[str, Any]):
        super().__init__(spec, mac, config)
        if not mac.am.needs_vae:
            raise UserError(
                f"omg_learner needs am_model=omg_am, not {mac.settings.am_model}: use q_learner_4am for it."
            )
        self.vae = check_vae(config.get("vae"))
        self.hindsight = Hindsight(fill(SubgoalSettings, config), int(config.get("t_max", 1)) * spec.n_agents)

    def init_target(self, params: Params) -> Params:
        return {**super().init_target(params), "vae": jax.tree.map(jnp.asarray, self.vae)}

    def parts(self, state: LearnerState) -> dict[str, Any]:
        return {**super().parts(state), "vae": state.target["vae"]}

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
        agent = jax.lax.stop_gradient(params["agent"])
        hidden = self.mac.unroll_on(agent, seen, jax.lax.stop_gradient(inferred.embedding)).hidden
        avail = time_first(batch.avail_actions)
        return self.hindsight.tell(
            target["vae"], agent, before_each_step(hidden), avail, seen, batch, inferred, t_env, key
        )

    def values(
        self, params: Params, target: Params, seen: Seen, batch: FocalBatch, embedding: Array
    ) -> tuple[Array, Array]:
        if self.settings.target_subgoal == "next":
            return super().values(params, target, seen, batch, embedding)
        # The paper's equation 4: what comes next is judged with the subgoal of the step before.
        online, older = self.mac.unroll_both(params["agent"], target["agent"], seen, embedding)
        taken = pick(online.outputs[:-1], time_first(batch.actions)[:-1])

        def judged(network: Any, hidden: Array) -> Array:
            inputs = jnp.concatenate([seen.own[1:], embedding[:-1]], -1)
            each = jax.vmap(lambda x, h: network.step(x, h)[0])
            return each(inputs, hidden[:-1])

        q_next = jax.lax.stop_gradient(judged(params["agent"], online.hidden))
        avail = time_first(batch.avail_actions)[1:]
        return taken, self.value_of_best(q_next, judged(target["agent"], older.hidden), avail)
