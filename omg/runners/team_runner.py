"""Plays one agent with frozen partners: the trained agent in every seat in turn, opponents sampled from a pool."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from omg.components.episode_buffer import EpisodeBatch, Field, Groups, Scheme, refine
from omg.controllers.base import Controller
from omg.controllers.om_controller import MultiModuleMAC, Side, TeamPolicies
from omg.envs.multiagentenv import MultiAgentEnv
from omg.runners.host_runner import HostRunner
from omg.runners.vector_runner import EpisodeStats, VectorRunner


class PolicyGroup(NamedTuple):
    """Frozen policies that one controller plays (an architecture group): stacked networks, or scripted policies."""

    mac: Any
    policies: Any
    """Parameters with a leading axis over the members."""
    ids: tuple[int, ...]
    """The members' places in their pool."""

    @property
    def size(self) -> int:
        return len(self.ids)


class Opponents(NamedTuple):
    """Seats that one pool fills: their places after the focal agent, and the architecture groups that may sit there."""

    offsets: tuple[int, ...]
    groups: tuple[PolicyGroup, ...]


class Lineup(NamedTuple):
    """One architecture group for each `Opponents`, and the runner that plays it."""

    groups: tuple[int, ...]
    mac: MultiModuleMAC
    runner: VectorRunner | HostRunner


def focal_scheme(focal: Controller) -> Scheme:
    """Fields that an episode with frozen partners holds beyond the usual ones: one value per episode."""
    scheme = {"agent_idx": Field((), "int8", per_episode=True)}
    if focal.prior_size:
        scheme["prior"] = Field((focal.prior_size,), per_episode=True)
    return scheme


