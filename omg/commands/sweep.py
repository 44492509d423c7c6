"""`omg sweep`: trains with several values of settings, and compares them."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from omg import config as configuration
from omg.build import make_env
from omg.commands.stages import ENGINE, Plan, Stage, check, engine_of, run_plan
from omg.config import Command, value_of
from omg.evaluation import figures
from omg.training.settings import RunSettings
from omg.utils.files import check_writable, make_folder, write_text
from omg.utils.jobs import STATE, STOPPED, Engine
from omg.utils.logging import console, say
from omg.utils.plugins import load_plugins
from omg.utils.settings import UserError, convert

SUMMARY = """\
Trains with several values of settings: every combination of a grid, random values from ranges, or values that Optuna
chooses. All seeds of a trial run in one program (--seeds). Finished trials are not repeated: the same command continues
a sweep that was stopped. Writes sweep.csv, sweep.png, and a run folder for every trial.

options (besides all settings of omg train):
  --grid=lr=0.001,0.0005   values of a setting; may be given several times, and then all combinations are tried
  --range=lr=0.0001..0.01  random values of a setting (uniform in the logarithm if the ends differ by ten times or more)
  --trials=8               how many random values, or trials of Optuna
  --optuna                 Optuna (TPE) chooses among the grids and ranges
  --metric=NAME            the number of summary.json that is compared; default: the test return (with partners: the
                           focal agent's)
  --minimise               the smallest value is the best one
  --jobs=1                 how many trials run at once, each in its own process with a log file
  --engine=ray             on a Ray cluster (--ray_address=auto, --gpus_per_run=0.25)
  --run_dir=DIR            folder of all results; default: results/sweep_<config>_<environment>"""
EXAMPLES = [
    "omg sweep --config=iql --env-config=two_step --grid=lr=0.001,0.0005 --grid=gamma=0.9,0.99 --seeds=3",
    "omg sweep --config=ppo --env-config=foraging --range=lr=0.0001..0.01 --range=gamma=0.9..0.99 --trials=8 --jobs=2",
    "omg sweep --config=ppo --env-config=foraging --range=lr=0.0001..0.01 --optuna --trials=20",
]
COUNTED = ("t_env", "episodes", "updates", "wall_seconds", "env_steps_per_second")
"""Numbers of summary.json that are not of a test."""
OPTIONS = ("grid", "range", "trials", "optuna", "metric", "minimise", *ENGINE, "run_dir")


class Space(NamedTuple):
    """What is tried: lists of values, and ranges."""

    grid: dict[str, list[Any]]
    ranges: dict[str, tuple[float, float]]


LONGEST = 180
"""Characters of a trial's folder before its name is cut and told apart by a checksum."""
SAMPLES = 50
"""Random samples for every value that is wanted, at most."""


def settings(command: Command) -> list[type]:
    return [RunSettings]


def main(command: Command) -> int:
    load_plugins(command.imports)
    space = space_of(command)
    trials = convert(command.get("trials", 8), int, "trials")
    if trials < 1:
        raise UserError(f"trials is {trials}; it must be 1 or more.")
    optuna, engine = bool(command.get("optuna", False)), engine_of(command)
    if optuna and importlib.util.find_spec("optuna") is None:
        raise UserError("--optuna needs Optuna: pip install optuna.")
    base = replace(command, verb="train", updates=[(k, v) for k, v in command.updates if k not in OPTIONS])
    config = configuration.load(base)
    label = f"sweep_{config['name']}_{configuration.env_label(config)}"
    folder = check_writable(Path(str(command.get("run_dir") or Path(str(config["local_results_path"])) / label)))
    seed = convert(config["seed"], int, "seed")
    check_metric(command)
    if optuna:
        if engine.ray and command.get("jobs") is None:
            raise UserError(
                "with --optuna, say how many trials run at once (--jobs): later ones learn from earlier ones."
            )
        stages, status = with_optuna(base, command, space, trials, engine, folder, seed)
    else:
        stages = [trial_of(base, values, folder) for values in combinations(space, trials, seed)]
        status = run_trials(stages, command, folder, engine)
    finished = [stage for stage in stages if (stage.home / "summary.json").exists()]
    if finished:
        report(folder, finished, [*space.grid, *space.ranges], command)
    if status in STOPPED:
        say(f"stopped; finished trials: {len(finished)}. To continue: omg {' '.join(command.as_words())}")
        return status
    print(folder)
    return status


# --- what is tried


def space_of(command: Command) -> Space:
    """The values of `--grid` and `--range`, each `key=values`."""
    grid: dict[str, list[Any]] = {}
    ranges: dict[str, tuple[float, float]] = {}
    for option, text in command.updates:
        if option not in ("grid", "range"):
            continue
        key, equals, values = str(text).partition("=")
        if not equals or not key or not values:
            example = "--grid=lr=0.001,0.0005" if option == "grid" else "--range=lr=0.0001..0.01"
            raise UserError(f"--{option} takes a setting and its values, as in {example}; not {text!r}.")
        if key in grid or key in ranges or key in dict(command.updates):
            raise UserError(f"{key} is given twice.")
        if option == "grid":
            grid[key] = [value_of(value) for value in values.split(",")]
            continue
        ends = [value_of(end) for end in values.split("..")]
        if len(ends) != 2 or not all(isinstance(e, (int, float)) and math.isfinite(e) for e in ends):
            raise UserError(f"--range takes two ends, as in --range=lr=0.0001..0.01; not {text!r}.")
        if not ends[0] < ends[1]:
            raise UserError(f"--range={text}: the first end must be the smaller one.")
        ranges[key] = (ends[0], ends[1])
    if not grid and not ranges:
        raise UserError("sweep needs values to try: --grid=lr=0.001,0.0005 or --range=lr=0.0001..0.01.")
    return Space(grid, ranges)


def combinations(space: Space, trials: int, seed: int) -> Iterator[dict[str, Any]]:
    """Every combination of the grid, each with `trials` different random values from the ranges.

    Ranges of few whole numbers may have fewer different values than that.
    """
    chance = random.Random(seed)
    for values in itertools.product(*space.grid.values()):
        sampled: dict[tuple[float, ...], None] = {}
        for _ in range(SAMPLES * trials if space.ranges else 1):
            sampled.setdefault(tuple(_sample(ends, chance.random()) for ends in space.ranges.values()))
            if len(sampled) == trials:
                break
        for one in sampled:
            yield dict(zip([*space.grid, *space.ranges], [*values, *one], strict=True))


def logarithmic(low: float, high: float) -> bool:
    return low > 0 and high >= 10 * low


def _sample(ends: tuple[float, float], u: float) -> float:
    low, high = ends
    return _tidy(low * (high / low) ** u if logarithmic(low, high) else low + (high - low) * u, ends)


def _tidy(value: float, ends: tuple[float, float]) -> float:
    """Six digits; a whole number if both ends are whole."""
    return round(value) if all(isinstance(end, int) for end in ends) else float(f"{value:.6g}")


# --- trials


def trial_of(base: Command, values: Mapping[str, Any], folder: Path) -> Stage:
    """A run with these values, in a folder that is named after them."""
    title = "__".join(f"{key}_{_plain(value)}" for key, value in values.items())
    if len(title) > LONGEST:
        title = f"{title[:LONGEST]}_{hashlib.sha256(title.encode()).hexdigest()[:8]}"
    home = folder / title
    updates = [*base.updates, *values.items(), ("run_dir", str(home)), ("resume", True)]
    return Stage(title, replace(base, updates=updates), home, ())


def _plain(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return "".join(c if c.isalnum() or c in ".-+" else "_" for c in text).lstrip(".") or "empty"


def run_trials(stages: Sequence[Stage], command: Command, folder: Path, engine: Engine) -> int:
    if len({stage.title for stage in stages}) < len(stages):
        raise UserError("two trials have the same values: name each value once.")
    plan = Plan(folder.name, folder, list(stages))
    check(plan, command)
    for trained in stages:
        make_env(configuration.load(trained.command))
    forget_removed(folder)
    # Trials of a larger sweep in the same folder stay.
    return run_plan(plan, engine, whole=False)


def forget_removed(folder: Path) -> None:
    """A trial whose results were removed by hand runs again."""
    path = folder / STATE
    if path.exists():
        state = json.loads(path.read_text())
        kept = {title: entry for title, entry in state.items() if (folder / title / "summary.json").exists()}
        write_text(path, json.dumps(kept, indent=1))


def with_optuna(
    base: Command, command: Command, space: Space, trials: int, engine: Engine, folder: Path, seed: int
) -> tuple[list[Stage], int]:
    """Asks for as many trials as run at once, and tells their results. A continued sweep asks and tells the same.

    Returns all trials, and the worst status.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    direction = optuna.study.StudyDirection(1 if command.get("minimise") else 2)
    study = optuna.create_study(direction=direction, sampler=optuna.samplers.TPESampler(seed=seed))
    every: list[Stage] = []
    worst = 0
    for start in range(0, trials, engine.at_once):
        asked = [study.ask() for _ in range(min(engine.at_once, trials - start))]
        stages = []
        for trial in asked:
            values = {key: trial.suggest_categorical(key, options) for key, options in space.grid.items()}
            for key, (low, high) in space.ranges.items():
                logs = logarithmic(low, high)
                if isinstance(low, int) and isinstance(high, int):
                    values[key] = trial.suggest_int(key, low, high, log=logs)
                else:
                    values[key] = _tidy(trial.suggest_float(key, low, high, log=logs), (low, high))
            stages.append(trial_of(base, values, folder))
        different = {stage.title: stage for stage in stages}
        worst = max(worst, run_trials(list(different.values()), command, folder, engine))
        every += [stage for title, stage in different.items() if title not in {s.title for s in every}]
        if worst in STOPPED:
            return every, worst
        for trial, stage in zip(asked, stages, strict=True):
            there = (stage.home / "summary.json").exists()
            mean = result_of(stage.home, command)[0] if there else math.nan
            if math.isfinite(mean):
                study.tell(trial, mean)
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return every, worst


# --- results


def result_of(home: Path, command: Command) -> tuple[float, list[float]]:
    """The mean over seeds, and every seed."""
    summary = json.loads((home / "summary.json").read_text())
    metric = metric_of(summary, command)
    each = [seed.get(metric, summary[metric]) for seed in summary.get("seeds") or [summary]]
    values = [math.nan if value is None else float(value) for value in each]
    return sum(values) / len(values), values


def check_metric(command: Command) -> None:
    """A metric that no run will have is refused before the first one."""
    metric = command.get("metric")
    if metric is not None and not str(metric).startswith("test_") and metric not in COUNTED:
        raise UserError(
            f"--metric is test_return_mean, test_focal_return_mean, … or {', '.join(COUNTED)}; not {metric!r}."
        )


def metric_of(summary: Mapping[str, Any], command: Command) -> str:
    known = [name for name, value in summary.items() if isinstance(value, (int, float))]
    metric = command.get("metric")
    if metric is None:
        return "test_focal_return_mean" if "test_focal_return_mean" in known else "test_return_mean"
    if metric not in known:
        raise UserError(f"--metric is a number of summary.json: {', '.join(known)}; not {metric!r}.")
    return str(metric)


def report(folder: Path, finished: Sequence[Stage], varied: Sequence[str], command: Command) -> None:
    """The table, best first, as sweep.csv and on the terminal; a figure with every seed."""
    from rich.table import Table

    rows = []
    for stage in finished:
        config = configuration.read_yaml(stage.home / "config.yaml")
        mean, each = result_of(stage.home, command)
        rows.append(
            {"trial": stage.title, **{key: _setting(config, key) for key in varied}, "mean": mean, "each": each}
        )
    rows.sort(key=lambda row: (math.isnan(row["mean"]), row["mean"] if command.get("minimise") else -row["mean"]))
    metric = metric_of(json.loads((folder / rows[0]["trial"] / "summary.json").read_text()), command)
    lines: list[list[Any]] = [["trial", *varied, metric, "lowest seed", "highest seed", "seeds"]]
    for row in rows:
        each = row["each"]
        lines.append([row["trial"], *(row[key] for key in varied), row["mean"], min(each), max(each), len(each)])
    with (make_folder(folder) / "sweep.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    write_text(
        folder / "sweep.json", json.dumps({"metric": metric, "best": rows[0]["trial"], "trials": rows}, indent=1)
    )
    draw(folder, rows, metric)
    table = Table(*(str(name).replace("_", " ") for name in lines[0][1:]))
    for line in lines[1:]:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in line[1:]))
    console.print(table, markup=False)
    best = " ".join(f"--{key}={rows[0][key]}" for key in varied)
    say(f"best of {len(rows)}: {best} ({metric} {rows[0]['mean']:.4g}).")


def _setting(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value[name]
    return value


def draw(folder: Path, rows: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Trials from the best to the worst: the mean, and a dot for every seed."""
    shown = rows[:30]
    figure, axes = figures.pyplot().subplots(figsize=(7, 1 + 0.32 * len(shown)), layout="constrained")
    places = range(len(shown), 0, -1)
    for place, row in zip(places, shown, strict=True):
        axes.scatter(row["each"], [place] * len(row["each"]), s=16, color=figures.COLOURS[0], alpha=0.45)
    axes.scatter([row["mean"] for row in shown], list(places), marker="|", s=160, color=figures.COLOURS[1])
    axes.set_yticks(list(places), [row["trial"].replace("__", "  ") for row in shown], fontsize=7)
    figures.plain(axes, metric.replace("_", " "), "", f"{folder.name}: every seed, and the mean")
    figures.save(figure, folder / "sweep.png")
