"""`omg benchmark`: scores of methods with unseen partners, on tasks where knowing the partner pays."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from omg import config as configuration
from omg.artifacts import open_pool
from omg.build import make_env
from omg.commands import stages
from omg.commands.stages import check_trust
from omg.config import Command
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import MultiAgentEnv
from omg.evaluation.encounters import Encounter
from omg.evaluation.figures import COLOURS, plain, pyplot, save
from omg.evaluation.scores import Bounds, probability_of_improvement, stratified
from omg.evaluation.statistics import Estimate
from omg.opponents import REGISTRY as scripted_REGISTRY
from omg.opponents.pool import Pool
from omg.opponents.scripted import name_of
from omg.opponents.seating import SPLITS_OF
from omg.utils.files import check_writable, make_folder, write_json
from omg.utils.logging import ProgressReport, console, say
from omg.utils.plugins import load_plugins
from omg.utils.settings import UserError, nearest

SUMMARY = """\
Trains methods with the training partners of a task and scores them with its unseen partners. A score is 0 for random
play and 1 for a best response, which is trained with that partner alone. The table also has the best scripted policy,
the oracle (trained with the unseen partners and given their identity) and, except with --budget=tiny, the blind learner
(the same without the identity): the oracle minus the blind learner is the task's value of knowing. The best scripted
policy is chosen by its scores with these partners. Finished stages are not repeated.

options:
  --methods=base,naive,liam,omg   which methods to train
  --budget=small                  tiny (minutes on two cores), small or paper
  --jobs=1                        number of stages that run at once, each in its own process with a log file
  --run_dir=DIR                   folder of all results; default: results/benchmark_<budget>"""
EXAMPLES = [
    "omg benchmark lbf_7x7 --budget=tiny --methods=base,liam",
    "omg benchmark lbf_7x7 --budget=paper --jobs=4",
]
METHODS = {"base": "ppo", "naive": "ppo_am", "liam": "ppo_liam", "omg": "ppo_omg"}
"""Method → configuration. All methods and bounds learn by PPO."""
BOUNDS = ("random", "scripted", "blind", "oracle", "best_response")
KEYS = ("env_config", "measure", "settings", "pool", "train", "budgets")
MEASURES = ("return", "focal_return", "battle_won", "soups")
VARIABLES = ("steps", "response_steps", "pool_steps", "seeds", "episodes")
LEARNER = "ppo"
LEAST = 0.05
"""A partner is left out if a best response gains less than this fraction of the largest gain."""


class Task(NamedTuple):
    """A task from its YAML file, with one of its budgets."""

    name: str
    content: dict[str, Any]
    budget: dict[str, Any]

    @property
    def measure(self) -> str:
        return str(self.content.get("measure", MEASURES[0]))


def settings(command: Command) -> list[type]:
    return []


def main(command: Command) -> int:
    known = configuration.available("tasks")
    if not command.words:
        raise UserError(f"benchmark takes tasks: omg benchmark lbf_7x7 … Known: {', '.join(known)}.")
    load_plugins(command.imports)
    if command.config or command.env_config or command.files:
        raise UserError("a task's settings are in its YAML file: leave out --config, --env-config and with.")
    options = ("methods", "budget", "jobs", "run_dir", "local_results_path")
    for key, _ in command.updates:
        if key not in options:
            raise UserError(f"benchmark takes {', '.join(f'--{o}' for o in options)}; --{key} has no effect here.")
    methods = methods_of(command.get("methods", list(METHODS)))
    jobs = stages.number_of_jobs(command)
    budget = str(command.get("budget", "small"))
    results = Path(str(command.get("local_results_path", "results")))
    folder = check_writable(Path(str(command.get("run_dir") or results / f"benchmark_{budget}")))
    tasks = [read(name, budget) for name in command.words]
    for task in tasks:
        check_trust(task.content, command)
    plans = [(task, plan_of(task, methods, folder / task.name)) for task in tasks]
    for _, plan in plans:
        stages.check(plan, command)
    path = folder / "benchmark.csv"
    rows = [row for row in read_rows(path) if row["task"] not in {task.name for task in tasks}]
    for task, plan in plans:
        if status := stages.run_plan(plan, jobs, whole=False):
            say(f"stopped. To continue: omg {' '.join(command.as_words())}")
            return status
        rows += score(task, plan.folder, methods)
        write_rows(path, rows)
    print(folder)
    return 0


def methods_of(value: Any) -> list[str]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(name in METHODS for name in names):
        raise UserError(f"--methods is a list of {', '.join(METHODS)}, as in --methods=base,liam; not {value!r}.")
    return list(dict.fromkeys(names))


def content_of(name: str) -> dict[str, Any]:
    """A task's YAML, with the keys that it leaves out from the task that it is `based_on`."""
    own = configuration.named("tasks", name)
    return {**(content_of(str(own.pop("based_on"))) if "based_on" in own else {}), **own}


