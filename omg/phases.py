"""`omg phases NAME`: a run as a list of phases in YAML. Who plays, what learns and for how long is data, not code.

A phase is a mapping whose first key is a verb of the command line (collect, pretrain, pool, train, evaluate, adapt)
with what it is about; its other keys are settings. Every phase has a folder of its own under the run's; `{train_hop}`
in a setting stands for the folder of the phase of that name (its verb and what it is about, or its `name`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omg import config as configuration
from omg.stages import Run, Stage, one_by_one
from omg.utils.logging import say
from omg.utils.settings import UserError, choose, nearest

OF_A_MODEL = ("evaluate", "adapt")
"""Verbs that take an earlier phase's model."""
VERBS = ("collect", "pool", "pretrain", "train", *OF_A_MODEL)
KEYS = ("env_config", "settings", "phases")


def run_phases(name: str, folder: Path, run: Run) -> int:
    """Carries out what is missing of a list of phases."""
    plan = read(name)
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "phases.json"
    if kept.exists() and json.loads(kept.read_text()) != plan:
        raise UserError(f"{folder} holds a run of other phases: choose another --run_dir.")
    stages = stages_of(plan, folder)
    kept.write_text(json.dumps(plan, indent=1))
    try:
        status = one_by_one(stages, run)
    except KeyboardInterrupt:
        status = 130
    if status:
        say(f"stopped. To go on from here: omg phases {name} --run_dir={folder}")
    return status


def read(name: str) -> dict[str, Any]:
    """A shipped list of phases by its name, or anybody's by its path."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else choose(configuration.available("phases"), name, "phases")
    plan = configuration.read_yaml(path)
    for key in plan:
        if key not in KEYS:
            raise UserError(f"unknown key {key!r} in {path}.{nearest(key, list(KEYS))}")
    if not isinstance(plan.get("phases"), list) or not plan["phases"]:
        raise UserError(f"{path} lists no phases.")
    if not isinstance(plan.get("settings", {}), dict):
        raise UserError(f"settings in {path} are not key: value.")
    return plan


def stages_of(plan: Mapping[str, Any], folder: Path) -> list[Stage]:
    folders: dict[str, Path] = {}
    stages = []
    for i, phase in enumerate(plan["phases"]):
        if not isinstance(phase, dict) or not phase:
            raise UserError(f"phase {i + 1} is not a mapping: it starts with a verb, as in 'train: ppo'.")
        (verb, about), *rest = phase.items()
        if verb not in VERBS:
            raise UserError(
                f"phase {i + 1} starts with {verb!r}; it must be one of {', '.join(VERBS)}.{nearest(str(verb), VERBS)}"
            )
        settings = {**plan.get("settings", {}), **dict(rest)}
        title = str(settings.pop("name", f"{verb}_{about}"))
        if title in folders:
            raise UserError(f"two phases are called {title}: give one a name of its own (name: …).")
        home = folder / f"{i + 1}_{title}"
        words = [verb]
        if verb in OF_A_MODEL:
            words.append(f"--checkpoint_path={choose(folders, str(about), 'earlier phase')}")
        else:
            words.append(f"--env-config={plan.get('env_config', configuration.DEFAULT_ENV)}")
            words.append(f"--local_results_path={folder}")
            words.append(
                f"--pool={about}" if verb == "collect" else f"--pool={home}" if verb == "pool" else f"--config={about}"
            )
        if verb != "pool":
            words.append(f"--run_dir={home}")
        words += [f"--{key}={_filled(value, folders)}" for key, value in settings.items()]
        folders[title] = home
        mark = home / "summary.json" if verb in ("train", *OF_A_MODEL) else folder / f"{home.name}.done"
        stages.append(Stage(title, words, mark))
    return stages


def _filled(value: Any, folders: Mapping[str, Path]) -> str:
    """A setting's value, with the folders of earlier phases in place of their names."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        return value.format_map({name: str(path) for name, path in folders.items()})
    except (KeyError, IndexError, ValueError) as error:
        raise UserError(
            f"{value!r} speaks of a phase that is not there before it; so far there are {', '.join(folders) or 'none'}."
        ) from error
