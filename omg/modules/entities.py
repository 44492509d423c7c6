"""Entities in an observation, by its layout (`obs_layout`, `agents_in_obs`): rows with a cell and a presence flag."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.envs.grid import relative_goals, steps_to
from omg.envs.multiagentenv import Spec
from omg.utils.settings import UserError

Row = tuple[int, int, int]
"""Where an observation has the two coordinates of something, and whether it is there."""


def beside(distance: Float[Array, "*rows"]) -> Bool[Array, "*rows"]:
    """At most one step away; distances are rounded multiples of a cell."""
    return distance < 1.5


def lists_entities(spec: Spec) -> bool:
    """Whether the layout of observations tells where things are."""
    return spec.agents_in_obs in [name for name, _ in spec.obs_layout]


class Entities:
    """The entities in an observation, and the agent that observes them. With `others` the other agents are entities."""

    def __init__(self, spec: Spec, others: bool = False):
        if not lists_entities(spec):
            raise UserError(
                f"goals as entities are read from the layout of observations, and {spec.name} gives none "
                "(obs_layout, agents_in_obs): use --goal_form=state_time_reward."
            )
        self.relative = spec.entity_step > 0
        # Behind the observation stands a one: the presence of entities that are always there.
        always = spec.obs_size
        place, own, places, group_of = 0, 0, list[Row](), list[int]()
        for group, (name, shape) in enumerate(spec.obs_layout):
            of_agents = name == spec.agents_in_obs
            if of_agents:
                own = place
            if len(shape) == 2 and (others or not of_agents):
                # Row and column, and last whether it is there; agents that never leave need not say so. The observing
                # agent's own row is the first of the agents.
                first = int(of_agents and not self.relative)
                starts = [place + row * shape[1] for row in range(first, shape[0])]
                flagged = not self.relative and (not of_agents or shape[1] > 2)
                places += [(at, at + 1, at + shape[1] - 1 if flagged else always) for at in starts]
                group_of += [group] * len(starts)
            place += math.prod(shape)
        self.n, self.own = len(places), own
        self.places = np.array(places, int).reshape(-1, 3)
        self.group_of = np.array(group_of)
        self.in_group = self.group_of[:, None] == np.unique(self.group_of)
        self.groups = self.in_group.shape[1]
        self.cell = spec.entity_step or spec.cell_size or spec.obs_storage.scale

    def features(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows entity feature"]:
        """Every entity relative to the observing agent."""
        return relative_goals(self._rows(obs), self._own(obs), self.cell)

    def there(self, obs: Float[Array, "*rows obs"]) -> Bool[Array, "*rows entity"]:
        return self._rows(obs)[..., 2] > 0

    def distance(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows entity"]:
        """In steps; infinite for entities that are gone or out of sight."""
        return steps_to(self.features(obs), self.cell)

    def _rows(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows entity 3"]:
        """Two coordinates and the presence of every entity."""
        return jnp.concatenate([obs, jnp.ones_like(obs[..., :1])], -1)[..., self.places]

    def _own(self, obs: Float[Array, "*rows obs"]) -> Float[Array, "*rows 2"]:
        return jnp.zeros_like(obs[..., :2]) if self.relative else obs[..., self.own : self.own + 2]

    def reached(
        self,
        before: Float[Array, "*rows agent obs"],
        after: Float[Array, "*rows agent obs"],
        reward: Float[Array, "*rows agent"],
        playing: Bool[Array, "*rows agent"],
    ) -> Int[Array, "*rows agent"]:
        """The entity that each agent reached in a step; -1: none.

        It vanished within a step of an agent whose reward is not zero.
        """
        gone = self.there(before).any(-2) & ~self.there(after).any(-2)
        far = self.distance(before)
        hit = gone[..., None, :] & beside(far) & (reward != 0)[..., None] & playing[..., None]
        nearest = jnp.where(hit, far, jnp.inf).argmin(-1)
        return jnp.where(hit.any(-1), nearest, -1)
