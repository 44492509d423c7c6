"""Few-shot adaptation: an agent meets the same co-players again and again, and only its beliefs change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch, Field, make_scheme
from omg.components.focal_batch import refine
from omg.controllers import HopMAC, MultiModuleMAC, Side, TeamPolicies, TeamPrior
from omg.envs import MultiAgentEnv
from omg.learners.hop_learner import label
from omg.runners import VectorRunner
from omg.utils.settings import UserError

MOMENTS = 11
"""Moments of an episode at which beliefs are reported, from before its first action to after its last."""


@dataclass(frozen=True)
class AdaptSettings:
    adapt_episodes: int = 24
    co_players: list | None = None
    same_boards: bool = False
    told: bool = False

    def __post_init__(self) -> None:
        if self.adapt_episodes < 1:
            raise UserError(f"adapt_episodes is {self.adapt_episodes}; it must be 1 or more.")
        if self.co_players == []:
            raise UserError("co_players is empty: name some, as in --co_players=[always_stag], or leave it out.")


class Adapted(NamedTuple):
    """One seed's meetings with one kind of co-player: `[episode, meeting]`, and by moments of the episode."""

    focal_return: np.ndarray
    team_return: np.ndarray
    kind: np.ndarray
    """The kind of goal the agent itself reached last; -1: none."""
    action_accuracy: np.ndarray | None = None
    goal_belief: np.ndarray | None = None
    """`[episode, meeting, moment]`: the belief in the goal that each co-player really reached, mean over co-players."""
    kind_belief: np.ndarray | None = None
    steps_to_half: np.ndarray | None = None
    """Steps until the belief in the true goal passed one half for good; all that were counted, where it never did."""
    inferred: np.ndarray | None = None
    """The part of the co-players' steps from which something was inferred (less than all with a gate)."""


