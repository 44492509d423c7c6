"""`omg phases NAME`: a run as a list of phases in YAML. Who plays, what learns and for how long is data, not code.

A phase is a mapping whose first key is a verb of the command line (collect, pretrain, pool, train, evaluate, adapt)
with what it is about; its other keys are settings, and `with` holds more of them, for what several phases share (YAML's
&name and *name). Every phase has a folder of its own under the run's; `{train_hop}`
in a setting stands for the folder of the phase of that name (its verb and what it is about, or its `name`). `pretrain:
vae` is HOP+'s; `evaluate` and `adapt` alone are about what was trained last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omg import config as configuration
from omg.parts import known_keys
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
    stages = stages_of(plan, folder)
    check(stages)
    folder.mkdir(parents=True, exist_ok=True)
    kept, now = folder / "phases.json", {stage.title: list(stage.words) for stage in stages}
    begun = _begun(kept)
    if changed := [title for title, words in begun.items() if now.get(title) != words]:
        raise UserError(f"{folder} holds phases that were done otherwise ({changed[0]}): choose another --run_dir.")
    kept.write_text(json.dumps(now, indent=1))
    try:
        status = one_by_one(stages, run)
    except KeyboardInterrupt:
        status = 130
    if status:
        say(f"stopped. To go on from here: omg phases {name} --run_dir={folder}")
    return status


def check(stages: list[Stage]) -> None:
    """What is wrong with a later phase is said before an earlier one has run for hours."""
    keys = known_keys()
    for stage in stages:
        command = configuration.parse(stage.words)
        try:
            if command.verb in OF_A_MODEL:
                configuration.override(configuration.load(configuration.parse(["train"]), keys), command, keys)
            else:
                configuration.load(command, keys)
        except UserError as error:
            raise UserError(f"in phase {stage.title}: {error}") from error


def _begun(kept: Path) -> dict[str, list[str]]:
    """What was asked for in those earlier phases that have left something."""
    if not kept.exists():
        return {}
    try:
        earlier = json.loads(kept.read_text())
        words = {str(title): [str(word) for word in of] for title, of in earlier.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{kept} is damaged: remove it, or choose another --run_dir.") from error
    homes = {title: re.compile(rf"\d+_{re.escape(title)}(\.done)?") for title in words}
    there = [path.name for path in kept.parent.iterdir()]
    return {title: of for title, of in words.items() if any(homes[title].fullmatch(name) for name in there)}


def read(name: str) -> dict[str, Any]:
    """A shipped list of phases by its name, or anybody's by its path."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else choose(configuration.available("phases"), name, "phases")
    plan = configuration.read_yaml(path)
    for key in map(str, plan):
        if key not in KEYS:
            raise UserError(f"unknown key {key!r} in {path}.{nearest(key, list(KEYS))}")
    if not isinstance(plan.get("phases"), list) or not plan["phases"]:
        raise UserError(f"{path} lists no phases.")
    if not isinstance(plan.get("settings", {}), dict):
        raise UserError(f"settings in {path} are not key: value.")
    return plan


def stages_of(plan: Mapping[str, Any], folder: Path) -> list[Stage]:
    folders: dict[str, Path] = {}
    stages: list[Stage] = []
    trained: str | None = None
    for i, phase in enumerate(plan["phases"]):
        phase = {phase: None} if phase in OF_A_MODEL else phase
        if not isinstance(phase, dict) or not phase:
            raise UserError(f"phase {i + 1} is not a mapping: it starts with a verb, as in 'train: ppo'.")
        (verb, about), *rest = phase.items()
        if verb not in VERBS:
            raise UserError(
                f"phase {i + 1} starts with {verb!r}; it must be one of {', '.join(VERBS)}.{nearest(str(verb), VERBS)}"
            )
        own = dict(rest)
        shared = own.pop("with", {})
        if not isinstance(shared, dict):
            raise UserError(f"'with' in phase {i + 1} is not a mapping of settings.")
        settings = {**plan.get("settings", {}), **shared, **own}
        if verb == "pretrain" and about == "vae":
            about = "hop_plus"
        title = str(settings.pop("name", f"{verb}_{about or trained}"))
        if title in folders:
            raise UserError(f"two phases are called {title}: give one a name of its own (name: …).")
        home = folder / f"{i + 1}_{title}"
        words = [verb]
        if verb in OF_A_MODEL:
            about = trained if about is None else about
            if about is None:
                raise UserError(f"phase {i + 1} ({verb}) comes before anything is trained.")
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
        trained = title if verb == "train" else trained
        mark = home / "summary.json" if verb in ("train", *OF_A_MODEL) else folder / f"{home.name}.done"
        stages.append(Stage(title, words, mark))
    return stages


def _filled(value: Any, folders: Mapping[str, Path]) -> str:
    """A setting's value, with the folders of earlier phases in place of their names."""
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    try:
        return value.format_map({name: str(path) for name, path in folders.items()})
    except (KeyError, IndexError, ValueError) as error:
        raise UserError(
            f"{value!r} speaks of a phase that is not there before it; so far there are {', '.join(folders) or 'none'}."
        ) from error
