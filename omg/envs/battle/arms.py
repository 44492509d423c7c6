"""What one side's weapons do to the other, and how units find their targets. The worlds' axis is the last."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.envs.battle.maps import LOOPS_PER_SECOND, Side

LEAST_DAMAGE = 0.5
"""What armour leaves of a hit, however small."""
FAR = 1e9
NOBODY, LAST_CHOICE = 2**31 - 1, 2**30
FINE = 4096
"""Into how many parts a square cell is cut where distances are compared as whole numbers."""


class Between(NamedTuple):
    """Distances from every unit of one side to every unit of another."""

    dx: Float[Array, "from to world"]
    dy: Float[Array, "from to world"]
    d2: Float[Array, "from to world"]


class Target(NamedTuple):
    """Whom a unit is after (-1: nobody), and the square of the distance."""

    who: Int[Array, "unit world"]
    d2: Float[Array, "unit world"]


class Arms:
    """What one side can do to the other: tables over pairs of units, `[attacker, target, 1]`."""

    def __init__(self, side: Side, other: Side):
        pairs = [(i, j) for i in range(len(side)) for j in range(len(other))]

        def table(value) -> np.ndarray:
            flat = [value(side.types[i], other.types[j]) for i, j in pairs]
            return np.array(flat, np.float32).reshape(len(side), len(other), 1)

        def hit(a, t) -> float:
            return a.damage + sum(extra for what, extra in a.bonuses.items() if what in t.attributes)

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

    def in_range(self, target: Target) -> Bool[Array, "unit world"]:
        return target.d2 <= of_pairs(one_hot(target.who, self.reach2.shape[1]), self.reach2)

    def hits_at_all(self, target: Target) -> Bool[Array, "unit world"]:
        return of_pairs(one_hot(target.who, self.can_hit.shape[1]), self.can_hit) > jnp.zeros_like(target.d2)

    def struck(self, fires: Bool[Array, "from world"], at: Float[Array, "from to world"], way: Between) -> Array:
        """Who is hit: the target, everything in a beam across it, or everything near a kamikaze. Ones and zeros."""
        hit = at
        if self.beams.any():
            to_x, to_y = (at * way.dx).sum(1), (at * way.dy).sum(1)
            scale = jax.lax.rsqrt(jnp.maximum(to_x**2 + to_y**2, 1e-6))
            ux, uy = (to_x * scale)[:, None], (to_y * scale)[:, None]
            off_x, off_y = way.dx - to_x[:, None], way.dy - to_y[:, None]
            beam = (abs(off_x * ux + off_y * uy) <= self.beam_along) & (
                abs(off_x * uy - off_y * ux) <= self.beam_across
            )
            hit = jnp.where(self.beams, beam.astype(jnp.float32), hit)
        if self.blasts.any():
            hit = jnp.where(self.blasts, (way.d2 <= self.blast2).astype(jnp.float32), hit)
        return hit * fires[:, None]

    def hurt(self, struck: Float[Array, "from to world"], health: Array, shield: Array) -> tuple[Array, Array]:
        """Health and shield of the targets after everything that struck them in this loop."""
        if not self.target_shielded:
            return jnp.maximum(health - (struck * self.net).sum(0), 0.0), shield
        raw, hits = (struck * self.raw).sum(0), (struck * self.hits).sum(0)
        through = jnp.maximum(raw - shield, 0.0)
        # Armour counts once for every hit that comes through the shield.
        passing = jnp.ceil(through * hits / jnp.maximum(raw, 1e-6) - 1e-3)
        lost = jnp.maximum(through - self.armor * passing, jnp.minimum(through, LEAST_DAMAGE))
        return jnp.maximum(health - lost, 0.0), jnp.maximum(shield - raw, 0.0)


def packed(d2: Float[Array, "from to world"], n: int, axis: int) -> Int[Array, "from to world"]:
    """Distance and number as one whole number: a minimum finds both, and the first wins a tie."""
    number = np.arange(n).reshape((n, 1, 1) if axis == 0 else (n, 1))
    return (d2 * FINE).astype(jnp.int32) * n + number


def unpacked(best: Int[Array, "unit world"], n: int) -> Target:
    found = best < NOBODY
    best = best % LAST_CHOICE
    return Target(jnp.where(found, best % n, -1), jnp.where(found, (best // n).astype(jnp.float32) / FINE, FAR))


def one_hot(index: Int[Array, "unit world"], n: int) -> Float[Array, "unit other world"]:
    return (index[:, None] == jnp.arange(n)[:, None]).astype(jnp.float32)


def of_pairs(one: Float[Array, "from to world"], table: np.ndarray) -> Array | float:
    """A table's entry for the one unit that each is after; a plain number where the table is the same throughout."""
    return float(table.flat[0]) if (table == table.flat[0]).all() else (one * table).sum(1)
