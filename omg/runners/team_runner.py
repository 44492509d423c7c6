"""Play among others: the trained agent in every seat in turn, the rest of the team drawn afresh from a pool."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from omg.components.episode_buffer import EpisodeBatch, Field, Groups, Scheme
from omg.components.focal_batch import refine
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
        everyone: bool = False,
    ):
        n = env.spec.n_agents
        self.env, self.mac, self.scheme, self.groups, self.n_seeds = env, focal, scheme, groups, n_seeds
        self.opponents, self.everyone = opponents, everyone
        self.meetings = 2 if focal.prior_size else 1
        self.batch_size = n * worlds * self.meetings
        self.policies = tuple(tuple(kind.policies for kind in o.kinds) for o in opponents)
        self.lineups, chances = [], []
        for kinds in product(*(range(len(o.kinds)) for o in opponents)):
            chosen = [o.kinds[i] for o, i in zip(opponents, kinds, strict=True)]
            sides = tuple(
                Side(kind.mac, o.offsets, kind.size if everyone else _blocks(worlds, min(blocks, kind.size)))
                for kind, o in zip(chosen, opponents, strict=True)
            )
            mac = MultiModuleMAC(env.spec, focal, offsets, sides)
            each_world = worlds * chosen[0].size if everyone else worlds
            runner = VectorRunner(env, mac, scheme, groups, n * each_world, n_seeds)
            self.lineups.append(Lineup(kinds, mac, runner))
            chances.append(float(np.prod([kind.size for kind in chosen])))
        self.each = self.lineups[0].runner.each
        self.edges = np.cumsum(chances) / np.sum(chances)

    @classmethod
    def of_everyone(
        cls, env: MultiAgentEnv, focal: FocalMAC, offsets: tuple[int, ...], opponents: tuple[Opponents, ...],
        scheme: Scheme, groups: Groups, episodes: int, n_seeds: int | None,
    ) -> TeamRunner:  # fmt: skip
        """For tests: about so many episodes, spread evenly over seats and members. Mixed teams are drawn as ever."""
        n = env.spec.n_agents
        if len(opponents) > 1:
            return cls(env, focal, offsets, opponents, scheme, groups, max(1, episodes // n), n_seeds)
        members = sum(kind.size for kind in opponents[0].kinds)
        worlds = max(1, episodes // (n * members))
        return cls(env, focal, offsets, opponents, scheme, groups, worlds, n_seeds, everyone=True)

    def run(
        self, agent: Any, t_env: Array, key: Array, test_mode: bool, keep: bool = True, policies: Any = None,
        number: Array | int = 0,
    ) -> tuple[EpisodeBatch | None, EpisodeStats]:  # fmt: skip
        """Episodes against opponents drawn for them. With `carry_over` every team meets the same opponents twice.

        `number` decides which kind is met: the same for all seeds, whether they are trained together or alone.
        """
        policies = self.policies if policies is None else policies
        lot = jax.random.uniform(jax.random.fold_in(jax.random.key(1), number))
        which = jnp.searchsorted(jnp.asarray(self.edges[:-1]), lot, side="right")
        if self.everyone:
            played = [self._play(one, agent, t_env, key, test_mode, False, policies)[1] for one in self.lineups]
            return None, jax.tree.map(lambda *x: jnp.concatenate(x, axis=0 if self.n_seeds is None else 1), *played)
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
        batch, stats, _ = lineup.runner.play(team, t_env, key, test_mode, keep or self.meetings > 1)
        met = self.each(lambda drawn: self._met(lineup, drawn))(members)
        batch, stats = self._marked(batch, None), stats._replace(members=met)
        if self.meetings == 1:
            return batch if keep else None, stats
        left = self.each(lambda trained, b: self._summary(trained, b))(agent, batch)
        later = self.each(lambda k: jax.random.fold_in(k, 3))(key)
        second, after, _ = lineup.runner.play(team, t_env, later, test_mode, keep, left)
        both = self.each(lambda *x: jax.tree.map(self._seat_by_seat, *x))
        stats = both(stats, after._replace(members=met))
        return both(batch, self._marked(second, left)) if keep else None, stats

    def _summary(self, trained: Any, batch: EpisodeBatch) -> Float[Array, "world embedding"]:
        """What every world's episode leaves, in the order of the worlds."""
        n = self.env.spec.n_agents
        left = self.mac.summary(trained, refine(batch, n))
        return jnp.moveaxis(left, 1, 0).reshape(-1, left.shape[-1])

    def _seat_by_seat(self, first: Array, second: Array) -> Array:
        """Two collections as one in which every seat has one stretch."""
        n = self.env.spec.n_agents
        pair = [x.reshape(n, -1, *x.shape[1:]) for x in (first, second)]
        return jnp.concatenate(pair, 1).reshape(-1, *first.shape[1:])

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
            worlds = lineup.runner.batch_size // n
            columns.append(jnp.tile(jnp.repeat(ids, worlds // side.blocks), n))
        return jnp.stack(columns, -1)

    def _marked(self, batch: EpisodeBatch | None, prior: Array | None) -> EpisodeBatch | None:
        if batch is None:
            return None
        leading, n = self.lineups[0].runner.leading, self.env.spec.n_agents
        seats = jnp.repeat(jnp.arange(n, dtype=jnp.int8), leading[-1] // n)
        marks = {"agent_idx": jnp.broadcast_to(seats, leading)[..., None]}
        if self.mac.prior_size:
            nothing = jnp.zeros((*leading, self.mac.prior_size))
            marks["prior"] = (nothing if prior is None else prior)[..., None, :]
        return EpisodeBatch({**batch.data, **marks}, batch.scales)


def _blocks(worlds: int, most: int) -> int:
    """The largest number of equal stretches that is not above `most`."""
    return max(b for b in range(1, most + 1) if worlds % b == 0)