class TeamRunner:
    """`seats × envs` parallel environments.

    Each collection has one architecture group per set of seats, sampled with probability proportional to its size, and
    up to `blocks` different members of it, each in an equal stretch of the environments. A test enumerates all members.
    With `own_partner` the i-th seed only ever plays with the i-th member: seeds are then best responses. With `host`
    the environments are those of another runner, in Python: it plays the episodes of a collection in turns.
    """

    first_seed: Callable[[], Array | int] = staticmethod(lambda: 0)
    """Where seeds are spread over devices: the place of the first seed of this device."""

    def __init__(
        self,
        env: MultiAgentEnv,
        focal: Any,
        offsets: tuple[int, ...],
        opponents: tuple[Opponents, ...],
        scheme: Scheme,
        groups: Groups,
        envs: int,
        n_seeds: int | None = None,
        blocks: int = 4,
        own_partner: bool = False,
        host: HostRunner | None = None,
    ):
        n = env.spec.n_agents
        blocks = 1 if own_partner else blocks
        self.env, self.mac, self.scheme, self.groups, self.n_seeds = env, focal, scheme, groups, n_seeds
        self.opponents, self.host = opponents, host
        self.episodes = 2 if focal.prior_size and not focal.given_identity else 1
        """Episodes of an encounter: with `carry_over` or `carry_memory` two in a row with the same opponents."""
        self.own_partner = own_partner
        self.places = jnp.zeros((), jnp.int32) if n_seeds is None else jnp.arange(n_seeds)
        self.batch_size = n * envs * self.episodes
        self.policies = tuple(tuple(group.policies for group in o.groups) for o in opponents)
        self.lineups: list[Lineup] = []
        weights, schedule = [], []
        for chosen in product(*(range(len(o.groups)) for o in opponents)):
            members = [o.groups[i] for o, i in zip(opponents, chosen, strict=True)]
            sides = tuple(
                Side(group.mac, o.offsets, _blocks(envs, min(blocks, group.size)))
                for group, o in zip(members, opponents, strict=True)
            )
            mac = MultiModuleMAC(env.spec, focal, offsets, sides)
            rounds = max(-(-group.size // side.blocks) for group, side in zip(members, sides, strict=True))
            schedule += [(len(self.lineups), r) for r in range(rounds)]
            if host:
                runner: Any = host.seated(mac, n * envs)
            else:
                runner = VectorRunner(env, mac, scheme, groups, n * envs, n_seeds)
            self.lineups.append(Lineup(chosen, mac, runner))
            weights.append(float(np.prod([group.size for group in members])))
        self.each = self.lineups[0].runner.each
        self.carry = jax.jit(self.each(self._carried))
        self.edges = np.cumsum(weights) / np.sum(weights)
        self.schedule = np.array(schedule)
        """The collections of a test: lineup, and which stretch of its members."""

    @property
    def mesh(self) -> Mesh | None:
        return getattr(self.lineups[0].runner, "mesh", None)

    @mesh.setter
    def mesh(self, mesh: Mesh | None) -> None:
        for lineup in self.lineups:
            if isinstance(lineup.runner, VectorRunner):
                lineup.runner.mesh = mesh

    def rounds(self, episodes: int) -> int:
        """How many collections a test takes: enough for an equal share of the episodes with every member."""
        if self.own_partner:
            return -(-episodes // self.batch_size)
        members = sum(max(group.size for group in self._groups(lineup)) for lineup in self.lineups)
        each = self.batch_size // max(side.blocks for lineup in self.lineups for side in lineup.mac.sides)
        cycles = max(-(-episodes // (len(self.schedule) * self.batch_size)), -(-episodes // (members * each)))
        return cycles * len(self.schedule)

    def _groups(self, lineup: Lineup) -> list[PolicyGroup]:
        return [o.groups[i] for o, i in zip(self.opponents, lineup.groups, strict=True)]

    def empty_stats(self) -> EpisodeStats:
        """Results of the right shapes, all zero."""
        stats = self.lineups[0].runner.empty_stats()
        leading = self.lineups[0].runner.leading
        members, own = jnp.zeros((*leading, len(self.opponents)), jnp.int32), jnp.zeros(leading)
        stats = stats._replace(members=members, focal_returns=own)
        return stats if self.episodes == 1 else self.each(lambda x: jax.tree.map(self._seat_by_seat, x, x))(stats)

    def run(
        self,
        params: Any,
        t_env: Array,
        key: Array,
        test_mode: bool | Array,
        policies: Any = None,
        number: Array | int = 0,
    ) -> tuple[EpisodeBatch, EpisodeStats]:
        """One collection. `number` determines the lineup: the same for all seeds, trained together or alone."""
        policies = self.policies if policies is None else policies
        noise = jax.random.uniform(jax.random.fold_in(jax.random.key(1), number))
        sampled = jnp.searchsorted(jnp.asarray(self.edges[:-1]), noise, side="right")
        in_test, stretch = jnp.asarray(self.schedule)[jnp.asarray(number) % len(self.schedule)]
        branches = [
            lambda lineup=lineup: self._play(lineup, params, t_env, key, test_mode, policies, stretch)
            for lineup in self.lineups
        ]
        lineup = jnp.where(test_mode, in_test, sampled)
        if self.host or len(branches) == 1:
            return branches[int(lineup) if self.host else 0]()
        return jax.lax.switch(lineup, branches)

    def _play(self, lineup: Lineup, params, t_env, key, test_mode, policies, stretch):
        def chosen_by(k: Array, place: Array) -> tuple[Array, ...]:
            if self.own_partner:
                return tuple(place[None] for _ in lineup.groups)
            return self._members(lineup, jax.random.fold_in(k, 2), test_mode, stretch)

        members = self.each(chosen_by)(key, self.places + self.first_seed())

        def seat(trained: Any, chosen: tuple[Array, ...]) -> TeamPolicies:
            sides = tuple(
                jax.tree.map(lambda x, i=index: x[i], policies[g][group])
                for g, (group, index) in enumerate(zip(lineup.groups, chosen, strict=True))
            )
            return TeamPolicies(trained, sides)

        team = self.each(seat)(params, members)
        ids = self.each(lambda chosen: self._ids(lineup, chosen))(members)

        def episode(k: Array, prior: Any) -> tuple[EpisodeBatch, EpisodeStats]:
            played = lineup.runner.play(team, t_env, k, test_mode, prior=prior)
            assert played.batch is not None
            own = jnp.take_along_axis(played.stats.agent_returns, self._seats()[..., None], -1)[..., 0]
            return self._marked(played.batch, prior), played.stats._replace(members=ids, focal_returns=own)

        first, stats = episode(key, self.identities(ids) if self.mac.given_identity else None)
        if self.episodes == 1:
            return first, stats
        carried = self.carry(params, first)
        second, later = episode(self.each(lambda k: jax.random.fold_in(k, 3))(key), carried)
        both = self.each(lambda *x: jax.tree.map(self._seat_by_seat, *x))
        return both(first, second), both(stats, later)

    def identities(self, ids: Int[Array, "*env group"]) -> Float[Array, "*env identity"]:
        """The partners of every environment, one-hot by their place in the pool; several sets of seats are added."""
        return jax.nn.one_hot(ids, self.mac.prior_size).sum(-2)

    def _carried(self, params: Any, batch: EpisodeBatch) -> Float[Array, "env embedding"]:
        """What each episode hands to the next one with the same opponents, in the order of the environments."""
        carried = self.mac.carried(params, refine(batch, self.env.spec.n_agents))
        return jnp.moveaxis(carried, 1, 0).reshape(-1, carried.shape[-1])

    def _seat_by_seat(self, first: Array, second: Array) -> Array:
        """Two collections as one in which every seat has one contiguous stretch."""
        n = self.env.spec.n_agents
        pair = [x.reshape(n, -1, *x.shape[1:]) for x in (first, second)]
        return jnp.concatenate(pair, 1).reshape(-1, *first.shape[1:])

    def _members(self, lineup: Lineup, key: Array, test_mode: bool | Array, stretch: Array) -> tuple[Array, ...]:
        """Different members for the blocks of each side: sampled uniformly, or in a test the next ones in order."""
        chosen = []
        for g, (group, side) in enumerate(zip(lineup.groups, lineup.mac.sides, strict=True)):
            size = self.opponents[g].groups[group].size
            sampled = jax.random.permutation(jax.random.fold_in(key, g), size)[: side.blocks]
            in_order = (stretch * side.blocks + jnp.arange(side.blocks)) % size
            chosen.append(jnp.where(test_mode, in_order, sampled))
        return tuple(chosen)

    def _ids(self, lineup: Lineup, chosen: tuple[Array, ...]) -> Int[Array, "env group"]:
        """The pool members in each environment."""
        columns = []
        for g, (group, side, index) in enumerate(zip(lineup.groups, lineup.mac.sides, chosen, strict=True)):
            ids = jnp.asarray(self.opponents[g].groups[group].ids)[index]
            envs = lineup.runner.batch_size // self.env.spec.n_agents
            columns.append(jnp.tile(jnp.repeat(ids, envs // side.blocks), self.env.spec.n_agents))
        return jnp.stack(columns, -1)

    def _seats(self) -> Int[Array, "*leading"]:
        """The focal agent's seat in every environment."""
        leading, n = self.lineups[0].runner.leading, self.env.spec.n_agents
        return jnp.broadcast_to(jnp.repeat(jnp.arange(n), leading[-1] // n), leading)

    def _marked(self, batch: EpisodeBatch, prior: Array | None) -> EpisodeBatch:
        """The episodes with the focal seat and what the agent carried over from the episode before, if it does."""
        fields = {"agent_idx": self._seats().astype(jnp.int8)[..., None]}
        if self.mac.prior_size:
            zeros = jnp.zeros((*self.lineups[0].runner.leading, self.mac.prior_size))
            fields["prior"] = (zeros if prior is None else prior)[..., None, :]
        return batch.with_fields(**fields)


def _blocks(envs: int, most: int) -> int:
    """The largest number of equal stretches that is not above `most`."""
    return max(b for b in range(1, most + 1) if envs % b == 0)
