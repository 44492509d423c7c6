"""HOP while it learns: what co-players do for each goal, and a policy and a value that guide the search.

Goals are labelled in hindsight: at every step an agent was after the goal that it reached next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from omg.components.episode_buffer import EpisodeBatch
from omg.controllers.hop_controller import HopMAC
from omg.envs.multiagentenv import Spec
from omg.learners.base import Learner, LearnerSettings, LearnerState, Metrics, Params
from omg.modules.co_player import CoPlayerModel
from omg.utils.rl_utils import masked_mean, pick
from omg.utils.settings import UserError


@dataclass(frozen=True)
class HopLearnerSettings(LearnerSettings):
    value_coef: float = 0.5
    model_coef: float = 1.0
    exclusive_coef: float = 1.0


class HopLearner(Learner):
    Settings = HopLearnerSettings
    plans = True
    settings: HopLearnerSettings
    mac: HopMAC  # type: ignore[assignment]

    def __init__(self, spec: Spec, mac: HopMAC, config: Mapping[str, Any]):
        super().__init__(spec, mac, config)  # type: ignore[arg-type]
        if not isinstance(mac, HopMAC):
            raise UserError("hop_learner needs mac=hop_mac (everybody plans) or mac=multi_hop_mac (one among others).")
        self.focal = config.get("mac") == "multi_hop_mac"
        # Goals that the world names are reached by an act; a learned one is where reward came, whoever brought it.
        self.excludes = mac.settings.use_goals and mac.space is None and mac.goals.n > 0

    def init_params(self, key: Array) -> Params:
        return dict(self.mac.init_networks(key))

    def target_of(self, params: Params) -> Params:
        return {}

    def init_target(self, params: Params) -> Params:
        """Learned goals stay as they are, and are saved with the networks."""
        return {} if self.mac.space is None else {"goals": jax.tree.map(jnp.asarray, self.mac.space)}

    def parts(self, state: LearnerState) -> dict[str, Any]:
        return {**super().parts(state), **state.target}

    def acting(self, state: LearnerState) -> Params:
        return state.params

    def loss(
        self, params: Params, target: Params, batch: EpisodeBatch, t_env: Array, key: Array
    ) -> tuple[Array, Metrics]:
        mac, n = self.mac, self.spec.n_agents
        obs, actions, avail = batch.obs[:, :-1], batch.actions[:, :-1], batch.avail_actions[:, :-1]
        playing = batch.filled[:, :-1, None] * batch.alive[:, :-1]
        seats = jnp.broadcast_to(jnp.arange(n), actions.shape)
        planned = jnp.ones(actions.shape, bool)
        if self.focal:
            planned = seats == batch["agent_idx"].astype(jnp.int32)[..., None]
        wanted = label(batch["reached"][:, :-1].astype(jnp.int32), batch.filled[:, :-1], mac.n_goals - 1)

        # What co-players do for what they are after.
        observed = playing * (~planned if self.focal else 1.0)
        log_model = jax.nn.log_softmax(mac.co_players(params["model"], obs, mac.goal(obs, wanted), avail), -1)
        model_loss = masked_mean(-pick(log_model, actions), observed)
        right = (log_model.argmax(-1) == actions).astype(jnp.float32)

        not_this = self.exclusive(params["model"], batch, observed, key)

        # What the search came to, and what came of it.
        mask = playing * planned
        earning = self.counted(batch.filled[:, :-1, None], batch.alive[:, :-1]) * planned
        everybody = jnp.broadcast_to(wanted[:, :, None], (*wanted.shape, n))
        others = mac.goals_of_others(obs, everybody, seats)
        logits, value = mac.policy_value(params["agent"], obs, others, avail)
        search = batch["search"][:, :-1].astype(jnp.float32)
        log_pi = jnp.where(avail, jax.nn.log_softmax(logits, -1), 0.0)
        policy_loss = masked_mean(-(search * log_pi).sum(-1), mask)
        goes_on = batch.alive[:, 1:] | self.shared
        returns = discounted(batch.reward[:, :-1], goes_on, mac.settings.hop_gamma)
        value_loss = masked_mean((value - returns) ** 2, earning)

        s = self.settings
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "model_loss": model_loss,
            **({"exclusive_loss": not_this} if self.excludes else {}),
            "model_accuracy": masked_mean(right, observed),
            "search_entropy": masked_mean(-(search * jnp.log(search + 1e-9)).sum(-1), mask),
        }
        co_players = s.model_coef * (model_loss + s.exclusive_coef * not_this)
        return policy_loss + s.value_coef * value_loss + co_players, metrics

    def exclusive(
        self, model: CoPlayerModel, batch: EpisodeBatch, observed: Float[Array, "batch time agent"], key: Array
    ) -> Float[Array, ""]:
        """-log(1 - π(a | s, g)) of the acts that reached something, for one other goal g by lot: who is after that does
        not do this.
        """
        if not self.excludes:
            return jnp.zeros(())
        mac, obs, actions = self.mac, batch.obs[:, :-1], batch.actions[:, :-1]
        reached = batch["reached"][:, :-1].astype(jnp.int32)
        other = (reached + jax.random.randint(key, reached.shape, 1, mac.n_goals)) % mac.n_goals
        logits = mac.co_players(model, obs, mac.goal(obs, other), batch.avail_actions[:, :-1])
        chance = pick(jax.nn.softmax(logits, -1), actions)
        return masked_mean(-jnp.log1p(-0.999 * chance), observed * (reached >= 0))


def label(
    reached: Int[Array, "batch time agent"], filled: Float[Array, "batch time"], nothing: int
) -> Int[Array, "batch time agent"]:
    """The goal that each agent reached next; `nothing` where it reached none before the end."""

    def step(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        goal, real = now
        wanted = jnp.where((goal >= 0) & (real[:, None] > 0), goal, later)
        return wanted, wanted

    start = jnp.full_like(reached[:, 0], nothing)
    _, wanted = jax.lax.scan(step, start, (jnp.swapaxes(reached, 0, 1), filled.T), reverse=True)
    return jnp.swapaxes(wanted, 0, 1)


def discounted(
    reward: Float[Array, "batch time agent"], alive_next: Array, gamma: float
) -> Float[Array, "batch time agent"]:
    """Everything that an agent earned from each step on; nothing after it has left."""

    def step(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        earned, stays = now
        total = earned + gamma * stays * later
        return total, total

    swapped = (jnp.swapaxes(reward, 0, 1), jnp.swapaxes(alive_next, 0, 1))
    _, returns = jax.lax.scan(step, jnp.zeros_like(reward[:, 0]), swapped, reverse=True)
    return jnp.swapaxes(returns, 0, 1)
