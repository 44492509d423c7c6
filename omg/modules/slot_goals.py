"""Goals as pointers to entities: what an agent goes for is something it sees, and its type is what it pays to reach it.

The environment names no goals for this, only the layout of its observations (`entities.py`).
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.envs.grid import GOAL_SIZE
from omg.envs.multiagentenv import MultiAgentEnv, Spec
from omg.modules.entities import Entities, beside
from omg.modules.goal_sets import Event
from omg.utils.settings import UserError

APART = 1.0
"""Entities are of different types if their mean events differ by so many standard deviations in some feature."""


class SlotSpace(eqx.Module):
    """What was learned: the goal type of every entity."""

    types: Int[Array, " entity"]


class SlotGoals:
    """Every entity is a goal. It is open while the observation of at least one agent contains it."""

    exclusive = True
    placed = True
    chosen_anew = True

    def __init__(self, env: MultiAgentEnv, space: SlotSpace):
        self.entities_of = Entities(env.spec)
        self.types = [int(t) for t in np.asarray(space.types)]
        self.n, self.n_types = self.entities_of.n, max(self.types, default=-1) + 1
        self.size = GOAL_SIZE + self.n_types
        self.entities, self.entity_size = self.n, self.size

    def features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        relative = self.entities_of.features(obs)
        types = jnp.eye(self.n_types)[np.array(self.types)]
        return jnp.concatenate([relative, jnp.broadcast_to(types, (*relative.shape[:-1], self.n_types))], -1)

    def surroundings(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal feature"]:
        return self.features(obs)

    def distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows goal"]:
        return self.entities_of.distance(obs)

    def open(self, env_state: Any, obs: Float[Array, "batch agent obs"]) -> Bool[Array, "batch goal"]:
        return self.entities_of.there(obs).any(1)

    def reached(self, event: Event) -> Int[Array, "batch agent"]:
        before, after = (x.obs.astype(jnp.float32) for x in (event.seen, event.shown))
        return self.entities_of.reached(before, after, event.shown.reward, event.seen.alive)


# --- learning


def learn_types(
    spec: Spec,
    obs: Float[np.ndarray, "episode time_and_end agent obs"],
    reward: Float[np.ndarray, "episode time agent"],
    playing: Bool[np.ndarray, "episode time agent"],
) -> tuple[SlotSpace, dict[str, float]]:
    """What it is like to reach each entity, on average; entities that are alike are of one type.

    An event is described by the entity's group, how many others were beside it, the agent's reward, and its reward
    minus the mean of all agents.
    """
    found, steps = Entities(spec), obs.shape[1] - 1
    before = jnp.asarray(obs[:, :-1])
    reached = np.asarray(
        found.reached(before, jnp.asarray(obs[:, 1:]), jnp.asarray(reward[:, :steps]), jnp.asarray(playing[:, :steps]))
    )
    episode, time, agent = np.nonzero(reached >= 0)
    if not len(episode):
        raise UserError(
            "no agent reached an entity in these episodes: collect more (--vae_episodes), from members that earn "
            "rewards, or use --goal_form=intentions, where entities need not vanish."
        )
    entity = reached[episode, time, agent]
    near = np.asarray(beside(found.distance(before))) & playing[:, :steps, :, None]
    company = near[episode, time, :, entity].sum(-1) - 1
    own, mean = reward[episode, time, agent], reward[episode, time].mean(-1)
    groups = found.group_of[entity][:, None] == np.unique(found.group_of)
    rows = np.column_stack([groups, company, own, own - mean]).astype(float)
    rows = (rows - rows.mean(0)) / np.maximum(rows.std(0), 1e-6)
    types = _alike(rows, entity, found.group_of)
    of_event = types[entity]
    within = sum(((rows[of_event == t] - rows[of_event == t].mean(0)) ** 2).sum() for t in np.unique(of_event))
    explained = float(1 - within / max((rows**2).sum(), 1e-9))
    summary = {"events": len(entity), "goal_types": int(types.max()) + 1, "explained": explained}
    return SlotSpace(jnp.asarray(types, jnp.int32)), summary


def _alike(
    rows: Float[np.ndarray, "event feature"], entity: Int[np.ndarray, " event"], group_of: Int[np.ndarray, " entity"]
) -> Int[np.ndarray, " entity"]:
    """The goal type of every entity. Entities have the same type if the means of their events are close.

    An entity without events has the type of its group.
    """
    types = np.full(len(group_of), -1)
    first: list[np.ndarray] = []
    for e in np.unique(entity):
        mean = rows[entity == e].mean(0)
        near = [t for t, other in enumerate(first) if abs(mean - other).max() < APART]
        types[e] = near[0] if near else len(first)
        if not near:
            first.append(mean)
    for e in np.flatnonzero(types < 0):
        same = types[(group_of == group_of[e]) & (types >= 0)]
        types[e] = same[0] if len(same) else types.max() + 1
    return types