def read(name: str, budget: str) -> Task:
    content = content_of(name)
    for key in map(str, content):
        if key not in KEYS:
            raise UserError(f"unknown key {key!r} in task {name}.{nearest(key, list(KEYS))}")
    for key in ("settings", "pool", "train", "budgets"):
        if not isinstance(content.get(key) or {}, dict):
            raise UserError(f"{key} in task {name} are not key: value.")
    budgets = content.get("budgets") or {}
    if budget not in budgets:
        raise UserError(f"--budget is one of {', '.join(budgets) or 'none'}, not {budget!r}.")
    env = content.get("env_config")
    variables = (budgets[budget] or {}).get("variables") or {}
    if not env or any(v not in variables for v in VARIABLES):
        raise UserError(f"task {name} needs env_config, and variables in each budget: {', '.join(VARIABLES)}.")
    if content.get("measure", MEASURES[0]) not in MEASURES:
        raise UserError(f"measure in task {name} is one of {', '.join(MEASURES)}.")
    if {*budgets[budget].get("skip", ())} - {"blind"}:
        raise UserError(f"task {name}: only blind may be skipped.")
    if "random" not in scripted_REGISTRY.get(name_of(configuration.named("envs", str(env))), {}):
        raise UserError(f"task {name}: {env} has no scripted policies; a task needs at least random play.")
    return Task(Path(name).stem, content, dict(budgets[budget]))


def plan_of(task: Task, methods: Sequence[str], folder: Path) -> stages.Plan:
    """The stages: partners, bounds, methods, and every trained agent with every partner."""
    shared = {"pool": "{pool}", "seeds": "{seeds}", "t_max": "{steps_per_seat}", **(task.content.get("train") or {})}
    unseen = shared | {"partners": "unseen"}
    response = unseen | {"seeds": 1, "one_partner_each": True, "t_max": "{response_steps_per_seat}"}
    listed: list[dict[str, Any]] = [
        {"pool": None, "t_max": "{pool_steps}", **(task.content.get("pool") or {})},
        {"train": LEARNER, "name": "best_response", "test_nepisode": "{episodes}", "with": response},
        {"train": f"{LEARNER}_oracle", "name": "oracle", "with": unseen},
        {"train": LEARNER, "name": "blind", "with": unseen},
    ]
    if "omg" in methods:
        listed.append({"pretrain": METHODS["omg"], "name": "vae", "pool": "{pool}"})
    for method in methods:
        own = {"vae_path": "{vae}"} if method == "omg" else {}
        listed.append({"train": METHODS[method], "name": method, "with": shared, **own})
    for trained in ("oracle", "blind", *methods):
        test = {"pool": "{pool}", "test_nepisode": "{episodes}"}
        listed.append({"evaluate": trained, "name": f"{trained}_partners", "with": test})
    content = {"env_config": task.content["env_config"], "settings": task.content.get("settings"), "stages": listed}
    return stages.plan_of(task.name, content, task.budget, folder, None)


# --- scores


def score(task: Task, folder: Path, methods: Sequence[str]) -> list[dict[str, Any]]:
    """Every method and bound with every unseen partner; prints the table and draws the figure."""
    config = configuration.read_yaml(folder / "best_response" / "config.yaml")
    env, pool = make_env(config), open_pool(config)
    ids = pool.ids(SPLITS_OF["unseen"])
    names = [pool.members[i].name for i in ids]
    episodes = int(task.budget["variables"]["episodes"])
    best = best_returns(folder / "best_response" / "summary.json", task.measure, len(ids))
    scripted = scripted_returns(env, pool, ids, episodes, task.measure)
    bounds = Bounds(scripted["random"], best)
    kept = bounds.usable(LEAST)
    if not kept.any():
        raise UserError(f"{task.name}: no best response earns more than random play; it needs a larger budget.")
    if not kept.all():
        left_out = ", ".join(n for n, k in zip(names, kept, strict=True) if not k)
        say(f"left out, because a best response gains next to nothing with them: {left_out}.", "yellow")
    names = [name for name, k in zip(names, kept, strict=True) if k]
    bounds, scripted = Bounds(*(x[kept] for x in bounds)), {p: returns[kept] for p, returns in scripted.items()}
    strongest = max(scripted, key=lambda p: float(bounds.score(scripted[p]).mean()))
    found = {"random": scripted["random"][None], "scripted": scripted[strongest][None]}
    for name in ("blind", "oracle", *methods):
        if (folder / f"{name}_partners").exists():
            found[name] = returns_of(folder / f"{name}_partners" / "opponents.csv", names, task.measure)
    found["best_response"] = bounds.best[None]
    scores = {name: bounds.score(returns) for name, returns in found.items()}
    estimates = {name: stratified(s) for name, s in scores.items()}
    order = [*(b for b in BOUNDS if b in found), *methods]
    show(task, order, estimates, scores, strongest, len(names))
    draw(folder / "scores.png", task, order, estimates)
    knowing = estimates["oracle"].mean - estimates["blind"].mean if "blind" in estimates else None
    write_json(folder / "scores.json", {"value_of_knowing": knowing, **{n: e._asdict() for n, e in estimates.items()}})
    return [
        {"task": task.name, "method": name, "partner": partner, "seed": seed, "return": returns[seed, i], "score": s}
        for name, returns in found.items()
        for i, partner in enumerate(names)
        for seed, s in enumerate(scores[name][:, i])
    ]


