"""Few-shot adaptation: encounters of several episodes with the same co-players, in which nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from omg.components.episode_buffer import EpisodeBatch, Field, make_scheme, refine
from omg.controllers import HopMAC
from omg.controllers.om_controller import MultiModuleMAC, Side, TeamPolicies, TeamPrior
from omg.envs import MultiAgentEnv
from omg.learners.hop_learner import label
from omg.runners import VectorRunner
from omg.utils.settings import UserError, setting

POINTS = 11
"""Points of an episode at which beliefs are reported, from before its first action to after its last."""


@dataclass(frozen=True)
class AdaptSettings:
    adapt_episodes: int = setting(24, "omg adapt: episodes of an encounter", above=0)
    co_players: list | None = setting(None, "omg adapt: only these co-players, as in [always_stag, always_hare]")
    same_boards: bool = setting(False, "omg adapt: all episodes of an encounter have the same start and random numbers")
    oracle_goals: bool = setting(False, "omg adapt: hop is given the true goals of scripted co-players (upper bound)")

    def __post_init__(self) -> None:
        if self.co_players == []:
            raise UserError("co_players is empty: name some, as in --co_players=[always_stag], or leave it out.")


class Adapted(NamedTuple):
    """One seed's encounters with one type of co-player: `[episode, encounter]`, beliefs also by point."""

    focal_return: np.ndarray
    team_return: np.ndarray
    goal_type: np.ndarray
    """The type of the last goal that the agent itself reached; -1: none."""
    action_accuracy: np.ndarray | None = None
    goal_belief: np.ndarray | None = None
    """`[episode, encounter, point]`: the belief in the goal that each co-player reached, mean over co-players."""
    type_belief: np.ndarray | None = None
    """The same for the type of that goal."""
    steps_to_half: np.ndarray | None = None
    """Steps until the belief in the true goal stays above one half; all counted steps if it never does."""
    true_belief: np.ndarray | None = None
    """Like `goal_belief`, for the goal that a scripted co-player has at each step, whether it reaches it or not."""
    true_type_belief: np.ndarray | None = None
    """The same for the type of that goal."""
    inferred: np.ndarray | None = None
    """The fraction of the co-players' steps used for inference (below 1 with a gate)."""


