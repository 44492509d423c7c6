"""Shared code of the grid environments: moves, random cells, features of goals, and drawing."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.envs.scene import LINES, Colour, Scene

MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.int32)
"""The actions stay, up, down, left and right as changes of (row, column)."""
MOVE_NAMES = ("stay", "up", "down", "left", "right")

CELL = 40
COLOURS = ((41, 98, 155), (39, 125, 90), (120, 80, 160), (190, 120, 30), (90, 90, 90), (170, 60, 110))


def scatter(key: Array, size: int, count: int) -> Int[Array, "count 2"]:
    """Samples `count` different cells (row, column) uniformly."""
    _, cells = jax.lax.top_k(jax.random.bits(key, (size * size,), jnp.uint32) >> 1, count)
    return jnp.stack([cells // size, cells % size], -1)


def stays_on_board(places: Int[Array, "agent 2"], size: int) -> Bool[Array, "agent 5"]:
    """Which of the five moves stay on the board."""
    after = places[:, None] + MOVES
    return ((after >= 0) & (after < size)).all(-1)


def move(
    places: Int[Array, "agent 2"], actions: Int[Array, " agent"], moving: Bool[Array, " agent"], size: int
) -> Int[Array, "agent 2"]:
    """The agents' cells after their moves. Only agents with `moving` True move, and none leaves the board."""
    after = jnp.clip(places + jnp.asarray(MOVES)[actions], 0, size - 1)
    return jnp.where(moving[:, None], after, places)


def each_first(rows: Float[Array, "agent feature"]) -> Float[Array, "agent agent feature"]:
    """The rows in each agent's own order: itself first, then the agents after it, then the agents before it."""
    n = rows.shape[0]
    return rows[(np.arange(n)[:, None] + np.arange(n)) % n]


GOAL_SIZE = 6
"""The number of features that `relative_goals` computes for a goal."""


def relative_goals(
    goals: Float[Array, "*rows goal 3"], own: Float[Array, "*rows 2"], cell: float
) -> Float[Array, "*rows goal 6"]:
    """Features of goals relative to an agent.

    Args:
        goals: row, column and presence of each goal. Presence is 0 for goals that no longer exist or
            are out of sight.
        own: the agent's row and column.
        cell: the size of one cell in the unit of the observation.

    Returns:
        Six features per goal: row and column offset, Manhattan distance, presence, and the offset in cells clipped to
        [-2, 2], which resolves nearby goals better. Offset and distance are 0 for goals that are not present.
    """
    offset = (goals[..., :2] - own[..., None, :]) * goals[..., 2:].astype(bool)
    distance = abs(offset).sum(-1, keepdims=True)
    return jnp.concatenate([offset, distance, goals[..., 2:], jnp.clip(offset / cell, -2, 2)], -1)


def steps_to(features: Float[Array, "*rows goal feature"], cell: float) -> Float[Array, "*rows goal"]:
    """The distance to goals in steps, from the features of `relative_goals`. Absent goals are infinitely far."""
    return jnp.where(features[..., 3] > 0, features[..., 2] / cell, jnp.inf)


def board(size: int) -> Scene:
    """An empty board of `size` × `size` cells."""
    scene = Scene(size * CELL + 1, size * CELL + 1)
    for i in range(size + 1):
        scene.line((0, i * CELL, size * CELL, i * CELL), LINES)
        scene.line((i * CELL, 0, i * CELL, size * CELL), LINES)
    return scene


def disc(scene: Scene, place: Sequence[float], radius: int, colour: Colour, label: str, shift: int = 0) -> None:
    """Draws a labelled disc in a cell, `shift` pixels off its centre."""
    y, x = (float(p) * CELL + CELL // 2 + shift for p in place)
    scene.disc(x, y, radius, colour)
    scene.text(x, y, label)
