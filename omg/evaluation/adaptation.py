"""Few-shot adaptation: an agent meets the same co-players again and again, and only its beliefs change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch, Field, make_scheme
from omg.controllers import HopMAC, MultiModuleMAC, Side, TeamPolicies, TeamPrior
from omg.envs import MultiAgentEnv
from omg.learners.hop_learner import label
from omg.runners import VectorRunner
from omg.utils.settings import UserError

BINS = 10
"""Parts of an episode by which beliefs are reported."""


@dataclass(frozen=True)
class AdaptSettings:
    adapt_episodes: int = 24
    told: bool = False

    def __post_init__(self) -> None:
        if self.adapt_episodes < 1:
            raise UserError(f"adapt_episodes is {self.adapt_episodes}; it must be 1 or more.")


class Adapted(NamedTuple):
    """One seed's meetings with one kind of co-player: `[episode, meeting]`, and by parts of the episode."""

    focal_return: np.ndarray
    team_return: np.ndarray
    kind: np.ndarray
    """The kind of goal the agent itself reached last; -1: none."""
    action_accuracy: np.ndarray | None = None
    goal_belief: np.ndarray | None = None
    """`[episode, meeting, part]`: the belief in the goal that each co-player really reached, mean over co-players."""
    kind_belief: np.ndarray | None = None
    steps_to_half: np.ndarray | None = None
    """Steps until the belief in the true goal passed one half for good; the episode's length where it never did."""
    inferred: np.ndarray | None = None
    """The part of the co-players' steps from which something was inferred (less than all with a gate)."""


