"""Episodes as one agent lived them: slot k holds what the focal agent saw, did and earned in seat k."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.components.episode_buffer import EpisodeBatch


class FocalBatch(NamedTuple):
    """`[batch, time, slot, …]`; every slot is an episode of its own. The others follow in the order of their seats."""

    obs: Float[Array, "batch time slot obs"]
    state: Float[Array, "batch time slot state"]
    avail_actions: Bool[Array, "batch time slot action"]
    actions: Int[Array, "batch time slot"]
    reward: Float[Array, "batch time slot"]
    alive: Bool[Array, "batch time slot"]
    terminated: Float[Array, "batch time slot"]
    filled: Float[Array, "batch time slot"]
    others_obs: Float[Array, "batch time slot other obs"]
    others_actions: Int[Array, "batch time slot other"]
    others_alive: Bool[Array, "batch time slot other"]
    prior: Float[Array, "batch slot embedding"]

    @property
    def last_actions(self) -> Int[Array, "batch time slot"]:
        """The action before each slot of time; -1 at the start."""
        return jnp.pad(self.actions[:, :-1], ((0, 0), (1, 0), (0, 0)), constant_values=-1)

    @property
    def mask(self) -> Float[Array, "batch time slot"]:
        """Where a step was taken by an agent that still plays."""
        return self.filled * self.alive


def refine(batch: EpisodeBatch, n_agents: int) -> FocalBatch:
    """Regroups `n_agents × B` episodes, seat after seat, into B rows of `n_agents` slots.

    Which agent of an episode was the focal one is read from the episode itself (`agent_idx`).
    """
    episodes = batch.batch_size
    focal = batch["agent_idx"][:, 0].astype(jnp.int32)
    others = (focal[:, None] + jnp.arange(1, n_agents)) % n_agents

    def own(x: Array) -> Array:
        index = focal.reshape(episodes, *(1,) * (x.ndim - 1))
        return slots(jnp.take_along_axis(x, index, axis=2)[:, :, 0])

    def theirs(x: Array) -> Array:
        index = others.reshape(episodes, 1, n_agents - 1, *(1,) * (x.ndim - 3))
        return slots(jnp.take_along_axis(x, index, axis=2))

    def slots(x: Array) -> Array:
        return jnp.moveaxis(x.reshape(n_agents, episodes // n_agents, *x.shape[1:]), 0, 2)

    prior = batch["prior"][:, 0] if "prior" in batch.data else jnp.zeros((episodes, 0))
    return FocalBatch(
        obs=own(batch.obs),
        state=slots(batch.state),
        avail_actions=own(batch.avail_actions),
        actions=own(batch.actions),
        reward=own(batch.reward),
        alive=own(batch.alive),
        terminated=slots(batch.terminated),
        filled=slots(batch.filled),
        others_obs=theirs(batch.obs),
        others_actions=theirs(batch.actions),
        others_alive=theirs(batch.alive),
        prior=jnp.moveaxis(prior.reshape(n_agents, episodes // n_agents, -1), 0, 1),
    )


def everybody(batch: EpisodeBatch, n_agents: int) -> FocalBatch:
    """Every agent of every episode as the focal one of its own slot: a team that learns together."""
    others = (np.arange(n_agents)[:, None] + np.arange(1, n_agents)) % n_agents

    def each(x: Array) -> Array:
        return jnp.broadcast_to(x[:, :, None], (*x.shape[:2], n_agents, *x.shape[2:]))

    return FocalBatch(
        obs=batch.obs,
        state=each(batch.state),
        avail_actions=batch.avail_actions,
        actions=batch.actions,
        reward=batch.reward,
        alive=batch.alive,
        terminated=each(batch.terminated),
        filled=each(batch.filled),
        others_obs=batch.obs[:, :, others],
        others_actions=batch.actions[:, :, others],
        others_alive=batch.alive[:, :, others],
        prior=jnp.zeros((batch.batch_size, n_agents, 0)),
    )
