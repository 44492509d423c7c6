"""Populations of partners that differ on purpose: BRDiv, LBRDiv and CoMeDi.

All three train by PPO and weigh the return of every pair of policies: the return of a policy with its own partner
counts for it (self-play), the return with another member's partner against it (cross-play). A member's play is then
worth knowing: what is good with one member is bad with the next.

- **BRDiv** (Rahman et al., 2023): every member has a best response of its own; fixed weights.
- **LBRDiv** (Rahman et al., 2024): the weights are Lagrange multipliers of the constraint that a best response does
  better with its own member than with any other, by a margin.
- **CoMeDi** (Sarkar et al., 2023): members are trained one after the other in self-play, each against the earlier
  member that it plays best with. In mixed play the partner hands over from that member to the policy itself within an
  episode, and only what follows counts: a policy cannot recognise strangers and spoil the game.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from omg.components.episode_buffer import EpisodeBatch, FocalBatch, make_scheme, masked_mean, time_first
from omg.controllers.base import Controller
from omg.controllers.basic_controller import BasicMAC
from omg.envs.multiagentenv import MultiAgentEnv, Timestep
from omg.learners.base import LearnerState, Metrics, Params
from omg.learners.on_policy import Rollout
from omg.learners.ppo_learner import PPOLearner
from omg.runners.team_runner import Opponents, PolicyGroup, TeamRunner, focal_scheme
from omg.utils.settings import UserError, setting

GENERATORS = ("brdiv", "lbrdiv", "comedi")
FORGET = 0.1
"""The weight of the newest collection in the running returns of pairs."""
DUAL_STEP = 0.05
"""LBRDiv: the step of the multipliers."""
FIRST, LARGEST = 1.0, 4.0
"""LBRDiv: the multipliers at the start, before anything is decided, and at most."""


@dataclass(frozen=True)
class GeneratorSettings:
    """Partners that differ on purpose: brdiv, lbrdiv and comedi among the algorithms of a pool."""

    pool_population: int = setting(4, "brdiv, lbrdiv, comedi: number of members", low=2)
    pool_cross_play: float = setting(0.5, "brdiv, comedi: weight of cross-play against self-play", low=0)
    pool_mixed_play: float = setting(0.5, "comedi: weight of mixed play", low=0)
    pool_margin: float = setting(0.5, "lbrdiv: self-play exceeds cross-play by this fraction of its return", low=0)


class WeightedPPO(PPOLearner):
    """PPO whose critic knows the partner, and whose advantages are weighted.

    The state is followed by the partner's identity (one-hot) and the weight of the step.
    """

    def prepare(
        self, params: Params, target: Params, batch: FocalBatch, t_env: Array, key: Array
    ) -> tuple[Rollout, Metrics]:
        weight = time_first(batch.state)[:-1, ..., -1]
        rollout, metrics = super().prepare(params, target, batch._replace(state=batch.state[..., :-1]), t_env, key)
        # Steps without weight do not count for the policy, and the others have a mean absolute weight of 1.
        acted = rollout.along.acted * (weight != 0)
        weight = weight / jnp.maximum(masked_mean(abs(weight), acted), 1e-6)
        along = rollout.along._replace(advantage=rollout.along.advantage * weight, acted=acted)
        return rollout._replace(along=along), metrics


class Handover(NamedTuple):
    """Two policies and the step at which the second one takes over."""

    first: Params
    second: Params
    at: Int[Array, ""]


class HandoverMAC(Controller):
    """Acts with the first policy, then with the second; both see the whole episode."""

    can_be_focal = False

    def __init__(self, mac: BasicMAC):
        self.spec, self.mac = mac.spec, mac

    def init_memory(self, params: Handover, batch: int, seats: int | None = None, prior: Any = None) -> Any:
        memories = tuple(self.mac.init_memory(p, batch, seats) for p in params[:2])
        return (*memories, jnp.zeros((), jnp.int32))

    def select_actions(
        self,
        params: Handover,
        seen: Timestep,
        memory: Any,
        t_env: Array,
        key: Array,
        test_mode: bool | Array,
        seats: Int[Array, " seat"] | None = None,
        env_state: Any = None,
    ) -> tuple[Int[Array, "batch seat"], Any]:
        *memories, t = memory
        act = partial(self.mac.select_actions, seen=seen, t_env=t_env, key=key, test_mode=test_mode, seats=seats)
        (first, one), (second, two) = (act(p, memory=m) for p, m in zip(params[:2], memories, strict=True))
        taken = jnp.where(t < params.at, first, second)
        return taken, (one._replace(last_actions=taken), two._replace(last_actions=taken), t + 1)


class Population(NamedTuple):
    """Members with their best responses (BRDiv, LBRDiv) or alone, and what is known of every pair."""

    members: LearnerState
    responses: LearnerState | None
    returns: Float[Array, "member partner"]
    """Running mean returns of every best response with every member (CoMeDi: of every member with every other)."""
    multipliers: Float[Array, "two member partner"]
    """LBRDiv: of the constraints of the member, and of the best response."""


class Generator:
    """`init` and `iterate` are compiled; `networks` are the finished members, stacked."""

    def __init__(self, name: str, env: MultiAgentEnv, config: Mapping[str, Any], settings: GeneratorSettings):
        self.name, self.env, self.settings = name, env, settings
        spec, n = env.spec, settings.pool_population
        self.n, self.sequential = n, name == "comedi"
        known = replace(spec, state_size=spec.state_size + n)
        if spec.n_agents < 2:
            raise UserError(f"{spec.name} has one agent here: {name} needs at least two.")
        if config.get("am_model", "none_am") != "none_am":
            raise UserError(f"{name} generates partners without an agent model: leave am_model out.")
        # Both sides of a pair learn from the same episodes: both must act by sampling.
        sampling = {"action_selector": "multinomial", "test_greedy": False, "epsilon_start": 0.0, "epsilon_finish": 0.0}
        config = {**config, **sampling, "agent_output_type": "pi_logits", "central_critic": True}
        self.mac = BasicMAC(spec, config)
        self.learner = WeightedPPO(known, BasicMAC(known, config), config, focal=True)
        others = tuple(range(1, spec.n_agents))
        # Pairs: everybody with everybody; CoMeDi: a member with itself, with every other one, and in mixed play.
        self.pairs = n + 1 if self.sequential else n * n
        partner: Controller = HandoverMAC(self.mac) if self.sequential else self.mac
        scheme, axes = make_scheme(spec)
        seats = Opponents(others, (PolicyGroup(partner, None, tuple(range(self.pairs))),))
        envs = max(int(config["batch_size_run"]) // (self.pairs if self.sequential else n), 1)
        self.runner = TeamRunner(
            env, self.mac, (0,), (seats,), {**scheme, **focal_scheme(self.mac)}, axes, envs, self.pairs,
            own_partner=True,
        )  # fmt: skip
        self.init = jax.jit(self._init)
        self.iterate = jax.jit(self._one_member if self.sequential else self._all_pairs, donate_argnums=0)

    def _init(self, key: Array) -> Population:
        keys = jax.random.split(key, (2, self.n))
        responses = None if self.sequential else jax.vmap(self.learner.init)(keys[1])
        shape = (self.n, self.n)
        return Population(
            jax.vmap(self.learner.init)(keys[0]), responses, jnp.zeros(shape), jnp.full((2, *shape), FIRST)
        )

    def networks(self, population: Population) -> Params:
        """The members' networks, stacked."""
        return self.learner.acting(population.members)

    # --- BRDiv and LBRDiv: all members and all best responses at once

    def weights(self, population: Population) -> Float[Array, "member partner"]:
        """How much each pair's return counts for both of its policies."""
        same = jnp.eye(self.n)
        if self.name == "brdiv":
            return same - (1 - same) * self.settings.pool_cross_play / (self.n - 1)
        own, theirs = population.multipliers * (1 - same)
        weights = same * (1 + own.sum(1) + theirs.sum(0)) - own - theirs
        return weights / jnp.diag(weights).mean()

    def dual_step(self, returns: Array, multipliers: Array) -> Array:
        """The multipliers rise where cross-play comes closer to self-play than the margin."""
        self_play = jnp.diag(returns)
        scale = jnp.maximum(abs(self_play).mean(), 1e-3)
        gaps = jnp.stack([self_play[:, None] - returns, self_play[None] - returns]) / scale
        return jnp.clip(multipliers + DUAL_STEP * (self.settings.pool_margin - gaps), 0, LARGEST)

    def _all_pairs(self, population: Population, t_env: Array, key: Array) -> tuple[Population, Array]:
        n, (member, partner) = self.n, np.divmod(np.arange(self.pairs), self.n)
        assert population.responses is not None
        k_play, k_members, k_responses = jax.random.split(key, 3)
        # As in a pool, the member fills all seats but one; there sits the best response.
        acting = [
            jax.tree.map(lambda x, i=i: x[i], self.learner.acting(s))
            for s, i in ((population.responses, partner), (population.members, member))
        ]
        times, keys = jnp.broadcast_to(t_env, (self.pairs,)), jax.random.split(k_play, self.pairs)
        batch, stats = self.runner.run(acting[0], times, keys, False, policies=((acting[1],),))
        assert stats.focal_returns is not None
        found = stats.focal_returns.mean(-1).reshape(n, n)
        weights = self.weights(population)
        pairs = jax.tree.map(lambda x: x.reshape(n, n, *x.shape[1:]), batch)
        update = jax.vmap(self._update, in_axes=(0, 0, 0, None, 0))
        turned = jax.vmap(jax.vmap(self._from_the_next_seat))(pairs)
        members = update(population.members, turned, weights, t_env, jax.random.split(k_members, n))
        of_response = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), pairs)
        responses = update(population.responses, of_response, weights.T, t_env, jax.random.split(k_responses, n))
        returns = jnp.where(t_env > 0, (1 - FORGET) * population.returns + FORGET * found, found)
        multipliers = self.dual_step(returns, population.multipliers)
        return Population(members, responses, returns, multipliers), stats.lengths.sum() // n

    def _from_the_next_seat(self, batch: EpisodeBatch) -> EpisodeBatch:
        """The same episodes as the agent after the focal one saw them, ordered by its seat."""
        n = self.env.spec.n_agents
        batch = batch.with_fields(agent_idx=(batch["agent_idx"] + 1) % n)
        return jax.tree.map(lambda x: jnp.roll(x.reshape(n, -1, *x.shape[1:]), 1, 0).reshape(x.shape), batch)

    # --- CoMeDi: one member after the other

    def _one_member(self, population: Population, t_env: Array, key: Array, k: Array) -> tuple[Population, Array]:
        """Member k learns; the partners are itself, all others (only earlier ones count), and mixed play."""
        n, s = self.n, self.settings
        k_play, k_update, k_at = jax.random.split(key, 3)
        others = (k + jnp.arange(1, n)) % n
        rivals = jnp.where(others < k, population.returns[k, others], -jnp.inf)
        strongest = others[rivals.argmax()]
        at = jax.random.randint(k_at, (), 0, self.env.spec.episode_limit)
        networks = self.learner.acting(population.members)
        first = jnp.concatenate([k[None], others, strongest[None]])
        second = first.at[-1].set(k)

        def take(i: Array) -> Params:
            return jax.tree.map(lambda x: x[i], networks)

        starts = jnp.zeros(self.pairs, jnp.int32).at[-1].set(at)
        partners = Handover(take(first), take(second), starts)
        times, keys = jnp.broadcast_to(t_env, (self.pairs,)), jax.random.split(k_play, self.pairs)
        focal = take(jnp.broadcast_to(k, (self.pairs,)))
        batch, stats = self.runner.run(focal, times, keys, False, policies=((partners,),))
        assert stats.focal_returns is not None
        found = stats.focal_returns.mean(-1)
        later = k > 0
        cross = -s.pool_cross_play * ((others == strongest) & later)
        weights = jnp.concatenate([jnp.ones(1), cross, jnp.where(later, s.pool_mixed_play, 0.0)[None]])
        own = jax.tree.map(lambda x: x[k], population.members)
        new = self._update(own, batch, weights, t_env, k_update, starts, first)
        members = jax.tree.map(lambda x, y: x.at[k].set(y), population.members, new)
        row = population.returns[k].at[first[:-1]].set(found[:-1])
        row = jnp.where(t_env > 0, (1 - FORGET) * population.returns[k] + FORGET * row, row)
        steps = (stats.lengths.sum(-1) * (weights != 0)).sum()
        return population._replace(members=members, returns=population.returns.at[k].set(row)), steps

    # --- both

    def _update(
        self,
        state: LearnerState,
        pairs: EpisodeBatch,
        weights: Float[Array, " pair"],
        t_env: Array,
        key: Array,
        starts: Int[Array, " pair"] | None = None,
        partners: Int[Array, " pair"] | None = None,
    ) -> LearnerState:
        """One PPO update of one policy on the episodes of all its pairs, from the step `starts` on."""
        p, n = len(weights), self.env.spec.n_agents
        partners = jnp.arange(p) if partners is None else partners
        starts = jnp.zeros(p, jnp.int32) if starts is None else starts

        def labelled(batch: EpisodeBatch, weight: Array, partner: Array, start: Array) -> EpisodeBatch:
            state = batch.state
            who = jnp.broadcast_to(jax.nn.one_hot(partner, self.n), (*state.shape[:2], self.n))
            counts = jnp.broadcast_to((jnp.arange(state.shape[1]) >= start) * weight, state.shape[:2])
            state = jnp.concatenate([state, who, counts[..., None]], -1)
            return EpisodeBatch({**batch.data, "state": state}, tuple(s for s in batch.scales if s[0] != "state"))

        def by_seat(x: Array) -> Array:
            """`[pair, seat × env, …]` to `[seat × pair × env, …]`."""
            return jnp.swapaxes(x.reshape(p, n, -1, *x.shape[2:]), 0, 1).reshape(-1, *x.shape[2:])

        together = jax.tree.map(by_seat, jax.vmap(labelled)(pairs, weights, partners, starts))
        return self.learner.train(state, together, t_env, key)[0]


def generate(
    generator: Generator, seed: int, t_max: int, report: Callable[[int, float], None]
) -> tuple[Params, np.ndarray]:
    """A finished population's networks, and the returns of its pairs. `t_max` are the steps of one member."""
    key = jax.random.key(seed)
    population, rounds = generator.init(jax.random.fold_in(key, 0)), generator.n if generator.sequential else 1
    number = 0
    for k in range(rounds):
        t_env, extra = 0, (jnp.int32(k),) if generator.sequential else ()
        while t_env < t_max:
            number += 1
            population, steps = generator.iterate(
                population, jnp.int32(min(t_env, 2**31 - 1)), jax.random.fold_in(key, number), *extra
            )
            t_env += int(steps)
            self_play = np.diag(population.returns)
            now = self_play[k] if generator.sequential else self_play.mean()
            report((k * t_max + min(t_env, t_max)) // rounds, float(now))
    returns = np.asarray(population.returns)
    if generator.sequential:
        # A member met those after it only before they had learned.
        returns = np.tril(returns) + np.tril(returns, -1).T
    return generator.networks(population), returns
