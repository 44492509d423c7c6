"""What a run starts from: its own checkpoint or somebody's model, read into parts of the same architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from omg import config as configuration
from omg.parts import Parts, RunSettings, known_keys
from omg.utils import checkpoints
from omg.utils.logging import say
from omg.utils.settings import UserError, convert, fill


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


def saved_model(command: configuration.Command) -> tuple[checkpoints.Checkpoint, dict[str, Any]]:
    """The checkpoint that a command names, and its configuration with what the command changes in it."""
    path = command.get("checkpoint_path")
    if not isinstance(path, (str, int)) or isinstance(path, bool):
        raise UserError(f"{command.verb} needs a model: add --checkpoint_path=DIR (a run's folder).")
    configuration.not_twice(command, "a saved model keeps the configuration it was trained with")
    found = checkpoints.find_model(Path(str(path)), convert(command.get("load_step", 0), int, "load_step"))
    kept = found.manifest["config"] | {"resume": False, "run_dir": None, "save_replay": False}
    config = configuration.override(kept, command, known_keys()) | {"evaluate": True}
    fill(RunSettings, config)
    return found, config


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
