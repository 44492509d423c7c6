"""Experiment trackers: the numbers of a run also go to Weights & Biases or MLflow, where one is installed."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from omg.utils.files import write_text
from omg.utils.settings import UserError, choose

PACKAGES = {"wandb": "wandb", "wandb_offline": "wandb", "mlflow": "mlflow"}
"""Tracker → the package that it needs."""


def check_tracker(name: str | None) -> None:
    """Refuses an unknown tracker, or one that is not installed, before the run begins."""
    if name is None:
        return
    package = choose(PACKAGES, name, "tracker")
    if importlib.util.find_spec(package) is None:
        raise UserError(f"--tracker={name} needs {package}: pip install {package}.")


def make_tracker(name: str | None, folder: Path, config: Mapping[str, Any]) -> Tracker | None:
    check_tracker(name)
    if name is None:
        return None
    return MLflow(folder, config) if name == "mlflow" else Wandb(folder, config, offline=name == "wandb_offline")


class Tracker(Protocol):
    """Receives every logged point."""

    def log(self, t_env: int, numbers: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class Wandb:
    """A run of Weights & Biases. A resumed run has the same identity; offline runs lie in the run's folder."""

    def __init__(self, folder: Path, config: Mapping[str, Any], offline: bool):
        wandb = importlib.import_module("wandb")
        identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "omg"), name=folder.name, dir=str(folder), config=dict(config),
            id=identity, resume="allow", mode="offline" if offline else None,
        )  # fmt: skip

    def log(self, t_env: int, numbers: Mapping[str, float]) -> None:
        self.run.log(dict(numbers), step=t_env)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run of MLflow, at the address in MLFLOW_TRACKING_URI. Its identity is kept in the run's folder."""

    def __init__(self, folder: Path, config: Mapping[str, Any]):
        self.mlflow = importlib.import_module("mlflow")
        kept = folder / "mlflow_run"
        self.mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "omg"))
        before = kept.read_text().strip() if kept.exists() else None
        run = self.mlflow.start_run(run_id=before, run_name=None if before else folder.name)
        if before is None:
            self.mlflow.log_params({key: str(value)[:500] for key, value in config.items()})
            write_text(kept, run.info.run_id)

    def log(self, t_env: int, numbers: Mapping[str, float]) -> None:
        finite = {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
        self.mlflow.log_metrics(finite, step=t_env)

    def close(self) -> None:
        self.mlflow.end_run()
