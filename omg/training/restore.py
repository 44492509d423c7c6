"""Restoring: what a run starts from, and saved networks as trees of the right architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from omg.opponents import zoo
from omg.training.loop import TrainingLoop
from omg.training.settings import RunSettings
from omg.utils import checkpoints
from omg.utils.logging import say
from omg.utils.settings import UserError


def start_of(run: RunSettings, folder: Path) -> checkpoints.Checkpoint | None:
    """What the run starts from: its own newest checkpoint (`resume`), another run's model, or nothing."""
    if run.resume:
        checkpoint, complaints = checkpoints.newest_whole(folder / "checkpoints")
        for complaint in complaints:
            say(f"skipped: {complaint}", "yellow")
        if checkpoint:
            return checkpoint
        if (folder / "config.yaml").exists():
            where = f" from {run.checkpoint_path}" if run.checkpoint_path else ""
            say(f"{folder} holds no complete checkpoint yet: starting over{where} in the same folder.", "yellow")
    if zoo.in_zoo(run.checkpoint_path):
        raise UserError("an agent of the zoo can be tested (omg evaluate), not trained further.")
    return checkpoints.find_model(Path(run.checkpoint_path), run.load_step) if run.checkpoint_path else None


def goes_on(run: RunSettings, checkpoint: checkpoints.Checkpoint | None) -> bool:
    """Whether the run starts from a checkpoint of its own, so that it goes on where it stopped."""
    return bool(run.resume and checkpoint and checkpoint.path.parent == Path(str(run.run_dir)) / "checkpoints")


def load_acting(loop: TrainingLoop, checkpoint: checkpoints.Checkpoint) -> Any:
    """The networks that act, from a checkpoint of the same architecture."""
    acting = loop.learner.acting(jax.eval_shape(loop.init).learner)
    return {name: checkpoints.load(checkpoint, name, like) for name, like in acting.items()}


def load_learner(loop: TrainingLoop, checkpoint: checkpoints.Checkpoint) -> dict[str, Any]:
    """Everything the learner saves, from a checkpoint of the same algorithm and architecture."""
    wanted = loop.learner.files(jax.eval_shape(loop.init).learner)
    return {name: checkpoints.load(checkpoint, name, like) for name, like in wanted.items()}


def check_seeds(checkpoint: checkpoints.Checkpoint, seeds: int) -> None:
    saved = len(checkpoint.manifest.get("seeds", []))
    if saved != seeds:
        raise UserError(f"{checkpoint.path} holds {saved} seed(s), this run {seeds}: add --seeds={saved}.")
