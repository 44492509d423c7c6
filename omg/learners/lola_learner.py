"""LOLA (Foerster et al., 2018): every agent anticipates one gradient step of the others, and what that step brings it.

Values can be differentiated as often as needed (loaded DiCE, Farquhar et al., 2019), with a critic as baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from omg.components.episode_buffer import EpisodeBatch, masked_mean, pick
from omg.controllers.basic_controller import BasicMAC
from omg.envs.multiagentenv import Spec
from omg.learners import td
from omg.learners.base import Learner, LearnerSettings, LearnerState, Metrics, Params, clip_each
from omg.learners.ppo_learner import log_policy
from omg.utils.settings import UserError, setting


@dataclass(frozen=True)
class LOLASettings(LearnerSettings):
    lola_step: float = setting(0.3, "LOLA: step size of the anticipated gradient step of the others; 0: none", low=0)
    lola_limit: float = setting(
        1.0, "LOLA: largest norm of the correction, in norms of the agent's own gradient", above=0
    )
    gae_lambda: float = setting(0.95, "λ of the generalised advantage estimate", low=0, high=1)
    value_coef: float = setting(0.5, "weight of the value loss", low=0)
    entropy_coef: float = setting(0.01, "weight of the entropy bonus", low=0)
    entropy_decay: bool = setting(False, "the entropy bonus falls linearly to zero over t_max")


class LOLALearner(Learner):
    Settings = LOLASettings
    settings: LOLASettings
    on_policy = True
    mac: BasicMAC

    def __init__(self, spec: Spec, mac: Any, config: Mapping[str, Any], *arguments: Any, **named: Any):
        super().__init__(spec, mac, config, *arguments, **named)
        if not mac.own_networks or mac.am.output_size:
            raise UserError(
                "lola differentiates by the networks of single agents, which have no agent model: it needs "
                "policy_model=idv_rnn and am_model=none_am."
            )

    def init_params(self, key: Array) -> Params:
        k_agent, k_critic = jax.random.split(key)
        return {**self.mac.init_params(k_agent), "critic": self.mac.new_network(1, k_critic)}

    def target_of(self, params: Params) -> Params:
        return {}

    def clip(self) -> optax.GradientTransformation:
        return clip_each(self.settings.grad_norm_clip)

    def gradient(self, state: LearnerState, batch: EpisodeBatch, t_env: Array, key: Array) -> tuple[Any, Metrics]:
        s, params = self.settings, state.params
        steps = td.steps_of(batch, s, self.spec.episode_limit, self.shared_reward)
        values = self.mac.unroll({"agent": params["critic"]}, batch).outputs[..., 0]
        returns = td.lambda_targets(steps.reward, steps.ended, steps.filled, values[1:], s.gamma, s.gae_lambda)
        advantage = (returns - values[:-1]) * steps.counted

        def criticised(critic: Any) -> Array:
            found = self.mac.unroll({"agent": critic}, batch).outputs[:-1, ..., 0]
            return s.value_coef * masked_mean((found - returns) ** 2, steps.counted)

        value_loss, of_critic = jax.value_and_grad(criticised)(params["critic"])
        of_agent = self.anticipating(params["agent"], batch, steps, advantage)
        entropy, of_entropy = jax.value_and_grad(self.entropy)(params["agent"], batch, steps)
        bonus = s.entropy_coef * (self.left(t_env) if s.entropy_decay else 1.0)
        grads = {"agent": jax.tree.map(lambda g, h: -(g + bonus * h), of_agent, of_entropy), "critic": of_critic}
        metrics = {"loss": value_loss, "value_loss": value_loss, "entropy": entropy}
        return grads, metrics | {"grad_norm": optax.global_norm(grads)}

    def anticipating(self, agent: Any, batch: EpisodeBatch, steps: td.Steps, advantage: Array) -> Any:
        """The direction in which every agent i goes, one row for each seat: ∇_i V_i + α·Σ_j (∇_j V_i)ᵀ ∇_i ∇_j V_j.

        The second term, the correction, is shortened to `lola_limit` times the length of the first if it is longer.
        """
        n = self.spec.n_agents

        def value(agent: Any, i: int) -> Array:
            return self.values(agent, batch, steps, advantage)[i]

        # [i][j]: how the value of agent i changes with the network of agent j.
        gradients = [jax.grad(value)(agent, i) for i in range(n)]

        def taught(agent: Any, i: int) -> Array:
            """What agent i gains by the steps of the others, as a function of its own network."""
            gain = jnp.zeros(())
            for j in range(n):
                if j != i:
                    step = jax.tree.map(lambda x, j=j: x[j], jax.grad(value)(agent, j))
                    worth = jax.tree.map(lambda x, j=j: x[j], gradients[i])
                    gain += sum(jax.tree.leaves(jax.tree.map(lambda a, b: (a * b).sum(), step, worth)))
            return gain

        def direction(i: int) -> Any:
            own = jax.tree.map(lambda x: x[i], gradients[i])
            if not self.settings.lola_step:
                return own
            through = jax.tree.map(lambda h: self.settings.lola_step * h[i], jax.grad(taught)(agent, i))
            longest = self.settings.lola_limit * optax.global_norm(own)
            scale = jnp.minimum(1.0, longest / jnp.maximum(optax.global_norm(through), 1e-12))
            return jax.tree.map(lambda g, h: g + scale * h, own, through)

        return jax.tree.map(lambda *rows: jnp.stack(rows), *(direction(i) for i in range(n)))

    def values(
        self, agent: Any, batch: EpisodeBatch, steps: td.Steps, advantage: Float[Array, "time batch agent"]
    ) -> Float[Array, " agent"]:
        """The discounted return of every agent less a constant: its derivatives of any order are estimates of V's."""
        logits = self.mac.unroll({"agent": agent}, batch).outputs[:-1]
        log_pi = (pick(log_policy(logits, steps.avail_actions), steps.actions) * steps.acted).sum(-1)
        so_far = jnp.cumsum(log_pi, 0)
        weight = magic_box(so_far) - magic_box(so_far - log_pi)
        discount = self.settings.gamma ** jnp.arange(len(weight))[:, None]
        return ((discount * weight)[..., None] * advantage).sum(0).mean(0)

    def entropy(self, agent: Any, batch: EpisodeBatch, steps: td.Steps) -> Float[Array, ""]:
        log_pi = log_policy(self.mac.unroll({"agent": agent}, batch).outputs[:-1], steps.avail_actions)
        return masked_mean(-(jnp.exp(log_pi) * jnp.where(steps.avail_actions, log_pi, 0.0)).sum(-1), steps.acted)


def magic_box(x: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """1, with the derivative of exp(x): DiCE's operator."""
    return jnp.exp(x - jax.lax.stop_gradient(x))
