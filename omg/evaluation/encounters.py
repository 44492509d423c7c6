"""Results of an agent with every member of a pool in turn, with the agent in every seat equally often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from omg.components.episode_buffer import EpisodeBatch, FocalBatch, make_scheme, refine, time_first
from omg.controllers.basic_controller import BasicMAC, before_each_step
from omg.controllers.om_controller import MultiModuleMAC, Side, TeamPolicies
from omg.envs import MultiAgentEnv
from omg.modules.am import Inferred, Judge, Seen
from omg.modules.am.omg_am import choose
from omg.modules.vae import VAE, Gaussian
from omg.runners import EpisodeStats, PolicyGroup, VectorRunner
from omg.runners.host_runner import HostRunner

MODEL = ("action_accuracy", "subgoal_hit_ratio", "shuffled_hit_ratio", "latent_distance", "unchanged_distance")
"""Measures of an agent model; each model has some of them."""


class Result(NamedTuple):
    """One seed's episodes with one member: means over episodes, and the mean embedding of each episode."""

    member: int
    numbers: dict[str, float]
    embeddings: np.ndarray


class Encounter:
    """Plays one seed of a trained agent with every member of an architecture group.

    Every member plays `episodes` episodes (rounded up to a multiple of the seats): all of them in one program, or with
    `host` one in every seat after the other, in the environments of that runner, in Python.
    """

    def __init__(
        self,
        env: MultiAgentEnv,
        focal: Any,
        group: PolicyGroup,
        episodes: int,
        vae: VAE | None = None,
        host: HostRunner | None = None,
    ):
        n = env.spec.n_agents
        self.env, self.focal, self.group, self.vae = env, focal, group, vae
        in_a_seat = -(-episodes // n)
        self.episodes = in_a_seat * n
        # In Python every step computes the actions of a whole round: rounds are small there.
        self.rounds, self.envs = (in_a_seat, 1) if host else (1, in_a_seat)
        side = Side(group.mac, tuple(range(1, n)), group.size)
        self.mac = MultiModuleMAC(env.spec, focal, (0,), (side,))
        batch = n * group.size * self.envs
        self.runner: Any = (
            host.seated(self.mac, batch) if host else VectorRunner(env, self.mac, *make_scheme(env.spec), batch)
        )
        self.played = self.rounds * batch * (2 if self.mac.prior_size and not focal.given_identity else 1)
        """All episodes with all members, those included that only provide what is carried over."""
        self.seats = jnp.repeat(jnp.arange(n, dtype=jnp.int8), batch // n)
        self.measure = jax.jit(self._measure)
        # Episodes in Python cannot be part of a compiled program.
        self.play_and_measure = self._play_and_measure if host else jax.jit(self._play_and_measure)

    def play(self, agent: Any, key: Array, on_played: Callable[[int], None] = lambda episodes: None) -> list[Result]:
        """`on_played` is called with the number of episodes that were played: in Python after each turn, else once."""
        if self.runner.host:
            self.runner.on_played = on_played
        # Runners fold the numbers of steps into a key: those of further rounds are far from them.
        keys = [key, *(jax.random.fold_in(key, 1_000_000 + i) for i in range(1, self.rounds))]
        rounds = [jax.device_get(self.play_and_measure(agent, self.group.policies, k)) for k in keys]
        if not self.runner.host:
            on_played(self.played)
        n = self.env.spec.n_agents

        def by_member(x: np.ndarray) -> np.ndarray:
            """`[seat, member, env]` to `[member, episode]`."""
            return np.moveaxis(x.reshape(n, self.group.size, self.envs, *x.shape[1:]), 1, 0).reshape(
                self.group.size, n * self.envs, *x.shape[1:]
            )

        together = jax.tree.map(lambda *each: np.concatenate([by_member(x) for x in each], 1), *rounds)
        per_episode, embeddings = together
        return [
            Result(member, {name: _mean(values[i]) for name, values in per_episode.items()}, embeddings[i])
            for i, member in enumerate(self.group.ids)
        ]

    def episodes_of(self, agent: Any, policies: Any, key: Array) -> tuple[EpisodeBatch, EpisodeStats, Array | None]:
        """One episode in every environment, and what the agent model started from (None: nothing)."""
        team, now = TeamPolicies(agent, (policies,)), jnp.int32(0)
        prior = None
        if self.focal.given_identity:
            # The order of the environments is `[seat, member, env]`.
            ids = jnp.tile(jnp.repeat(jnp.asarray(self.group.ids), self.envs), self.env.spec.n_agents)
            prior = jax.nn.one_hot(ids, self.focal.prior_size)
        elif self.mac.prior_size:
            # The first episode only provides what is carried over; the second one is reported.
            first = self.runner.play(team, now, jax.random.fold_in(key, 1), True).batch
            assert first is not None
            zeros = jnp.zeros((len(self.seats), self.mac.prior_size))
            carried = self.focal.carried(agent, self._refined(first, zeros))
            prior = jnp.moveaxis(carried, 1, 0).reshape(len(self.seats), -1)
        batch, stats, *_ = self.runner.play(team, now, key, True, prior=prior)
        assert batch is not None
        return batch, stats, prior

    def _play_and_measure(self, agent: Any, policies: Any, key: Array) -> tuple[dict[str, Array], Array]:
        return self.measure(agent, key, *self.episodes_of(agent, policies, key))

    def _measure(
        self, agent: Any, key: Array, batch: EpisodeBatch, stats: EpisodeStats, prior: Array | None
    ) -> tuple[dict[str, Array], Array]:
        own = jnp.take_along_axis(stats.agent_returns, self.seats[:, None].astype(jnp.int32), -1)[:, 0]
        numbers = {
            "return": self.env.spec.team_reward(stats.agent_returns),
            "focal_return": own,
            "ep_length": stats.lengths.astype(jnp.float32),
            **stats.info,
        }
        if "battle_won" not in stats.info:
            # Whether the game terminated before the time limit.
            numbers["win_rate"] = batch["terminated"].any(1).astype(jnp.float32)
        if not isinstance(self.focal, BasicMAC):
            return numbers, jnp.zeros((self.runner.batch_size, 0))
        model, embedding = self.measure_model(agent, self._refined(batch, prior), key)
        back = {name: jnp.moveaxis(value, 1, 0).reshape(-1) for name, value in model.items()}
        return {**numbers, **back}, jnp.moveaxis(embedding, 1, 0).reshape(self.runner.batch_size, -1)

    def _refined(self, batch: EpisodeBatch, prior: Array | None) -> FocalBatch:
        fields = {"agent_idx": self.seats[:, None]} | ({} if prior is None else {"prior": prior[:, None]})
        return refine(batch.with_fields(**fields), self.env.spec.n_agents)

    def measure_model(self, agent: Any, batch: FocalBatch, key: Array) -> tuple[dict[str, Array], Array]:
        """The agent model's measures per episode `[batch, seat]`, and its mean embedding."""
        seen = self.focal.seen(batch)
        inferred = self.focal.infer_all(agent, seen, batch)
        mask, embedding = time_first(batch.mask), mean_embedding(inferred, batch)
        numbers = {}
        probabilities = self.focal.am.predicted_actions(agent, inferred)
        if probabilities is not None:
            correct = probabilities.argmax(-1) == time_first(batch.others_actions)
            counts = mask[..., None] * time_first(batch.others_alive)
            numbers["action_accuracy"] = (correct * counts).sum((0, -1)) / jnp.maximum(counts.sum((0, -1)), 1)
        if self.vae is not None:
            numbers |= self.measure_subgoals(agent, seen, inferred.embedding, batch, key)
        return numbers, embedding

    def measure_subgoals(
        self, agent: Any, seen: Seen, inferred: Array, batch: FocalBatch, key: Array
    ) -> dict[str, Array]:
        assert self.vae is not None
        am = self.focal.am
        of_states, horizon = am.latents(self.vae, seen, batch), am.settings.H
        latents, filled = of_states.mu, time_first(batch.filled)
        goals = am.subgoals_in(inferred)
        hit = hits(am.as_state(goals, of_states), latents, filled, horizon)
        # Inferred subgoals of random other time steps and episodes, for comparison.
        time, rows, seats, size = goals.shape
        real = filled.reshape(-1) > 0
        order = jnp.argsort(jax.random.uniform(key, (time * rows * seats,)) + ~real)
        place = jnp.cumsum(real) - 1
        mixed = goals.reshape(-1, size)[order[place]].reshape(goals.shape)
        shuffled = hits(am.as_state(mixed, of_states), latents, filled, horizon)
        exists = am.exists(batch).any(0).astype(jnp.float32)
        count = jnp.maximum(exists.sum(0), 1)
        ahead = chosen_ahead(self.focal, agent, seen, inferred, of_states, batch, key)
        chosen = am.goals_ahead(of_states, ahead).mu[:-1]
        # The goal of an agent that stays where it is, for comparison.
        unchanged = am.goals_ahead(of_states, jnp.zeros_like(ahead)).mu[:-1]

        def distance(goals: Array) -> Array:
            return (jnp.sqrt(((chosen - goals) ** 2).sum(-1)) * exists).sum(0) / count

        return {
            "subgoal_hit_ratio": (hit * exists).sum(0) / count,
            "shuffled_hit_ratio": (shuffled * exists).sum(0) / count,
            "latent_distance": distance(goals[:-1]),
            "unchanged_distance": distance(unchanged),
        }


def mean_embedding(inferred: Inferred, batch: FocalBatch) -> Float[Array, "batch seat embedding"]:
    """Over the steps that the focal agent took."""
    mask = time_first(batch.mask)[..., None]
    return (inferred.embedding * mask).sum(0) / jnp.maximum(mask.sum(0), 1)


def chosen_ahead(
    focal: BasicMAC,
    agent: Any,
    seen: Seen,
    inferred: Array,
    of_states: Gaussian,
    batch: FocalBatch,
    key: Array,
) -> Array:
    """How many steps ahead the hindsight choice lies, by the policy's own values (or its critic's)."""
    am: Any = focal.am
    network = agent.get("critic", agent["agent"])
    hidden = before_each_step(focal.unroll_on(network, seen, inferred).hidden, seen.start)
    avail = None if "critic" in agent else time_first(batch.avail_actions)
    values = am.considered(of_states, Judge(network, hidden, avail), seen, inferred)
    return choose(values, am.exists(batch), am.settings, key)


def hits(inferred: Array, latents: Array, filled: Array, horizon: int) -> Array:
    """Whether the state of the episode nearest to ĝ_t is one of s_{t+1} … s_{t+H}; `[time, batch, seat]`."""
    ahead = nearest_state(inferred, latents, filled) - jnp.arange(filled.shape[0] - 1)[:, None, None]
    return ((ahead >= 1) & (ahead <= horizon)).astype(jnp.float32)


def nearest_state(inferred: Array, latents: Array, filled: Array) -> Array:
    """The time step of the state whose latent is nearest to ĝ_t."""
    real = jnp.concatenate([jnp.ones_like(filled[:1]), filled[:-1]]) > 0
    square = (latents**2).sum(-1)
    cross = jnp.einsum("tbsd,ubsd->tubs", inferred[:-1], latents)
    distance = jnp.where(real[None], square[None] - 2 * cross, jnp.inf)
    return distance.argmin(1)


def _mean(values: np.ndarray) -> float:
    return float(np.asarray(values, float).mean())
