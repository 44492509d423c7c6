"""The replay of a run's first seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from omg.evaluation.replay import save_focal_replay, save_replay
from omg.learners.subgoals import SubgoalSettings
from omg.parts import Parts
from omg.utils.settings import fill


def draw_replay(parts: Parts, agent: Any, folder: Path) -> None:
    """A GIF of the first seed; among others, with what it thinks they are after."""
    agent = agent if parts.settings.seeds == 1 else jax.tree.map(lambda x: x[0], agent)
    key, path = jax.random.key(parts.settings.seed), folder / "replay.gif"
    if not parts.learner.focal:
        save_replay(parts.env, parts.mac, agent, key, path)
        return
    runner: Any = parts.loop.runner
    kind, learner = runner.opponents[0].kinds[-1], parts.learner
    mac: Any = parts.mac
    subgoals = fill(SubgoalSettings, parts.config)
    save_focal_replay(parts.env, mac, agent, kind, key, path, getattr(learner, "vae", None), subgoals)
