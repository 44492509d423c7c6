"""What a run starts from: its own checkpoint or somebody's model, read into parts of the same architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from omg.parts import Parts, RunSettings
from omg.utils import checkpoints
from omg.utils.logging import say
from omg.utils.settings import UserError


def saved(run: RunSettings, folder: Path) -> checkpoints.Checkpoint | None:
    """What the run starts from: its own newest checkpoint, somebody's model, or nothing."""
    if not run.resume:
        return checkpoints.find_model(Path(run.checkpoint_path), run.load_step) if run.checkpoint_path else None
    checkpoint, complaints = checkpoints.newest_whole(folder / "checkpoints")
    for complaint in complaints:
        say(f"skipped: {complaint}", "yellow")
    if checkpoint is None:
        say(f"{folder} holds no whole checkpoint yet: starting over in the same folder.", "yellow")
    return checkpoint


def load_agent(parts: Parts, checkpoint: checkpoints.Checkpoint) -> Any:
    """The networks that act, from a checkpoint of the same architecture."""
    learner = jax.eval_shape(parts.loop.init).learner
    shapes = parts.learner.acting(learner)
    if isinstance(shapes, dict):
        return {name: checkpoints.load_part(checkpoint, name, like) for name, like in learner.params.items()}
    return checkpoints.load_part(checkpoint, "agent", shapes)


def load_parts(parts: Parts, checkpoint: checkpoints.Checkpoint) -> dict[str, Any]:
    """Everything the learner saves, from a checkpoint of the same algorithm and architecture."""
    wanted = parts.learner.parts(jax.eval_shape(parts.loop.init).learner)
    return {name: checkpoints.load_part(checkpoint, name, like) for name, like in wanted.items()}


def check_seeds(checkpoint: checkpoints.Checkpoint, parts: Parts) -> None:
    saved = len(checkpoint.manifest["seeds"])
    if saved != parts.settings.seeds:
        raise UserError(
            f"{checkpoint.path} holds {saved} seed(s), this run {parts.settings.seeds}: add --seeds={saved}."
        )
