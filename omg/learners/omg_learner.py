"""OMG: Q-learning on subgoals. The policy learns on subgoals chosen in hindsight, later on the inferred ones.

The choice in hindsight and the CVAE's loss are in `omg/modules/am/omg_am.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from omg.components.episode_buffer import pick
from omg.envs.multiagentenv import Spec
from omg.learners import td
from omg.learners.base import Params
from omg.learners.q_learner_4am import QLearner4AM, QLearner4AMSettings
from omg.modules.am import Seen
from omg.utils.settings import UserError, setting


@dataclass(frozen=True)
class OMGLearnerSettings(QLearner4AMSettings):
    target_subgoal: Literal["next", "same"] = setting(
        "next", "subgoal of the TD target: next (g_{t+1}) or same (g_t, the paper's equation 4)"
    )


class OMGLearner(QLearner4AM):
    Settings = OMGLearnerSettings
    settings: OMGLearnerSettings

    def __init__(self, spec: Spec, mac: Any, config: Mapping[str, Any], *arguments: Any, **named: Any):
        super().__init__(spec, mac, config, *arguments, **named)
        if "vae" not in mac.needs:
            raise UserError(
                f"omg_learner needs am_model=omg_am, not {mac.settings.am_model}: use q_learner_4am for it."
            )
        if self.settings.target_subgoal == "same":
            self.values = self.same_subgoal_values  # type: ignore[method-assign]

    def same_subgoal_values(
        self, params: Params, target: Params, seen: Seen, steps: td.Steps, embedding: Array, target_embedding: Array
    ) -> tuple[Array, Array]:
        """Equation 4 of the paper: the next state is valued with the subgoal of the present step."""
        online, frozen = self.mac.unroll_both(params["agent"], target["agent"], seen, embedding)

        def next_q(network: Any, hidden: Array) -> Array:
            inputs = jnp.concatenate([seen.own[1:], embedding[:-1]], -1)
            return jax.vmap(lambda x, h: network.step(x, h)[0])(inputs, hidden[:-1])

        q_next = td.value_of_best(
            next_q(params["agent"], online.hidden),
            next_q(target["agent"], frozen.hidden),
            steps.avail_next,
            self.settings.double_q,
        )
        return pick(online.outputs[:-1], steps.actions), q_next
