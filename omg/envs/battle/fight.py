"""One game loop of a battle: choosing targets, firing, damage, healing and movement.

All functions work on many parallel environments at once, whose axis is the last: `[unit, env]`. This layout makes the
innermost loops contiguous in memory, which on a CPU is several times faster than `vmap` of code for one environment.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.envs.battle.arms import FAR, LAST_CHOICE, NO_TARGET, Arms, Between, Target, one_hot, packed, unpacked
from omg.envs.battle.ground import Corners, Ground
from omg.envs.battle.maps import LOOPS_PER_SECOND, SIZE, BattleMap

SHIELD_REGENERATION = 2.8 / LOOPS_PER_SECOND
SHIELD_WAIT = 7.1 * LOOPS_PER_SECOND
HEALING = 12.6 / LOOPS_PER_SECOND
ENERGY_PER_HEALTH = 0.33
ENERGY_REGENERATION = 0.7875 / LOOPS_PER_SECOND
STIFFNESS = 0.4
"""The fraction of an overlap that is removed per loop. Crowds are unstable with larger values."""


class Fight(NamedTuple):
    """All units, allies first. `quiet` counts the loops since a unit last took damage."""

    x: Float[Array, "unit env"]
    y: Float[Array, "unit env"]
    health: Float[Array, "unit env"]
    shield: Float[Array, "unit env"]
    cooldown: Float[Array, "unit env"]
    energy: Float[Array, "unit env"]
    quiet: Float[Array, "unit env"]


class Orders(NamedTuple):
    """The allies' actions during one step: the direction to walk, the enemy to attack (-1: none), the ally to heal.

    Units that are `idle` fire at enemies that come into range. `corners` has the detours of the enemies.
    """

    walk_x: Float[Array, "ally env"]
    walk_y: Float[Array, "ally env"]
    target: Int[Array, "ally env"]
    idle: Bool[Array, "ally env"]
    heal: Bool[Array, "ally ally env"] | None
    corners: Corners | None


class Aims(NamedTuple):
    """The targets of all units in a loop (-1: none), which units fire, and which units do not move."""

    ally_targets: Int[Array, "ally env"]
    enemy_targets: Int[Array, "enemy env"]
    fires: Bool[Array, "unit env"]
    stands: Bool[Array, "unit env"]


class Damaged(NamedTuple):
    """Health and shield of all units after the shots of a loop."""

    health: Float[Array, "unit env"]
    shield: Float[Array, "unit env"]


class Movement(NamedTuple):
    """The steps of all units in a loop, and health and energy after healing."""

    step_x: Float[Array, "unit env"]
    step_y: Float[Array, "unit env"]
    health: Float[Array, "unit env"]
    energy: Float[Array, "unit env"]


class Rules:
    """The tables of a map, and the game loop."""

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
        # Enemies attack units that cannot hit them only if there is no other target.
        self.harmless = ~self.ally_arms.can_hit
        self.hittable_by_enemy = np.swapaxes(self.enemy_arms.can_hit, 0, 1)
        # Enemies see at least as far as the allies can shoot.
        self.enemy_scan2 = np.maximum(np.swapaxes(self.enemy_arms.scan2, 0, 1), self.ally_arms.reach2)
        self.goal = allies.start.mean(0)
        self.camp2 = float((size[self.n :] ** 2).sum())
        self.ground = Ground(battle_map.rooms)

    def _pushing(self, units) -> None:
        """Tables of the pushes between overlapping units: only within one plane, and buildings do not move."""
        n = len(units)
        size = self.radius + self.radius.T
        same = np.array([[a.plane == b.plane for b in units] for a in units]) & ~np.eye(n, dtype=bool)
        heavy = np.array([u.speed == 0 for u in units])
        share = np.where(heavy[None, :], 1.0, 0.5) * ~heavy[:, None]
        self.touch2 = (size**2)[..., None].astype(np.float32)
        # Each unit removes about half of the overlap, without a square root: (R² - d²) / 2d² of the offset.
        self.push = (STIFFNESS * same * share / 2)[..., None].astype(np.float32)
        # A small offset by unit index separates units with identical positions.
        self.nudge = 1e-4 * np.arange(n, dtype=np.float32)[:, None]

    # --- components of a loop

    def between(self, fight: Fight) -> Between:
        """Offsets and squared distances from every ally to every enemy."""
        dx = fight.x[None, self.n :] - fight.x[: self.n, None]
        dy = fight.y[None, self.n :] - fight.y[: self.n, None]
        return Between(dx, dy, dx**2 + dy**2)

    def enemy_targets(self, d2: Float[Array, "ally enemy env"], alive: Array) -> Target:
        """The nearest ally in sight. Allies that cannot hit the enemy are chosen only if there is no other."""
        eligible = alive[: self.n, None] & (d2 <= self.enemy_scan2) & self.hittable_by_enemy
        cost = jnp.where(self.harmless, LAST_CHOICE, 0) + packed(d2, self.n, 0)
        return unpacked(jnp.where(eligible, cost, NO_TARGET).min(0), self.n)

    def ally_targets(self, d2: Float[Array, "ally enemy env"], alive: Array, orders: Orders) -> Target:
        """The enemy that the action names; for idle allies, or if that enemy is dead, the nearest enemy in range."""
        ordered = orders.target[:, None] == jnp.arange(self.m)[:, None]
        near = orders.idle[:, None] & (d2 <= self.ally_arms.reach2) & self.ally_arms.can_hit
        cost = jnp.where(ordered, 0, LAST_CHOICE) + packed(d2, self.m, 1)
        eligible = alive[: self.n, None] & alive[None, self.n :] & (ordered | near)
        return unpacked(jnp.where(eligible, cost, NO_TARGET).min(1), self.m)

    def loop(self, fight: Fight, orders: Orders) -> Fight:
        """All units after one game loop."""
        aims = self._aim(fight, orders)
        damaged = self._strike(fight, aims)
        movement = self._steps(fight, orders, aims, damaged)
        x, y = self._move(fight, movement, damaged.health > 0)

        period = np.concatenate([self.ally_arms.period, self.enemy_arms.period])
        # The unused fraction of the loop in which the weapon became ready shortens the next cooldown.
        overshoot = jnp.where(fight.cooldown > -1, fight.cooldown, 0.0)
        cooldown = jnp.maximum(jnp.where(aims.fires, period + overshoot, fight.cooldown) - 1, -1.0)
        health, shield, quiet = self._recover(fight, movement.health, damaged.shield)
        return Fight(x, y, health, shield, cooldown, movement.energy, quiet)

    def _aim(self, fight: Fight, orders: Orders) -> Aims:
        """Targets, and which units fire: those with a target in range and a ready weapon."""
        alive = fight.health > 0
        d2 = self.between(fight).d2
        ally, enemy = self.ally_targets(d2, alive, orders), self.enemy_targets(d2, alive)
        near = jnp.concatenate([self.ally_arms.in_range(ally), self.enemy_arms.in_range(enemy)])
        can_hit = jnp.concatenate([self.ally_arms.can_hit_target(ally), jnp.ones_like(enemy.d2, bool)])
        # Without a target, enemies walk on and allies stand still.
        stands = near | jnp.concatenate([ally.unit < 0, jnp.zeros_like(enemy.d2, bool)])
        return Aims(ally.unit, enemy.unit, near & can_hit & (fight.cooldown <= 0) & alive, stands)

    def _strike(self, fight: Fight, aims: Aims) -> Damaged:
        """The damage of all shots of a loop. Kamikaze units die when they fire."""
        n = self.n
        there = self.between(fight)
        back = Between(-jnp.swapaxes(there.dx, 0, 1), -jnp.swapaxes(there.dy, 0, 1), jnp.swapaxes(there.d2, 0, 1))
        attacked, chased = one_hot(aims.ally_targets, self.m), one_hot(aims.enemy_targets, n)
        struck_enemies = self.ally_arms.struck(aims.fires[:n], attacked, there)
        struck_allies = self.enemy_arms.struck(aims.fires[n:], chased, back)
        enemy_health, enemy_shield = self.ally_arms.hurt(struck_enemies, fight.health[n:], fight.shield[n:])
        ally_health, ally_shield = self.enemy_arms.hurt(struck_allies, fight.health[:n], fight.shield[:n])
        health = jnp.concatenate([ally_health, enemy_health])
        if self.kamikaze.any():
            health = jnp.where(self.kamikaze & aims.fires, 0.0, health)
        return Damaged(health, jnp.concatenate([ally_shield, enemy_shield]))

    def _steps(self, fight: Fight, orders: Orders, aims: Aims, damaged: Damaged) -> Movement:
        """The step of every unit in this loop and, on maps with medivacs, the effect of healing."""
        n = self.n
        attacked, chased = one_hot(aims.ally_targets, self.m), one_hot(aims.enemy_targets, n)
        chases = aims.enemy_targets >= 0
        to_x = jnp.where(chases, (chased * fight.x[:n]).sum(1), self.goal[0])
        to_y = jnp.where(chases, (chased * fight.y[:n]).sum(1), self.goal[1])
        # Enemies that have reached the start of the allies and have no target stop.
        arrived = ~chases & ((to_x - fight.x[n:]) ** 2 + (to_y - fight.y[n:]) ** 2 < self.camp2)
        if orders.corners is not None:
            arrived = arrived & ~orders.corners.around
            to_x = jnp.where(orders.corners.around, orders.corners.x, to_x)
            to_y = jnp.where(orders.corners.around, orders.corners.y, to_y)
        go_x = jnp.concatenate([(attacked * fight.x[n:]).sum(1), to_x]) - fight.x
        go_y = jnp.concatenate([(attacked * fight.y[n:]).sum(1), to_y]) - fight.y
        health, energy = damaged.health, fight.energy
        stands = aims.stands | jnp.concatenate([jnp.zeros_like(aims.ally_targets, bool), arrived])
        if self.healer.any():
            health, energy, stands, go_x, go_y = self._heal(fight, orders, health, stands, go_x, go_y)
        scale = jnp.where(stands, 0.0, jax.lax.rsqrt(jnp.maximum(go_x**2 + go_y**2, self.speed**2 + 1e-9)))
        walk_x = jnp.concatenate([orders.walk_x, jnp.zeros_like(to_x)])
        walk_y = jnp.concatenate([orders.walk_y, jnp.zeros_like(to_y)])
        return Movement((go_x * scale + walk_x) * self.speed, (go_y * scale + walk_y) * self.speed, health, energy)

    def _move(self, fight: Fight, movement: Movement, alive: Array) -> tuple[Array, Array]:
        """Positions after the steps. Units are pushed apart and slide past each other and along walls."""
        # Dead units are placed far away, so that they push no unit.
        at_x = jnp.where(alive, fight.x, FAR) + self.nudge
        dx, dy = at_x[None] - (fight.x + self.nudge)[:, None], fight.y[None] - fight.y[:, None]
        d2 = dx**2 + dy**2
        weight = jnp.maximum(self.touch2 - d2, 0.0) * self.push / (d2 + 0.1 * self.touch2)
        push_x, push_y = -(weight * dx).sum(1), -(weight * dy).sum(1)
        against = jnp.minimum(push_x * movement.step_x + push_y * movement.step_y, 0.0)
        against = against / jnp.maximum(push_x**2 + push_y**2, 1e-9)
        x = jnp.where(alive, fight.x + movement.step_x + (1 - against) * push_x, fight.x)
        y = jnp.where(alive, fight.y + movement.step_y + (1 - against) * push_y, fight.y)
        x, y = (jnp.clip(place, self.radius, SIZE - self.radius) for place in (x, y))
        if self.ground.open:
            return x, y
        free, along_x, along_y = self.walkable(x, y), self.walkable(x, fight.y), self.walkable(fight.x, y)
        # At a wall, the component of the step along the wall remains.
        return (
            jnp.where(free | along_x, x, fight.x),
            jnp.where(free | (along_y & ~along_x), y, fight.y),
        )

    def _recover(self, fight: Fight, health: Array, shield: Array) -> tuple[Array, Array, Array]:
        """Health, shield and `quiet` after regeneration."""
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
        """Healing by medivacs. Allied ones heal the unit that their action names, others the nearest wounded unit."""
        n = self.n
        alive = fight.health > 0
        dx, dy = fight.x[None] - fight.x[:, None], fight.y[None] - fight.y[:, None]
        d2 = dx**2 + dy**2
        reach = np.array([u.attack_range + u.size / 2 for u in self.map.units], np.float32)[:, None] + self.radius.T
        wounded = alive & (health > 0) & (health < self.hp) & self.healable
        candidates = jnp.where(wounded[None, n:] & (d2[n:, n:] < 81.0), d2[n:, n:], FAR)
        first = jnp.where(candidates.min(1) < FAR, candidates.argmin(1), -1)
        nearest = first[:, None] == jnp.arange(self.m)[:, None]
        ordered = jnp.zeros_like(d2[:n, :n], bool) if orders.heal is None else orders.heal & alive[None, :n]
        top = jnp.concatenate([ordered, jnp.zeros_like(d2[:n, n:], bool)], 1)
        bottom = jnp.concatenate([jnp.zeros_like(d2[n:, :n], bool), nearest], 1)
        patient = jnp.concatenate([top, bottom]) & (self.healer & alive)[:, None]
        at = patient.astype(jnp.float32)
        near = (patient & (d2 <= (reach**2)[..., None])).any(1)
        has = patient.any(1)
        missing = (at * (self.hp - health)[None]).sum(1) * near
        given = jnp.minimum(jnp.minimum(missing, HEALING), fight.energy / ENERGY_PER_HEALTH)
        healed = jnp.where(wounded, jnp.minimum(health + (at * given[:, None]).sum(0), self.hp), health)
        energy = jnp.minimum(fight.energy - given * ENERGY_PER_HEALTH + ENERGY_REGENERATION, self.max_energy)
        stands = jnp.where(self.healer & has, near, stands)
        go_x = jnp.where(self.healer & has, (at * dx).sum(1), go_x)
        go_y = jnp.where(self.healer & has, (at * dy).sum(1), go_y)
        return healed, energy, stands, go_x, go_y

    def corners(self, fight: Fight) -> Corners | None:
        """The detours of the enemies that cannot walk straight to their targets; None on open maps."""
        if self.ground.open:
            return None
        n = self.n
        target = self.enemy_targets(self.between(fight).d2, fight.health > 0).unit
        chased = one_hot(target, n)
        to_x = jnp.where(target >= 0, (chased * fight.x[:n]).sum(1), self.goal[0])
        to_y = jnp.where(target >= 0, (chased * fight.y[:n]).sum(1), self.goal[1])
        return self.ground.corners(fight.x[n:], fight.y[n:], to_x, to_y, self.free[n:])

    def walkable(self, x: Array, y: Array, rows: slice = slice(None)) -> Bool[Array, "unit env"]:
        """Whether each unit can stand at the position."""
        return self.ground.walkable(x, y, self.free[rows])