class Adaptation:
    """`encounters` parallel encounters with each of `types` co-players, the agent in every seat equally often.

    All `episodes` of an encounter, all types of co-players and all `seeds` of the agent run in one program.
    """

    def __init__(
        self, env: MultiAgentEnv, focal: Any, others: Any, encounters: int, episodes: int, friendly: int = -1,
        types: int = 1, seeds: int = 1, same_boards: bool = False,
        goals: Sequence[Callable[[Array], Array]] = (), changes: Sequence[bool] = (),
    ):  # fmt: skip
        """`goals` map a scripted co-player's observation to its true goal; `play` says whose they are.

        `changes` says of each type whether its second policies play in the second half of the episodes.
        """
        n = env.spec.n_agents
        self.env, self.focal, self.episodes, self.types, self.n_seeds = env, focal, episodes, types, seeds
        self.friendly = friendly
        """Tit-for-tat: the goal type that counts as cooperation (-1: no reciprocal co-player)."""
        self.envs = -(-encounters // n)
        self.mac = MultiModuleMAC(env.spec, focal, (0,), (Side(others, tuple(range(1, n)), types),))
        self.same_boards = same_boards
        self.goals = goals
        self.changes = jnp.array(changes or [False] * types)
        self.moods = friendly >= 0 or any(changes)
        """Whether a co-player has two policies for each seat, and a mood that says which one plays."""
        self.carries = focal.prior_size > 0
        """Whether the agent carries something over to the next episode (`carry_over`, `carry_memory`)."""
        scheme, groups = make_scheme(env.spec)
        if env.n_goals:
            scheme["env_reached"] = Field((), "int16", "agents")
        self.models = isinstance(focal, HopMAC)
        if self.models:
            scheme["reached"] = Field((), "int16", "agents")
            scheme["inferred"] = Field((), "bool", "agents")
            scheme["belief"] = Field((focal.models.n_goals,), "float16", "agents")
            scheme["posterior"] = Field((focal.models.n_goals,), "float16", "agents")
            scheme["predicted"] = Field((), "int16", "agents")
        self.runner = VectorRunner(env, self.mac, scheme, groups, n * types * self.envs, seeds)
        self.seats = jnp.repeat(jnp.arange(n), types * self.envs)
        self.type_of_row = jnp.tile(jnp.repeat(jnp.arange(types), self.envs), n)
        self.second_half = episodes // 2
        self.compiled = jax.jit(self._play)

    def play(
        self, agents: Any, others: Any, keys: Array, whose: Sequence[Sequence[Sequence[int]]] | None = None
    ) -> list[list[Adapted]]:
        """For every type of co-player, every seed's encounters.

        `agents` and `keys` have a leading seed axis; `others`, the policies in all other seats, one over types. For
        both halves of an encounter and each type `whose` names the goals of the co-players 1, 2, … places after the
        agent by their number (-1: none).
        """
        n = self.env.spec.n_agents
        named = jnp.full((2, self.types, n - 1), -1) if whose is None else jnp.array(whose)
        numbers = {name: np.asarray(x) for name, x in self.compiled(agents, others, keys, named).items()}

        def of(x: np.ndarray, i: int, seed: int) -> np.ndarray:
            """`[episode, seed, seat × type × env, …]` to `[episode, encounter, …]`."""
            apart = x[:, seed].reshape(len(x), n, self.types, self.envs, *x.shape[3:])[:, :, i]
            return apart.reshape(len(x), -1, *x.shape[3:])

        return [
            [Adapted(**{name: of(x, i, seed) for name, x in numbers.items()}) for seed in range(self.n_seeds)]
            for i in range(self.types)
        ]

    def _play(self, agents: Any, others: Any, keys: Array, whose: Array) -> dict[str, Array]:
        policies = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.n_seeds, *x.shape)), others)
        team = TeamPolicies(agents, (policies,))
        start = jax.vmap(lambda one: self.mac.init_memory(one, self.runner.batch_size))(team)
        prior = start.trained.prior if self.models else None
        if self.carries:
            prior = jnp.zeros((*self.runner.leading, self.focal.prior_size))

        def episode(carry, number):
            prior, mood = carry
            given = TeamPrior(prior, (mood,) if self.moods else ())
            fresh = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, 0 if self.same_boards else number)
            t_env = jnp.zeros(self.n_seeds, jnp.int32)
            played, stats, memory, _ = self.runner.play(team, t_env, fresh, True, prior=given)
            assert played is not None
            late = number >= self.second_half
            numbers = jax.vmap(lambda batch, of: self._measure(batch, of, whose[late.astype(int)]))(played, stats)
            if self.models:
                prior = jax.vmap(self.focal.next_prior)(memory.trained)
            elif self.carries:
                prior = jax.vmap(self._carried)(agents, played, prior)
            friendly = numbers["goal_type"] == self.friendly
            return (prior, jnp.where(self.changes[self.type_of_row], number + 1 < self.second_half, friendly)), numbers

        start_mood = jnp.broadcast_to(~self.changes[self.type_of_row] | (self.second_half > 0), self.runner.leading)
        return jax.lax.scan(episode, (prior, start_mood), jnp.arange(self.episodes))[1]

    def _carried(self, agent: Any, played: EpisodeBatch, prior: Array) -> Array:
        """What every episode hands to the next one."""
        marked = played.with_fields(agent_idx=self.seats[:, None], prior=prior[:, None])
        carried = self.focal.carried(agent, refine(marked, self.env.spec.n_agents))
        return jnp.moveaxis(carried, 1, 0).reshape(prior.shape)

    def _measure(self, played: EpisodeBatch, stats: Any, whose: Array) -> dict[str, Array]:
        env, n, seats = self.env, self.env.spec.n_agents, self.seats
        own = jnp.take_along_axis(stats.agent_returns, seats[:, None], 1)[:, 0]
        numbers = {"focal_return": own, "team_return": env.spec.team_reward(stats.agent_returns)}
        numbers["goal_type"] = jnp.full(own.shape, -1)
        filled = played.filled[:, :-1]

        def real(name: str) -> Array:
            return jnp.where(filled[..., None] > 0, played[name][:, :-1].astype(jnp.int32), -1)

        if env.n_goals:
            own_goals = jnp.take_along_axis(real("env_reached"), seats[:, None, None], 2)[..., 0]
            numbers["goal_type"] = last_type(own_goals, jnp.asarray(env.goal_types))
        if not self.models:
            return numbers
        reached = real("reached")
        other = jnp.arange(n) != seats[:, None, None]
        playing = filled[..., None] * played.alive[:, :-1] * other
        models = self.focal.models
        next_goal = label(reached, filled)
        pursued = jnp.where(next_goal < 0, models.none, next_goal)
        same_type = models.type_of == models.type_of[pursued][..., None]

        def believed(name: str) -> tuple[Array, Array]:
            """The belief in the goal that was reached, and in goals of its type."""
            belief = played[name][:, :-1].astype(jnp.float32)
            return jnp.take_along_axis(belief, pursued[..., None], -1)[..., 0], (belief * same_type).sum(-1)

        (in_goal, in_type), (goal_after, type_after) = believed("belief"), believed("posterior")
        correct = (played["predicted"][:, :-1] == played.actions[:, :-1]).astype(jnp.float32)
        numbers["action_accuracy"] = _mean(correct, playing, (1, 2))
        # Only steps of agents that reached a goal later have a true goal to compare with.
        labelled = playing * (next_goal >= 0)
        numbers["goal_belief"] = at_points(in_goal, goal_after, labelled)
        numbers["type_belief"] = at_points(in_type, type_after, labelled)
        numbers["steps_to_half"] = steps_to_half(in_goal, labelled)
        # Learned goals have no true ones to compare with.
        if self.focal.space is None and self.goals:
            goal = self._true_goals(played, whose)
            same = models.type_of == models.type_of[goal][..., None]
            for name, of in (("true_belief", jax.nn.one_hot(goal, models.n_goals)), ("true_type_belief", same)):
                before, after = (
                    (played[when][:, :-1].astype(jnp.float32) * of).sum(-1) for when in ("belief", "posterior")
                )
                numbers[name] = at_points(before, after, playing * (goal >= 0))
        numbers["inferred"] = _mean(played["inferred"][:, :-1].astype(jnp.float32), playing, (1, 2))
        return numbers

    def _true_goals(self, played: EpisodeBatch, whose: Int[Array, "type other"]) -> Int[Array, "batch time agent"]:
        """The goals of scripted co-players at every step; -1: none is known."""
        obs, n = played.obs[:, :-1], self.env.spec.n_agents
        each = [jax.vmap(jax.vmap(jax.vmap(goal)))(obs) for goal in self.goals]
        # Rows are seats × types × environments; a column is so many places after the agent's seat. The agent has none.
        after = (jnp.arange(n) - self.seats[:, None]) % n
        which = jnp.pad(whose, ((0, 0), (1, 0)), constant_values=-1)[self.type_of_row[:, None], after]
        known = jnp.take_along_axis(jnp.stack(each, -1), jnp.maximum(which, 0)[:, None, :, None], -1)[..., 0]
        return jnp.where(which[:, None] >= 0, known, -1)


