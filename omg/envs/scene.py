"""Drawings of environment states as shapes, in pixels: painted for GIFs, or drawn by the page in the browser."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw

PAPER, LINES = (247, 245, 240), (214, 210, 200)
Colour = tuple[int, int, int]
Shape = list[Any]
"""The name of a shape, numbers, and colours as `#rrggbb` (None: not drawn)."""


class Scene:
    """A picture of `width` × `height` pixels; shapes that come later cover earlier ones."""

    def __init__(self, width: float, height: float, ground: Colour = PAPER):
        self.width, self.height, self.ground = round(width), round(height), _hex(ground)
        self.shapes: list[Shape] = []
        self.sights: list[Shape | None] = []
        """For every agent the shape that holds what it sees; None, or no entry: it sees everything."""

    def rectangle(self, box: Sequence[float], fill: Colour | None = None, outline: Colour | None = None) -> None:
        """`box` is left, top, right, bottom."""
        self.shapes.append(["rectangle", *_numbers(box), _hex(fill), _hex(outline)])

    def line(self, ends: Sequence[float], colour: Colour, width: int = 1) -> None:
        """`ends` are x, y, x, y."""
        self.shapes.append(["line", *_numbers(ends), _hex(colour), width])

    def disc(self, x: float, y: float, radius: float, fill: Colour, outline: Colour | None = None) -> None:
        self.shapes.append(["disc", *_numbers((x, y, radius)), _hex(fill), _hex(outline)])

    def level(self, x: float, y: float, radius: float, part: float, colour: Colour) -> None:
        """A disc that is filled from below: `part` is the half angle of the filled cap as a part of 180°."""
        self.shapes.append(["level", *_numbers((x, y, radius, part)), _hex(colour)])

    def ring(self, x: float, y: float, radius: float, part: float, colour: Colour) -> None:
        """A part of a circle, clockwise from the top."""
        self.shapes.append(["ring", *_numbers((x, y, radius, part)), _hex(colour)])

    def text(self, x: float, y: float, text: str, colour: Colour = (255, 255, 255), right: bool = False) -> None:
        """Centred at a place, or with its right end there."""
        self.shapes.append(["text", *_numbers((x, y)), text, _hex(colour), right])

    def picture(self, picture: Image.Image) -> None:
        """Any picture, for environments that draw themselves without shapes."""
        file = io.BytesIO()
        picture.convert("RGB").save(file, "PNG")
        self.shapes.append(["picture", f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"])

    def paint(self) -> Image.Image:
        image = Image.new("RGB", (self.width, self.height), self.ground)
        pen = ImageDraw.Draw(image)
        for shape, *values in self.shapes:
            _PAINTERS[shape](image, pen, *values)
        return image

    def as_json(self) -> dict[str, Any]:
        return {"size": [self.width, self.height], "ground": self.ground, "shapes": self.shapes, "sights": self.sights}


def _numbers(values: Sequence[float]) -> list[float]:
    return [round(float(value), 2) for value in values]


def _hex(colour: Colour | None) -> str | None:
    return None if colour is None else "#{:02x}{:02x}{:02x}".format(*colour)


def _around(x: float, y: float, radius: float) -> list[float]:
    return [x - radius, y - radius, x + radius, y + radius]


def _paste(image: Image.Image, _: Any, data: str) -> None:
    with Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2]))) as picture:
        image.paste(picture)


_PAINTERS: dict[str, Any] = {
    "rectangle": lambda _, pen, *v: pen.rectangle(list(v[:4]), fill=v[4], outline=v[5]),
    "line": lambda _, pen, *v: pen.line(list(v[:4]), fill=v[4], width=v[5]),
    "disc": lambda _, pen, x, y, r, fill, outline: pen.ellipse(_around(x, y, r), fill=fill, outline=outline),
    "level": lambda _, pen, x, y, r, p, c: pen.chord(_around(x, y, r), 90 - 180 * p, 90 + 180 * p, fill=c),
    "ring": lambda _, pen, x, y, r, p, c: pen.arc(_around(x, y, r), -90, -90 + 360 * p, fill=c, width=2),
    "text": lambda _, pen, x, y, text, c, right: pen.text((x, y), text, fill=c, anchor="rm" if right else "mm"),
    "picture": _paste,
}
