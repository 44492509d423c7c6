"""How an agent does among a pool's members: every member in turn, the agent in every seat."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from omg.components.episode_buffer import EpisodeBatch, make_scheme
from omg.components.focal_batch import FocalBatch, refine
from omg.controllers import FocalMAC, MultiModuleMAC, Side, TeamPolicies
from omg.envs import MultiAgentEnv
from omg.learners.omg_learner import before_each_step
from omg.learners.subgoals import SubgoalSettings, candidate_values, candidates, choose, pick_ahead
from omg.modules.am import Seen
from omg.modules.am.base import time_first
from omg.modules.vae import VAE, Gaussian
from omg.opponents.pool import Kind
from omg.runners import VectorRunner

MODEL = ("action_accuracy", "subgoal_hit_ratio", "shuffled_hit_ratio", "latent_distance")
"""Measures of an agent model; each model has some of them."""


class Met(NamedTuple):
    """One seed's games with one member: means over episodes, and the mean embedding of each episode."""

    member: int
    numbers: dict[str, float]
    embeddings: np.ndarray


class Meeting:
    """Plays one seed of a trained agent with every member of a kind, `episodes` each, in one program."""

    def __init__(
        self,
        env: MultiAgentEnv,
        focal: Any,
        kind: Kind,
        episodes: int,
        vae: VAE | None = None,
        subgoals: SubgoalSettings | None = None,
    ):
        n = env.spec.n_agents
        self.env, self.focal, self.kind, self.vae = env, focal, kind, vae
        self.subgoals = subgoals or SubgoalSettings()
        self.horizon = self.subgoals.H
        self.worlds = -(-episodes // n)
        side = Side(kind.mac, tuple(range(1, n)), kind.size)
        self.mac = MultiModuleMAC(env.spec, focal, (0,), (side,))
        batch = n * kind.size * self.worlds
        self.runner = VectorRunner(env, self.mac, *make_scheme(env.spec), batch)
        self.seats = jnp.repeat(jnp.arange(n, dtype=jnp.int8), batch // n)
        self.compiled = jax.jit(self._play)

    def play(self, agent: Any, key: Array) -> list[Met]:
        per_episode, embeddings = jax.device_get(self.compiled(agent, self.kind.policies, key))
        n = self.env.spec.n_agents

        def by_member(x: np.ndarray) -> np.ndarray:
            """`[seat, member, world]` to `[member, episode]`."""
            return np.moveaxis(x.reshape(n, self.kind.size, self.worlds, *x.shape[1:]), 1, 0).reshape(
                self.kind.size, n * self.worlds, *x.shape[1:]
            )

        split = {name: by_member(value) for name, value in per_episode.items()}
        summaries = by_member(embeddings)
        return [
            Met(member, {name: _mean(values[i]) for name, values in split.items()}, summaries[i])
            for i, member in enumerate(self.kind.ids)
        ]

    def _play(self, agent: Any, policies: Any, key: Array) -> tuple[dict[str, Array], Array]:
        team, now = TeamPolicies(agent, (policies,)), jnp.int32(0)
        prior = None
        if self.mac.prior_size:
            # The first meeting leaves a summary; what counts is the second.
            first, _, _ = self.runner.play(team, now, jax.random.fold_in(key, 1), True)
            assert first is not None
            left = self.focal.summary(agent, self._refined(first, jnp.zeros((len(self.seats), self.mac.prior_size))))
            prior = jnp.moveaxis(left, 1, 0).reshape(len(self.seats), -1)
        batch, stats, _ = self.runner.play(team, now, key, True, True, prior)
        assert batch is not None
        own = jnp.take_along_axis(stats.agent_returns, self.seats[:, None].astype(jnp.int32), -1)[:, 0]
        numbers = {
            "return": self.env.spec.team_reward(stats.agent_returns),
            "focal_return": own,
            "ep_length": stats.lengths.astype(jnp.float32),
            **stats.info,
        }
        if "battle_won" not in stats.info:
            # Whether the game itself came to its end before the time did.
            numbers["win_rate"] = batch["terminated"].any(1).astype(jnp.float32)
        if not isinstance(self.focal, FocalMAC):
            return numbers, jnp.zeros((self.runner.batch_size, 0))
        model, embedding = self.measure_model(agent, self._refined(batch, prior), key)
        back = {name: jnp.moveaxis(value, 1, 0).reshape(-1) for name, value in model.items()}
        return {**numbers, **back}, jnp.moveaxis(embedding, 1, 0).reshape(self.runner.batch_size, -1)

    def _refined(self, batch: EpisodeBatch, prior: Array | None) -> FocalBatch:
        marks = {"agent_idx": self.seats[:, None]} | ({} if prior is None else {"prior": prior[:, None]})
        return refine(EpisodeBatch({**batch.data, **marks}, batch.scales), self.env.spec.n_agents)

    def measure_model(self, agent: Any, batch: FocalBatch, key: Array) -> tuple[dict[str, Array], Array]:
        """The agent model's measures per episode `[batch, slot]`, and its mean embedding."""
        seen = self.focal.seen(batch)
        inferred = self.focal.infer_all(agent, seen, batch)
        mask = time_first(batch.mask)
        steps = jnp.maximum(mask.sum(0), 1)
        embedding = (inferred.embedding * mask[..., None]).sum(0) / steps[..., None]
        numbers = {}
        chances = self.focal.am.predicted_actions(agent, inferred)
        if chances is not None:
            right = chances.argmax(-1) == time_first(batch.others_actions)
            counts = mask[..., None] * time_first(batch.others_alive)
            numbers["action_accuracy"] = (right * counts).sum((0, -1)) / jnp.maximum(counts.sum((0, -1)), 1)
        if self.vae is not None:
            numbers |= self.measure_subgoals(agent, seen, inferred.embedding, batch, key)
        return numbers, embedding

    def measure_subgoals(
        self, agent: Any, seen: Seen, inferred: Array, batch: FocalBatch, key: Array
    ) -> dict[str, Array]:
        assert self.vae is not None
        latents = self.vae.encode(seen.s).mu
        filled = time_first(batch.filled)
        hit = hits(inferred, latents, filled, self.horizon)
        # Guesses of another episode at another time, for comparison.
        time, rows, slots, size = inferred.shape
        real = filled.reshape(-1) > 0
        order = jnp.argsort(jax.random.uniform(key, (time * rows * slots,)) + ~real)
        place = jnp.cumsum(real) - 1
        mixed = inferred.reshape(-1, size)[order[place]].reshape(inferred.shape)
        shuffled = hits(mixed, latents, filled, self.horizon)
        candidate = candidates(filled, self.horizon)
        there = candidate.any(0).astype(jnp.float32)
        count = jnp.maximum(there.sum(0), 1)
        ahead = chosen_ahead(self.focal, agent, seen, inferred, latents, batch, self.subgoals, key)
        chosen = pick_ahead(Gaussian(latents, latents), ahead).mu
        distance = jnp.sqrt(((chosen - inferred[:-1]) ** 2).sum(-1))
        return {
            "subgoal_hit_ratio": (hit * there).sum(0) / count,
            "shuffled_hit_ratio": (shuffled * there).sum(0) / count,
            "latent_distance": (distance * there).sum(0) / count,
        }


def chosen_ahead(
    focal: FocalMAC,
    agent: Any,
    seen: Seen,
    inferred: Array,
    latents: Array,
    batch: FocalBatch,
    subgoals: SubgoalSettings,
    key: Array,
) -> Array:
    """How many steps ahead hindsight puts each step's subgoal, by the policy's own values (or its critic's)."""
    judge = agent.get("critic", agent["agent"])
    hidden = before_each_step(focal.unroll_on(judge, seen, inferred).hidden)
    avail = None if "critic" in agent else time_first(batch.avail_actions)
    values = candidate_values(judge, seen, hidden, latents, avail, subgoals.H)
    return choose(values, candidates(time_first(batch.filled), subgoals.H), subgoals, key)


def hits(inferred: Array, latents: Array, filled: Array, horizon: int) -> Array:
    """Whether the state of the episode nearest to ĝ_t is one of s_{t+1} … s_{t+H}; `[time, batch, slot]`."""
    ahead = nearest_state(inferred, latents, filled) - jnp.arange(filled.shape[0] - 1)[:, None, None]
    return ((ahead >= 1) & (ahead <= horizon)).astype(jnp.float32)


def nearest_state(inferred: Array, latents: Array, filled: Array) -> Array:
    """The place in the episode of the state whose latent is nearest to ĝ_t."""
    real = jnp.concatenate([jnp.ones_like(filled[:1]), filled[:-1]]) > 0
    square = (latents**2).sum(-1)
    cross = jnp.einsum("tbsd,ubsd->tubs", inferred[:-1], latents)
    distance = jnp.where(real[None], square[None] - 2 * cross, jnp.inf)
    return distance.argmin(1)


def _mean(values: np.ndarray) -> float:
    return float(np.asarray(values, float).mean())
