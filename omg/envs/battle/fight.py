"""One game loop of a battle: who aims at whom, who fires, what it does, who walks where.

Everything is written for many worlds at once, and their axis is the last: `[unit, world]`. Loops over units then run
along memory, which is several times faster on a CPU than the same code for one world under `vmap`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.envs.battle.arms import FAR, LAST_CHOICE, NOBODY, Arms, Between, Target, one_hot, packed, unpacked
from omg.envs.battle.ground import Corners, Ground
from omg.envs.battle.maps import LOOPS_PER_SECOND, SIZE, BattleMap

SHIELD_REGENERATION = 2.8 / LOOPS_PER_SECOND
SHIELD_WAIT = 7.1 * LOOPS_PER_SECOND
HEALING = 12.6 / LOOPS_PER_SECOND
ENERGY_PER_HEALTH = 0.33
ENERGY_REGENERATION = 0.7875 / LOOPS_PER_SECOND
STIFFNESS = 0.4
"""How much of an overlap is undone in a loop; with more, a crowd flies apart."""


class Fight(NamedTuple):
    """Every unit of every world, allies first. `quiet` counts loops since a unit was last hurt."""

    x: Float[Array, "unit world"]
    y: Float[Array, "unit world"]
    health: Float[Array, "unit world"]
    shield: Float[Array, "unit world"]
    cooldown: Float[Array, "unit world"]
    energy: Float[Array, "unit world"]
    quiet: Float[Array, "unit world"]


class Orders(NamedTuple):
    """What the allies were told for these loops: where to walk, whom to attack (-1: nobody), whom to heal.

    Who is `idle` fires at what comes into range.
    """

    walk_x: Float[Array, "ally world"]
    walk_y: Float[Array, "ally world"]
    target: Int[Array, "ally world"]
    idle: Bool[Array, "ally world"]
    heal: Bool[Array, "ally ally world"] | None
    corners: Corners | None


class Aims(NamedTuple):
    """Whom everybody is after in a loop, who fires, and who stays where it is."""

    ours: Int[Array, "ally world"]
    theirs: Int[Array, "enemy world"]
    fires: Bool[Array, "unit world"]
    stands: Bool[Array, "unit world"]


class Hurt(NamedTuple):
    """What is left of everybody once the shots of a loop have fallen."""

    health: Float[Array, "unit world"]
    shield: Float[Array, "unit world"]


class Going(NamedTuple):
    step_x: Float[Array, "unit world"]
    step_y: Float[Array, "unit world"]
    health: Float[Array, "unit world"]
    energy: Float[Array, "unit world"]


class Rules:
    """A map's tables, and the game loop on them."""

    def __init__(self, battle_map: BattleMap):
        self.map = battle_map
        allies, enemies = battle_map.allies, battle_map.enemies
        self.n, self.m = len(allies), len(enemies)
        self.ally_arms, self.enemy_arms = Arms(allies, enemies), Arms(enemies, allies)
        both = [
            np.concatenate([allies.column(k), enemies.column(k)])[:, None] for k in ("hp", "shield", "speed", "size")
        ]
        self.hp, self.max_shield, speed, size = both
        self.speed = speed / LOOPS_PER_SECOND
        self.radius = size / 2
        units = battle_map.units
        self.regeneration = np.array([u.hp_regen / LOOPS_PER_SECOND for u in units], np.float32)[:, None]
        self.max_energy = np.array([u.energy for u in units], np.float32)[:, None]
        self.kamikaze = np.array([u.targeter == "kamikaze" for u in units])[:, None]
        self.healer = np.array([u.targeter == "heal" for u in units])[:, None]
        self.fights = np.array([u.damage > 0 for u in units])[:, None]
        self.free = np.array([u.crosses_cliffs for u in units])[:, None]
        self.healable = np.array(["biological" in u.attributes for u in units])[:, None]
        self._pushing(units)
        # Units that cannot hurt an enemy are its last choice.
        self.harmless = ~self.ally_arms.can_hit
        self.seen_by_enemy = np.swapaxes(self.enemy_arms.can_hit, 0, 1)
        # An enemy sees as far as it can be shot from.
        self.enemy_scan2 = np.maximum(np.swapaxes(self.enemy_arms.scan2, 0, 1), self.ally_arms.reach2)
        self.goal = allies.start.mean(0)
        self.camp2 = float((size[self.n :] ** 2).sum())
        self.ground = Ground(battle_map.rooms)

    def _pushing(self, units) -> None:
        """Tables of who pushes whom aside: only units of one plane, and what cannot move does not."""
        n = len(units)
        size = self.radius + self.radius.T
        same = np.array([[a.plane == b.plane for b in units] for a in units]) & ~np.eye(n, dtype=bool)
        heavy = np.array([u.speed == 0 for u in units])
        share = np.where(heavy[None, :], 1.0, 0.5) * ~heavy[:, None]
        self.touch2 = (size**2)[..., None].astype(np.float32)
        # Of the overlap about half each, without a square root: (R² - d²) / 2d² of the way between the centres.
        self.push = (STIFFNESS * same * share / 2)[..., None].astype(np.float32)
        # Two in the very same place part along the order of units.
        self.nudge = 1e-4 * np.arange(n, dtype=np.float32)[:, None]

    # --- parts of a loop

    def between(self, fight: Fight) -> Between:
        """From every ally to every enemy."""
        dx = fight.x[None, self.n :] - fight.x[: self.n, None]
        dy = fight.y[None, self.n :] - fight.y[: self.n, None]
        return Between(dx, dy, dx**2 + dy**2)

    def enemy_targets(self, d2: Float[Array, "ally enemy world"], alive: Array) -> Target:
        """The nearest ally in sight; one that cannot hurt the enemy only if there is no other."""
        sees = alive[: self.n, None] & (d2 <= self.enemy_scan2) & self.seen_by_enemy
        price = jnp.where(self.harmless, LAST_CHOICE, 0) + packed(d2, self.n, 0)
        return unpacked(jnp.where(sees, price, NOBODY).min(0), self.n)

    def ally_targets(self, d2: Float[Array, "ally enemy world"], alive: Array, orders: Orders) -> Target:
        """The enemy an ally was told to attack. Without an order, or once that enemy is dead, the nearest in range."""
        told = orders.target[:, None] == jnp.arange(self.m)[:, None]
        near = orders.idle[:, None] & (d2 <= self.ally_arms.reach2) & self.ally_arms.can_hit
        price = jnp.where(told, 0, LAST_CHOICE) + packed(d2, self.m, 1)
        fits = alive[: self.n, None] & alive[None, self.n :] & (told | near)
        return unpacked(jnp.where(fits, price, NOBODY).min(1), self.m)

    def loop(self, fight: Fight, orders: Orders) -> Fight:
        aims = self._aim(fight, orders)
        hurt = self._strike(fight, aims)
        going = self._go(fight, orders, aims, hurt)
        x, y = self._move(fight, going, hurt.health > 0)

        period = np.concatenate([self.ally_arms.period, self.enemy_arms.period])
        # What is left of the loop in which a weapon was ready again counts for its next shot.
        over = jnp.where(fight.cooldown > -1, fight.cooldown, 0.0)
        cooldown = jnp.maximum(jnp.where(aims.fires, period + over, fight.cooldown) - 1, -1.0)
        health, shield, quiet = self._recover(fight, going.health, hurt.shield)
        return Fight(x, y, health, shield, cooldown, going.energy, quiet)

    def _aim(self, fight: Fight, orders: Orders) -> Aims:
        """Whom everybody is after, and who fires: whoever has its target in range and its weapon ready."""
        alive = fight.health > 0
        d2 = self.between(fight).d2
        ours, theirs = self.ally_targets(d2, alive, orders), self.enemy_targets(d2, alive)
        near = jnp.concatenate([self.ally_arms.in_range(ours), self.enemy_arms.in_range(theirs)])
        can_hit = jnp.concatenate([self.ally_arms.hits_at_all(ours), jnp.ones_like(theirs.d2, bool)])
        # An enemy without a target walks on; an ally stays where it is.
        stands = near | jnp.concatenate([ours.who < 0, jnp.zeros_like(theirs.d2, bool)])
        return Aims(ours.who, theirs.who, near & can_hit & (fight.cooldown <= 0) & alive, stands)

    def _strike(self, fight: Fight, aims: Aims) -> Hurt:
        n = self.n
        way = self.between(fight)
        back = Between(-jnp.swapaxes(way.dx, 0, 1), -jnp.swapaxes(way.dy, 0, 1), jnp.swapaxes(way.d2, 0, 1))
        attack, after = one_hot(aims.ours, self.m), one_hot(aims.theirs, n)
        struck_enemies = self.ally_arms.struck(aims.fires[:n], attack, way)
        struck_allies = self.enemy_arms.struck(aims.fires[n:], after, back)
        enemy_health, enemy_shield = self.ally_arms.hurt(struck_enemies, fight.health[n:], fight.shield[n:])
        ally_health, ally_shield = self.enemy_arms.hurt(struck_allies, fight.health[:n], fight.shield[:n])
        health = jnp.concatenate([ally_health, enemy_health])
        if self.kamikaze.any():
            health = jnp.where(self.kamikaze & aims.fires, 0.0, health)
        return Hurt(health, jnp.concatenate([ally_shield, enemy_shield]))

    def _go(self, fight: Fight, orders: Orders, aims: Aims, hurt: Hurt) -> Going:
        """How far everybody walks in this loop; and, where there are medivacs, whom they heal."""
        n = self.n
        attack, after, chases = one_hot(aims.ours, self.m), one_hot(aims.theirs, n), aims.theirs >= 0
        to_x = jnp.where(chases, (after * fight.x[:n]).sum(1), self.goal[0])
        to_y = jnp.where(chases, (after * fight.y[:n]).sum(1), self.goal[1])
        # Who has come to where the allies began, and sees nobody, stays.
        arrived = ~chases & ((to_x - fight.x[n:]) ** 2 + (to_y - fight.y[n:]) ** 2 < self.camp2)
        if orders.corners is not None:
            arrived = arrived & ~orders.corners.around
            to_x = jnp.where(orders.corners.around, orders.corners.x, to_x)
            to_y = jnp.where(orders.corners.around, orders.corners.y, to_y)
        go_x = jnp.concatenate([(attack * fight.x[n:]).sum(1), to_x]) - fight.x
        go_y = jnp.concatenate([(attack * fight.y[n:]).sum(1), to_y]) - fight.y
        health, energy = hurt.health, fight.energy
        stands = aims.stands | jnp.concatenate([jnp.zeros_like(aims.ours, bool), arrived])
        if self.healer.any():
            health, energy, stands, go_x, go_y = self._heal(fight, orders, health, stands, go_x, go_y)
        scale = jnp.where(stands, 0.0, jax.lax.rsqrt(jnp.maximum(go_x**2 + go_y**2, self.speed**2 + 1e-9)))
        walk_x = jnp.concatenate([orders.walk_x, jnp.zeros_like(to_x)])
        walk_y = jnp.concatenate([orders.walk_y, jnp.zeros_like(to_y)])
        return Going((go_x * scale + walk_x) * self.speed, (go_y * scale + walk_y) * self.speed, health, energy)

    def _move(self, fight: Fight, going: Going, alive: Array) -> tuple[Array, Array]:
        """A push out of whom they overlap with, and a step past them, not into them; nobody leaves the ground."""
        # The dead are far away from everybody: they push nobody.
        at_x = jnp.where(alive, fight.x, FAR) + self.nudge
        dx, dy = at_x[None] - (fight.x + self.nudge)[:, None], fight.y[None] - fight.y[:, None]
        d2 = dx**2 + dy**2
        weight = jnp.maximum(self.touch2 - d2, 0.0) * self.push / (d2 + 0.1 * self.touch2)
        push_x, push_y = -(weight * dx).sum(1), -(weight * dy).sum(1)
        against = jnp.minimum(push_x * going.step_x + push_y * going.step_y, 0.0)
        against = against / jnp.maximum(push_x**2 + push_y**2, 1e-9)
        x = jnp.where(alive, fight.x + going.step_x + (1 - against) * push_x, fight.x)
        y = jnp.where(alive, fight.y + going.step_y + (1 - against) * push_y, fight.y)
        x, y = (jnp.clip(place, self.radius, SIZE - self.radius) for place in (x, y))
        if self.ground.open:
            return x, y
        free, along_x, along_y = self.walkable(x, y), self.walkable(x, fight.y), self.walkable(fight.x, y)
        # Along a wall rather than into it.
        return (
            jnp.where(free | along_x, x, fight.x),
            jnp.where(free | (along_y & ~along_x), y, fight.y),
        )

    def _recover(self, fight: Fight, health: Array, shield: Array) -> tuple[Array, Array, Array]:
        quiet = fight.quiet
        if self.max_shield.any():
            hurt = (health < fight.health) | (shield < fight.shield)
            quiet = jnp.where(hurt, 0.0, fight.quiet + 1)
            more = jnp.where((quiet > SHIELD_WAIT) & (health > 0), SHIELD_REGENERATION, 0.0)
            shield = jnp.minimum(shield + more, self.max_shield)
            shield = jnp.where(health > 0, shield, 0.0)
        if self.regeneration.any():
            health = jnp.where(health > 0, jnp.minimum(health + self.regeneration, self.hp), 0.0)
        return health, shield, quiet

    def _heal(self, fight: Fight, orders: Orders, health: Array, stands: Array, go_x: Array, go_y: Array):
        """Medivacs: allies heal whom they were told to, enemies the nearest wounded of their side."""
        n = self.n
        alive = fight.health > 0
        dx, dy = fight.x[None] - fight.x[:, None], fight.y[None] - fight.y[:, None]
        d2 = dx**2 + dy**2
        reach = np.array([u.attack_range + u.size / 2 for u in self.map.units], np.float32)[:, None] + self.radius.T
        wounded = alive & (health > 0) & (health < self.hp) & self.healable
        wish = jnp.where(wounded[None, n:] & (d2[n:, n:] < 81.0), d2[n:, n:], FAR)
        first = jnp.where(wish.min(1) < FAR, wish.argmin(1), -1)
        nearest = first[:, None] == jnp.arange(self.m)[:, None]
        told = jnp.zeros_like(d2[:n, :n], bool) if orders.heal is None else orders.heal & alive[None, :n]
        top = jnp.concatenate([told, jnp.zeros_like(d2[:n, n:], bool)], 1)
        bottom = jnp.concatenate([jnp.zeros_like(d2[n:, :n], bool), nearest], 1)
        patient = jnp.concatenate([top, bottom]) & (self.healer & alive)[:, None]
        at = patient.astype(jnp.float32)
        near = (patient & (d2 <= (reach**2)[..., None])).any(1)
        has = patient.any(1)
        wants = (at * (self.hp - health)[None]).sum(1) * near
        gives = jnp.minimum(jnp.minimum(wants, HEALING), fight.energy / ENERGY_PER_HEALTH)
        healed = jnp.where(wounded, jnp.minimum(health + (at * gives[:, None]).sum(0), self.hp), health)
        energy = jnp.minimum(fight.energy - gives * ENERGY_PER_HEALTH + ENERGY_REGENERATION, self.max_energy)
        stands = jnp.where(self.healer & has, near, stands)
        go_x = jnp.where(self.healer & has, (at * dx).sum(1), go_x)
        go_y = jnp.where(self.healer & has, (at * dy).sum(1), go_y)
        return healed, energy, stands, go_x, go_y

    def corners(self, fight: Fight) -> Corners | None:
        """Which enemies cannot walk straight to whom they are after."""
        if self.ground.open:
            return None
        n = self.n
        target = self.enemy_targets(self.between(fight).d2, fight.health > 0).who
        after = one_hot(target, n)
        to_x = jnp.where(target >= 0, (after * fight.x[:n]).sum(1), self.goal[0])
        to_y = jnp.where(target >= 0, (after * fight.y[:n]).sum(1), self.goal[1])
        return self.ground.corners(fight.x[n:], fight.y[n:], to_x, to_y, self.free[n:])

    def walkable(self, x: Array, y: Array, rows: slice = slice(None)) -> Bool[Array, "unit world"]:
        """Whether each unit could stand there."""
        return self.ground.walkable(x, y, self.free[rows])
