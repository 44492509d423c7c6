"""Scripted policies by environment and name: from one agent's observation to its action.

A foraging policy chooses a food item, a predator–prey policy a position, a battle policy a target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from omg.controllers.scripted_controller import WithMemory
from omg.envs.multiagentenv import Spec
from omg.opponents.coin_policies import COIN_GAME
from omg.opponents.grid_policies import SNOWDRIFT, STAG_HUNT, random_action
from omg.opponents.matrix_policies import MATRIX_GAME
from omg.opponents.overcooked_policies import OVERCOOKED
from omg.utils.settings import UserError, choose


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
        """Distance of the nearest other agent to each food item."""
        return abs(self.food[:, None] - self.others).sum(-1).min(-1, initial=jnp.inf)


def _board(spec: Spec, obs: Array) -> Board:
    items = jnp.round(obs.reshape(-1, 3) / spec.obs_storage.scale)
    n_food = spec.obs_size // 3 - spec.n_agents
    return Board(items[:n_food, :2], items[:n_food, 2], items[n_food, :2], items[n_food + 1 :, :2])


def _walk(direction: Array, avail_actions: Array, key: Array, load: bool = True) -> Array:
    """One step in a direction (rows, columns); with `load` it loads food wherever it can."""
    dy, dx = direction
    # The gain of each action: noop, up, down, left, right, load.
    gain = jnp.array([-0.5, -dy, dy, -dx, dx, jnp.inf if load else -jnp.inf])
    gain = gain + 0.1 * jax.random.uniform(key, (6,))
    return jnp.where(avail_actions, gain, -jnp.inf).argmax()


def wants(cost_of: Callable[[Board], Array]):
    """Foraging: walks to the food of the lowest cost, and loads it."""

    def of(spec: Spec):
        def policy(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
            board = _board(spec, obs)
            target = jnp.where(board.level > 0, cost_of(board), jnp.inf).argmin()
            near = board.far_from_me()[target] <= 1
            # Other food on the way is left alone.
            action = _walk(board.food[target] - board.me, avail_actions, key, load=False)
            return jnp.where(near & avail_actions[5], 5, action)

        return policy

    return of


def follow_other(spec: Spec):
    """Foraging: follows the nearest other agent, and loads the food it finds."""

    def policy(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
        board = _board(spec, obs)
        nearest = abs(board.others - board.me).sum(-1).argmin()
        return _walk(board.others[nearest] - board.me, avail_actions, key)

    return policy


def slow(spec: Spec):
    """Foraging: the nearest food, but idle in half of the steps."""
    nearest = FORAGING["nearest_food"](spec)

    def policy(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
        k_idle, k_walk = jax.random.split(key)
        return jnp.where(jax.random.uniform(k_idle) < 0.5, 0, nearest(obs, avail_actions, seat, k_walk))

    return policy


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
    """A predator's observation; positions are relative to its own."""

    velocity: Float[Array, " 2"]
    place: Float[Array, " 2"]
    team: Float[Array, "other 2"]
    prey: Float[Array, " 2"]
    prey_velocity: Float[Array, " 2"]


def towards(aim: Callable[[Chase, Array], Array]):
    """Predator–prey: accelerates towards a position (relative to its own), and brakes for its own velocity."""

    def of(spec: Spec):
        team = 2 * (spec.n_agents - 1)

        def policy(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
            seen = Chase(obs[:2], obs[2:4], obs[-4 - team : -4].reshape(-1, 2), obs[-4:-2], obs[-2:])
            push = aim(seen, seat) - 0.3 * seen.velocity
            return jnp.array([0.0, -push[0], push[0], -push[1], push[1]]).argmax()

        return policy

    return of


def _side(seat: Array, distance: float) -> Array:
    """A different direction for every seat."""
    angle = 2.1 * seat
    return distance * jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def _ambush(c: Chase, seat: Array) -> Array:
    """Waits at a position of its own until the prey comes near."""
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


class Front(NamedTuple):
    """A unit's observation: features of every enemy and ally (zeros: not visible)."""

    enemies: Float[Array, "enemy feature"]
    allies: Float[Array, "ally feature"]

    @property
    def seen(self) -> Array:
        return (self.enemies[:, 1:5] != 0).any(-1)

    @property
    def strength(self) -> Array:
        """Health, plus a small share of the next feature (the shield, if enemies have one)."""
        return self.enemies[:, 4] + 0.1 * self.enemies[:, 5:6].sum(-1)

    @property
    def far(self) -> Array:
        return jnp.where(self.seen, self.enemies[:, 1], jnp.inf)

    def leads(self, enemy: Array) -> Array:
        """Whether no ally is clearly nearer to that enemy."""
        others = jnp.sqrt(((self.allies[:, 2:4] - self.enemies[enemy, 2:4]) ** 2).sum(-1))
        return ~((self.allies[:, 0] > 0) & (others < self.enemies[enemy, 1] - ABREAST / 9)).any()


def _front(spec: Spec, obs: Array) -> Front:
    parts, start = {}, 0
    for name, shape in spec.obs_layout:
        size = math.prod(shape)
        parts[name] = obs[start : start + size].reshape(shape)
        start += size
    return Front(parts["enemies"], parts["allies"])


STOP, FIRST_TARGET = 1, 6
ABREAST = 0.4
"""Distance in cells within which units count as standing in one line."""
SWERVE = 1.0
TOO_NEAR = 2.4
"""Distance in cells at which a kiting unit retreats."""
WAYS = np.array([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0], [-1.0, 0.0]])
"""North, south, east, west: actions 2 to 5."""


