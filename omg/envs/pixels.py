"""Frames of JaxMARL's grids (`pixels: true`): three by three pixels for every cell, in place of its layers."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.envs.multiagentenv import Storage

TILE = 3
STORAGE = Storage("uint8", 1 / 255)
FLOOR = (222, 216, 204)
OWN, OTHER = (66, 110, 180), (200, 80, 60)
ONION, PLATE, SOUP = (226, 178, 60), (250, 250, 250), (150, 80, 160)
WHOLE = tuple((row, column) for row in range(TILE) for column in range(TILE))


class Paint(NamedTuple):
    """One layer of the grid as pixels of its cells; later paints cover earlier ones."""

    layer: int
    colour: tuple[int, int, int]
    pixels: tuple[tuple[int, int], ...] = WHOLE
    least: float = 1.0
    """From this value on the pixels have the colour."""
    full: float | None = None
    """With it they take on the colour bit by bit, up to this value."""


# JaxMARL's directions: up, down, right, left.
EDGES = ((0, 1), (2, 1), (1, 2), (1, 0))
KITCHEN = (
    Paint(11, (140, 104, 72)),  # counters
    Paint(12, (120, 90, 30)),
    Paint(12, ONION, ((1, 0), (1, 1), (1, 2))),
    Paint(14, (120, 120, 120)),
    Paint(14, PLATE, ((1, 0), (1, 1), (1, 2))),
    Paint(15, (96, 168, 96)),  # where soups are delivered
    Paint(10, (60, 60, 66)),  # pots: a pixel for every onion, and the time that is left
    *(Paint(layer, ONION, ((0, n),), least=n + 1) for layer in (16, 18) for n in range(TILE)),
    Paint(20, (230, 60, 40), ((2, 0), (2, 1), (2, 2)), full=20),
    Paint(0, OWN),
    Paint(1, OTHER),
    *(Paint(2 + i, (20, 20, 20), (edge,)) for i, edge in enumerate(EDGES)),
    *(Paint(6 + i, (20, 20, 20), (edge,)) for i, edge in enumerate(EDGES)),
    *(Paint(layer, colour, ((1, 1),)) for layer, colour in ((22, PLATE), (23, ONION), (21, SOUP))),
    Paint(25, (255, 0, 0), ((2, 2),)),  # the end is near
)
COINS = (
    Paint(0, OWN, ((0, 0), (1, 0))),
    Paint(1, OTHER, ((0, 2), (1, 2))),
    Paint(2, OWN, ((2, 0),)),
    Paint(3, OTHER, ((2, 2),)),
)
PAINTS = {"overcooked": KITCHEN, "coin_game": COINS}


def frame(layers: Float[Array, "height width layer"], paints: tuple[Paint, ...]) -> Float[Array, "high wide 3"]:
    """Colours between 0 and 1, in steps of 1/255."""
    height, width, _ = layers.shape
    tiles = jnp.broadcast_to(jnp.array(FLOOR, jnp.float32), (height, width, TILE, TILE, 3))
    for paint in paints:
        value = layers[..., paint.layer]
        strength = jnp.clip(value / paint.full, 0, 1) if paint.full else (value >= paint.least).astype(jnp.float32)
        where = jnp.zeros((TILE, TILE)).at[tuple(zip(*paint.pixels, strict=True))].set(1.0)
        cover = (strength[..., None, None] * where)[..., None]
        tiles = tiles * (1 - cover) + jnp.array(paint.colour, jnp.float32) * cover
    pixels = tiles.transpose(0, 2, 1, 3, 4).reshape(height * TILE, width * TILE, 3)
    return jnp.round(pixels) * STORAGE.scale
