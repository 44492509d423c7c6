"""`omg workflow NAME`: runs a list of commands (stages) from a YAML file, such as a whole comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omg import config as configuration
from omg.commands.stages import ENGINE, Plan, check, check_trust, engine_of, plan_of, run_plan
from omg.config import Command
from omg.utils.files import check_writable
from omg.utils.jobs import Engine
from omg.utils.logging import say
from omg.utils.plugins import load_plugins
from omg.utils.settings import UserError, nearest

SUMMARY = """\
Runs a list of stages from a YAML file (omg list shows the shipped ones; a path names your own). Finished stages are not
repeated: the same command continues a workflow that was stopped.

options:
  --budget=paper           amount of training and testing: demo, small, paper or a number of steps (only for workflows
                           with budgets: foraging, predator_prey, battle)
  --maps=[8m]              workflow battle: the maps to run, one after the other
  --jobs=1                 number of independent stages that run at once, each in its own process with a log file
  --engine=ray             on a Ray cluster (--ray_address=auto, --gpus_per_run=0.25)
  --run_dir=DIR            folder of all results; default: results/workflow_<name>"""
EXAMPLES = [
    "omg workflow foraging --budget=small --jobs=2",
    "omg workflow battle --maps=[8m,3s_vs_5z] --budget=paper",
    "omg workflow hop_plus --run_dir=results/hop_plus",
]
KEYS = ("env_config", "settings", "variables", "stages", "budgets", "variants", "envs")


def settings(command: Command) -> list[type]:
    return []


def main(command: Command) -> int:
    if len(command.words) != 1:
        raise UserError("workflow takes the name of a workflow or a YAML file: omg workflow foraging.")
    load_plugins(command.imports)
    name = command.words[0]
    content = read(name)
    check_trust(content, command)
    variants = content.get("variants") or {}
    options = {"run_dir", "local_results_path", *ENGINE, *(["budget"] if content.get("budgets") else [])}
    options |= {variants["option"]} if variants else set()
    for key, _ in command.updates:
        if key not in options:
            raise UserError(
                f"workflow {name} takes {', '.join(f'--{o}' for o in sorted(options))}; other settings are in its "
                f"YAML, so --{key} has no effect here."
            )
    engine = engine_of(command)
    budget_name = str(command.get("budget", "paper")) if content.get("budgets") else None
    results = Path(str(command.get("local_results_path", "results")))
    label = f"workflow_{Path(name).stem}" + (f"_{budget_name}" if budget_name else "")
    folder = check_writable(Path(str(command.get("run_dir") or results / label)))
    chosen = command.get(variants["option"], variants["values"]) if variants else [None]
    if not isinstance(chosen, list) or not chosen:
        raise UserError(f"--{variants['option']} takes a list, as in --{variants['option']}={variants['values']}.")
    budget = budget_of(content, budget_name)
    plans = [plan_of(name, content, budget, folder, variant) for variant in chosen]
    for plan in plans:
        check(plan, command)
    return carry_out(plans, engine, folder, command)


def carry_out(plans: list[Plan], engine: Engine, folder: Path, command: Command) -> int:
    for plan in plans:
        if status := run_plan(plan, engine):
            say(f"stopped. To continue: omg {' '.join(command.as_words())}")
            return status
    print(folder)
    return 0


# --- from YAML to stages


def read(name: str) -> dict[str, Any]:
    """A shipped workflow by its name, or a file by its path."""
    content = configuration.inherited("workflows", name)
    for key in map(str, content):
        if key not in KEYS:
            raise UserError(f"unknown key {key!r} in workflow {name}.{nearest(key, list(KEYS))}")
    if not isinstance(content.get("stages"), list) or not content["stages"]:
        raise UserError(f"workflow {name} lists no stages.")
    for key in ("settings", "variables", "budgets", "variants"):
        if not isinstance(content.get(key) or {}, dict):
            raise UserError(f"{key} in workflow {name} are not key: value.")
    return content


def budget_of(content: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """The entries of a budget by its name, or the largest budget with another number of steps."""
    budgets = content.get("budgets") or {}
    if name is None:
        return {}
    if name.isdigit() and int(name) > 0 and budgets:
        largest = max(budgets.values(), key=lambda budget: budget.get("variables", {}).get("steps", 0))
        steps = {"steps": int(name), "pool_steps": max(int(0.4 * int(name)), 1)}
        return largest | {"variables": largest.get("variables", {}) | steps}
    if name not in budgets:
        if not budgets:
            raise UserError("this workflow has no budgets: leave --budget out.")
        raise UserError(f"--budget is one of {', '.join(budgets)}, or a number of steps, not {name!r}.")
    return dict(budgets[name])
