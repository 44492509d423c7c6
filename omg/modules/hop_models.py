"""HOP's networks: policy and value conditioned on the others' goals, and the co-players' action model π_ω(a | s, g).

The last goal of every goal set is "none": to pursue no particular goal.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from omg.components.action_selectors import UNAVAILABLE
from omg.components.layers import MLP
from omg.envs.multiagentenv import MultiAgentEnv
from omg.modules.co_player import CoPlayerModel
from omg.modules.goal_sets import GoalSet


class HopModels:
    def __init__(self, env: MultiAgentEnv, goals: GoalSet, hidden: int, use_goals: bool):
        self.env, self.spec, self.goals, self.hidden, self.use_goals = env, env.spec, goals, hidden, use_goals
        self.n_goals = goals.n + 1
        self.none = goals.n
        """The index of the goal "none"."""
        self.n_types = max(goals.types, default=-1) + 2
        self.type_of = jnp.array([*goals.types, self.n_types - 1])
        self.goal_size = goals.size + 1

    def init_params(self, key: Array) -> dict[str, Any]:
        k_agent, k_model = jax.random.split(key)
        s, hidden = self.spec, self.hidden
        entities, ways = self.goals.entities, self.goals.entity_size
        own = s.obs_size + entities * ways + (s.n_agents - 1) * self.goal_size
        return {
            "agent": MLP((own, hidden, hidden, s.n_actions + 1), k_agent),
            "model": CoPlayerModel(s.obs_size, self.goal_size, ways, hidden, s.n_actions, k_model),
        }

    def goal_features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        """Every goal as the observing agent sees it. The goal "none" has only its own flag."""
        known = self.goals.features(obs)
        known = jnp.pad(known, [(0, 0)] * (known.ndim - 2) + [(0, 1), (0, 1)]).at[..., -1, -1].set(1.0)
        return known if self.use_goals else jnp.zeros_like(known)

    def goal(self, obs: Float[Array, "*rows obs"], which: Int[Array, "*rows"]) -> Float[Array, "*rows feature"]:
        """One goal as the observing agent sees it."""
        return jnp.take_along_axis(self.goal_features(obs), which[..., None, None], -2)[..., 0, :]

    def co_player_logits(
        self, model: CoPlayerModel, obs: Array, goal: Array, avail_actions: Array
    ) -> Float[Array, "*rows action"]:
        """π_ω(a | s, g), as logits."""
        return jnp.where(avail_actions, model(obs, goal, self.goals.surroundings(obs)), UNAVAILABLE)

    def logits_of_goals(
        self, model: CoPlayerModel, obs: Float[Array, "*rows obs"], avail_actions: Array
    ) -> Float[Array, "*rows goal action"]:
        """π_ω(a | s, g) for every goal, as logits."""
        features = self.goal_features(obs)
        each = jnp.broadcast_to(obs[..., None, :], (*features.shape[:-1], obs.shape[-1]))
        avail = jnp.broadcast_to(avail_actions[..., None, :], (*features.shape[:-1], avail_actions.shape[-1]))
        return self.co_player_logits(model, each, features, avail)

    def policy_value(self, agent: MLP, obs: Array, others: Array, avail_actions: Array) -> tuple[Array, Array]:
        """Policy logits and value; `others` are the features of the other agents' goals."""
        inputs = [obs, *(x.reshape(*x.shape[:-2], -1) for x in (others, self.goals.surroundings(obs)))]
        out = agent(jnp.concatenate(inputs, -1))
        return jnp.where(avail_actions, out[..., :-1], UNAVAILABLE), out[..., -1]

    def goals_of_others(
        self, obs: Float[Array, "*rows obs"], goals: Int[Array, "*rows agent"], seat: Int[Array, "*rows"]
    ) -> Float[Array, "*rows other feature"]:
        """The features of the others' goals, in order of their seats after this agent's."""
        n = self.spec.n_agents
        others = (seat[..., None] + jnp.arange(1, n)) % n
        pursued = jnp.take_along_axis(goals, others, -1)
        return jnp.take_along_axis(self.goal_features(obs), pursued[..., None], -2)

    def by_type(self, of_goals: Array) -> Float[Array, "*rows goal_type"]:
        """Sums over the goals of each goal type."""
        return of_goals @ (self.type_of[:, None] == jnp.arange(self.n_types)).astype(jnp.float32)
