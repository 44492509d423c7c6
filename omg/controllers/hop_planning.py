"""HOP's planning: tree search in the environment itself, with co-players that act by π_ω for sampled goals.

The co-players' actions are drawn anew at every visit of a node. The environment's own dice (who gets a hare that two
hunters reach at once) and the new goal of a co-player whose goal has closed are drawn once per node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.components.action_selectors import UNAVAILABLE
from omg.components.tree_search import Expansion, cumulative, noisy, search
from omg.controllers.base import uniform_over
from omg.envs.multiagentenv import MultiAgentEnv, Timestep
from omg.modules.hop_models import HopModels
from omg.utils.settings import ReturnSettings, setting

UNIFORM_PRIOR = 0.25
"""Weight of the uniform distribution in the prior of the search."""


@dataclass(frozen=True)
class PlanningSettings(ReturnSettings):
    simulations: int = setting(200, "simulations of each search in tests", above=0)
    goal_draws: int = setting(5, "searches per decision in tests, each for one sample of the others' goals", above=0)
    train_simulations: int = setting(32, "simulations of each search while learning", above=0)
    train_goal_draws: int = setting(2, "searches per decision while learning", above=0)
    c_puct: float = setting(1.0, "exploration constant of the search", low=0)
    search_depth: int = setting(16, "maximal depth of the search in steps", above=0)
    planning: bool = setting(True, "false: one step ahead only, by the value of the next state")


class Node(NamedTuple):
    """A node of the search: the environment there, and the goals of all agents."""

    env_state: Any
    obs: Float[Array, "row agent obs"]
    avail_actions: Bool[Array, "row agent action"]
    goals: Int[Array, "row agent"]
    t: Int[Array, " row"]


class Planned(NamedTuple):
    """The values of actions: their mean over samples of the others' goals, and those for one sample."""

    q: Float[Array, "batch seat action"]
    sample_q: Float[Array, "batch seat action"]
    sample: Int[Array, "batch seat agent"]
    """The goals of all agents in that sample."""


