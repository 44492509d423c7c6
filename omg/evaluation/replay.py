"""Replays: a GIF of a recorded episode, with the step, the return so far, and what the focal agent infers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from omg.envs.scene import LINES, PAPER
from omg.evaluation.episode import Episode, Imagined, Moments, Rows

CAPTION = 18
"""Height of a line of text."""
SHOWN_SEATS = 8
LABEL = 16
"""Bars that are narrower have no names."""
TEXT, FRAME = (60, 60, 60), (20, 20, 20)
Panels = list[tuple[str, Any]]
"""Captions and pictures of one frame; the first is the board."""


def save_replay(episode: Episode, path: Path) -> Path:
    """The GIF, and beside it the episode itself for the page in the browser."""
    episode.save(path.parent)
    return write_gif(frames_of(episode), path)


def frames_of(episode: Episode) -> list[Image.Image]:
    """Every frame: a line with the step and the return so far, the panels, and what the seats are."""
    boards = [scene.paint() for scene in episode.scenes]
    legend = episode.seats if episode.focal is not None else []
    own = episode.own_return
    frames = []
    for t, board in enumerate(boards):
        title = f"step {t} of {episode.steps}    return so far: {episode.team_return[t]:.2f}"
        if legend and not episode.cooperative:
            title += f" (of the focal agent: {own[t]:.2f})"
        panels: Panels = [("", board), *(panel(episode, entry, t, boards) for entry in episode.shown if shows(entry))]
        frames.append(side_by_side(episode, panels, title, legend))
    return frames


def shows(entry: Rows | Moments | Imagined) -> bool:
    """The agent's own policy is left to the page."""
    return not isinstance(entry, Rows) or not entry.own


def panel(episode: Episode, entry: Rows | Moments | Imagined, t: int, boards: list[Image.Image]) -> tuple[str, Any]:
    """The caption and picture of one inference. After the last action there is none, and the last one stays."""
    if isinstance(entry, Imagined):
        return entry.title, entry.scenes[min(t, episode.steps - 1)].paint()
    if isinstance(entry, Moments):
        if t >= episode.steps:
            return "", boards[-1]
        caption = f"{entry.title} (+{entry.steps[t] - t})" if entry.ahead else entry.title
        return caption, boards[int(entry.steps[t])]
    now = min(t, episode.steps - 1)
    picture = bars(episode, entry, now, boards[0].size)
    caption = entry.title if entry.taken is None else f"{entry.title} (framed: taken)"
    return caption if t == now or entry.taken is None else "", picture


def bars(episode: Episode, entry: Rows, t: int, size: tuple[int, int]) -> Image.Image:
    """One row of bars per agent, in its colour; what came true has a frame."""
    width, height = size
    picture = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(picture)
    seats = entry.seats[:SHOWN_SEATS]
    row, column = height / len(seats), (width - 30) / len(entry.names)
    gap, labelled = min(3, column / 4), column >= LABEL
    for i, seat in enumerate(seats):
        bottom, alive, own = (i + 1) * row - 16, entry.alive[t][i], episode.colours[seat]
        draw.text((14, bottom - row / 3), str(seat + 1), fill=own, anchor="mm")
        for j, (name, probability) in enumerate(zip(entry.names, np.nan_to_num(entry.values[t][i]), strict=True)):
            left = 30 + j * column
            top = bottom - float(probability) * (row - 24)
            draw.rectangle([left + gap, top, left + column - gap, bottom], fill=own if alive else LINES)
            if entry.taken is not None and alive and entry.taken[t][i] == j:
                draw.rectangle([left, bottom - (row - 22), left + column, bottom + 1], outline=FRAME, width=2)
            if labelled:
                draw.text((left + column / 2, bottom + 7), name, fill=TEXT, anchor="mm")
    return picture


def side_by_side(episode: Episode, panels: Panels, title: str, legend: list[str]) -> Image.Image:
    width, height = panels[0][1].size
    captions = CAPTION * (len(panels) > 1)
    foot = CAPTION * len(set(legend))
    frame = Image.new("RGB", (max(len(panels) * (width + 6) - 6, 330), CAPTION + captions + height + foot), "white")
    draw = ImageDraw.Draw(frame)
    draw.text((4, CAPTION // 2), title, fill=TEXT, anchor="lm")
    for i, (caption, picture) in enumerate(panels):
        draw.text((i * (width + 6) + width // 2, CAPTION * 3 // 2), caption, fill=TEXT, anchor="mm")
        frame.paste(picture, (i * (width + 6), CAPTION + captions))
    for line, name in enumerate(dict.fromkeys(legend)):
        x, y = 4, CAPTION + captions + height + line * CAPTION + CAPTION // 2
        seats = [seat for seat, other in enumerate(legend) if other == name]
        for seat in seats[:SHOWN_SEATS]:
            draw.ellipse([x, y - 6, x + 12, y + 6], fill=episode.colours[seat])
            draw.text((x + 6, y), str(seat + 1), fill="white", anchor="mm")
            x += 16
        draw.text((x + 2, y), ("… " if len(seats) > SHOWN_SEATS else "") + name, fill=TEXT, anchor="lm")
    return frame


def write_gif(frames: list[Any], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    small = [frame.quantize(32, method=Image.Quantize.FASTOCTREE) for frame in frames]
    hold = [160 if frames[0].width < 400 else 350] * (len(small) - 1) + [1200]
    small[0].save(path, save_all=True, append_images=small[1:], duration=hold, loop=0)
    return path
