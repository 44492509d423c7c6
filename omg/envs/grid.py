"""What boards of cells have in common: moves, places drawn by lot, and a picture."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from PIL import Image, ImageDraw

MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.int32)
"""Stay, up, down, left, right: rows and columns."""

CELL = 40
PAPER, LINES = (247, 245, 240), (214, 210, 200)
COLOURS = [(41, 98, 155), (39, 125, 90), (120, 80, 160), (190, 120, 30), (90, 90, 90), (170, 60, 110)]


def scatter(key: Array, size: int, count: int) -> Int[Array, "count 2"]:
    """Different cells, every choice of them as likely."""
    _, cells = jax.lax.top_k(jax.random.bits(key, (size * size,), jnp.uint32) >> 1, count)
    return jnp.stack([cells // size, cells % size], -1)


def stays_on_board(places: Int[Array, "agent 2"], size: int) -> Bool[Array, "agent 5"]:
    """Which moves do not lead off the board."""
    after = places[:, None] + MOVES
    return ((after >= 0) & (after < size)).all(-1)


def move(
    places: Int[Array, "agent 2"], actions: Int[Array, " agent"], moving: Bool[Array, " agent"], size: int
) -> Int[Array, "agent 2"]:
    after = jnp.clip(places + jnp.asarray(MOVES)[actions], 0, size - 1)
    return jnp.where(moving[:, None], after, places)


def each_first(rows: Float[Array, "agent feature"]) -> Float[Array, "agent agent feature"]:
    """The same rows as every agent lists them: itself first, the others in order of their seats."""
    n = rows.shape[0]
    return rows[(np.arange(n)[:, None] + np.arange(n)) % n]


SEEN = 6
"""How many numbers `from_here` says of a goal."""


def from_here(
    goals: Float[Array, "*rows goal 3"], me: Float[Array, "*rows 2"], cell: float
) -> Float[Array, "*rows goal 6"]:
    """Goals (row, column, there) as seen from a place: the way to them, how long it is, whether they are there, and the
    way once more, sharply for what is a step or two away. `cell` is the length of a step.
    """
    way = (goals[..., :2] - me[..., None, :]) * goals[..., 2:].astype(bool)
    far = abs(way).sum(-1, keepdims=True)
    return jnp.concatenate([way, far, goals[..., 2:], jnp.clip(way / cell, -2, 2)], -1)


def steps_to(seen: Float[Array, "*rows goal 6"], cell: float) -> Float[Array, "*rows goal"]:
    """How many steps away goals are, as `from_here` sees them; what is gone is out of reach."""
    return jnp.where(seen[..., 3] > 0, seen[..., 2] / cell, jnp.inf)


def board(size: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    picture = Image.new("RGB", (size * CELL + 1, size * CELL + 1), PAPER)
    draw = ImageDraw.Draw(picture)
    for i in range(size + 1):
        draw.line([(0, i * CELL), (size * CELL, i * CELL)], fill=LINES)
        draw.line([(i * CELL, 0), (i * CELL, size * CELL)], fill=LINES)
    return picture, draw


def disc(
    draw: ImageDraw.ImageDraw,
    place: Sequence[int],
    radius: int,
    colour: tuple[int, int, int],
    label: str,
    shift: int = 0,
) -> None:
    y, x = (int(p) * CELL + CELL // 2 for p in place)
    x, y = x + shift, y + shift
    draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=colour)
    draw.text((x, y), label, fill="white", anchor="mm")
