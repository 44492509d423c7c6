"""A recorded episode as data: what is drawn at every step, done and earned, and what the focal agent infers.

It is written as `episode.json`, which the page in the browser plays.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from omg.envs.scene import Scene
from omg.evaluation.runs import EPISODE
from omg.utils.files import write_text

VERSION = 1


class Rows(NamedTuple):
    """Numbers for every step: a row for each agent, a column for each goal or action."""

    title: str
    seats: list[int]
    """The agent that each row is about."""
    names: list[str]
    values: np.ndarray
    """`[step, row, name]`; NaN: not available."""
    alive: np.ndarray
    """`[step, row]`."""
    taken: np.ndarray | None = None
    """The name that came true, `[step, row]`."""
    probabilities: bool = True
    own: bool = False
    """Whether the agent's own policy is shown, and not what it infers about others."""


class Moments(NamedTuple):
    """For every step another step of the episode: the state that an agent has in mind."""

    title: str
    steps: np.ndarray
    ahead: bool
    """Whether the distance to that step is part of the title."""


class Imagined(NamedTuple):
    """For every step a scene that a network describes: no state of the game, and positions may lie between cells."""

    title: str
    scenes: list[Scene]


@dataclass
class Episode:
    """One episode of an environment. There is one scene more than there are steps."""

    env: str
    seats: list[str]
    """Which agent or policy acts in each seat."""
    colours: list[tuple[int, int, int]]
    action_names: list[str]
    scenes: list[Scene]
    actions: np.ndarray
    """`[step, agent]`."""
    rewards: np.ndarray
    """`[step, agent]`."""
    alive: np.ndarray
    """Whether an agent still plays when it acts, `[step, agent]`."""
    team_return: np.ndarray
    """The team's return so far, `[step + 1]`."""
    cooperative: bool
    focal: int | None = None
    shown: list[Rows | Moments | Imagined] = field(default_factory=list)
    embedding: np.ndarray | None = None
    """The mean embedding of the focal agent's agent model, if it has one; not part of the file."""

    @property
    def steps(self) -> int:
        return len(self.actions)

    @property
    def own_return(self) -> np.ndarray:
        """The return so far of the focal agent (or of the first one)."""
        return np.concatenate([[0.0], self.rewards[:, self.focal or 0].cumsum()])

    def as_json(self) -> dict[str, Any]:
        """What all scenes begin with (the lines of a board) is written once."""
        shapes = [scene.shapes for scene in self.scenes]
        every = shapes + [scene.shapes for entry in self.shown if isinstance(entry, Imagined) for scene in entry.scenes]
        same = min(map(len, every))
        same = next((i for i in range(same) if any(s[i] != shapes[0][i] for s in every)), same)
        first = self.scenes[0]
        return {
            "version": VERSION, "env": self.env, "seats": self.seats, "focal": self.focal,
            "colours": ["#{:02x}{:02x}{:02x}".format(*c) for c in self.colours], "action_names": self.action_names,
            "cooperative": self.cooperative, "size": [first.width, first.height], "ground": first.ground,
            "board": shapes[0][:same], "frames": [s[same:] for s in shapes], "sights": [s.sights for s in self.scenes],
            "actions": self.actions.tolist(), "rewards": _round(self.rewards),
            "alive": self.alive.astype(int).tolist(), "team_return": _round(self.team_return),
            "own_return": _round(self.own_return),
            "shown": [_shown(entry, same) for entry in self.shown],
        }  # fmt: skip

    def save(self, folder: Path) -> Path:
        path = folder / EPISODE
        write_text(path, json.dumps(self.as_json(), separators=(",", ":")))
        return path


def _shown(entry: Rows | Moments | Imagined, same: int) -> dict[str, Any]:
    """`same`: so many shapes at the beginning are those of the board."""
    if isinstance(entry, Imagined):
        return {"form": "scenes", "title": entry.title, "frames": [s.shapes[same:] for s in entry.scenes]}
    if isinstance(entry, Moments):
        return {"form": "moments", "title": entry.title, "steps": entry.steps.tolist(), "ahead": entry.ahead}
    return {
        "form": "rows", "title": entry.title, "seats": entry.seats, "names": entry.names,
        "values": _round(entry.values), "alive": entry.alive.astype(int).tolist(),
        "taken": None if entry.taken is None else entry.taken.tolist(), "probabilities": entry.probabilities,
        "own": entry.own,
    }  # fmt: skip


def _round(values: Any) -> Any:
    """Five digits; JSON has no NaN."""
    array = np.round(np.asarray(values, float), 5).astype(object)
    array[array != array] = None
    return array.tolist()
