"""Scripted policies for stag hunt (which prey to pursue) and snowdrift (which drift to clear, or none).

A policy sees one agent's observation: the cells of all agents, its own first, and the goals with their existence flag.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from omg.controllers.scripted_controller import OfFamily
from omg.envs.grid import MOVES
from omg.envs.multiagentenv import Spec

STAY = 0
SWITCH_AFTER = 0.2
"""Fraction of the episode limit after which a switcher changes its policy: about the middle of a usual episode."""


class View(NamedTuple):
    """An observation in cells."""

    me: Float[Array, " 2"]
    others: Float[Array, "other 2"]
    playing: Bool[Array, " other"]
    goals: Float[Array, "goal 2"]
    exists: Bool[Array, " goal"]
    elapsed: Float[Array, ""]
    """Steps so far, as a fraction of the episode limit."""

    def far(self) -> Float[Array, " goal"]:
        """Distance from the agent to each goal, in steps."""
        return abs(self.goals - self.me).sum(-1)

    def far_from_others(self) -> Float[Array, "other goal"]:
        """Distances from the other agents to each goal; 0 for agents that left."""
        return abs(self.goals - self.others[:, None]).sum(-1) * self.playing[:, None]


def _view(spec: Spec, obs: Array) -> View:
    whole, start, parts = jnp.round(obs / spec.obs_storage.scale), 0, []
    for _, shape in spec.obs_layout:
        size = math.prod(shape)
        parts.append(whole[start : start + size].reshape(shape))
        start += size
    agents, *groups, time = parts
    goals = jnp.concatenate(groups)
    playing = agents[1:, 2] > 0 if agents.shape[1] > 2 else jnp.ones(len(agents) - 1, bool)
    exists = goals[:, 2] > 0
    return View(agents[0, :2], agents[1:, :2], playing, goals[:, :2], exists, time[0] / spec.episode_limit)


def random_action(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
    noise = jax.random.uniform(key, avail_actions.shape)
    return jnp.where(avail_actions, noise, -1.0).argmax()


def pursues(cost_of: Callable[[View], Array]):
    """Walks to the goal of the lowest cost (infinite: never) around the other goals; stays if there is none."""

    def of(spec: Spec):
        def costs(view: View) -> Array:
            return jnp.where(view.exists, cost_of(view), jnp.inf)

        def goal_of(obs: Array) -> Array:
            """The goal that it pursues; one past the last: none."""
            cost = costs(_view(spec, obs))
            return jnp.where(jnp.isfinite(cost.min()), cost.argmin(), len(cost))

        def policy(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
            view = _view(spec, obs)
            cost = costs(view)
            goal = cost.argmin()
            after = view.me + jnp.asarray(MOVES)
            ahead = abs(view.goals[goal] - after).sum(-1)
            touched = (abs(view.goals - after[:, None]).sum(-1) == 0) & view.exists & (jnp.arange(len(cost)) != goal)
            # A step sideways around another goal is better than standing still and worse than coming closer.
            noise = 0.5 * jax.random.uniform(key, (len(MOVES),))
            way = ahead + noise + 100.0 * touched.any(-1)
            way = way.at[STAY].add(jnp.where(view.far()[goal] > 0, 1.5, -1.0))
            step = jnp.where(avail_actions, way, jnp.inf).argmin()
            return jnp.where(jnp.isfinite(cost.min()), step, STAY)

        policy.goal = goal_of  # type: ignore[attr-defined]
        return policy

    return of


def switches(before: str, after: str, policies: dict[str, Callable]):
    """One policy first, another one after `SWITCH_AFTER` of the episode limit."""

    def of(spec: Spec):
        one, other = policies[before](spec), policies[after](spec)

        def policy(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
            late = _view(spec, obs).elapsed >= SWITCH_AFTER
            return jnp.where(late, other(obs, avail_actions, seat, key), one(obs, avail_actions, seat, key))

        policy.goal = lambda obs: jnp.where(  # type: ignore[attr-defined]
            _view(spec, obs).elapsed >= SWITCH_AFTER, other.goal(obs), one.goal(obs)
        )
        return policy

    return of


def _order(v: View) -> Array:
    """A small cost per index, so that all agents break ties in the same way."""
    return 0.01 * jnp.arange(len(v.exists))


def _together(v: View) -> Array:
    """The summed distance of all agents that still play."""
    return v.far() + v.far_from_others().sum(0) + _order(v)


def _listed(spec: Spec, name: str) -> np.ndarray:
    """Which goals the observation layout lists under that name."""
    return np.array([part == name for part, shape in spec.obs_layout[1:-1] for _ in range(shape[0])])


def _only(name: str, cost_of: Callable[[View], Array]):
    """Only the goals that the observation layout lists under that name."""

    def of(spec: Spec):
        return pursues(lambda v: jnp.where(_listed(spec, name), cost_of(v), jnp.inf))(spec)

    return of


def _conditional(spec: Spec, limits: Array):
    """Hunts a stag as long as all three limits hold, otherwise the nearest hare; stays if there is none."""
    stags, (steps, own, of_others) = _listed(spec, "stags"), limits

    def cost(v: View) -> Array:
        stag = v.exists & stags
        near = jnp.where(stag, v.far(), jnp.inf).min() <= own
        joined = jnp.where(stag & v.playing[:, None], v.far_from_others(), jnp.inf).min() <= of_others
        hunts = stag.any() & (jnp.round(v.elapsed * spec.episode_limit) < steps) & near & joined
        return jnp.where(stags == hunts, v.far() + _order(v), jnp.inf)

    return pursues(cost)(spec)


def _by_limits(spec: Spec, limits: Array, obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
    return _conditional(spec, limits)(obs, avail_actions, seat, key)


def hunts_a_stag(steps: float = np.inf, own: float = np.inf, of_others: float = np.inf):
    """Hunts a stag in the first `steps` steps, while one is at most `own` steps away and one at most `of_others` steps
    from another hunter; otherwise hares.
    """

    def of(spec: Spec) -> OfFamily:
        limits = np.array([steps, own, of_others], np.float32)
        policy = OfFamily(_by_limits, spec, limits)
        policy.goal = _conditional(spec, jnp.asarray(limits)).goal  # type: ignore[attr-defined]
        return policy

    return of


STAG_HUNT: dict[str, Callable] = {
    "random": lambda spec: random_action,
    "always_stag": _only("stags", _together),
    "always_hare": _only("hares", lambda v: v.far() + _order(v)),
    "nearest_prey": pursues(lambda v: v.far() + _order(v)),
    "follow_crowd": pursues(lambda v: v.far_from_others().sum(0) + _order(v)),
    **{f"stag_for_{n}": hunts_a_stag(steps=n) for n in (2, 3, 4, 6, 8, 10, 12, 16, 20)},
    **{f"stag_within_{n}": hunts_a_stag(own=n) for n in range(1, 8)},
    **{f"stag_joined_{n}": hunts_a_stag(of_others=n) for n in range(1, 6)},
}
STAG_HUNT["switcher"] = switches("always_stag", "always_hare", STAG_HUNT)

SNOWDRIFT: dict[str, Callable] = {
    "random": lambda spec: random_action,
    "always_clear": pursues(lambda v: v.far() + _order(v)),
    "never_clear": pursues(lambda v: jnp.full(len(v.exists), jnp.inf)),
    "topmost_drift": pursues(lambda v: v.goals[:, 0] + 0.01 * v.goals[:, 1]),
    "follow_crowd": pursues(lambda v: v.far_from_others().sum(0) + _order(v)),
}
SNOWDRIFT["switcher"] = switches("always_clear", "never_clear", SNOWDRIFT)

REPLIES = {"stag_hunt": ("always_stag", "always_hare"), "snowdrift": ("always_clear", "never_clear")}
"""Tit-for-tat over the episodes of an encounter (omg adapt): its policy after an episode in which the others
cooperated, and after one in which they did not.
"""