def shoots(cost_of: Callable[[Front], Array], waits: bool = True):
    """Battle: attacks the enemy in range of the lowest cost, else approaches; with `waits` the front unit stops."""

    def of(spec: Spec):
        def policy(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
            front, targets = _front(spec, obs), avail_actions[FIRST_TARGET:]
            target = jnp.where(targets, cost_of(front), jnp.inf).argmin()
            nearest = front.far.argmin()
            way = jnp.asarray(WAYS) @ front.enemies[nearest, 2:4]
            wait = ~front.seen.any() | (waits & front.leads(nearest))
            step = jnp.where(wait, STOP, _step(way, avail_actions, key))
            action = jnp.where(targets.any(), FIRST_TARGET + target, step)
            return jnp.where(avail_actions[0], 0, action)

        return policy

    return of


def _step(gain: Array, avail_actions: Array, key: Array) -> Array:
    """The available move with the highest gain."""
    gain = gain + 0.01 * jax.random.uniform(key, (4,))
    best = 2 + jnp.where(avail_actions[2:6], gain, -jnp.inf).argmax()
    return jnp.where(avail_actions[2:6].any(), best, STOP)


def kite(spec: Spec):
    """Battle: attacks the weakest enemy from a distance, and retreats from enemies that come too near."""
    shoot = shoots(lambda f: f.strength, waits=False)(spec)

    def policy(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
        front = _front(spec, obs)
        # Enemies are weighted by proximity; a step is valued by how far it leads away from them.
        weight = jnp.where(front.seen, 1.0 / jnp.maximum(front.far, 0.05) ** 2, 0.0)
        danger = (weight[:, None] * front.enemies[:, 2:4]).sum(0)
        flee = front.far.min(initial=jnp.inf) < TOO_NEAR / 9
        # Slightly to one side as well: retreating in a circle does not end in a corner.
        away = -danger + SWERVE * jnp.array([-danger[1], danger[0]])
        step = _step(jnp.asarray(WAYS) @ away, avail_actions, key)
        action = jnp.where(flee, step, shoot(obs, avail_actions, seat, key))
        return jnp.where(avail_actions[0], 0, action)

    return policy


BATTLE: dict[str, Callable] = {
    "random": _random,
    "focus_fire": shoots(lambda f: f.strength + 0.5 * f.far),
    "nearest_enemy": shoots(lambda f: f.far),
    "spread_fire": shoots(lambda f: 0.1 * f.far - f.strength),
    "kite": kite,
}


class Split(NamedTuple):
    """The scripted policies to train with, and those that stay unseen."""

    train: tuple[str, ...]
    test: tuple[str, ...]


REGISTRY: dict[str, dict[str, Callable]] = {
    "foraging": FORAGING,
    "predator_prey": PREDATOR_PREY,
    "battle": BATTLE,
    "stag_hunt": STAG_HUNT,
    "snowdrift": SNOWDRIFT,
    "matrix_game": MATRIX_GAME,
    "overcooked": OVERCOOKED,
    "coin_game": COIN_GAME,
}
"""Environment → name → a function from the environment's spec to the policy."""


def usual(name: str) -> bool:
    """Whether a scripted policy is played also where it is not named: not one of many that differ in a number."""
    return not name.startswith(("stochastic_", "stag_for_", "stag_within_", "stag_joined_"))


def rule_of(spec: Spec, name: str) -> Callable[..., Array]:
    """The scripted policy of that name, one that decides by the observation alone."""
    if spec.name not in REGISTRY:
        raise UserError(f"{spec.name} has no scripted policies, so rule_policy cannot be {name}.")
    policy = choose(REGISTRY[spec.name], name, f"scripted policy of {spec.name}")(spec)
    if isinstance(policy, WithMemory):
        raise UserError(f"{name} has a memory of its own: rule_policy must decide by the observation alone.")
    return policy


def name_of(config: Mapping[str, Any]) -> str:
    """The name under which the scripted policies of an environment are registered: that of its spec."""
    env, env_args = str(config.get("env")), config.get("env_args") or {}
    if env != "jaxmarl":
        return env
    return f"{env_args.get('name')}_pixels" if env_args.get("pixels") else str(env_args.get("name"))


SPLITS = {
    "foraging": Split(
        ("nearest_food", "topmost_food", "leftmost_food", "follow_other"),
        ("bottommost_food", "rightmost_food", "farthest_food", "rival", "avoid_other", "slow"),
    ),
    "predator_prey": Split(
        ("chase", "ambush", "flank", "guard"), ("cut_off", "tail", "herd", "stay_together", "shadow", "random")
    ),
    "stag_hunt": Split(("always_stag", "always_hare", "follow_crowd"), ("nearest_prey", "random", "switcher")),
    "snowdrift": Split(("always_clear", "never_clear", "follow_crowd"), ("topmost_drift", "random", "switcher")),
    "battle": Split(("nearest_enemy", "spread_fire"), ("focus_fire", "kite")),
    "overcooked": Split(("onion", "independent", "random"), ("plate", "plate_first", "static")),
    "coin_game": Split(("own_coin", "nearest_coin"), ("other_coin", "retaliate", "random")),
}