def best_returns(path: Path, measure: str, partners: int) -> np.ndarray:
    """What each best response earned with its partner in the last test of its training."""
    content = json.loads(path.read_text())
    key = f"test_{measure}_mean"
    each = content.get(f"{key}_seeds") or [content[key]]
    if len(each) != partners:
        raise UserError(f"{path.parent} has {len(each)} best responses to {partners} partners: remove the folder.")
    return np.array(each)


def scripted_returns(
    env: MultiAgentEnv, pool: Pool, ids: Sequence[int], episodes: int, measure: str
) -> dict[str, np.ndarray]:
    """Every scripted policy of the environment in the agent's seat, with each of these partners."""
    policies = {name: make(env.spec) for name, make in scripted_REGISTRY[env.spec.name].items()}
    mac = ScriptedMAC(env.spec, *policies.values())
    found: dict[str, dict[int, float]] = {name: {} for name in policies}
    groups = pool.groups(env.spec, ids)
    with ProgressReport("scripted policies", len(groups) * len(policies), unit="groups") as progress:
        for g, group in enumerate(groups):
            encounter = Encounter(env, mac, group, episodes)
            for i, name in enumerate(policies):
                met = encounter.play(jnp.int32(i), jax.random.key(17))
                found[name] |= {result.member: result.numbers[measure] for result in met}
                progress.update(g * len(policies) + i + 1)
    return {name: np.array([by_member[i] for i in ids]) for name, by_member in found.items()}


def returns_of(path: Path, partners: Sequence[str], measure: str) -> np.ndarray:
    """`[seed, partner]` from the table that `omg evaluate` wrote."""
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["member"] in partners]
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    values = {(row["seed"], row["member"]): float(row[measure]) for row in rows}
    return np.array([[values[seed, partner] for partner in partners] for seed in seeds])


def show(
    task: Task,
    order: Sequence[str],
    estimates: Mapping[str, Estimate],
    scores: Mapping[str, np.ndarray],
    strongest: str,
    partners: int,
) -> None:
    seeds = max(e.n for e in estimates.values())
    interval = f"[95 % interval, {seeds} seeds]" if seeds > 1 else "(one seed)"
    table = Table(title=f"{task.name}: score with {partners} unseen partners")
    for column in ("", f"interquartile mean {interval}", "mean", "better than base"):
        table.add_column(column)
    for name in order:
        e = estimates[name]
        shown = f"{e.iqm:.3f}" + (f" [{e.low:.3f}, {e.high:.3f}]" if e.n > 1 else "")
        improves = ""
        if "base" in scores and name in METHODS and name != "base":
            p = probability_of_improvement(scores[name], scores["base"])
            improves = f"{p.mean:.2f}" + (f" [{p.low:.2f}, {p.high:.2f}]" if p.n > 1 else "")
        label = f"scripted ({strongest})" if name == "scripted" else name
        table.add_row(label, shown, f"{e.mean:.3f}", improves)
    console.print(table)
    if estimates["scripted"].mean > 1:
        say(
            f"The best responses are below the scripted policy {strongest}: they need more training, and scores "
            "say little. Take a larger --budget.",
            "yellow",
        )
    if "blind" in estimates:
        knowing = estimates["oracle"].mean - estimates["blind"].mean
        say(f"value of knowing the partner (oracle minus blind): {knowing:.3f}")


def draw(path: Path, task: Task, order: Sequence[str], estimates: Mapping[str, Estimate]) -> None:
    figure, axes = pyplot().subplots(figsize=(6, 0.6 + 0.35 * len(order)), layout="constrained")
    for y, name in enumerate(order):
        e = estimates[name]
        errors = [[e.iqm - e.low], [e.high - e.iqm]] if e.n > 1 else None
        axes.barh(y, e.iqm, xerr=errors, capsize=2, color=COLOURS[5] if name in BOUNDS else COLOURS[0])
    axes.set_yticks(range(len(order)), order)
    axes.invert_yaxis()
    plain(axes, "score (0: random play, 1: best response)", "", f"{task.name}, unseen partners")
    save(figure, path)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows that earlier calls wrote, of other tasks."""
    if not path.exists():
        return []
    with path.open() as file:
        return [{**row, "return": float(row["return"]), "score": float(row["score"])} for row in csv.DictReader(file)]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    make_folder(path.parent)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["task", "method", "partner", "seed", "return", "score"])
        writer.writeheader()
        writer.writerows({**row, "return": f"{row['return']:.6g}", "score": f"{row['score']:.6g}"} for row in rows)
