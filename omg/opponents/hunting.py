"""Written rules for boards with goals: stag hunt (which prey to be after) and snowdrift (which drift, or none).

A rule sees one agent's observation: everybody's cell, oneself first, and the goals with whether they are still there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from omg.envs.grid import MOVES
from omg.envs.multiagentenv import Spec

STAY = 0
SWITCH_AFTER = 0.2
"""The part of the time allowed after which a switcher changes its mind: about the middle of a usual episode."""


class View(NamedTuple):
    """An observation in cells."""

    me: Float[Array, " 2"]
    others: Float[Array, "other 2"]
    playing: Bool[Array, " other"]
    goals: Float[Array, "goal 2"]
    there: Bool[Array, " goal"]
    elapsed: Float[Array, ""]
    """Steps so far, as a part of the time allowed."""

    def far(self) -> Float[Array, " goal"]:
        """From oneself to each goal, in steps."""
        return abs(self.goals - self.me).sum(-1)

    def far_from_others(self) -> Float[Array, "other goal"]:
        """The others' ways; those of players that are gone count nothing."""
        return abs(self.goals - self.others[:, None]).sum(-1) * self.playing[:, None]


def _view(spec: Spec, obs: Array) -> View:
    whole, start, parts = jnp.round(obs / spec.obs_storage.scale), 0, []
    for _, shape in spec.obs_layout:
        size = math.prod(shape)
        parts.append(whole[start : start + size].reshape(shape))
        start += size
    agents, *kinds, time = parts
    goals = jnp.concatenate(kinds)
    playing = agents[1:, 2] > 0 if agents.shape[1] > 2 else jnp.ones(len(agents) - 1, bool)
    there = goals[:, 2] > 0
    return View(agents[0, :2], agents[1:, :2], playing, goals[:, :2], there, time[0] / spec.episode_limit)


def random_action(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
    lots = jax.random.uniform(key, avail_actions.shape)
    return jnp.where(avail_actions, lots, -1.0).argmax()


def aims(price: Callable[[View], Array]):
    """Walk to the goal with the lowest price (infinite: not that one) without touching others; with none, stay."""

    def of(spec: Spec):
        def costs(view: View) -> Array:
            return jnp.where(view.there, price(view), jnp.inf)

        def aim_at(obs: Array) -> Array:
            """The goal it is after; one past the last: none."""
            cost = costs(_view(spec, obs))
            return jnp.where(jnp.isfinite(cost.min()), cost.argmin(), len(cost))

        def rule(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
            view = _view(spec, obs)
            cost = costs(view)
            aim = cost.argmin()
            after = view.me + jnp.asarray(MOVES)
            ahead = abs(view.goals[aim] - after).sum(-1)
            touched = (abs(view.goals - after[:, None]).sum(-1) == 0) & view.there & (jnp.arange(len(cost)) != aim)
            # Going round something takes a step sideways: better than standing, worse than coming nearer.
            lots = 0.5 * jax.random.uniform(key, (len(MOVES),))
            way = ahead + lots + 100.0 * touched.any(-1)
            way = way.at[STAY].add(jnp.where(view.far()[aim] > 0, 1.5, -1.0))
            step = jnp.where(avail_actions, way, jnp.inf).argmin()
            return jnp.where(jnp.isfinite(cost.min()), step, STAY)

        rule.aim = aim_at  # type: ignore[attr-defined]
        return rule

    return of


def switches(before: str, after: str, rules: dict[str, Callable]):
    """One rule first, another once a part of the time is over."""

    def of(spec: Spec):
        one, other = rules[before](spec), rules[after](spec)

        def rule(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
            late = _view(spec, obs).elapsed >= SWITCH_AFTER
            return jnp.where(late, other(obs, avail_actions, seat, key), one(obs, avail_actions, seat, key))

        rule.aim = lambda obs: jnp.where(  # type: ignore[attr-defined]
            _view(spec, obs).elapsed >= SWITCH_AFTER, other.aim(obs), one.aim(obs)
        )
        return rule

    return of


def _order(v: View) -> Array:
    """A little for each place in the list, so that ties are settled alike by everybody."""
    return 0.01 * jnp.arange(len(v.there))


def _together(v: View) -> Array:
    """The way of everybody who still plays."""
    return v.far() + v.far_from_others().sum(0) + _order(v)


def _of_kind(name: str, price: Callable[[View], Array]):
    """Only the goals that the world's layout lists under that name."""

    def of(spec: Spec):
        kinds = [part for part, shape in spec.obs_layout[1:-1] for _ in range(shape[0])]
        wanted = jnp.array([kind == name for kind in kinds])
        return aims(lambda v: jnp.where(wanted, price(v), jnp.inf))(spec)

    return of


STAG_HUNT: dict[str, Callable] = {
    "random": lambda spec: random_action,
    "always_stag": _of_kind("stags", _together),
    "always_hare": _of_kind("hares", lambda v: v.far() + _order(v)),
    "nearest_prey": aims(lambda v: v.far() + _order(v)),
    "follow_crowd": aims(lambda v: v.far_from_others().sum(0) + _order(v)),
}
STAG_HUNT["switcher"] = switches("always_stag", "always_hare", STAG_HUNT)

SNOWDRIFT: dict[str, Callable] = {
    "random": lambda spec: random_action,
    "always_clear": aims(lambda v: v.far() + _order(v)),
    "never_clear": aims(lambda v: jnp.full(len(v.there), jnp.inf)),
    "topmost_drift": aims(lambda v: v.goals[:, 0] + 0.01 * v.goals[:, 1]),
    "follow_crowd": aims(lambda v: v.far_from_others().sum(0) + _order(v)),
}
SNOWDRIFT["switcher"] = switches("always_clear", "never_clear", SNOWDRIFT)

REPLIES = {"stag_hunt": ("always_stag", "always_hare"), "snowdrift": ("always_clear", "never_clear")}
"""Tit-for-tat, where one meets again (omg adapt): what it does after an episode in which the others were friendly, and
after one in which they were not.
"""