class Adaptation:
    """`meetings` teams side by side, the agent in every seat equally often, `episodes` one after the other."""

    def __init__(self, env: MultiAgentEnv, focal: Any, others: Any, meetings: int, episodes: int, friendly: int = -1):
        n = env.spec.n_agents
        self.env, self.focal, self.episodes = env, focal, episodes
        self.friendly = friendly
        """Tit-for-tat: the kind of goal that it takes for friendly (-1: nobody asks)."""
        self.worlds = -(-meetings // n)
        self.mac = MultiModuleMAC(env.spec, focal, (0,), (Side(others, tuple(range(1, n)), 1),))
        scheme, groups = make_scheme(env.spec)
        if env.n_goals:
            scheme["world_reached"] = Field((), "int16", "agents")
        self.models = isinstance(focal, HopMAC)
        if self.models:
            scheme["reached"] = Field((), "int16", "agents")
            scheme["inferred"] = Field((), "bool", "agents")
            scheme["belief"] = Field((focal.n_goals,), "float16", "agents")
            scheme["predicted"] = Field((), "int16", "agents")
        self.runner = VectorRunner(env, self.mac, scheme, groups, n * self.worlds)
        self.seats = jnp.repeat(jnp.arange(n), self.worlds)
        self.compiled = jax.jit(self._play)

    def play(self, agent: Any, others: Any, key: Array) -> Adapted:
        """`others` is the policy in all other seats, with a leading axis of one."""
        return Adapted(**{name: np.asarray(x) for name, x in self.compiled(agent, others, key).items()})

    def _play(self, agent: Any, others: Any, key: Array) -> dict[str, Array]:
        team = TeamPolicies(agent, (others,))
        batch = self.runner.batch_size
        start = self.mac.init_memory(team, batch)
        prior = start.trained.prior if self.models else None

        def episode(carry, k):
            prior, mood = carry
            given = TeamPrior(prior, (mood,) if self.friendly >= 0 else ())
            played, stats, memory = self.runner.play(team, jnp.int32(0), k, True, True, given)
            assert played is not None
            numbers = self._measure(played, stats)
            if self.models:
                prior = self.focal.next_prior(memory.trained)
            return (prior, numbers["kind"] == self.friendly), numbers

        start_mood = jnp.ones(batch, bool)
        return jax.lax.scan(episode, (prior, start_mood), jax.random.split(key, self.episodes))[1]

    def _measure(self, played: EpisodeBatch, stats: Any) -> dict[str, Array]:
        env, n, seats = self.env, self.env.spec.n_agents, self.seats
        own = jnp.take_along_axis(stats.agent_returns, seats[:, None], 1)[:, 0]
        numbers = {"focal_return": own, "team_return": env.spec.team_reward(stats.agent_returns)}
        numbers["kind"] = jnp.full(own.shape, -1)
        filled = played.filled[:, :-1]

        def real(name: str) -> Array:
            return jnp.where(filled[..., None] > 0, played[name][:, :-1].astype(jnp.int32), -1)

        if env.n_goals:
            own_goals = jnp.take_along_axis(real("world_reached"), seats[:, None, None], 2)[..., 0]
            numbers["kind"] = last_kind(own_goals, jnp.asarray(env.goal_kinds))
        if not self.models:
            return numbers
        reached = real("reached")
        other = jnp.arange(n) != seats[:, None, None]
        playing = filled[..., None] * played.alive[:, :-1] * other
        wanted = label(reached, filled, self.focal.n_goals - 1)
        belief = played["belief"][:, :-1].astype(jnp.float32)
        in_goal = jnp.take_along_axis(belief, wanted[..., None], -1)[..., 0]
        alike = self.focal.kind_of == self.focal.kind_of[wanted][..., None]
        in_kind = (belief * alike).sum(-1)
        right = (played["predicted"][:, :-1] == played.actions[:, :-1]).astype(jnp.float32)
        numbers["action_accuracy"] = _mean(right, playing, (1, 2))
        # Beliefs can be right only about what came to something.
        somewhere = playing * (wanted < self.focal.n_goals - 1)
        numbers["goal_belief"] = by_part(in_goal, somewhere)
        numbers["kind_belief"] = by_part(in_kind, somewhere)
        numbers["steps_to_half"] = steps_to_half(in_goal, somewhere)
        numbers["inferred"] = _mean(played["inferred"][:, :-1].astype(jnp.float32), playing, (1, 2))
        return numbers


def last_kind(reached: Array, kinds: Array) -> Array:
    """The kind of the last goal reached in each episode `[batch, time]`; -1: none."""
    steps = jnp.arange(1, reached.shape[1] + 1)
    last = jnp.where(reached >= 0, steps, 0)
    goal = jnp.take_along_axis(reached, last.argmax(1)[:, None], 1)[:, 0]
    return jnp.where(last.max(1) > 0, kinds[goal], -1)


def by_part(value: Array, counted: Array) -> Array:
    """`[batch, time, agent]` to `[batch, part]`: each agent's value from its first counted step (part 0) to its last,
    mean over agents; not a number where nobody counts. Steps count from the start on, without gaps.
    """
    steps = counted.sum(1).astype(jnp.int32)
    place = jnp.round(jnp.arange(BINS)[None, :, None] * (steps - 1)[:, None] / (BINS - 1)).astype(jnp.int32)
    along = jnp.take_along_axis(value, jnp.maximum(place, 0), 1)
    there = (steps > 0)[:, None]
    return jnp.where(there.any(-1), (along * there).sum(-1) / jnp.maximum(there.sum(-1), 1), jnp.nan)


def steps_to_half(in_goal: Array, counted: Array) -> Array:
    """Per episode, mean over co-players: the steps after which the belief in the true goal stays above one half."""
    below = (in_goal < 0.5) * counted
    steps = jnp.arange(1, below.shape[1] + 1)[:, None]
    last = (below * steps).max(1)
    there = (counted.sum(1) > 0).astype(jnp.float32)
    return jnp.where(there.any(-1), (last * there).sum(-1) / jnp.maximum(there.sum(-1), 1), jnp.nan)


def _mean(x: Array, mask: Array, axes: tuple[int, ...]) -> Array:
    return (x * mask).sum(axes) / jnp.maximum(mask.sum(axes), 1)
