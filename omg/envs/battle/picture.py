"""Draws a battle: units as discs filled by health, with a ring for the shield, and a line for every attack or heal."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from omg.envs.battle.maps import SIZE, BattleMap

CELL = 13
GROUND, CLIFF = (247, 245, 240), (205, 199, 186)
ALLY, ENEMY, SHIELD, SHOT, HEAL = (41, 98, 155), (192, 57, 43), (90, 170, 220), (230, 160, 40), (39, 150, 90)
FIRST_TARGET = 6


def draw(battle_map: BattleMap, fight: Any, last_actions: Any) -> Image.Image:
    """The picture of one time step. `last_actions` are the agents' actions in the last step."""
    side = int(SIZE * CELL)
    picture = Image.new("RGB", (side, side), CLIFF if len(battle_map.rooms) else GROUND)
    pen = ImageDraw.Draw(picture)
    for left, bottom, right, top in battle_map.rooms:
        pen.rectangle([left * CELL, side - top * CELL, right * CELL, side - bottom * CELL], fill=GROUND)
    x, y = np.asarray(fight.x) * CELL, side - np.asarray(fight.y) * CELL
    health, shield = np.asarray(fight.health), np.asarray(fight.shield)
    n = len(battle_map.allies)
    for i, action in enumerate(np.asarray(last_actions)):
        if action < FIRST_TARGET or health[i] <= 0:
            continue
        heals = battle_map.units[i].targeter == "heal"
        target = int(action) - FIRST_TARGET + (0 if heals else n)
        pen.line([x[i], y[i], x[target], y[target]], fill=HEAL if heals else SHOT, width=2)
    for i, unit in enumerate(battle_map.units):
        if health[i] <= 0:
            pen.line([x[i] - 3, y[i] - 3, x[i] + 3, y[i] + 3], fill=(170, 165, 155))
            pen.line([x[i] - 3, y[i] + 3, x[i] + 3, y[i] - 3], fill=(170, 165, 155))
            continue
        r = unit.size / 2 * CELL
        box = [x[i] - r, y[i] - r, x[i] + r, y[i] + r]
        colour = ALLY if i < n else ENEMY
        pale = tuple((c + 2 * 255) // 3 for c in colour)
        pen.ellipse(box, fill=pale, outline=colour)
        # The disc is filled from the bottom in proportion to health.
        pen.chord(box, 90 - 180 * health[i] / unit.hp, 90 + 180 * health[i] / unit.hp, fill=colour)
        if unit.shield and shield[i] > 0:
            rim = [box[0] - 2, box[1] - 2, box[2] + 2, box[3] + 2]
            pen.arc(rim, -90, -90 + 360 * shield[i] / unit.shield, fill=SHIELD, width=2)
    for i in range(n):
        if health[i] > 0:
            pen.text((x[i], y[i]), str(i + 1), fill="white", anchor="mm")
    return picture