def last_type(reached: Array, types: Array) -> Array:
    """The type of the last goal reached in each episode `[batch, time]`; -1: none."""
    steps = jnp.arange(1, reached.shape[1] + 1)
    last = jnp.where(reached >= 0, steps, 0)
    goal = jnp.take_along_axis(reached, last.argmax(1)[:, None], 1)[:, 0]
    return jnp.where(last.max(1) > 0, types[goal], -1)


def at_points(before: Array, after: Array, counted: Array) -> Array:
    """`[batch, time, agent]` to `[batch, point]`: each agent's value before its first counted action, before later
    ones, and after its last; the mean over agents, NaN where no step counts. Counted steps are contiguous from the
    start.
    """
    steps = counted.sum(1).astype(jnp.int32)[:, None]
    place = jnp.round(jnp.arange(POINTS)[None, :, None] * steps / (POINTS - 1)).astype(jnp.int32)
    last = jnp.maximum(steps - 1, 0)
    along = jnp.take_along_axis(before, jnp.minimum(place, last), 1)
    along = jnp.where(place < steps, along, jnp.take_along_axis(after, last, 1))
    counts = steps > 0
    return jnp.where(counts.any(-1), (along * counts).sum(-1) / jnp.maximum(counts.sum(-1), 1), jnp.nan)


def steps_to_half(in_goal: Array, counted: Array) -> Array:
    """Per episode, mean over co-players: the steps after which the belief in the true goal stays above one half."""
    below = (in_goal < 0.5) * counted
    steps = jnp.arange(1, below.shape[1] + 1)[:, None]
    last = (below * steps).max(1)
    counts = (counted.sum(1) > 0).astype(jnp.float32)
    return jnp.where(counts.any(-1), (last * counts).sum(-1) / jnp.maximum(counts.sum(-1), 1), jnp.nan)


def _mean(x: Array, mask: Array, axes: tuple[int, ...]) -> Array:
    return (x * mask).sum(axes) / jnp.maximum(mask.sum(axes), 1)