class Adaptation:
    """`meetings` teams of each kind side by side, the agent in every seat equally often; `episodes` follow each other.

    `kinds` kinds of co-players and `seeds` agents are met in one program.
    """

    def __init__(
        self, env: MultiAgentEnv, focal: Any, others: Any, meetings: int, episodes: int, friendly: int = -1,
        kinds: int = 1, seeds: int = 1, same_boards: bool = False,
    ):  # fmt: skip
        n = env.spec.n_agents
        self.env, self.focal, self.episodes, self.kinds, self.n_seeds = env, focal, episodes, kinds, seeds
        self.friendly = friendly
        """Tit-for-tat: the kind of goal that it takes for friendly (-1: nobody asks)."""
        self.worlds = -(-meetings // n)
        self.mac = MultiModuleMAC(env.spec, focal, (0,), (Side(others, tuple(range(1, n)), kinds),))
        self.same_boards = same_boards
        self.carries = getattr(focal, "prior_size", 0) > 0
        """Whether an agent model hands what it inferred on to the next episode (`carry_over`)."""
        scheme, groups = make_scheme(env.spec)
        if env.n_goals:
            scheme["world_reached"] = Field((), "int16", "agents")
        self.models = isinstance(focal, HopMAC)
        if self.models:
            scheme["reached"] = Field((), "int16", "agents")
            scheme["inferred"] = Field((), "bool", "agents")
            scheme["belief"] = Field((focal.n_goals,), "float16", "agents")
            scheme["posterior"] = Field((focal.n_goals,), "float16", "agents")
            scheme["predicted"] = Field((), "int16", "agents")
        self.runner = VectorRunner(env, self.mac, scheme, groups, n * kinds * self.worlds, seeds)
        self.seats = jnp.repeat(jnp.arange(n), kinds * self.worlds)
        self.compiled = jax.jit(self._play)

    def play(self, agents: Any, others: Any, keys: Array) -> list[list[Adapted]]:
        """For every kind, every agent's meetings. `agents` and `keys` have a leading axis over seeds, `others` (the
        policies in all other seats) one over kinds.
        """
        n = self.env.spec.n_agents
        numbers = {name: np.asarray(x) for name, x in self.compiled(agents, others, keys).items()}

        def of(x: np.ndarray, kind: int, seed: int) -> np.ndarray:
            """`[episode, seed, seat × kind × world, …]` to `[episode, meeting, …]`."""
            apart = x[:, seed].reshape(len(x), n, self.kinds, self.worlds, *x.shape[3:])[:, :, kind]
            return apart.reshape(len(x), -1, *x.shape[3:])

        return [
            [Adapted(**{name: of(x, kind, seed) for name, x in numbers.items()}) for seed in range(self.n_seeds)]
            for kind in range(self.kinds)
        ]

    def _play(self, agents: Any, others: Any, keys: Array) -> dict[str, Array]:
        everywhere = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.n_seeds, *x.shape)), others)
        team = TeamPolicies(agents, (everywhere,))
        start = jax.vmap(lambda one: self.mac.init_memory(one, self.runner.batch_size))(team)
        prior = start.trained.prior if self.models else None
        if self.carries:
            prior = jnp.zeros((*self.runner.leading, self.focal.prior_size))

        def episode(carry, number):
            prior, mood = carry
            given = TeamPrior(prior, (mood,) if self.friendly >= 0 else ())
            lots = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, 0 if self.same_boards else number)
            t_env = jnp.zeros(self.n_seeds, jnp.int32)
            played, stats, memory = self.runner.play(team, t_env, lots, True, True, given)
            assert played is not None
            numbers = jax.vmap(self._measure)(played, stats)
            if self.models:
                prior = jax.vmap(self.focal.next_prior)(memory.trained)
            elif self.carries:
                prior = jax.vmap(self._left)(agents, played, prior)
            return (prior, numbers["kind"] == self.friendly), numbers

        start_mood = jnp.ones(self.runner.leading, bool)
        return jax.lax.scan(episode, (prior, start_mood), jnp.arange(self.episodes))[1]

    def _left(self, agent: Any, played: EpisodeBatch, prior: Array) -> Array:
        """What an agent model made of every episode."""
        told = EpisodeBatch({**played.data, "agent_idx": self.seats[:, None], "prior": prior[:, None]}, played.scales)
        left = self.focal.summary(agent, refine(told, self.env.spec.n_agents))
        return jnp.moveaxis(left, 1, 0).reshape(prior.shape)

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
        alike = self.focal.kind_of == self.focal.kind_of[wanted][..., None]

        def believed(name: str) -> tuple[Array, Array]:
            """In the goal that was reached, and in goals of its kind."""
            belief = played[name][:, :-1].astype(jnp.float32)
            return jnp.take_along_axis(belief, wanted[..., None], -1)[..., 0], (belief * alike).sum(-1)

        (in_goal, in_kind), (goal_after, kind_after) = believed("belief"), believed("posterior")
        right = (played["predicted"][:, :-1] == played.actions[:, :-1]).astype(jnp.float32)
        numbers["action_accuracy"] = _mean(right, playing, (1, 2))
        # Beliefs can be right only about what came to something.
        somewhere = playing * (wanted < self.focal.n_goals - 1)
        numbers["goal_belief"] = at_moments(in_goal, goal_after, somewhere)
        numbers["kind_belief"] = at_moments(in_kind, kind_after, somewhere)
        numbers["steps_to_half"] = steps_to_half(in_goal, somewhere)
        numbers["inferred"] = _mean(played["inferred"][:, :-1].astype(jnp.float32), playing, (1, 2))
        return numbers


def last_kind(reached: Array, kinds: Array) -> Array:
    """The kind of the last goal reached in each episode `[batch, time]`; -1: none."""
    steps = jnp.arange(1, reached.shape[1] + 1)
    last = jnp.where(reached >= 0, steps, 0)
    goal = jnp.take_along_axis(reached, last.argmax(1)[:, None], 1)[:, 0]
    return jnp.where(last.max(1) > 0, kinds[goal], -1)


def at_moments(before: Array, after: Array, counted: Array) -> Array:
    """`[batch, time, agent]` to `[batch, moment]`: each agent's value before its first counted action, before later
    ones, and after its last; mean over agents, not a number where nobody counts. Steps count from the start on,
    without gaps.
    """
    steps = counted.sum(1).astype(jnp.int32)[:, None]
    place = jnp.round(jnp.arange(MOMENTS)[None, :, None] * steps / (MOMENTS - 1)).astype(jnp.int32)
    last = jnp.maximum(steps - 1, 0)
    along = jnp.take_along_axis(before, jnp.minimum(place, last), 1)
    along = jnp.where(place < steps, along, jnp.take_along_axis(after, last, 1))
    there = steps > 0
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
