"""Written rules for the worlds' agents: from one agent's observation to its action.

A rule of foraging says which food it wants; a rule of predator–prey says where it wants to be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.envs.multiagentenv import Spec


def random_action(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
    lots = jax.random.uniform(key, avail_actions.shape)
    return jnp.where(avail_actions, lots, -1.0).argmax()


def _random(spec: Spec):
    return random_action


class Board(NamedTuple):
    """A foraging observation in cells: rows and columns."""

    food: Float[Array, "food 2"]
    level: Float[Array, " food"]
    me: Float[Array, " 2"]
    others: Float[Array, "other 2"]

    def far_from_me(self) -> Float[Array, " food"]:
        return abs(self.food - self.me).sum(-1)

    def far_from_others(self) -> Float[Array, " food"]:
        """From whichever other agent is nearest to it."""
        return abs(self.food[:, None] - self.others).sum(-1).min(-1, initial=jnp.inf)


def _board(spec: Spec, obs: Array) -> Board:
    items = jnp.round(obs.reshape(-1, 3) / spec.obs_storage.scale)
    n_food = spec.obs_size // 3 - spec.n_agents
    return Board(items[:n_food, :2], items[:n_food, 2], items[n_food, :2], items[n_food + 1 :, :2])


def _walk(way: Array, avail_actions: Array, key: Array, load: bool = True) -> Array:
    """One step along a way in rows and columns; loads food wherever it can, unless it should not."""
    dy, dx = way
    # How far each action brings the agent: noop, up, down, left, right, load.
    gain = jnp.array([-0.5, -dy, dy, -dx, dx, jnp.inf if load else -jnp.inf])
    gain = gain + 0.1 * jax.random.uniform(key, (6,))
    return jnp.where(avail_actions, gain, -jnp.inf).argmax()


def wants(price: Callable[[Board], Array]):
    """Foraging: walk to the food whose price is lowest, and load it."""

    def of(spec: Spec):
        def rule(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
            board = _board(spec, obs)
            target = jnp.where(board.level > 0, price(board), jnp.inf).argmin()
            near = board.far_from_me()[target] <= 1
            # On the way past other food it is left alone: what counts is what the agent is after.
            action = _walk(board.food[target] - board.me, avail_actions, key, load=False)
            return jnp.where(near & avail_actions[5], 5, action)

        return rule

    return of


def follow_other(spec: Spec):
    """Foraging: stay with the nearest other agent, and load what it finds."""

    def rule(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
        board = _board(spec, obs)
        nearest = abs(board.others - board.me).sum(-1).argmin()
        return _walk(board.others[nearest] - board.me, avail_actions, key)

    return rule


def slow(spec: Spec):
    """Foraging: the nearest food, but idle at half of the steps."""
    nearest = FORAGING["nearest_food"](spec)

    def rule(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
        k_idle, k_walk = jax.random.split(key)
        return jnp.where(jax.random.uniform(k_idle) < 0.5, 0, nearest(obs, avail_actions, seat, k_walk))

    return rule


FORAGING: dict[str, Callable] = {
    "random": _random,
    "nearest_food": wants(lambda b: b.far_from_me()),
    "farthest_food": wants(lambda b: -b.far_from_others()),
    "highest_value": wants(lambda b: -100 * b.level + jnp.arange(len(b.level))),
    "topmost_food": wants(lambda b: b.food[:, 0] + 0.01 * b.food[:, 1]),
    "bottommost_food": wants(lambda b: -b.food[:, 0] - 0.01 * b.food[:, 1]),
    "leftmost_food": wants(lambda b: b.food[:, 1] + 0.01 * b.food[:, 0]),
    "rightmost_food": wants(lambda b: -b.food[:, 1] - 0.01 * b.food[:, 0]),
    "rival": wants(lambda b: b.far_from_others() + 0.01 * b.far_from_me()),
    "avoid_other": wants(lambda b: b.far_from_me() - b.far_from_others()),
    "follow_other": follow_other,
    "slow": slow,
}


class Chase(NamedTuple):
    """A predator's observation; places are relative to itself."""

    velocity: Float[Array, " 2"]
    place: Float[Array, " 2"]
    team: Float[Array, "other 2"]
    prey: Float[Array, " 2"]
    prey_velocity: Float[Array, " 2"]


def towards(aim: Callable[[Chase, Array], Array]):
    """Predator–prey: push towards a place (relative to itself), braking for its own speed."""

    def of(spec: Spec):
        team = 2 * (spec.n_agents - 1)

        def rule(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
            seen = Chase(obs[:2], obs[2:4], obs[-4 - team : -4].reshape(-1, 2), obs[-4:-2], obs[-2:])
            way = aim(seen, seat) - 0.3 * seen.velocity
            return jnp.array([0.0, -way[0], way[0], -way[1], way[1]]).argmax()

        return rule

    return of


def _side(seat: Array, distance: float) -> Array:
    """Another direction for every seat."""
    angle = 2.1 * seat
    return distance * jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def _ambush(c: Chase, seat: Array) -> Array:
    """Wait at a post of one's own until the prey comes near."""
    post = _side(seat, 0.5) - c.place
    return jnp.where((c.prey**2).sum() < 0.36, c.prey + 0.3 * c.prey_velocity, post)


def _nearest_mate(c: Chase) -> Array:
    return c.team[(c.team**2).sum(-1).argmin()] if len(c.team) else jnp.zeros(2)


PREDATOR_PREY: dict[str, Callable] = {
    "random": _random,
    "chase": towards(lambda c, seat: c.prey + 0.3 * c.prey_velocity),
    "tail": towards(lambda c, seat: c.prey),
    "cut_off": towards(lambda c, seat: c.prey + 1.0 * c.prey_velocity),
    "ambush": towards(_ambush),
    "flank": towards(lambda c, seat: c.prey + _side(seat, 0.3)),
    "herd": towards(lambda c, seat: c.prey + 0.25 * (c.place + c.prey)),
    "guard": towards(lambda c, seat: 0.5 * (c.prey - c.place)),
    "stay_together": towards(lambda c, seat: 0.5 * (_nearest_mate(c) + c.prey)),
    "shadow": towards(lambda c, seat: _nearest_mate(c)),
}


class RuleSplit(NamedTuple):
    """Which rules train, and which are kept for tests."""

    train: tuple[str, ...]
    test: tuple[str, ...]


REGISTRY: dict[str, dict[str, Callable]] = {"foraging": FORAGING, "predator_prey": PREDATOR_PREY}
"""World → rule → the rule made for that world's sizes."""

SPLITS = {
    "foraging": RuleSplit(
        ("nearest_food", "topmost_food", "leftmost_food", "follow_other"),
        ("bottommost_food", "rightmost_food", "farthest_food", "rival", "avoid_other", "slow"),
    ),
    "predator_prey": RuleSplit(
        ("chase", "ambush", "flank", "guard"), ("cut_off", "tail", "herd", "stay_together", "shadow", "random")
    ),
}
