"""Weapons: the damage that one side does to the other, and the choice of targets. The environment axis is the last."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.envs.battle.maps import LOOPS_PER_SECOND, Side

LEAST_DAMAGE = 0.5
"""The least damage of a hit after armour."""
FAR = 1e9
NO_TARGET, LAST_CHOICE = 2**31 - 1, 2**30
"""Integer costs of a target: not eligible, and eligible only if there is no other."""
FINE = 4096
"""Squared distances are compared as integers, in units of 1 / FINE square cells."""


class Between(NamedTuple):
    """Offsets and squared distances from every unit of one side to every unit of the other."""

    dx: Float[Array, "from to env"]
    dy: Float[Array, "from to env"]
    d2: Float[Array, "from to env"]


class Target(NamedTuple):
    """The index of each unit's target (-1: none), and the squared distance to it."""

    unit: Int[Array, "unit env"]
    d2: Float[Array, "unit env"]


class Arms:
    """Tables of the attacks of one side on the other, over pairs of units: `[attacker, target, 1]`."""

    def __init__(self, side: Side, other: Side):
        pairs = [(i, j) for i in range(len(side)) for j in range(len(other))]

        def table(value) -> np.ndarray:
            flat = [value(side.types[i], other.types[j]) for i, j in pairs]
            return np.array(flat, np.float32).reshape(len(side), len(other), 1)

        def hit(a, t) -> float:
            return a.damage + sum(bonus for attribute, bonus in a.bonuses.items() if attribute in t.attributes)

        self.can_hit = table(lambda a, t: a.damage > 0 and t.plane in a.valid_targets) > 0
        self.raw = table(lambda a, t: a.attacks * hit(a, t)) * self.can_hit
        self.hits = table(lambda a, t: a.attacks) * self.can_hit
        self.net = table(lambda a, t: a.attacks * max(hit(a, t) - t.armor, LEAST_DAMAGE)) * self.can_hit
        self.reach2 = table(lambda a, t: (a.attack_range + (a.size + t.size) / 2) ** 2)
        self.scan2 = table(lambda a, t: max(a.minimum_scan_range, a.attack_range + (a.size + t.size) / 2) ** 2)
        self.blast2 = table(lambda a, t: (a.splash_radius + t.size / 2) ** 2)
        self.beam_along = table(lambda a, t: a.splash_height / 2 + t.size / 2)
        self.beam_across = table(lambda a, t: a.splash_width / 2 + t.size / 2)
        self.beams = side.flag(targeter="laser_beam")[:, None, None]
        self.blasts = side.flag(targeter="kamikaze")[:, None, None]
        self.period = (side.column("cooldown") * LOOPS_PER_SECOND)[:, None]
        self.armor = other.column("armor")[:, None]
        self.target_shielded = other.shielded

    def in_range(self, target: Target) -> Bool[Array, "unit env"]:
        """Whether each unit's target is within the range of its weapon."""
        return target.d2 <= of_pairs(one_hot(target.unit, self.reach2.shape[1]), self.reach2)

    def can_hit_target(self, target: Target) -> Bool[Array, "unit env"]:
        """Whether each unit's weapon can hit its target at all (air or ground)."""
        return of_pairs(one_hot(target.unit, self.can_hit.shape[1]), self.can_hit) > jnp.zeros_like(target.d2)

    def struck(self, fires: Bool[Array, "from env"], target: Float[Array, "from to env"], between: Between) -> Array:
        """1 for units that are hit, else 0: the target, all units in a beam across it, or all units near a kamikaze."""
        hit = target
        if self.beams.any():
            to_x, to_y = (target * between.dx).sum(1), (target * between.dy).sum(1)
            scale = jax.lax.rsqrt(jnp.maximum(to_x**2 + to_y**2, 1e-6))
            ux, uy = (to_x * scale)[:, None], (to_y * scale)[:, None]
            off_x, off_y = between.dx - to_x[:, None], between.dy - to_y[:, None]
            beam = (abs(off_x * ux + off_y * uy) <= self.beam_along) & (
                abs(off_x * uy - off_y * ux) <= self.beam_across
            )
            hit = jnp.where(self.beams, beam.astype(jnp.float32), hit)
        if self.blasts.any():
            hit = jnp.where(self.blasts, (between.d2 <= self.blast2).astype(jnp.float32), hit)
        return hit * fires[:, None]

    def hurt(self, struck: Float[Array, "from to env"], health: Array, shield: Array) -> tuple[Array, Array]:
        """Health and shield of the targets after all hits of this loop."""
        if not self.target_shielded:
            return jnp.maximum(health - (struck * self.net).sum(0), 0.0), shield
        raw, hits = (struck * self.raw).sum(0), (struck * self.hits).sum(0)
        through = jnp.maximum(raw - shield, 0.0)
        # Armour reduces every hit that passes the shield.
        passing = jnp.ceil(through * hits / jnp.maximum(raw, 1e-6) - 1e-3)
        lost = jnp.maximum(through - self.armor * passing, jnp.minimum(through, LEAST_DAMAGE))
        return jnp.maximum(health - lost, 0.0), jnp.maximum(shield - raw, 0.0)


def packed(d2: Float[Array, "from to env"], n: int, axis: int) -> Int[Array, "from to env"]:
    """Distance and unit index in one integer. The minimum gives both; on a tie it is the unit with the lower index."""
    number = np.arange(n).reshape((n, 1, 1) if axis == 0 else (n, 1))
    return (d2 * FINE).astype(jnp.int32) * n + number


def unpacked(best: Int[Array, "unit env"], n: int) -> Target:
    """The target that a minimum over `packed` values stands for."""
    found = best < NO_TARGET
    best = best % LAST_CHOICE
    return Target(jnp.where(found, best % n, -1), jnp.where(found, (best // n).astype(jnp.float32) / FINE, FAR))


def one_hot(index: Int[Array, "unit env"], n: int) -> Float[Array, "unit other env"]:
    return (index[:, None] == jnp.arange(n)[:, None]).astype(jnp.float32)


def of_pairs(one: Float[Array, "from to env"], table: np.ndarray) -> Array | float:
    """The table's entry for each unit's target (one-hot); one number if all entries of the table are equal."""
    return float(table.flat[0]) if (table == table.flat[0]).all() else (one * table).sum(1)
