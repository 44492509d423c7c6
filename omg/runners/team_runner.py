"""Play among others: the trained agent in every seat in turn, the rest of the team drawn afresh from a pool."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from omg.components.episode_buffer import EpisodeBatch, Field, Groups, Scheme
from omg.controllers import FocalMAC, MultiModuleMAC, Side, TeamPolicies
from omg.envs.multiagentenv import MultiAgentEnv
from omg.opponents.pool import Kind
from omg.runners.vector_runner import EpisodeStats, VectorRunner


class Opponents(NamedTuple):
    """Seats that one pool fills: how many places after the focal agent, and who may sit there."""

    offsets: tuple[int, ...]
    kinds: tuple[Kind, ...]


class Lineup(NamedTuple):
    """One kind for each group of opponents, and a program that plays it."""

    kinds: tuple[int, ...]
    mac: MultiModuleMAC
    runner: VectorRunner


def focal_scheme(focal: FocalMAC) -> Scheme:
    """What an episode among others holds besides: one value per episode."""
    scheme = {"agent_idx": Field((), "int8", per_episode=True)}
    if focal.prior_size:
        scheme["prior"] = Field((focal.prior_size,), per_episode=True)
    return scheme


class TeamRunner:
    """`seats × worlds` worlds at once.

    Each collection has one kind of opponent per group, drawn by how many members the kind has, and as many different
    members of it as `blocks` allows, each in an equal stretch of the worlds.
    """

    def __init__(
        self,
        env: MultiAgentEnv,
        focal: FocalMAC,
        offsets: tuple[int, ...],
        opponents: tuple[Opponents, ...],
        scheme: Scheme,
        groups: Groups,
        worlds: int,
        n_seeds: int | None = None,
        blocks: int = 4,
    ):
        n = env.spec.n_agents
        self.env, self.mac, self.scheme, self.groups, self.n_seeds = env, focal, scheme, groups, n_seeds
        self.opponents = opponents
        self.batch_size = n * worlds
        self.focal_seats = np.repeat(np.arange(n), worlds)
        self.policies = tuple(tuple(kind.policies for kind in o.kinds) for o in opponents)
        self.lineups, chances = [], []
        for kinds in product(*(range(len(o.kinds)) for o in opponents)):
            chosen = [o.kinds[i] for o, i in zip(opponents, kinds, strict=True)]
            sides = tuple(
                Side(kind.mac, o.offsets, _blocks(worlds, min(blocks, kind.size)))
                for kind, o in zip(chosen, opponents, strict=True)
            )
            mac = MultiModuleMAC(env.spec, focal, offsets, sides)
            runner = VectorRunner(env, mac, scheme, groups, n * worlds, n_seeds)
            self.lineups.append(Lineup(kinds, mac, runner))
            chances.append(float(np.prod([kind.size for kind in chosen])))
        self.each = self.lineups[0].runner.each
        self.edges = np.cumsum(chances) / np.sum(chances)

    def run(
        self, agent: Any, t_env: Array, key: Array, test_mode: bool, keep: bool = True, policies: Any = None
    ) -> tuple[EpisodeBatch | None, EpisodeStats]:
        """Episodes against opponents drawn for them. With `carry_over` every team meets the same opponents twice."""
        policies = self.policies if policies is None else policies
        first = key if self.n_seeds is None else key[0]
        lot = jax.random.uniform(jax.random.fold_in(first, 1))
        which = jnp.searchsorted(jnp.asarray(self.edges[:-1]), lot, side="right")
        branches = [
            lambda lineup=lineup: self._play(lineup, agent, t_env, key, test_mode, keep, policies)
            for lineup in self.lineups
        ]
        return jax.lax.switch(which, branches) if len(branches) > 1 else branches[0]()

    def _play(self, lineup: Lineup, agent, t_env, key, test_mode, keep, policies):
        members = self.each(lambda k: self._draw(lineup, jax.random.fold_in(k, 2)))(key)

        def seat(trained: Any, drawn: tuple[Array, ...]) -> TeamPolicies:
            sides = tuple(
                jax.tree.map(lambda x, i=index: x[i], policies[g][kind])
                for g, (kind, index) in enumerate(zip(lineup.kinds, drawn, strict=True))
            )
            return TeamPolicies(trained, sides)

        team = self.each(seat)(agent, members)
        prior = None
        if self.mac.prior_size:
            before = self.each(lambda k: jax.random.fold_in(k, 3))(key)
            _, stats, memory = lineup.runner.play(team, t_env, before, test_mode, keep=False)
            prior = self.each(self._summary)(memory, stats.lengths)
        batch, stats, _ = lineup.runner.play(team, t_env, key, test_mode, keep, prior)
        met = self.each(lambda drawn: self._met(lineup, drawn))(members)
        return self._marked(batch, prior), stats._replace(members=met)

    def _draw(self, lineup: Lineup, key: Array) -> tuple[Int[Array, " block"], ...]:
        """Different members for the blocks of each side, all equally likely."""
        drawn = []
        for g, (kind, side) in enumerate(zip(lineup.kinds, lineup.mac.sides, strict=True)):
            size = self.opponents[g].kinds[kind].size
            drawn.append(jax.random.permutation(jax.random.fold_in(key, g), size)[: side.blocks])
        return tuple(drawn)

    def _met(self, lineup: Lineup, drawn: tuple[Array, ...]) -> Int[Array, "world group"]:
        """Which member of the pool sat in each world."""
        columns = []
        for g, (kind, side, index) in enumerate(zip(lineup.kinds, lineup.mac.sides, drawn, strict=True)):
            ids = jnp.asarray(self.opponents[g].kinds[kind].ids)[index]
            n = self.env.spec.n_agents
            columns.append(jnp.tile(jnp.repeat(ids, self.batch_size // n // side.blocks), n))
        return jnp.stack(columns, -1)

    def _summary(self, memory: Any, lengths: Array) -> Array:
        """The mean of what was inferred in an episode."""
        total = memory.trained.inferred[:, :, 0].reshape(self.batch_size, -1)
        return total / jnp.maximum(lengths, 1)[:, None]

    def _marked(self, batch: EpisodeBatch | None, prior: Array | None) -> EpisodeBatch | None:
        if batch is None:
            return None
        leading = self.lineups[0].runner.leading
        seats = jnp.broadcast_to(jnp.asarray(self.focal_seats, jnp.int8), leading)
        marks = {"agent_idx": seats[..., None]}
        if prior is not None:
            marks["prior"] = prior[..., None, :]
        return EpisodeBatch({**batch.data, **marks}, batch.scales)


def _blocks(worlds: int, most: int) -> int:
    """The largest number of equal stretches that is not above `most`."""
    return max(b for b in range(1, most + 1) if worlds % b == 0)