class Planner:
    def __init__(self, env: MultiAgentEnv, models: HopModels, settings: PlanningSettings):
        self.env, self.models, self.settings = env, models, settings
        # In a cooperative game an agent goes on earning the team's reward after its own death.
        self.shared_reward = env.spec.game_type == "cooperative"

    def plan(
        self,
        params: Any,
        seen: Timestep,
        belief: Float[Array, "batch agent goal"],
        t: Int[Array, ""],
        seats: Int[Array, "batch seat"],
        env_state: Any,
        key: Array,
        test_mode: bool,
    ) -> Planned:
        """The value of every action, for samples of the others' goals."""
        s, models = self.settings, self.models
        draws = s.goal_draws if test_mode else s.train_goal_draws
        simulations = s.simulations if test_mode else s.train_simulations
        batch, per_env = seats.shape
        rows = batch * per_env * draws

        def per_row(x: Array) -> Array:
            """One row for every sample of every seat of every environment."""
            repeated = jnp.broadcast_to(x[:, None, None], (batch, per_env, draws, *x.shape[1:]))
            return repeated.reshape(rows, *x.shape[1:])

        k_goals, k_search, k_noise = jax.random.split(key, 3)
        seat = jnp.broadcast_to(seats[..., None], (batch, per_env, draws)).reshape(rows)
        goals = jax.random.categorical(k_goals, jnp.log(per_row(belief) + 1e-30))
        goals = jnp.where(per_row(seen.alive), goals, models.none)
        obs, avail = per_row(seen.obs.astype(jnp.float32)), per_row(seen.avail_actions)
        root = Node(jax.tree.map(per_row, env_state), obs, avail, goals, jnp.broadcast_to(t, (rows,)))
        logits, value, odds = self.evaluate(params, root, seat)
        if not test_mode:
            logits = noisy(logits, _at(avail, seat), k_noise)
        found = search(
            root, logits, value,
            lambda k, action, joint, node: self.expand(params, k, action, joint, node, seat),
            # Without planning: every action once, valued by the network's value of the next state.
            simulations if s.planning else self.env.spec.n_actions,
            k_search,
            s.c_puct,
            s.search_depth if s.planning else 1,
            try_all=True,
            odds=odds,
        )  # fmt: skip
        # An action without a simulation gets the value of the worst action that had one.
        tried = found.visits > 0
        q = jnp.where(tried, found.q, jnp.where(tried, found.q, jnp.inf).min(-1, keepdims=True))
        q, goals = (x.reshape(batch, per_env, draws, -1) for x in (q, goals))
        return Planned(q.mean(2), q[:, :, 0], goals[:, :, 0])

    def evaluate(
        self, params: Any, node: Node, seat: Int[Array, " row"]
    ) -> tuple[Float[Array, "row action"], Float[Array, " row"], Float[Array, "row agent action"]]:
        """Prior logits and value of a node by the networks, and the odds of what the others do there.

        The prior is mixed with the uniform distribution.
        """
        models, rows = self.models, jnp.arange(len(seat))
        obs, avail = _at(node.obs, seat), _at(node.avail_actions, seat)
        others = models.goals_of_others(obs, node.goals, seat)
        logits, value = models.policy_value(params["agent"], obs, others, avail)
        prior = (1 - UNIFORM_PRIOR) * jax.nn.softmax(logits, -1) + UNIFORM_PRIOR * uniform_over(avail)
        pursued = models.goal(node.obs, node.goals)
        of_others = models.co_player_logits(params["model"], node.obs, pursued, node.avail_actions)
        # The agent's own action is not drawn.
        odds = cumulative(jax.nn.softmax(of_others, -1)).at[rows, seat].set(1.0)
        return jnp.where(avail, jnp.log(prior + 1e-9), UNAVAILABLE), value, odds

    def expand(
        self, params: Any, key: Array, action: Array, joint: Int[Array, "row agent"], node: Node, seat: Array
    ) -> tuple[Expansion, Node]:
        """One step of the environment, in which the others act as drawn."""
        k_env, k_goals = jax.random.split(key)
        rows = jnp.arange(action.shape[0])
        joint = joint.at[rows, seat].set(action)
        env_state, seen = jax.vmap(self.env.step)(node.env_state, joint, jax.random.split(k_env, len(rows)))
        seen = seen._replace(obs=self.env.own_first(seen.obs))
        is_open = self.open_goals(env_state, seen.obs)
        goals = jnp.where(seen.alive, self.resample(node.goals, is_open, k_goals), self.models.none)
        after = Node(env_state, seen.obs.astype(jnp.float32), seen.avail_actions, goals, node.t + 1)
        logits, value, odds = self.evaluate(params, after, seat)
        in_time = (after.t < self.env.spec.episode_limit) | self.settings.bootstrap_at_limit
        continues = (_at(seen.alive, seat) | self.shared_reward) & ~seen.terminated & in_time
        reward = self.settings.reward_scale * _at(seen.reward, seat)
        return Expansion(reward, self.settings.gamma * continues, logits, value, odds), after

    def open_goals(self, env_state: Any, obs: Float[Array, "batch agent obs"]) -> Bool[Array, "batch agent goal"]:
        """Which goals can still be pursued; the goal "none" always can."""
        known = self.models.goals.open(env_state, obs.astype(jnp.float32))
        is_open = jnp.pad(known, ((0, 0), (0, 1)), constant_values=True)
        return jnp.broadcast_to(is_open[:, None], (*obs.shape[:2], self.models.n_goals))

    def resample(self, goals: Int[Array, "row agent"], is_open: Bool[Array, "row agent goal"], key: Array) -> Array:
        """An agent whose goal has closed pursues another goal of the same type, or else any other open one."""
        models = self.models
        noise = jax.random.gumbel(key, is_open.shape)
        same_type = models.type_of == models.type_of[goals][..., None]
        none = jnp.arange(models.n_goals) == models.none
        score = jnp.where(is_open, noise + 20.0 * same_type - 40.0 * none, -jnp.inf)
        still_open = jnp.take_along_axis(is_open, goals[..., None], -1)[..., 0]
        return jnp.where(still_open, goals, score.argmax(-1))


def _at(x: Array, seat: Int[Array, " row"]) -> Array:
    """`[row, agent, …]` to `[row, …]`: the entry of each row's own agent."""
    index = seat.reshape(-1, *(1,) * (x.ndim - 1))
    return jnp.take_along_axis(x, index, 1)[:, 0]
