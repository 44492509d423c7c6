"""Draws a battle: units as discs filled by health, with a ring for the shield, and a line for every attack or heal."""

from __future__ import annotations

from typing import Any

import numpy as np

from omg.envs.battle.maps import SIZE, BattleMap
from omg.envs.scene import Scene

CELL = 13
GROUND, CLIFF = (247, 245, 240), (205, 199, 186)
ALLY, ENEMY, SHIELD, SHOT, HEAL = (41, 98, 155), (192, 57, 43), (90, 170, 220), (230, 160, 40), (39, 150, 90)
DEAD = (170, 165, 155)
FIRST_TARGET = 6


def draw(battle_map: BattleMap, fight: Any, last_actions: Any, sight: float) -> Scene:
    """The picture of one time step. `last_actions` are the agents' actions in the last step."""
    side = int(SIZE * CELL)
    scene = Scene(side, side, CLIFF if len(battle_map.rooms) else GROUND)
    for left, bottom, right, top in battle_map.rooms:
        scene.rectangle((left * CELL, side - top * CELL, right * CELL, side - bottom * CELL), GROUND)
    x, y = np.asarray(fight.x) * CELL, side - np.asarray(fight.y) * CELL
    health, shield = np.asarray(fight.health), np.asarray(fight.shield)
    n = len(battle_map.allies)
    for i, action in enumerate(np.asarray(last_actions)):
        if action < FIRST_TARGET or health[i] <= 0:
            continue
        heals = battle_map.units[i].targeter == "heal"
        target = int(action) - FIRST_TARGET + (0 if heals else n)
        scene.line((x[i], y[i], x[target], y[target]), HEAL if heals else SHOT, 2)
    for i, unit in enumerate(battle_map.units):
        if health[i] <= 0:
            scene.line((x[i] - 3, y[i] - 3, x[i] + 3, y[i] + 3), DEAD)
            scene.line((x[i] - 3, y[i] + 3, x[i] + 3, y[i] - 3), DEAD)
            continue
        r = unit.size / 2 * CELL
        colour = ALLY if i < n else ENEMY
        red, green, blue = ((c + 2 * 255) // 3 for c in colour)
        scene.disc(x[i], y[i], r, (red, green, blue), colour)
        # The disc is filled from the bottom in proportion to health.
        scene.level(x[i], y[i], r, health[i] / unit.hp, colour)
        if unit.shield and shield[i] > 0:
            scene.ring(x[i], y[i], r + 2, shield[i] / unit.shield, SHIELD)
    for i in range(n):
        if health[i] > 0:
            scene.text(x[i], y[i], str(i + 1))
    scene.sights = [["disc", round(float(x[i]), 2), round(float(y[i]), 2), sight * CELL] for i in range(n)]
    return scene
